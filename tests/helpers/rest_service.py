"""TF Serving's REST API and the Open Inference Protocol over the session loader, for tests.

It can fail on purpose: `failures` are answers that the next requests get.
"""

import base64
import contextlib
import http.server
import json
import re
import socket
import struct
import threading

from helpers.model_versions import as_array

_REST = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?(:predict)?$")
_V2 = re.compile(r"/v2/models/([^/]+)(?:/versions/(\d+))?/(infer|ready)$")


class RestService:
    """A server on loopback.

    Attributes:
      failures: (HTTP status, headers) of the next answers to POST requests.
      bodies: the JSON of the last requests.
      url: its address.
      open: its connections.
    """

    def __init__(self, versions, port=0):
        self.versions, self.failures, self.bodies, self.open = versions, [], [], []
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        """Ends as a killed process does: open connections break."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self.open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: RestService

    def setup(self):
        super().setup()
        self.service.open.append(self.connection)

    def log_message(self, *_):
        pass

    def do_GET(self):  # noqa: N802
        found = _REST.match(self.path) or _V2.match(self.path)
        number = max(self.service.versions.sessions)
        states = [{"version": str(number), "state": "AVAILABLE"}]
        self._answer(200 if found else 404, {"model_version_status": states})

    def do_POST(self):  # noqa: N802
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.service.failures:
            status, headers = self.service.failures.pop(0)
            return self._answer(status, {"error": "on purpose"}, headers)
        try:
            found = _REST.match(self.path)
            answer = self._rows(found, body) if found else self._v2(_V2.match(self.path), body)
            self._answer(200, answer)
        except (ValueError, TypeError) as error:
            self._answer(400, {"error": str(error)})
        except LookupError as error:
            self._answer(404, {"error": str(error)})

    def _rows(self, found, body):
        name, version, label, _ = found.groups()
        given = json.loads(body)
        self.service.bodies.append(given)
        rows = [{k: _value(v) for k, v in row.items()} for row in given["instances"]]
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        results = self._run(name, version, label, given.get("signature_name"), columns)
        split = zip(*(map(_plain, value) for value in results.values()), strict=True)
        return {"predictions": [dict(zip(results, row, strict=True)) for row in split]}

    def _v2(self, found, body):
        name, version, _ = found.groups()
        length = int(self.headers["Inference-Header-Content-Length"])
        given, content = json.loads(body[:length]), body[length:]
        self.service.bodies.append(given)
        columns = {}
        for one in given["inputs"]:
            size, count = one["parameters"]["binary_data_size"], one["shape"][0]
            columns[one["name"]] = _binary(one["datatype"], content[:size], count)
            content = content[size:]
        results = self._run(name, version, "", "serving_default", columns)
        return {
            "outputs": [
                {"name": k, "shape": v.shape, "data": [_plain(e) for e in v.ravel()]}
                for k, v in results.items()
            ]
        }

    def _run(self, name, version, label, signature, columns):
        with self.service.versions.session(name, int(version or 0), label or "") as (_, session):
            specs = session.signatures[signature or "serving_default"].inputs
            kinds = {key: specs[key].dtype for key in columns if key in specs}
            arrays = {key: as_array(columns[key], kinds.get(key, 7)) for key in columns}
            return session.run(arrays, signature)

    def _answer(self, status, content, headers=None):
        content = json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)


def _value(value):
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else value


def _plain(value):
    if isinstance(value, bytes):
        return value.decode()
    return [_plain(one) for one in value] if getattr(value, "ndim", 0) else value.item()


def _binary(kind, content, count):
    if kind == "INT64":
        return struct.unpack(f"<{count}q", content)
    values = []
    while content:
        (size,) = struct.unpack_from("<I", content)
        values.append(content[4 : 4 + size])
        content = content[4 + size :]
    return values
