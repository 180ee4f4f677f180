"""Serves the page of `tfcap demo` on the loopback address: captions of pictures in a browser.

A request has the form of TF Serving's REST interface, see `server.tf_serving`. It may have the keys
`decoding`, as the flag `--decoding`, and `attention`. `server.web` says who is answered.

Letters: K captions of a picture, T' words of a caption, R regions.
"""

import asyncio
import dataclasses
import functools
import logging
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tfcap.captioning import Caption, Failure, ImageCaptioner
from tfcap.captioning.server import tf_serving, web
from tfcap.captioning.server.web import RequestError
from tfcap.decoding import options
from tfcap.visualize import figures, report
from tfcap.visualize.attended import KINDS, Kind

_MOST_ATTENDED = 10  # captions of a picture whose attention is computed
_log = logging.getLogger(__name__)
_HEADERS = {
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src 'self' blob: data:",
    "X-Content-Type-Options": "nosniff",
}


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
        instances = tf_serving.instances(request)
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
        for content, seed in instances.images:
            [result] = captioner.stream(
                [content], attention=kind, attention_captions=_MOST_ATTENDED, seed=seed
            )
            if isinstance(result, Failure):
                raise RequestError(422, f"{result.reason[0].upper()}{result.reason[1:]}")
            predictions.append(_prediction(result, captioner.runtime.reads_clips))
        return tf_serving.answer(predictions, instances.by_columns)


def _attends(captioner: ImageCaptioner) -> bool:
    """True if a captioner can compute attention; the run of the packaged one may need an extra."""
    try:
        return bool(captioner.runtime.trained)
    except ValueError as error:
        if not captioner.runtime.exported:
            _log.warning("note: the page shows no attention: %s", error)
        return False


def _prediction(caption: Caption, clip: bool) -> dict[str, Any]:
    prediction = tf_serving.prediction(caption)
    if caption.attended is None or caption.picture is None:
        return prediction
    prediction["attention"] = [
        {**report.packed_weights(one.weights), "kind": one.attended.kind}
        for one in (caption, *caption.alternatives)
        if one.attended is not None
    ]
    prediction["boxes"] = report.packed_boxes(caption.boxes)
    prediction["tiles"] = figures.grid(caption.boxes) is not None
    if clip:  # the boxes are positions on a sheet of frames, which a browser does not have
        sheet = report.thumbnail(Image.fromarray(caption.picture), 960)
        prediction["picture"] = f"data:image/jpeg;base64,{sheet}"
    return prediction


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
    """The demo page as an ASGI application. One request at a time reaches the models.

    Args:
      models: name of a model in the URLs, such as `captions` -> the model. If there are two, the
        page shows their captions side by side.
      debug: True writes the traceback of an unexpected error to the log.

    Attributes:
      asgi: the application, for `web.Server`.
    """

    def __init__(self, models: Mapping[str, Model], debug: bool = False):
        self.models = models
        self.debug = debug
        self.asgi: Starlette = web.application(
            {
                ("GET", "/"): self._page,
                ("GET", "/about"): self._about,
                ("POST", "/v1/models/{name}:predict"): self._predict,
            },
            check=web.check_sender,
            headers=_HEADERS,
            debug=debug,
        )
        self._html = "".join(report.page("demo", "Caption a picture", "tfcap.captioning"))
        self._lock = threading.Lock()

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
                web.tell(error, self.debug)

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(self._html)

    async def _about(self, request: Request) -> Response:
        about = {
            "models": [{"path": path, **model.about()} for path, model in self.models.items()],
            "options": _described_options(),
            "presets": {name: vars(preset) for name, preset in options.PRESETS.items()},
            "largest_seed": options.LARGEST_SEED,
            "most_bytes": web.MOST_BYTES,
        }
        return web.json_response(about)

    async def _predict(self, request: Request) -> Response:
        model = self.models.get(request.path_params["name"])
        if model is None:
            raise RequestError(404, web.NOT_FOUND)
        content = await web.body(request)
        return web.json_response(await asyncio.to_thread(self._predicted, model, content))

    def _predicted(self, model: Model, content: bytes) -> dict[str, Any]:
        request = web.json_object(content)
        with self._lock:
            return model.predict(request)
