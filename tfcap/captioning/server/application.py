"""The application of `tfcap serve`: which path has which handler."""

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tfcap import __version__
from tfcap.captioning.server import ollama, openai, tf_serving, web
from tfcap.captioning.server.service import Service


def application(service: Service, check: Callable[[Request], None]) -> Starlette:
    """Makes the application.

    Args:
      service: the service.
      check: a function that raises RequestError for requests that are not answered. Everybody may
        ask whether the server is healthy.
    """
    return web.application(
        {
            ("GET", "/"): _root,
            ("GET", "/metrics"): service.metrics.page,
            **openai.handlers(service),
            **ollama.handlers(service),
            **tf_serving.handlers(service),
        },
        check=check,
        for_all={("GET", "/healthz"): _health},
        error_body=_error_body,
        observe=service.metrics.observe,
        not_found="tfcap has no answer for this method and path. docs/applications.md lists those "
        "that have one.",
        debug=service.settings.debug,
    )


async def _root(request: Request) -> Response:
    return PlainTextResponse(f"tfcap {__version__} serves captions\n")


async def _health(request: Request) -> Response:
    return PlainTextResponse("ok\n")  # it listens only after the model was loaded


def _error_body(path: str, error: web.RequestError) -> dict[str, Any]:
    """Returns the JSON value of an error: OpenAI's form below /v1, a sentence elsewhere."""
    if not path.startswith("/v1/") or path.endswith(":predict"):
        return {"error": str(error)}
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"error": {"message": str(error), "type": kind, "param": None, "code": None}}
