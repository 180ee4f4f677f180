"""The protocols of `captions_client.py`: REST, the Open Inference Protocol, and gRPC.

A protocol sends one request of B pictures and reads its rows; it does not try again.

Letters: B pictures of a request, K captions of a picture.
"""

import base64
import http.client
import json
import struct
import threading
import urllib.parse
from typing import Any

BUSY = (429, 502, 503, 504)  # HTTP answers after which the same request may succeed


class ServerError(Exception):
    """The server could not be reached in time, or it cannot answer such requests."""


class Rejected(ServerError):
    """The server refuses the content of this request."""


class Missing(ServerError):
    """The server has no such model or version, or has not loaded it yet."""


class Busy(ServerError):
    """The server cannot answer now; `after` are the seconds that it asks to wait, or 0."""

    def __init__(self, message: str, after: float = 0.0):
        super().__init__(message)
        self.after = after


class Rest:
    """The REST API of TF Serving: rows of JSON with pictures in base64."""

    def __init__(self, url: str, name: str, version="", label="", headers=None):
        self._http = _Http(url, headers)
        self._path = f"/v1/models/{_quoted(name)}"
        if version or label:
            kind = "versions" if version else "labels"
            self._path += f"/{kind}/{_quoted(version or label)}"

    def predict(self, rows: list[dict[str, Any]], timeout: float) -> list[dict[str, Any]]:
        """Sends one request; raises `Busy`, `Rejected` or another `ServerError`."""
        instances = [{key: _json_value(value) for key, value in row.items()} for row in rows]
        body = json.dumps({"signature_name": "serving_default", "instances": instances})
        headers = {"Content-Type": "application/json"}
        answer = self._http.ask("POST", f"{self._path}:predict", timeout, body.encode(), headers)
        return _rows(answer.get("predictions"), len(rows))

    def ready(self, timeout: float) -> bool:
        """Returns whether the server has loaded the model."""
        answer = self._http.ask("GET", self._path, timeout)
        states = answer.get("model_version_status")  # KServe answers {"ready": true}
        if states is None:
            return str(answer.get("ready")).lower() == "true"
        return any(state.get("state") == "AVAILABLE" for state in states)


class OpenInference:
    """The Open Inference Protocol over HTTP; pictures follow the JSON as bytes."""

    def __init__(self, url: str, name: str, version="", label="", headers=None):
        if label:
            raise ValueError(f"The protocol v2 has no labels. Received: {label!r}. Give a version.")
        self._http = _Http(url, headers)
        self._path = f"/v2/models/{_quoted(name)}"
        self._path += f"/versions/{_quoted(version)}" if version else ""

    def predict(self, rows: list[dict[str, Any]], timeout: float) -> list[dict[str, Any]]:
        """Sends one request; raises `Busy`, `Rejected` or another `ServerError`."""
        described: list[dict[str, Any]] = []
        content = b""
        for key, first in rows[0].items():
            if isinstance(first, bytes):
                data = b"".join(struct.pack("<I", len(row[key])) + row[key] for row in rows)
            else:
                data = struct.pack(f"<{len(rows)}q", *(row[key] for row in rows))
            kind = "BYTES" if isinstance(first, bytes) else "INT64"
            one: dict[str, Any] = {"name": key, "shape": [len(rows), 1], "datatype": kind}
            described.append(one | {"parameters": {"binary_data_size": len(data)}})
            content += data
        header = {"inputs": described, "parameters": {"binary_data_output": False}}
        head = json.dumps(header).encode()
        headers = {"Content-Type": "application/octet-stream"}
        headers["Inference-Header-Content-Length"] = str(len(head))
        answer = self._http.ask("POST", f"{self._path}/infer", timeout, head + content, headers)
        return self._read(answer.get("outputs", []), len(rows))

    def ready(self, timeout: float) -> bool:
        """Returns whether the server has loaded the model."""
        self._http.ask("GET", f"{self._path}/ready", timeout)
        return True

    @staticmethod
    def _read(outputs, count):
        split = {one["name"]: _split(one["data"], count) for one in outputs}
        return _rows(_join(split), count)


