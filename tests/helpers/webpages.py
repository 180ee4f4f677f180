"""Serves folders, and asks the page of `tfcap demo` over HTTP as browsers and programs would."""

import base64
import contextlib
import functools
import http.client
import http.server
import json
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tfcap.captioning import demo_page
from tfcap.captioning.server.web import Server


def instance(content: bytes | str, **more: Any) -> dict[str, Any]:
    """An instance of a request; a picture is its bytes or its path."""
    content = content if isinstance(content, bytes) else pathlib.Path(content).read_bytes()
    return {"image_bytes": {"b64": base64.b64encode(content).decode()}, **more}


class Site(NamedTuple):
    """A page that is served."""

    url: str
    server: Server

    def ask(self, path: str, content: Any = None, **headers: str) -> tuple[int, Any]:
        """Returns the status, and what was read from JSON or else bytes.

        Args:
          content: bytes, or what becomes JSON; None asks with GET.
          headers: `_` in a name stands for `-`.
        """
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        link = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
        link.request("GET" if content is None else "POST", path, body, named)
        answer = link.getresponse()
        result: Any = answer.read()
        link.close()
        if answer.headers.get_content_type() == "application/json":
            result = json.loads(result)
        return answer.status, result

    def predict(self, *pictures: bytes | str, model: str = "captions", **more: Any) -> Any:
        """Captions pictures and returns the predictions."""
        content = {"instances": [instance(picture) for picture in pictures], **more}
        status, result = self.ask(f"/v1/models/{model}:predict", content)
        assert status == 200, result
        return result["predictions"]


@contextlib.contextmanager
def serving(models: dict[str, demo_page.Model]) -> Iterator[Site]:
    """Serves a page on a free port inside the block."""
    with running(Server(demo_page.Application(models).asgi, "127.0.0.1", 0)) as site:
        yield site


@contextlib.contextmanager
def running(server: Server) -> Iterator[Site]:
    """Runs a server inside the block."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Site(server.url, server)
    finally:
        server.stop()
        thread.join()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Prints nothing."""


@contextlib.contextmanager
def folder_served(folder: pathlib.Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Serves a folder in the block; yields its address, and a function that ends it before."""
    handler = functools.partial(_Handler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def end() -> None:
        server.shutdown()
        server.server_close()

    try:
        yield f"http://127.0.0.1:{server.server_port}/", end
    finally:
        end()
