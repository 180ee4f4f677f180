"""Versions of an export behind TensorFlow's session loader, as a model server keeps them.

The session loader is the one that TF Serving uses; `tf.saved_model.load` takes another way. The
rules of versions are those of TF Serving: the highest number serves unless a configuration says
otherwise, a new version is loaded and warmed up before it serves, and an old one ends after its
last request. It is not TF Serving itself: it joins no requests to batches.
"""

import contextlib
import os
import pathlib
import threading

import numpy as np
import tensorflow as tf
from google.protobuf import text_format

WARM_UP = "assets.extra/tf_serving_warmup_requests"


class Session:
    """One version: its signatures and a session that runs them."""

    def __init__(self, path):
        self.path, self.requests, self._idle = path, 0, threading.Condition()
        options = tf.compat.v1.ConfigProto(device_count={"CPU": 1})
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=options)
        with self._session.graph.as_default():
            loaded = tf.compat.v1.saved_model.load(self._session, ["serve"], path)
        self.signatures = dict(loaded.signature_def)

    def run(self, inputs, signature="serving_default", outputs=()):
        """Returns the outputs as arrays; raises ValueError for inputs that the model refuses."""
        signature = self.signatures.get(signature or "serving_default")
        if signature is None:
            raise ValueError(f"Serving signature name must be one of {sorted(self.signatures)}.")
        if set(inputs) != set(signature.inputs):
            raise ValueError(f"input keys must be {sorted(signature.inputs)}, not {sorted(inputs)}")
        for key, value in inputs.items():
            if tf.as_dtype(value.dtype) != signature.inputs[key].dtype:
                raise ValueError(f"{key} has the type {value.dtype}, which the model does not take")
        wanted = {key: signature.outputs[key].name for key in outputs or signature.outputs}
        feed = {signature.inputs[key].name: value for key, value in inputs.items()}
        try:
            return self._session.run(wanted, feed)
        except (tf.errors.InvalidArgumentError, TypeError) as error:
            raise ValueError(str(error).splitlines()[0]) from error

    def hold(self, number):
        """Counts requests that begin (1) and end (-1)."""
        with self._idle:
            self.requests += number
            self._idle.notify_all()

    def close(self):
        """Waits for the last request, and frees the model."""
        with self._idle:
            self._idle.wait_for(lambda: not self.requests)
        self._session.close()


class ModelVersions:
    """All versions that serve now.

    Args:
      base_path: the directory with the numbered versions, or a file `models.config`, which is read
        again at each look as with `--model_config_file_poll_wait_seconds`.
      base: the directory that stands for the base path in `models.config`.
    """

    def __init__(self, base_path, base=None, name="captions"):
        self._path, self._base, self.name = str(base_path), base, name
        self.sessions, self.labels, self.replayed = {}, {}, 0
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.look()

    def look(self):
        """Loads what is new, lets it serve, and then ends what is old."""
        base, wanted, labels = self._wanted()
        new = {number: Session(f"{base}/{number}") for number in wanted - set(self.sessions)}
        for session in new.values():
            self.replayed += self._warm_up(session)
        with self._lock:
            old = {n: s for n, s in self.sessions.items() if n not in wanted}
            self.sessions = {n: s for n, s in (self.sessions | new).items() if n in wanted}
            self.labels = {label: n for label, n in labels.items() if n in self.sessions}
        for session in old.values():
            session.close()

    def watch(self, seconds=1.0):
        """Looks again and again in a thread until `close`."""

        def run():
            while not self._ended.wait(seconds):
                self.look()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def close(self):
        self._ended.set()
        for session in self.sessions.values():
            session.close()

    @contextlib.contextmanager
    def session(self, name, version=0, label=""):
        """Yields (number, session), which stays open meanwhile; raises LookupError for none."""
        with self._lock:
            number = version or (self.labels.get(label) if label else max(self.sessions))
            if name != self.name or number not in self.sessions:
                raise LookupError(f"Servable not found for request: {name} {version or label}")
            session = self.sessions[number]
            session.hold(1)
        try:
            yield number, session
        finally:
            session.hold(-1)

    def _wanted(self):
        if os.path.isdir(self._path):
            return self._path, {max(_numbers(self._path))}, {}
        from tensorflow_serving.config import model_server_config_pb2

        text = pathlib.Path(self._path).read_text()
        parsed = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
        (config,) = parsed.model_config_list.config
        self.name, base = config.name, self._base or config.base_path
        policy, numbers = config.model_version_policy, sorted(_numbers(base))
        if policy.HasField("specific"):
            numbers = [n for n in numbers if n in policy.specific.versions]
        elif not policy.HasField("all"):
            numbers = numbers[-(policy.latest.num_versions or 1) :]
        return base, set(numbers), dict(config.version_labels)

    @staticmethod
    def _warm_up(session):
        """Replays the records that the export brings; returns their number."""
        path = os.path.join(session.path, WARM_UP)
        if not os.path.exists(path):
            return 0
        from tensorflow_serving.apis import prediction_log_pb2

        records = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
        for record in records:
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
            session.run(inputs, request.model_spec.signature_name, request.output_filter)
        return len(records)


def _numbers(base):
    return [int(name) for name in os.listdir(base) if name.isdecimal()]


def as_array(values, dtype):
    """An array of a signature's input from what JSON holds; raises ValueError."""
    kind = tf.as_dtype(dtype)
    return np.array(values, object if kind == tf.string else kind.as_numpy_dtype)
