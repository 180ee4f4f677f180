"""TF Serving's REST API over a SavedModel, for tests. It can fail on purpose."""

import base64
import http.server
import json
import threading

import numpy as np
import tensorflow as tf


class RestService:
    """A server on loopback.

    Attributes:
      failures: HTTP status of the next answers.
      bodies: the JSON of the last requests.
      url: its address.
    """

    def __init__(self, version):
        self.loaded, self.failures, self.bodies = tf.saved_model.load(str(version)), [], []
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    service: RestService

    def log_message(self, *_):
        pass

    def do_POST(self):  # noqa: N802
        received = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.service.bodies.append(received)
        if self.service.failures:
            self._answer(self.service.failures.pop(0), {"error": "on purpose"})
        elif self.path != "/v1/models/captions:predict":
            self._answer(404, {"error": "Servable not found"})
        elif {key for row in received["instances"] for key in row} != {"image_bytes"}:
            self._answer(400, {"error": "input keys must be image_bytes"})
        else:
            files = [_decoded(row["image_bytes"]) for row in received["instances"]]
            function = self.service.loaded.signatures["serving_default"]
            result = {key: v.numpy() for key, v in function(image_bytes=tf.constant(files)).items()}
            rows = [
                {key: np.vectorize(_plain)(values[i]).tolist() for key, values in result.items()}
                for i in range(len(files))
            ]
            self._answer(200, {"predictions": rows})

    def _answer(self, status, content):
        content = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _decoded(value):
    """The bytes of a picture, or a list of those of several pictures of an image."""
    return [*map(_decoded, value)] if isinstance(value, list) else base64.b64decode(value["b64"])


def _plain(value):
    return value.decode() if isinstance(value, bytes) else value
