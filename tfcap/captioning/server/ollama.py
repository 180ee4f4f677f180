"""Answers requests in the form of Ollama's interface.

No text of a prompt is read, and of `options` only `seed` and `num_predict`: a closed captioner
cannot be told anything, and the search is that of the server. `keep_alive` has no effect, because
the model stays loaded.
"""

import datetime
import functools
import hashlib
import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tfcap import __version__
from tfcap.captioning.server import pictures, web
from tfcap.captioning.server.service import Service
from tfcap.files import json_text


def handlers(service: Service) -> dict[tuple[str, str], web.Handler]:
    """Returns the handlers, see `web.application`."""
    return {
        ("POST", "/api/generate"): functools.partial(_generate, service),
        ("POST", "/api/chat"): functools.partial(_chat, service),
        ("POST", "/api/show"): functools.partial(_show, service),
        ("GET", "/api/tags"): functools.partial(_tags, service),
        ("GET", "/api/ps"): functools.partial(_running, service),
        ("GET", "/api/version"): _version,
    }


async def _generate(service: Service, request: Request) -> Response:
    with service.room(503):
        content = await service.read(request)
        images = content.get("images")
        if not images and not content.get("prompt"):  # a client asks so to load the model
            return await _loaded(service, content, {"response": ""})
        return await _answer(service, request, content, [images], lambda text: {"response": text})


async def _chat(service: Service, request: Request) -> Response:
    def message(text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    with service.room(503):
        content = await service.read(request)
        messages = content.get("messages")
        if messages in (None, []):
            return await _loaded(service, content, message(""))
        images = [one.get("images") for one in pictures.asked(messages)]
        return await _answer(service, request, content, images, message)


async def _loaded(service: Service, content: dict[str, Any], empty: dict[str, Any]) -> Response:
    service.check_model(content.get("model"))
    unload = content.get("keep_alive") == 0
    reason = {"done": True, "done_reason": "unload" if unload else "load"}
    return web.json_response(_head(service) | empty | reason)


async def _answer(
    service: Service,
    request: Request,
    content: dict[str, Any],
    images: list[Any],
    part: Callable[[str], dict[str, Any]],
) -> Response:
    """Captions pictures.

    Args:
      service: the service.
      request: the request.
      content: its body.
      images: the values of the key `images`: lists of picture files in base64, or None.
      part: a function of the text, which returns the keys of the answer that hold it.
    """
    begin = time.monotonic()
    service.check_model(content.get("model"))
    options = content.get("options") or {}
    if not isinstance(options, dict):
        raise web.RequestError(400, "`options` must be an object.")
    most_words = pictures.most_words("num_predict", options.get("num_predict"))
    form = content.get("format")
    if form not in (None, "", "json"):
        raise web.RequestError(
            400, "`format` must be json or be left out: a captioner follows no schema."
        )
    contents = await service.run(_contents, images)
    captions = await service.captions_of(request, contents, options.get("seed"))
    [choice] = service.choices(captions, 1, most_words)
    text = choice.content(form == "json")
    seconds = int((time.monotonic() - begin) * 1e9)  # in nanoseconds
    end = {
        "done": True,
        "done_reason": "length" if choice.is_cut else "stop",
        "total_duration": seconds,
        "load_duration": 0,
        "prompt_eval_count": 0,
        "prompt_eval_duration": 0,
        "eval_count": choice.words,
        "eval_duration": seconds,
        "captions": choice.captions,
    }
    head = _head(service)
    if content.get("stream") is False:
        return web.json_response(head | part(text) | end)
    # A caption is one line: the search finds all words together.
    lines = [head | part(text) | {"done": False}, head | part("") | end]
    return StreamingResponse(
        (f"{json_text(line)}\n" for line in lines), media_type="application/x-ndjson"
    )


def _contents(lists: list[Any]) -> list[bytes]:
    contents = []
    for images in lists:
        if images is not None and not isinstance(images, list):
            raise web.RequestError(400, "`images` must be a list of picture files in base64.")
        for text in images or []:
            is_url = isinstance(text, str) and text.startswith(("data:", "http:", "https:"))
            form = "`images` must be a list"
            contents.append(pictures.of_url(text) if is_url else pictures.decoded(text, form))
    pictures.check_number(contents)
    return contents


def _head(service: Service) -> dict[str, Any]:
    return {"model": service.settings.name, "created_at": _time(time.time())}


def _time(seconds: float) -> str:
    """Returns a time, given in seconds since 1970, in the form of RFC 3339."""
    when = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return when.isoformat().replace("+00:00", "Z")


def _described(service: Service) -> dict[str, Any]:
    name = f"{service.settings.name}:latest"
    about = str(service.captioner.runtime)
    return {
        "name": name,
        "model": name,
        "size": 0,  # it is not told
        "digest": hashlib.sha256(about.encode()).hexdigest(),
        "details": _details(),
    }


def _details() -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "tfcap",
        "family": "tfcap",
        "families": ["tfcap"],
        "parameter_size": "",
        "quantization_level": "",
    }


async def _tags(service: Service, request: Request) -> Response:
    model = _described(service) | {"modified_at": _time(service.started)}
    return web.json_response({"models": [model]})


async def _running(service: Service, request: Request) -> Response:
    never = "9999-12-31T23:59:59Z"
    model = _described(service) | {"expires_at": never, "size_vram": 0}
    return web.json_response({"models": [model]})


async def _show(service: Service, request: Request) -> Response:
    content = await service.read(request)
    service.check_model(content.get("model") or content.get("name"))
    about = {"general.architecture": "tfcap", "general.name": str(service.captioner.runtime)}
    answer = {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _details(),
        "model_info": about,
        "capabilities": ["completion", "vision"],
        "modified_at": _time(service.started),
    }
    return web.json_response(answer)


async def _version(request: Request) -> Response:
    return web.json_response({"version": __version__})
