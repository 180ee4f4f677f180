#!/usr/bin/env python3
"""Captions pictures with a server of an exported captioner. Needs only Python.

    python captions_client.py --url http://127.0.0.1:8501 photo.jpg ...

Letters: K captions of a picture.
"""

import argparse
import base64
import dataclasses
import http.client
import itertools
import json
import os
import random
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")  # of pictures in a folder
BUSY = (429, 502, 503, 504)  # HTTP answers after which the same request may succeed


class ServerError(Exception):
    """The server is missing, does not have the model, or did not answer in time."""


class Rejected(ServerError):
    """The server refuses a request because of its content.

    `Client.caption` catches this error, and yields a `Result` whose `status` is the message.
    """


@dataclasses.dataclass(frozen=True)
class Result:
    """The captions of a picture, as `Client.caption` yields them.

    Attributes:
      source: the path of the picture; "" for a picture that was given as bytes.
      caption: the best caption; "" if there is none.
      score: the score of the best caption: the sum of the natural logarithms of its words'
        probabilities. If the export has `length_power`, the sum is divided by a measure of length.
        With `order=consensus` the score is the mean CIDEr-D against the other samples.
      status: "ok", or a short reason why there is no caption.
      captions: all K captions, best first.
      scores: the score of each caption.
      confidences: the estimated probability that each caption is usable, 0 to 1; empty if the run
        was not calibrated before its export.
    """

    source: str
    caption: str = ""
    score: float = 0.0
    status: str = "ok"
    captions: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    confidences: tuple[float, ...] = ()


