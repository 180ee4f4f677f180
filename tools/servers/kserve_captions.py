"""Serves an export with KServe on loopback, at the REST path of TF Serving.

    python kserve_captions.py --base_path served/flickr8k --port 8501

KServe's own batching is a process beside it in a cluster. Here `Batches` joins requests as it does.
"""

import argparse
import asyncio
import base64
import binascii
import logging

from kserve import Model, ModelServer
from kserve.errors import InvalidInput
from kserve.protocol.rest.server import RESTServer
from newest import Newest


class Batches:
    """Joins the rows of requests that arrive together.

    Args:
      function: takes columns and returns the outputs; it runs in a thread.
      most: the most rows of a batch.
      seconds: how long the first row waits for others.
    """

    def __init__(self, function, most: int, seconds: float):
        self._function, self._most, self._seconds = function, most, seconds
        self._waiting: asyncio.Queue = asyncio.Queue()
        self._task = None

    async def __call__(self, rows: list[dict]) -> list[dict]:
        """Returns the outputs of each row. Raises ValueError if the model refuses the batch."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        answer = asyncio.get_running_loop().create_future()
        await self._waiting.put((rows, answer))
        return await answer

    async def _run(self):
        left = None  # a request that was too large for the last batch
        while True:
            batch = [left or await self._waiting.get()]
            left, size = None, len(batch[0][0])
            end = asyncio.get_running_loop().time() + self._seconds
            while size < self._most:
                rest = end - asyncio.get_running_loop().time()
                try:
                    following = await asyncio.wait_for(self._waiting.get(), max(rest, 0))
                except asyncio.TimeoutError:
                    break
                size += len(following[0])
                # Requests with other inputs cannot be joined.
                if size > self._most or set(following[0][0]) != set(batch[0][0][0]):
                    left = following
                    break
                batch.append(following)
            await self._answer(batch)

    async def _answer(self, batch):
        rows = [row for request, _ in batch for row in request]
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        try:
            results = await asyncio.to_thread(self._function, columns)
        except Exception as error:  # it belongs to those who wait
            for _, answer in batch:
                if not answer.cancelled():  # its client has gone
                    answer.set_exception(error)
            return
        split = iter([dict(zip(results, row)) for row in zip(*results.values())])  # noqa: B905
        for request, answer in batch:
            if not answer.cancelled():
                answer.set_result([next(split) for _ in request])


class Captions(Model):
    """The model at `/v1/models/captions`."""

    def __init__(self, name: str, batches: Batches):
        super().__init__(name)
        self._batches = batches
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        """Answers `{"instances": [...]}` with `{"predictions": [...]}`."""
        try:
            rows = [{key: _value(v) for key, v in row.items()} for row in payload["instances"]]
            if not rows or any(set(row) != set(rows[0]) for row in rows):
                raise ValueError("instances must be rows with equal keys")
            return {"predictions": [_json(row) for row in await self._batches(rows)]}
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise InvalidInput(f"{type(error).__name__}: {error}") from error


def _value(value):
    return base64.b64decode(value["b64"], validate=True) if isinstance(value, dict) else value


def _json(row):
    return {
        key: _plain(value.tolist() if hasattr(value, "tolist") else value)
        for key, value in row.items()
    }


def _plain(value):
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def main() -> None:
    """Serves until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base_path", required=True, help="Directory with numbered versions.")
    parser.add_argument("--name", default="captions", help="Name of the model.")
    parser.add_argument("--port", type=int, default=8501, help="Port on loopback.")
    parser.add_argument("--max_batch", type=int, default=16, help="Most pictures of a batch.")
    parser.add_argument("--wait_ms", type=float, default=5, help="Milliseconds to wait for others.")
    given = parser.parse_args()
    newest = Newest(given.base_path)
    newest.watch()
    server = ModelServer(http_port=given.port, enable_grpc=False, enable_latency_logging=False)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    batches = Batches(newest, given.max_batch, given.wait_ms / 1000)
    server.register_model(Captions(given.name, batches))
    # ModelServer.start listens on all addresses, so its REST server is started here.
    rest = RESTServer(
        "kserve.model_server:app", server.dataplane, server.model_repository_extension, given.port
    )
    rest.config.host = "127.0.0.1"
    asyncio.run(rest.start())


if __name__ == "__main__":
    main()
