"""Serves an application over HTTP: who is answered, how much is read, and how errors look.

uvicorn runs the loop of the server and Starlette reads requests. uvicorn ends at SIGTERM after it
has answered what has come, streams, refuses a request before its body is read, and answers others
while slow clients send. Of the servers that were tried, waitress and that of Werkzeug lose requests
at SIGTERM, slow clients hold the threads of cheroot and of gunicorn, granian is compiled and starts
processes, and hypercorn needs more packages and has rare releases.

A server without a token listens on this machine only, and a request must name this machine as its
host. This check stops DNS rebinding: a web page can make its domain name point to this machine, but
its requests then have that domain as their host. A POST must come from a page of this server, or
from a program that is not a browser.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import math
import re
import signal
import socket
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from tfcap.files import json_text

MOST_BYTES = 20_000_000  # of one picture
MOST_BODY = 4 * MOST_BYTES // 3 + 100_000  # base64 takes four letters for three bytes
NOT_FOUND = "There is no such page. Open the page with the path /."
_SECONDS = 60  # until a request must have arrived
_MOST_CONNECTIONS = 1000
_CLIENT_LEFT = 499  # nginx's status for it, seen in measurements only
_HOST = re.compile(r"(127(\.\d{1,3}){3}|localhost|\[::1\])(:\d{1,5})?", re.I)
_log = logging.getLogger(__name__)
Handler = Callable[[Request], Awaitable[Response]]


class RequestError(ValueError):
    """A request that is not fulfilled. The client gets the status and the reason.

    Args:
      status: the HTTP status of the answer, such as 400.
      reason: a sentence that says what is wrong and what to do.
      headers: further headers of the answer, such as Retry-After.
    """

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None):
        super().__init__(reason)
        self.status = status
        self.headers = dict(headers or {})


def too_large() -> RequestError:
    """Returns the error for a request with more bytes than are read."""
    return RequestError(
        413, f"A picture may have at most {MOST_BYTES // 1_000_000} MB. Make it smaller."
    )


def check_sender(request: Request) -> None:
    """Raises RequestError for another host, or a POST of another page."""
    host = request.headers.get("Host", "")
    if not _HOST.fullmatch(host):
        raise RequestError(
            403, "Only this machine is answered. Use the host 127.0.0.1 or localhost."
        )
    origin = request.headers.get("Origin", f"http://{host}").lower()
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if request.method == "POST" and (origin, site) != (f"http://{host.lower()}", "same-origin"):
        raise RequestError(
            403, "A POST must come from this page, not from another one. Open this page again."
        )


def token_check(token: str) -> Callable[[Request], None]:
    """Returns a function that raises RequestError for a request without the token.

    Args:
      token: the secret that a request must have in its header `Authorization: Bearer TOKEN`.
    """

    def check(request: Request) -> None:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # The time that it takes tells nothing of the token.
        is_right = hmac.compare_digest(given.strip().encode(), token.encode())
        if not is_right or scheme.lower() != "bearer":
            raise RequestError(
                401,
                "The token is missing or wrong. Send the header `Authorization: Bearer TOKEN`.",
                {"WWW-Authenticate": "Bearer", "Connection": "close"},
            )

    return check


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server that listens on this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def body(request: Request) -> bytes:
    """Reads the body of a request.

    Raises:
      RequestError: it has more than `MOST_BODY` bytes, or has not arrived after a minute.
    """

    async def read() -> bytes:
        content = bytearray()
        async for part in request.stream():
            content += part
            if len(content) > MOST_BODY:
                raise too_large()
        return bytes(content)

    try:
        return await asyncio.wait_for(read(), _SECONDS)
    except asyncio.TimeoutError:
        raise RequestError(
            408, f"The request has not arrived in {_SECONDS} seconds. Send it again."
        ) from None


def json_object(content: bytes) -> dict[str, Any]:
    """Reads the body of a request, which must be a JSON object.

    Raises:
      RequestError: it is none.
    """
    try:
        result = json.loads(content)
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        raise RequestError(400, "The body of the request must be a JSON object.")
    return result


def json_response(content: Any, status: int = 200, headers: Any = None) -> Response:
    """Returns an answer with a value in JSON."""
    return Response(json_text(content), status, headers, "application/json")


def number(value: float | None) -> float | None:
    """Returns a number for JSON, rounded; None if it is not finite."""
    return None if value is None or not math.isfinite(value) else round(float(value), 5)


def application(
    handlers: Mapping[tuple[str, str], Handler],
    *,
    check: Callable[[Request], None],
    for_all: Mapping[tuple[str, str], Handler] | None = None,
    error_body: Callable[[str, RequestError], Any] = lambda path, error: {"error": str(error)},
    headers: Mapping[str, str] | None = None,
    not_found: str = NOT_FOUND,
    observe: Callable[[str, int, float], None] = lambda path, status, seconds: None,
    debug: bool = False,
) -> Starlette:
    """Makes an ASGI application. An error is a sentence in JSON, never a traceback.

    Args:
      handlers: method and path of a request -> the coroutine function that answers it, as in
        {("GET", "/v1/models/{name}"): model}. Starlette's documentation describes such paths.
      check: a function that raises RequestError for requests that are not answered. It is called
        before the body is read.
      for_all: handlers that answer without `check`.
      error_body: a function of the path and the error, which returns the JSON value of an answer.
      headers: headers of all answers.
      not_found: the sentence for other paths.
      observe: a function that is called after each request with its path among the handlers ("" for
        others), the status of the answer, and the seconds that it took.
      debug: True writes the traceback of an unexpected error to the log.
    """

    async def error_response(request: Request, error: RequestError) -> Response:
        await _read_rest(request)
        return json_response(error_body(request.url.path, error), error.status, error.headers)

    def endpoint(path: str, handler: Handler, check: Callable[[Request], None]) -> Handler:
        async def answer(request: Request) -> Response:
            begin = time.monotonic()
            try:
                check(request)
                response = await handler(request)
            except RequestError as error:
                response = await error_response(request, error)
            except ClientDisconnect:
                response = Response(status_code=_CLIENT_LEFT)
            except Exception as error:
                tell(error, debug)
                reason = "The program has failed. The terminal in which it runs shows the error."
                response = await error_response(request, RequestError(500, reason))
            response.headers.update(headers or {})
            observe(path, response.status_code, time.monotonic() - begin)
            return response

        return answer

    async def no_handler(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        return await endpoint("", _raises(RequestError(status, not_found)), check)(request)

    routes = [
        Route(path, endpoint(path, handler, checked), methods=[method])
        for group, checked in ((handlers, check), (for_all or {}, lambda request: None))
        for (method, path), handler in group.items()
    ]
    result = Starlette(routes=routes, exception_handlers={HTTPException: no_handler})
    result.router.redirect_slashes = False  # it answers before `check`
    return result


def _raises(error: RequestError) -> Handler:
    async def handler(request: Request) -> Response:
        raise error

    return handler


async def _read_rest(request: Request) -> None:
    """Reads and forgets the rest of a body: a client may read no answer while it is sending."""

    async def read() -> None:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > 2 * MOST_BODY:
                return

    if {"content-length", "transfer-encoding"} & set(request.headers):
        # RuntimeError: all of it was read before.
        with contextlib.suppress(asyncio.TimeoutError, ClientDisconnect, RuntimeError):
            await asyncio.wait_for(read(), _SECONDS)


def tell(error: Exception, debug: bool) -> None:
    """Writes an unexpected error to the log, with its traceback if `debug`."""
    _log.warning("error: %s: %s", type(error).__name__, error)
    if debug:
        _log.warning("%s", "".join(traceback.format_exception(error)).rstrip())


class _Protocol(H11Protocol):
    """Closes a connection on which the head of a request is late, which uvicorn does not do."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does so for sockets whose protocol number is that of TCP, not 0. Otherwise the
        # body of an answer waits up to 40 ms for the client to acknowledge its head.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._expect_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_request()

    def _expect_request(self) -> None:
        self.loop.call_later(_SECONDS, self._close_without_request, self.cycle)

    def _close_without_request(self, last: Any) -> None:
        if self.cycle is last and (last is None or last.response_complete):
            self.transport.close()