class Client:
    """Captions pictures with a server of an exported captioner. Threads can share a client.

    Args:
      url: address of the server, `http://HOST:PORT` or `https://...`.
      name: the name of the model at the server.
      batch_size: largest number of pictures in a request.
      timeout: largest number of seconds that the client waits for one answer.
      deadline: largest number of seconds for a request and its repetitions while the server is
        busy.
      views: number of pictures of an image that the export reads; see `caption`.
      headers: further HTTP headers of each request, for example `{"Host": ...}` behind a gateway.
    """

    def __init__(
        self,
        url: str,
        name: str = "captions",
        batch_size: int = 8,
        timeout: float = 30.0,
        deadline: float = 120.0,
        headers: dict[str, str] | None = None,
        views: int = 1,
    ):
        self.url = f"{url.rstrip('/')}/v1/models/{name}:predict"
        self.batch_size = max(1, batch_size)
        self.timeout = timeout
        self.deadline = deadline
        self.views = views
        self.headers = {"Content-Type": "application/json", **(headers or {})}

    def caption(
        self,
        pictures: Iterable[str | bytes | os.PathLike | Sequence[str | bytes | os.PathLike]],
        seed: int | None = None,
    ) -> Iterator[Result]:
        """Sends pictures to the server; yields a `Result` for each, in their order.

        A picture that cannot be captioned raises no error: the `status` of its `Result` says why.

        Args:
          pictures: paths of picture files, or their bytes. If `views` is not 1, also lists of
            these or paths of folders, which are the pictures of one image.
          seed: a random seed, only for an export that draws captions at random: the picture at
            position i gets `seed` + i. None sends no seed.

        Raises:
          ServerError: the server is missing, does not have the model, or did not answer in time.
        """
        numbered = iter(enumerate(pictures, seed or 0))
        while batch := list(itertools.islice(numbered, self.batch_size)):
            rows: list[dict[str, Any]] = []
            sources: list[str] = []
            failed: dict[int, Result] = {}
            for index, (number, picture) in enumerate(batch):
                if isinstance(picture, str | bytes | os.PathLike):
                    picture = [picture]
                parts = list(picture) or [b""]
                sources.append("" if isinstance(parts[0], bytes) else os.fspath(parts[0]))
                try:
                    files = [file for part in parts for file in _files(part, self.views > 1)]
                except OSError as error:
                    reason = f"the file cannot be read: {error.strerror}"
                    failed[index] = Result(sources[-1], status=reason)
                    continue
                if not 0 < len(files) <= self.views:
                    reason = f"an image of {len(files)} pictures, but the model reads {self.views}"
                    failed[index] = Result(sources[-1], status=reason)
                    continue
                files += [b""] * (self.views - len(files))
                encoded = [{"b64": base64.b64encode(file).decode()} for file in files]
                row = {"image_bytes": encoded if self.views > 1 else encoded[0]}
                rows.append(row if seed is None else {**row, "seed": number})
            answers = iter(self._halve(rows))
            for index, source in enumerate(sources):
                yield failed.get(index) or dataclasses.replace(next(answers), source=source)

    def _halve(self, rows: list[dict[str, Any]]) -> list[Result]:
        """Sends rows; if the server rejects them, sends each half.

        A server rejects a request that is larger than its largest batch.
        """
        try:
            return [_result(row) for row in self._retry(rows)] if rows else []
        except Rejected as error:
            if len(rows) == 1:
                return [Result("", status=str(error))]
            half = len(rows) // 2
            return self._halve(rows[:half]) + self._halve(rows[half:])

    def _retry(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Sends rows until the server answers; waits longer after each try."""
        end = time.monotonic() + self.deadline
        pause = 0.05
        body = json.dumps({"instances": rows}).encode()
        while True:
            request = urllib.request.Request(self.url, body, self.headers)
            try:
                timeout = min(self.timeout, max(0.1, end - time.monotonic()))
                with urllib.request.urlopen(request, timeout=timeout) as answer:
                    return json.load(answer)["predictions"]
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code}: {error.read(500).decode(errors='replace')}"
                if error.code not in BUSY:
                    if error.code in (400, 422):
                        raise Rejected(reason) from None
                    raise ServerError(
                        f"{self.url} answers {reason}. Check the address of the server and the "
                        "name of the model."
                    ) from None
            except (OSError, http.client.HTTPException) as error:
                reason = f"{type(error).__name__}: {error}"
            wait = pause * random.uniform(0.5, 1.5)  # clients that failed together come apart
            if time.monotonic() + wait > end:
                raise ServerError(
                    f"No answer after {self.deadline:g} s ({reason}). "
                    f"Check that a server runs at {self.url}, or raise the deadline."
                )
            time.sleep(wait)
            pause = min(2 * pause, 5.0)


def _files(picture: str | bytes | os.PathLike, has_views: bool) -> list[bytes]:
    """Returns the bytes of a picture, or of the pictures in a folder: `2.png` before `10.png`."""

    def key(name: str) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", name)
        return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]

    if isinstance(picture, bytes):
        return [picture]
    paths = [os.fspath(picture)]
    if has_views and os.path.isdir(picture):
        names = [name for name in os.listdir(picture) if name.lower().endswith(ENDINGS)]
        shown = sorted((name for name in names if name[0] != "."), key=key)
        paths = [os.path.join(picture, name) for name in shown]
    files = []
    for path in paths:
        with open(path, "rb") as file:
            files.append(file.read())
    return files


def _result(row: dict[str, Any]) -> Result:
    """Reads the answer to one picture."""
    captions = tuple(row["captions"])
    scores = tuple(map(float, row["scores"]))
    confidences = tuple(map(float, row.get("confidences", ())))
    status = row.get("status", "ok")
    return Result("", captions[0], scores[0], status, captions, scores, confidences)


def main(args: list[str] | None = None) -> int:
    """Runs the command: captions the picture files that its arguments name.

    It prints a line for each picture: path, caption and score, and the confidence in the caption if
    the model returns it. Errors go to standard error.

    Args:
      args: arguments of the command line; None takes those of the process.

    Returns:
      The exit code: 0, or 1 if a picture has no caption or the server fails.
    """
    parser = argparse.ArgumentParser(description="Captions pictures with a server.")
    parser.add_argument("pictures", nargs="+", help="Picture files; with --views also folders.")
    parser.add_argument("--url", default="http://127.0.0.1:8501", help="Address of the server.")
    parser.add_argument("--name", default="captions", help="Name of the model.")
    parser.add_argument("--batch_size", type=int, default=8, help="Most pictures in a request.")
    parser.add_argument("--deadline", type=float, default=120, help="Seconds for all tries.")
    parser.add_argument(
        "--views", type=int, default=1, help="Pictures of an image that the export reads."
    )
    parser.add_argument("--seed", type=int, help="Only if the export samples: a random seed.")
    options = vars(parser.parse_args(args))
    pictures = options.pop("pictures")
    seed = options.pop("seed")
    code = 0
    try:
        for result in Client(**options).caption(pictures, seed):
            if result.status == "ok":
                numbers = (result.score, *result.confidences[:1])
                row = (result.source, result.caption, *(f"{number:.4f}" for number in numbers))
                print(*row, sep="\t", flush=True)
            else:
                print(f"error: {result.source}: {result.status}", file=sys.stderr, flush=True)
                code = 1
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
