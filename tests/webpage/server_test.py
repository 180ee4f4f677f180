"""The server listens on the loopback address, is quiet, and names a port that is taken."""

import http.client
import socket
import threading

import pytest

from tfcap.webpage.server import make_server


def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["REMOTE_ADDR"].encode()]


def test_it_answers_on_the_loopback_address_only(capfd):
    server = make_server(application, 0)
    assert server.socket.getsockname() == ("127.0.0.1", server.port) and server.port > 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        link.request("GET", "/")
        answer = link.getresponse()
        assert answer.read() == b"127.0.0.1" and answer.headers["Server"] == "tfcap"
        link.close()
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            raw.sendall(b"nonsense\r\n\r\n")
            assert b"400" in raw.recv(1000)
    finally:
        server.shutdown()
        thread.join()
    assert capfd.readouterr() == ("", "")


def test_a_port_that_is_taken_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=f"--port must be one that is free. Received: {port}"):
            make_server(application, port)