class Server:
    """A server that listens; `run` answers requests until the server is stopped.

    Args:
      application: an ASGI application.
      host: the address on which it listens, or "localhost".
      port: the port; 0 takes a free one.
      seconds: how long requests may still take after the server was stopped.

    Attributes:
      host: the address.
      port: the port that it has.
      socket: the socket that listens.

    Raises:
      OSError: the port is in use, or the address is none of this machine.
    """

    def __init__(self, application: Any, host: str, port: int, seconds: int = 30):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self.socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise OSError(
                f"No server can listen on {host}, port {port}: {error.strerror}. Choose another "
                "`port`, or end the program that has it."
            ) from None
        self.host = host
        self.port: int = self.socket.getsockname()[1]
        config = uvicorn.Config(
            application,
            http=_Protocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="critical",  # the application tells its errors itself
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_SECONDS,
            timeout_graceful_shutdown=seconds,
        )
        self._server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """The address of the server, such as http://127.0.0.1:8000."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def run(self) -> None:
        """Answers requests until `stop`, SIGTERM or Ctrl-C; requests that have come are answered.

        A second Ctrl-C ends it at once.
        """
        self._server.run([self.socket])

    def stop(self) -> None:
        """Makes `run` return when it has answered what has come. Any thread may call it."""
        self._server.should_exit = True

    @staticmethod
    def stop_quietly_on_signals() -> None:
        """Makes the process go on after a signal has ended `run`, which raises it again."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
