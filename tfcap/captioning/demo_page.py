"""Serves the page of `tfcap demo` on the loopback address: captions of pictures in a browser.

A request has the form of TF Serving's REST interface: `instances`, a list of `{"image_bytes":
{"b64": ...}, "seed": ...}`. It may have the keys `decoding`, as the flag `--decoding`, and
`attention`. An answer has `predictions`, in the order of the instances. A request by columns
(`inputs`) is answered by columns (`outputs`), as TF Serving does.

A request must name this machine as its host. This check stops DNS rebinding: a web page can make
its domain name point to this machine, but its requests then have that domain as their host. A POST
must come from the page itself, or from a program that is not a browser.

Letters: K captions of a picture, T' words of a caption, R regions.
"""

import base64
import binascii
import dataclasses
import functools
import json
import logging
import math
import re
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from PIL import Image
from werkzeug import serving
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Request, Response

from tfcap.captioning import Caption, Failure, ImageCaptioner
from tfcap.decoding import options
from tfcap.files import json_text
from tfcap.visualize import figures, report
from tfcap.visualize.attended import KINDS, Kind

MOST_BYTES = 20_000_000  # of one picture
_MOST_BODY = 4 * MOST_BYTES // 3 + 100_000  # base64 takes four letters for three bytes
_MOST_INSTANCES = 16
_MOST_ATTENDED = 10  # captions of a picture whose attention is computed
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.I)
_log = logging.getLogger(__name__)
_HEADERS = {
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src 'self' blob: data:",
    "X-Content-Type-Options": "nosniff",
}


class RequestError(ValueError):
    """A request that the page does not fulfil. The client gets the status and the reason.

    Args:
      status: the HTTP status of the answer, such as 400.
      reason: a sentence that says what is wrong and what to do.
    """

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