class Grpc:
    """The gRPC API of TF Serving; the URL is HOST:PORT, without encryption."""

    def __init__(self, url: str, name: str, version="", label="", headers=None):
        try:
            import grpc
            from tensorflow_serving.apis import (
                get_model_status_pb2,
                model_service_pb2_grpc,
                predict_pb2,
                prediction_service_pb2_grpc,
            )
        except ImportError as error:
            raise ServerError(
                f"--protocol=grpc needs tensorflow-serving-api. Received: {error}. Run: pip "
                "install tensorflow-serving-api. Or use --protocol=rest, which needs Python alone."
            ) from error
        self._grpc, self._messages, self._status = grpc, predict_pb2, get_model_status_pb2
        limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        # Without these a channel waits up to two minutes before it tries a restarted server.
        limits += [
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        channel = grpc.insecure_channel(url.split("://")[-1], options=limits)
        self._predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        self._models = model_service_pb2_grpc.ModelServiceStub(channel)
        self._metadata = [(key.lower(), value) for key, value in (headers or {}).items()]
        self._name, self._version, self._label = name, version, label

    def _address(self, spec):
        spec.name = self._name
        if self._version:
            spec.version.value = int(self._version)
        elif self._label:
            spec.version_label = self._label

    def predict(self, rows: list[dict[str, Any]], timeout: float) -> list[dict[str, Any]]:
        """Sends one request; raises `Busy`, `Rejected` or another `ServerError`."""
        request = self._messages.PredictRequest()
        self._address(request.model_spec)
        request.model_spec.signature_name = "serving_default"
        for key, first in rows[0].items():
            tensor, values = request.inputs[key], [row[key] for row in rows]
            tensor.tensor_shape.dim.add(size=len(rows))
            tensor.dtype = 7 if isinstance(first, bytes) else 9  # DT_STRING, DT_INT64
            (tensor.string_val if isinstance(first, bytes) else tensor.int64_val).extend(values)
        outputs = self._call(self._predict, request, timeout).outputs
        kept = [key for key in ("captions", "scores", "status") if key in outputs]
        split = {key: _split(_values(outputs[key]), len(rows)) for key in kept}
        return _rows(_join(split), len(rows))

    def ready(self, timeout: float) -> bool:
        """Returns whether the server has loaded the model."""
        request = self._status.GetModelStatusRequest()
        self._address(request.model_spec)
        answer = self._call(self._models.GetModelStatus, request, timeout)
        return any(status.state == 30 for status in answer.model_version_status)  # AVAILABLE

    def _call(self, function, request, timeout):
        grpc = self._grpc
        try:
            return function(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            message = f"{error.code().name}: {error.details()}"
            code = grpc.StatusCode
            if error.code() in (code.UNAVAILABLE, code.RESOURCE_EXHAUSTED, code.DEADLINE_EXCEEDED):
                raise Busy(message) from error
            kinds = {code.INVALID_ARGUMENT: Rejected, code.NOT_FOUND: Missing}
            raise kinds.get(error.code(), ServerError)(message) from error


PROTOCOLS = {"rest": Rest, "v2": OpenInference, "grpc": Grpc}


class _Http:
    """HTTP/1.1 with one open connection for each thread."""

    def __init__(self, url: str, headers: dict[str, str] | None):
        self._url, self._headers = urllib.parse.urlsplit(url), headers or {}
        known = self._url.scheme in ("http", "https") and self._url.hostname
        if not known or any(letter.isspace() or not letter.isprintable() for letter in url):
            raise ValueError(
                "The URL must begin with http:// or https://, and have no spaces. Received: "
                f"{url!r}."
            )
        self._own = threading.local()

    def ask(self, method, path, timeout, body=None, headers=None) -> dict[str, Any]:
        """Returns the JSON object that answers a request."""
        try:
            status, reason, after, content = self._send(method, path, timeout, body, headers)
        except (OSError, http.client.HTTPException) as error:
            if hasattr(self._own, "connection"):
                self._own.connection.close()  # a half read answer must not meet the next request
            raise Busy(f"{type(error).__name__}: {error}") from error
        if status != 200:
            message = f"HTTP {status} {reason}: {content[:500].decode(errors='replace')}"
            if status in BUSY:
                raise Busy(message, min(float(after), 30.0) if after.isdecimal() else 0.0)
            raise {400: Rejected, 422: Rejected, 404: Missing}.get(status, ServerError)(message)
        try:
            answer = json.loads(content or b"{}")
        except ValueError as error:
            raise ServerError(f"The answer must be JSON. Received: {content[:100]!r}.") from error
        if not isinstance(answer, dict):
            raise ServerError(f"The answer must be a JSON object. Received: {content[:100]!r}.")
        return answer

    def _send(self, method, path, timeout, body, headers):
        if not hasattr(self._own, "connection"):
            https = self._url.scheme == "https"
            kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
            self._own.connection = kind(str(self._url.hostname), self._url.port)
        connection = self._own.connection
        connection.timeout = timeout
        if connection.sock:
            connection.sock.settimeout(timeout)
        path = self._url.path.rstrip("/") + path
        connection.request(method, path, body, {**(headers or {}), **self._headers})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, answer.reason, answer.getheader("Retry-After") or "", content


def _quoted(text: Any) -> str:
    return urllib.parse.quote(str(text), safe="")


def _json_value(value: Any) -> Any:
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _values(tensor) -> list[Any]:
    """Returns the values of a TensorProto: strings or floats."""
    if tensor.dtype == 7:  # DT_STRING
        return [value.decode() for value in tensor.string_val]
    if tensor.tensor_content:
        return list(struct.unpack(f"<{len(tensor.tensor_content) // 4}f", tensor.tensor_content))
    return list(tensor.float_val)


def _split(values: list[Any], count: int) -> list[list[Any]]:
    """Splits the values of an output into `count` rows."""
    width = len(values) // count
    return [values[width * row : width * (row + 1)] for row in range(count)]


def _join(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Makes rows with names of columns of equal length."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _rows(rows: Any, count: int) -> list[dict[str, Any]]:
    """Returns the rows of an answer. Raises ServerError if they are not those of a captioner."""
    good = isinstance(rows, list) and len(rows) == count
    if not good or not all(
        isinstance(row, dict) and {"captions", "scores"} <= set(row) for row in rows
    ):
        raise ServerError(
            f"The answer must have {count} rows with captions and scores. Received: "
            f"{str(rows)[:200]}. Check --name: the model must be an export of tfcap."
        )
    return rows
