"""The HTTP server of the page, which listens on the loopback address only."""

import socket
from collections.abc import Callable

from werkzeug import serving

ADDRESS = "127.0.0.1"
_SECONDS = 60  # without a byte, until a connection is closed


class _Handler(serving.WSGIRequestHandler):
    """Prints nothing, and does not tell its version."""

    timeout = _SECONDS

    def log(self, type: str, message: str, *args) -> None:
        """Prints nothing: the page itself shows errors."""

    def version_string(self) -> str:
        """Returns the name of the server in its answers."""
        return "tfcap"


def make_server(application: Callable, port: int) -> serving.BaseWSGIServer:
    """Makes a server with a thread for each connection.

    Args:
      application: the WSGI application.
      port: the port; 0 takes a free one. The attribute `port` of the server holds the number.

    Raises:
      ValueError: the port cannot be used.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen(16)
        return serving.make_server(
            ADDRESS,
            port,
            application,
            threaded=True,
            request_handler=_Handler,
            fd=listener.fileno(),
        )
    except OSError as error:
        raise ValueError(
            f"--port must be one that is free. Received: {port}, {error.strerror}. "
            "--port=0 takes a free one."
        ) from None
    finally:
        listener.close()