class Model:
    """A captioner with the name that the page shows for it.

    Args:
      name: the name on the page.
      captioner: the captioner, which captions the pictures of requests.
    """

    def __init__(self, name: str, captioner: ImageCaptioner):
        self.name = name
        self.captioner = captioner
        # A changed decoding has graphs of its own: those of the last few are kept.
        self._decoded = functools.lru_cache(8)(captioner.with_decoding)

    def about(self) -> dict[str, Any]:
        """Returns a description of the model as JSON values, which the page shows.

        Its keys are `name`; `about`, a line of text; `exported`, True for an export; `clips`,
        True if the model reads clips; `samples`, True if it samples captions; and `decoding`, a
        dictionary of the decoding options, None for a SavedModel.
        """
        runtime = self.captioner.runtime
        return {
            "name": self.name,
            "about": str(runtime),
            "exported": runtime.exported,
            "clips": runtime.reads_clips,
            "samples": runtime.samples,
            "decoding": self.captioner.decoding,
        }

    def predict(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Captions the pictures of a request. The caller must run one request at a time.

        Args:
          request: a request in one of the two forms of TF Serving's REST interface: with the key
            `instances`, a list of `{"image_bytes": {"b64": ...}, "seed": ...}`, one for each
            picture; or with the key `inputs`, a dictionary with the keys `image_bytes` and `seed`,
            each with the list of the values of all pictures. `seed` may be left out. Two more keys
            may be in the request: `decoding` (text, as for `tfcap.load`) and `attention`
            (`attention` or `contribution`, see `ImageCaptioner.stream`). An export ignores
            `attention`.

        Returns:
          For `instances`, `{"predictions": [...]}` with a dictionary for each picture. Its keys
          `captions` (best first), `scores`, `words` and `log_probs` each have a list with an entry
          for each caption, and so has `confidences` of a calibrated model. If the request has
          `attention`, the dictionary also has the key `attention`, the attention weights or
          contributions for the best captions, and what a figure needs: `boxes`, `tiles` and, for
          clips, `picture`. For `inputs`, `{"outputs": {...}}` with the same keys, each with a list
          over the pictures.

        Raises:
          RequestError: the request is wrong, or a picture cannot be read.
        """
        by_columns = "instances" not in request and "inputs" in request
        instances = _rows(request["inputs"]) if by_columns else request.get("instances")
        if not isinstance(instances, list) or not 1 <= len(instances) <= _MOST_INSTANCES:
            raise RequestError(
                400, f"A request must have 1 to {_MOST_INSTANCES} instances, one for each picture."
            )
        pictures = [(_picture(instance), _seed(instance)) for instance in instances]
        kind = request.get("attention") or None
        changes = request.get("decoding") or ""
        if kind not in (None, *KINDS):
            raise RequestError(400, f"`attention` must be {' or '.join(KINDS)}, or be left out.")
        if not isinstance(changes, str):
            raise RequestError(400, "`decoding` must be text, such as beam=3,length_power=1.0.")
        try:
            captioner = self._decoded(changes) if changes else self.captioner
        except ValueError as error:
            raise RequestError(400, str(error)) from None  # it names the key
        if kind and not _attends(captioner):
            kind = None
        predictions = []
        for content, seed in pictures:
            [result] = captioner.stream(
                [content], attention=kind, attention_captions=_MOST_ATTENDED, seed=seed
            )
            if isinstance(result, Failure):
                raise RequestError(422, f"{result.reason[0].upper()}{result.reason[1:]}")
            predictions.append(_prediction(result, captioner.runtime.reads_clips))
        if by_columns:
            return {"outputs": {k: [one.get(k) for one in predictions] for k in predictions[0]}}
        return {"predictions": predictions}


def _attends(captioner: ImageCaptioner) -> bool:
    """True if a captioner can compute attention; the run of the packaged one may need an extra."""
    try:
        return bool(captioner.runtime.trained)
    except ValueError as error:
        if not captioner.runtime.exported:
            _log.warning("note: the page shows no attention: %s", error)
        return False


def _rows(inputs: Any) -> list[Any]:
    """Returns the instances of a request by columns, of which each may be a list or one value."""
    columns = inputs if isinstance(inputs, dict) and "b64" not in inputs else {"": inputs}
    lists = [value if isinstance(value, list) else [value] for value in columns.values()]
    if len({*map(len, lists)}) != 1:
        raise RequestError(
            400, "The lists in `inputs` must have the same length: one value for each picture."
        )
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]
    return [row.get("", row) for row in rows]


def _picture(instance: Any) -> bytes:
    try:
        text = instance.get("image_bytes", instance)["b64"]
        content = base64.b64decode("".join(text.split()), validate=True)
    except (AttributeError, TypeError, KeyError, binascii.Error, ValueError):
        form = '{"image_bytes": {"b64": "..."}}'
        raise RequestError(
            400, f"An instance must be {form}, with the picture file in base64."
        ) from None
    if len(content) > MOST_BYTES:
        raise _too_large()
    return content


def _seed(instance: Mapping[str, Any]) -> int:
    seed = instance.get("seed", 1)
    if type(seed) is not int or not 0 <= seed <= options.LARGEST_SEED:
        raise RequestError(400, f"`seed` must be a whole number from 0 to {options.LARGEST_SEED}.")
    return seed


def _too_large() -> RequestError:
    return RequestError(
        413, f"A picture may have at most {MOST_BYTES // 1_000_000} MB. Make it smaller."
    )


def _prediction(caption: Caption, clip: bool) -> dict[str, Any]:
    captions = (caption, *caption.alternatives)
    prediction: dict[str, Any] = {
        "captions": [one.text for one in captions],
        "scores": [_number(one.score) for one in captions],
        "words": [list(one.words) for one in captions],
        "log_probs": [one.log_probs and [_number(p) for p in one.log_probs] for one in captions],
    }
    if caption.confidence is not None:
        prediction["confidences"] = [_number(one.confidence) for one in captions]
    if caption.attended is None or caption.picture is None:
        return prediction
    prediction["attention"] = [
        {**report.packed_weights(one.weights), "kind": one.attended.kind}
        for one in captions
        if one.attended is not None
    ]
    prediction["boxes"] = report.packed_boxes(caption.boxes)
    prediction["tiles"] = figures.grid(caption.boxes) is not None
    if clip:  # the boxes are positions on a sheet of frames, which a browser does not have
        sheet = report.thumbnail(Image.fromarray(caption.picture), 960)
        prediction["picture"] = f"data:image/jpeg;base64,{sheet}"
    return prediction


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 5)


def _described_options() -> list[dict[str, Any]]:
    """Returns the decoding options that the page offers.

    An option has a `name`, a `kind` (`choice`, `flag`, `integer`, `number` or `text`), `choices`
    for a choice, and `search`: the only search that reads it, empty if both do.
    """
    kinds = {bool: "flag", int: "integer", float: "number", str: "text"}
    described = []
    for field in dataclasses.fields(options.Options):
        choices = list(options.CHOICES.get(field.name, ()))
        described.append(
            {
                "name": field.name,
                "kind": "choice" if choices else kinds[type(field.default)],
                "choices": choices,
                "search": options.READ_BY.get(field.name, ""),
            }
        )
    return described


class Application:
    """The demo page as a WSGI application. One request at a time reaches the models.

    Args:
      models: name of a model in the URLs, such as `captions` -> the model. If there are two, the
        page shows their captions side by side.
      debug: True writes the traceback of an unexpected error to the log.
    """

    def __init__(self, models: Mapping[str, Model], debug: bool = False):
        self.models = models
        self.debug = debug
        self._page = "".join(report.page("demo", "Caption a picture", "tfcap.captioning"))
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable) -> Iterable[bytes]:
        """Answers a request; an error is a sentence in JSON, never a traceback."""
        request = Request(environ)
        request.max_content_length = _MOST_BODY
        try:
            response = self._answer(request)
        except RequestError as error:
            response = _json({"error": str(error)}, error.status)
        except HTTPException as error:
            reason = _too_large() if error.code == 413 else error.description
            response = _json({"error": str(reason)}, error.code or 400)
        except Exception as error:
            self._tell(error)
            reason = "The program has failed. The terminal in which it runs shows the error."
            response = _json({"error": reason}, 500)
        response.headers.update(_HEADERS)
        return response(environ, start_response)

    def warm_up(self) -> None:
        """Captions a black picture with each model, so that the first request need not wait.

        TensorFlow traces the graphs of a model at the first caption, which takes seconds.
        """
        picture = np.zeros([32, 32, 3], np.uint8)
        for model in self.models.values():
            try:
                with self._lock:
                    kind: Kind | None = "attention" if _attends(model.captioner) else None
                    list(model.captioner.stream([picture], attention=kind))
            except Exception as error:  # the first request meets it again
                self._tell(error)

    def _answer(self, request: Request) -> Response:
        _check_sender(request)
        if request.method == "GET" and request.path == "/":
            return Response(self._page, content_type="text/html; charset=utf-8")
        if request.method == "GET" and request.path == "/about":
            return _json(self._about())
        path = re.fullmatch(r"/v1/models/(\w+):predict", request.path)
        if request.method != "POST" or not path or path[1] not in self.models:
            raise RequestError(404, "There is no such page. Open the page with the path /.")
        content = _content(request)
        with self._lock:
            return _json(self.models[path[1]].predict(content))

    def _about(self) -> dict[str, Any]:
        return {
            "models": [{"path": path, **model.about()} for path, model in self.models.items()],
            "options": _described_options(),
            "presets": {name: vars(preset) for name, preset in options.PRESETS.items()},
            "largest_seed": options.LARGEST_SEED,
            "most_bytes": MOST_BYTES,
        }

    def _tell(self, error: Exception) -> None:
        _log.warning("error: %s: %s", type(error).__name__, error)
        if self.debug:
            _log.warning("%s", "".join(traceback.format_exception(error)).rstrip())


def _check_sender(request: Request) -> None:
    """Raises RequestError for another host, or a POST of another page."""
    host = request.headers.get("Host", "")
    if not _HOST.fullmatch(host):
        raise RequestError(
            403, "Only this machine can open the page. Use the host 127.0.0.1 or localhost."
        )
    origin = request.headers.get("Origin", f"http://{host}").lower()
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if request.method == "POST" and (origin, site) != (f"http://{host.lower()}", "same-origin"):
        raise RequestError(
            403, "A POST must come from this page, not from another one. Open this page again."
        )


def _content(request: Request) -> dict[str, Any]:
    body = request.get_data()
    if len(body) >= _MOST_BODY:  # of a body of unknown length, no more than this is read
        raise _too_large()
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise RequestError(400, 'The body must be a JSON object, such as {"instances": [...]}.')
    return content


def _json(content: Any, status: int = 200) -> Response:
    return Response(json_text(content), status, content_type="application/json; charset=utf-8")


class _Handler(serving.WSGIRequestHandler):
    timeout = 60  # seconds without a byte, until a connection is closed

    def log(self, type: str, message: str, *args) -> None:
        """Prints nothing, because the page shows errors."""


def make_server(application: Callable, port: int) -> serving.BaseWSGIServer:
    """Makes a server on 127.0.0.1 with a thread for each connection.

    Its method `serve_forever` starts it, and its attribute `port` is the port that it has.

    Args:
      application: a WSGI application.
      port: the port; 0 takes a free one.
    """
    return serving.make_server(
        "127.0.0.1", port, application, threaded=True, request_handler=_Handler
    )
