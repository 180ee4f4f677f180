"""Answers requests in the form of OpenAI's interface: chat completions, responses and models.

Pictures are data URLs in messages. A closed captioner cannot be asked or told anything, so no text
of a message is read. `temperature` and `top_p` are not read either: the search is that of the
server.
"""

import functools
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tfcap.captioning.server import pictures, web
from tfcap.captioning.server.service import Choice, Service
from tfcap.files import json_text

_MOST_CHOICES = 128  # as OpenAI's own


def handlers(service: Service) -> dict[tuple[str, str], web.Handler]:
    """Returns the handlers, see `web.application`."""
    return {
        ("POST", "/v1/chat/completions"): functools.partial(_chat, service),
        ("POST", "/v1/responses"): functools.partial(_responses, service),
        ("GET", "/v1/models"): functools.partial(_models, service),
    }


async def _models(service: Service, request: Request) -> Response:
    return web.json_response({"object": "list", "data": [service.about()]})


async def _chat(service: Service, request: Request) -> Response:
    with service.room(429):
        content = await service.read(request)
        service.check_model(content.get("model"))
        number = content.get("n")
        number = 1 if number is None else number
        if type(number) is not int or not 1 <= number <= _MOST_CHOICES:
            raise web.RequestError(400, f"`n` must be a whole number from 1 to {_MOST_CHOICES}.")
        name = "max_completion_tokens" if "max_completion_tokens" in content else "max_tokens"
        most_words = pictures.most_words(name, content.get(name))
        is_json = _is_json("response_format", content.get("response_format"))
        contents = await service.run(_contents, content.get("messages"))
        captions = await service.captions_of(request, contents, content.get("seed"))
        choices = service.choices(captions, number, most_words)
    answer = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": service.settings.name,
    }
    words = sum(choice.words for choice in choices)
    usage = {"prompt_tokens": 0, "completion_tokens": words, "total_tokens": words}
    if content.get("stream"):
        options = content.get("stream_options")
        with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        chunks = _chunks(answer, choices, is_json, usage if with_usage else None)
        return StreamingResponse(chunks, media_type="text/event-stream")
    answer["choices"] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": choice.content(is_json), "refusal": None},
            **_end(choice),
        }
        for index, choice in enumerate(choices)
    ]
    return web.json_response(answer | {"usage": usage})


def _chunks(
    answer: Mapping[str, Any], choices: list[Choice], is_json: bool, usage: Any
) -> Iterator[str]:
    """Yields server-sent events. A caption is one event: the search finds all words together."""

    def event(*choices: Mapping[str, Any], **more: Any) -> str:
        chunk = {**answer, "object": "chat.completion.chunk", "choices": choices, **more}
        return f"data: {json_text(chunk)}\n\n"

    for index, choice in enumerate(choices):
        delta = {"role": "assistant", "content": choice.content(is_json)}
        yield event({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})
    for index, choice in enumerate(choices):
        yield event({"index": index, "delta": {}, **_end(choice)})
    if usage:
        yield event(usage=usage)
    yield "data: [DONE]\n\n"


def _end(choice: Choice) -> dict[str, Any]:
    reason = "length" if choice.is_cut else "stop"
    return {"logprobs": None, "finish_reason": reason, "captions": choice.captions}


def _is_json(name: str, form: Any) -> bool:
    """True for the form json_object of an answer.

    Args:
      name: the name of the key of the request, for the error.
      form: its value, such as {"type": "text"}, or None.

    Raises:
      RequestError: it is a form that a captioner cannot write, such as json_schema.
    """
    kind = form.get("type") if isinstance(form, dict) else form
    if kind not in (None, "text", "json_object"):
        raise web.RequestError(
            400, f"`{name}` must be text or json_object: a captioner follows no schema."
        )
    return kind == "json_object"


def _contents(messages: Any) -> list[bytes]:
    """Returns the picture files of the messages after the last answer."""
    contents = []
    for message in pictures.asked(messages):
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else []:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in ("image_url", "input_image"):
                url = part.get("image_url")
                contents.append(pictures.of_url(url.get("url") if isinstance(url, dict) else url))
            elif kind not in ("text", "input_text"):
                raise web.RequestError(
                    400, f"A part of a message must be text or image_url, not {str(kind)[:50]}."
                )
    pictures.check_number(contents)
    return contents


async def _responses(service: Service, request: Request) -> Response:
    with service.room(429):
        content = await service.read(request)
        service.check_model(content.get("model"))
        if content.get("stream"):
            raise web.RequestError(
                400, "`stream` is not offered here. Use /v1/chat/completions, or leave it out."
            )
        most_words = pictures.most_words("max_output_tokens", content.get("max_output_tokens"))
        text = content.get("text")
        is_json = _is_json("text.format", text.get("format") if isinstance(text, dict) else None)
        messages = content.get("input")
        contents = await service.run(_contents, messages if isinstance(messages, list) else [])
        captions = await service.captions_of(request, contents, None)
        [choice] = service.choices(captions, 1, most_words)
    part = {"type": "output_text", "text": choice.content(is_json), "annotations": []}
    status = "incomplete" if choice.is_cut else "completed"
    message = {
        "type": "message",
        "id": f"msg_{secrets.token_hex(12)}",
        "status": status,
        "role": "assistant",
        "content": [part],
        "captions": choice.captions,
    }
    usage = {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": choice.words,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": choice.words,
    }
    answer = {
        "id": f"resp_{secrets.token_hex(12)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if choice.is_cut else None,
        "instructions": None,
        "metadata": {},
        "model": service.settings.name,
        "output": [message],
        "parallel_tool_calls": False,
        "temperature": None,
        "tool_choice": "none",
        "tools": [],
        "top_p": None,
        "usage": usage,
    }
    return web.json_response(answer)
