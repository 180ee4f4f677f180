"""The WSGI application of the page: its addresses, and the checks of who may send requests.

It answers GET and POST only. A request must name this machine as its host. This check stops DNS
rebinding: a web page can let its own domain name point to this machine, but its requests then have
that domain as their host. A POST must come from the page itself, or from a program that is no
browser.
"""

import contextlib
import importlib.resources
import json
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.wrappers import Request, Response

from tfcap.decoding import options
from tfcap.files import json_text
from tfcap.webpage import galleries
from tfcap.webpage.answers import MOST_BYTES, Model, described_options, picture_of, too_large
from tfcap.webpage.refused import Refused

# Address -> package, file and type.
_FILES = {
    "/": ("tfcap.webpage", "page.html", "text/html"),
    "/page.css": ("tfcap.webpage", "page.css", "text/css"),
    "/options.js": ("tfcap.webpage", "options.js", "text/javascript"),
    "/page.js": ("tfcap.webpage", "page.js", "text/javascript"),
    "/theme.css": ("tfcap.report", "theme.css", "text/css"),
    "/attention.js": ("tfcap.report", "attention.js", "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.I)
_PICTURE = re.compile(r"/pictures/(train|folder)/(\d{1,9})(/file)?")
# TF Serving's addresses. A model of the page has one version, which any number and label mean.
_MODEL = re.compile(
    r"/v1/models/(\w{1,40})(?:/versions/(\d{1,19})|/labels/[^/:]+)?(:predict|/metadata|)"
)
_MOST_BODY = 4 * MOST_BYTES // 3 + 100_000  # base64 takes four letters for three bytes
_MOST_WAITING = 16


class _Turn:
    """Lets one request at a time reach the models.

    Attributes:
      requests: how many run or wait.
    """

    def __init__(self):
        self._lock, self._count = threading.Lock(), threading.Lock()
        self.requests = 0

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Waits until no other request runs.

        Raises:
          Refused: too many wait.
        """
        with self._count:
            if self.requests >= _MOST_WAITING:
                raise Refused(503, f"{self.requests} requests wait for the model. Try again later.")
            self.requests += 1
        try:
            with self._lock:
                yield
        finally:
            with self._count:
                self.requests -= 1


class Application:
    """Serves the page and answers its requests.

    Args:
      models: the part of an address -> the model, for example `captions`; the first one is the
        main one, and a second one is shown beside it.
      training: finds the nearest training pictures; with None the page shows none.
      folder: pictures that are searched by texts; None takes those of `training`.
      debug: whether an error of the program prints its traceback.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        training: galleries.Training | None = None,
        folder: galleries.Folder | None = None,
        debug: bool = False,
    ):
        self.models, self.training, self.debug = models, training, debug
        self.searched: galleries.Shown | None = folder or training
        self._galleries: dict[str, galleries.Shown] = {
            gallery.name: gallery for gallery in (training, folder) if gallery is not None
        }
        self._turn = _Turn()
        self._files = {
            address: (importlib.resources.files(package).joinpath(name).read_bytes(), kind)
            for address, (package, name, kind) in _FILES.items()
        }

    def __call__(self, environ: dict[str, Any], start_response: Callable) -> Iterable[bytes]:
        """Answers a request; an error is a sentence in JSON, never a traceback."""
        request = Request(environ)
        request.max_content_length = _MOST_BODY
        try:
            response = self._answer(request)
        except Refused as error:
            response = _json({"error": str(error)}, error.status)
        except RequestEntityTooLarge:
            response = _json({"error": str(too_large())}, 413)
        except HTTPException as error:
            response = _json({"error": error.description or error.name}, error.code or 400)
        except Exception as error:
            self._report(error)
            reason = "The program has failed. The terminal in which it runs shows the error."
            response = _json({"error": reason}, 500)
        response.headers.update(_HEADERS)
        return response(environ, start_response)

    def warm_up(self) -> None:
        """Captions a black picture with each model, so that the graphs are traced."""
        picture = np.zeros([32, 32, 3], np.uint8)
        for model in self.models.values():
            with self._turn.take():
                try:
                    list(model.captioner.stream([picture]))
                except Exception as error:  # the first request meets it again, and says so
                    self._report(error)

    def _answer(self, request: Request) -> Response:
        _check_sender(request)
        if request.method == "POST":
            return _json(self._posted(request.path, request))
        if request.path in self._files:
            content, kind = self._files[request.path]
            return Response(content, content_type=f"{kind}; charset=utf-8")
        if request.path == "/about":
            return _json(self._about())
        if request.path == "/busy":
            return _json({"requests": self._turn.requests})
        named = _MODEL.fullmatch(request.path)
        if named and named[1] in self.models and named[3] != ":predict":
            version = named[2] or "1"
            return _json(_metadata(named[1], version) if named[3] else _status(version))
        if found := _PICTURE.fullmatch(request.path):
            return self._picture(found[1], int(found[2]), bool(found[3]))
        raise Refused(404, "There is no such page.")

    def _posted(self, path: str, request: Request) -> dict[str, Any]:
        """Answers a POST."""
        named = _MODEL.fullmatch(path)
        if named and named[1] in self.models and named[3] == ":predict":
            content = _content(request)
            with self._turn.take():
                return self.models[named[1]].predict(content)
        if path == "/nearest" and self.training is not None:
            picture = picture_of(_content(request))
            with self._turn.take():
                return {"found": self.training.nearest(picture)}
        if path == "/search" and self.searched is not None:
            content = _content(request)
            with self._turn.take():
                return galleries.search(self.searched, content.get("text"))
        raise Refused(404, "There is no such address for POST.")

    def _about(self) -> dict[str, Any]:
        return {
            "models": [{"path": path, **model.about()} for path, model in self.models.items()],
            "options": described_options(),
            "presets": {name: vars(preset) for name, preset in options.PRESETS.items()},
            "largest_seed": options.LARGEST_SEED,
            "most_bytes": MOST_BYTES,
            "nearest": self.training and self.training.label,
            "search": self.searched and self.searched.label,
        }

    def _picture(self, name: str, place: int, whole: bool) -> Response:
        gallery = self._galleries.get(name)
        content = None
        if gallery is not None:
            content = (galleries.file if whole else galleries.thumbnail)(gallery, place)
        if content is None:
            raise Refused(404, "There is no such picture.")
        return Response(content, content_type="application/octet-stream" if whole else "image/jpeg")

    def _report(self, error: Exception) -> None:
        lines = str(error).splitlines() or [""]
        print(f"error: {type(error).__name__}: {lines[0]}", file=sys.stderr, flush=True)
        if self.debug:
            traceback.print_exception(error)


def _check_sender(request: Request) -> None:
    """Raises Refused for another method, another host, or a POST of another page."""
    if request.method not in ("GET", "POST"):
        raise Refused(405, f"The method must be GET or POST. Received: {request.method:.20}.")
    host = request.headers.get("Host", "")
    if not _HOST.fullmatch(host):
        raise Refused(
            403, "The host must be 127.0.0.1 or localhost: this page is for this machine only."
        )
    if request.method != "POST":
        return
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if (origin is not None and origin.lower() != f"http://{host.lower()}") or site != "same-origin":
        raise Refused(403, "A POST must come from this page, not from another one.")


def _content(request: Request) -> dict[str, Any]:
    """Returns the JSON object of a request."""
    body = request.get_data()
    if len(body) >= _MOST_BODY:  # of a body of unknown length, no more than this is read
        raise too_large()
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Refused(400, "The body must be a JSON object. Received: something else.")
    return content


def _status(version: str) -> dict[str, Any]:
    """Returns the status of a model as TF Serving does."""
    ready = {"version": version, "state": "AVAILABLE"}
    return {
        "model_version_status": [{**ready, "status": {"error_code": "OK", "error_message": ""}}]
    }


def _metadata(name: str, version: str) -> dict[str, Any]:
    """Returns inputs and outputs of a model as TF Serving does."""

    def tensor(dtype: str, *sizes: int) -> dict[str, Any]:
        dims = [{"size": str(size), "name": ""} for size in (-1, *sizes)]
        return {"dtype": dtype, "tensor_shape": {"dim": dims, "unknown_rank": False}}

    signature = {
        "inputs": {"image_bytes": tensor("DT_STRING"), "seed": tensor("DT_INT64")},
        "outputs": {
            "status": tensor("DT_STRING"),
            "captions": tensor("DT_STRING", -1),
            "scores": tensor("DT_FLOAT", -1),
        },
        "method_name": "tensorflow/serving/predict",
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": version},
        "metadata": {"signature_def": {"signature_def": {"serving_default": signature}}},
    }


def _json(content: Any, status: int = 200) -> Response:
    response = Response(json_text(content), status, content_type="application/json; charset=utf-8")
    if status == 405:
        response.headers["Allow"] = "GET, POST"
    return response
