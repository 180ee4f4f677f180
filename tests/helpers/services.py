"""Runs the server of `tfcap serve` in a test."""

import base64
import contextlib
import io
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image
from starlette.requests import Request

from helpers.webpages import Site, running
from tfcap.captioning import ImageCaptioner
from tfcap.captioning.server import web
from tfcap.captioning.server.application import application
from tfcap.captioning.server.service import Service, Settings


def jpeg(seed: int, size: tuple[int, int] = (90, 60)) -> bytes:
    """The bytes of a JPEG file with coarse random colours."""
    colours = np.random.default_rng(seed).integers(0, 255, [3, 3, 3], np.uint8)
    stream = io.BytesIO()
    Image.fromarray(colours).resize(size).save(stream, "JPEG")
    return stream.getvalue()


def data_url(content: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


def message(*contents: bytes, text: str = "Describe the picture.") -> dict[str, Any]:
    """A message of OpenAI's interface with pictures."""
    urls = [{"type": "image_url", "image_url": {"url": data_url(one)}} for one in contents]
    return {"role": "user", "content": [{"type": "text", "text": text}, *urls]}


@contextlib.contextmanager
def serving(
    captioner: ImageCaptioner,
    check: Callable[[Request], None] = web.check_sender,
    **settings: Any,
) -> Iterator[Site]:
    """Serves a captioner inside the block; `settings` are those of `Settings`."""
    service = Service(captioner, Settings(**{"name": "small", **settings}))
    with running(web.Server(application(service, check), "127.0.0.1", 0)) as site:
        yield site


def raw(site: Site, *requests: bytes) -> bytes:
    """Sends bytes that no client library would send; returns all that is answered."""
    with socket.create_connection((site.server.host, site.server.port), timeout=20) as link:
        for request in requests:
            link.sendall(request)
        parts = []
        while part := link.recv(65536):
            parts.append(part)
    return b"".join(parts)
