#!/usr/bin/env python3
"""Captions pictures with a server of an exported captioner.

    python captions_client.py --url http://127.0.0.1:8501 --name captions photo.jpg ...

It needs `captions_protocols.py` beside it. `--protocol` names what the server speaks:
  rest: the REST API of TF Serving, also at KServe. It needs Python alone.
  v2: the Open Inference Protocol over HTTP, for example at Triton. It needs Python alone.
  grpc: the gRPC API of TF Serving, `--url 127.0.0.1:8500`. It needs tensorflow-serving-api.

Letters: K captions of a picture.
"""

import argparse
import dataclasses
import io
import itertools
import json
import os
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from captions_protocols import PROTOCOLS, Busy, Missing, Rejected, ServerError

OK = "ok"


@dataclasses.dataclass(frozen=True)
class Result:
    """The captions of a picture.

    Attributes:
      source: the path of the picture; "" if bytes were given.
      caption: the best caption; "" if there is none.
      score: its score, a summed natural log-probability unless the export orders otherwise.
      status: "ok", or a short reason why there is no caption.
      captions, scores: all K captions, best first.
    """

    source: str
    caption: str
    score: float
    status: str = OK
    captions: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()


class Client:
    """Captions pictures; threads can share a client.

    Args:
      url: `http://HOST:PORT`, `https://...`, or `HOST:PORT` for gRPC.
      name: the name of the model at the server.
      protocol: a key of `PROTOCOLS`.
      version, label: which version answers; by default TF Serving takes the highest one, which has
        the label canary. Give at most one of them.
      batch_size: the most pictures in a request.
      timeout: seconds that one try of a request may take.
      deadline: seconds that a request may take with all its tries.
      headers: further headers of each request, for example `{"Host": ...}` behind a gateway.
    """

    def __init__(
        self, url, name="captions", protocol="rest", version="", label="", batch_size=8,
        timeout=30.0, deadline=120.0, headers=None,
    ):  # fmt: skip
        if version and label:
            raise ValueError(f"Give a version or a label. Received: {version!r} and {label!r}.")
        if batch_size < 1:
            raise ValueError(f"The batch size must be at least 1. Received: {batch_size}.")
        self.server = PROTOCOLS[protocol](url, name, version, label, headers)
        self.batch_size, self.timeout, self.deadline = batch_size, timeout, deadline
        self._served = False  # whether this server has had the model

    def caption(
        self, pictures: Iterable[str | bytes | os.PathLike], seed: int | None = None
    ) -> Iterator[Result]:
        """Yields a `Result` for each picture, in order.

        A picture that cannot be captioned has a `status` that is not "ok". A server of an older
        export refuses the whole request instead; then its halves are sent, until the good pictures
        have captions.

        Args:
          pictures: paths or contents of picture files.
          seed: only for an export that samples: the picture at position i gets `seed` + i.

        Raises:
          ServerError: the server is missing, has no such model, or did not answer in time.
        """
        numbers = itertools.count(seed or 0)
        places = ((picture, next(numbers)) for picture in pictures)
        while batch := list(itertools.islice(places, self.batch_size)):
            read = [self._row(picture, number, seed) for picture, number in batch]
            answers = iter(self._halve([row for row in read if isinstance(row, dict)]))
            for (picture, _), row in zip(batch, read, strict=True):
                source = "" if isinstance(picture, bytes) else os.fspath(picture)
                failed = Result(source, "", 0.0, row) if isinstance(row, str) else None
                yield failed or dataclasses.replace(next(answers), source=source)

    def wait(self, seconds: float) -> None:
        """Waits until the server has loaded the model. Raises ServerError after `seconds`."""
        end, reason = time.monotonic() + seconds, "the model is not loaded"
        while time.monotonic() < end:
            try:
                if self.server.ready(min(5.0, seconds)):
                    self._served = True
                    return
            except ServerError as error:
                reason = str(error)
            time.sleep(0.2)
        raise ServerError(f"The server was not ready after {seconds:g} s: {reason}.")

    @staticmethod
    def _row(picture, number, seed):
        """Makes the inputs of a picture, or returns why the file cannot be read."""
        try:
            if not isinstance(picture, bytes):
                with open(picture, "rb") as file:
                    picture = file.read()
        except OSError as error:
            return f"the file cannot be read: {error.strerror}"
        return {"image_bytes": picture} | ({} if seed is None else {"seed": number})

    def _halve(self, rows: list[dict[str, Any]]) -> list[Result]:
        """Sends rows; if the server rejects them, sends their halves."""
        try:
            return [_result(answer) for answer in self._retry(rows)] if rows else []
        except Rejected as error:
            if len(rows) == 1:
                return [Result("", "", 0.0, str(error))]
            half = len(rows) // 2
            return self._halve(rows[:half]) + self._halve(rows[half:])

    def _retry(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Sends rows until the server answers; waits longer after each try."""
        end, pause, told = time.monotonic() + self.deadline, 0.05, False
        while True:
            try:
                left = max(0.1, end - time.monotonic())
                answer = self.server.predict(rows, min(self.timeout, left))
                self._served = True
                return answer
            except (Busy, Missing) as error:
                # Some servers answer before they have loaded their models again.
                if isinstance(error, Missing) and not self._served:
                    raise
                # Clients that failed together must not come back together.
                wait = max(getattr(error, "after", 0.0), pause * random.uniform(0.5, 1.5))
                if time.monotonic() + wait > end:
                    raise ServerError(f"No answer after {self.deadline:g} s: {error}") from error
                if not told:
                    told = True
                    print(
                        f"{error}; trying again for up to {self.deadline:g} s",
                        file=sys.stderr,
                        flush=True,
                    )
            time.sleep(wait)
            pause = min(2 * pause, 5.0)


def _result(row: dict[str, Any]) -> Result:
    status = row.get("status", OK)  # older exports have none
    status = status[0] if isinstance(status, list) else status
    captions, scores = tuple(row["captions"]), tuple(float(score) for score in row["scores"])
    return Result("", captions[0], scores[0], status, captions, scores)


def _line(name: str) -> str:
    """Returns a name in one line: line feeds, tabs and other control characters are escapes."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda m: ascii(m[0])[1:-1], name)


def _json(row: dict[str, Any]) -> str:
    """Returns a JSON object; a name that is not UTF-8 is written with escapes."""
    text = json.dumps(row, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(row)
    return text


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Captions pictures with a server.")
    parser.add_argument("pictures", nargs="+", help="Picture files.")
    parser.add_argument("--url", default="http://127.0.0.1:8501", help="Address of the server.")
    parser.add_argument("--name", default="captions", help="Name of the model.")
    parser.add_argument("--protocol", choices=[*PROTOCOLS], default="rest", help="API to use.")
    parser.add_argument("--version", default="", help="Version that answers, a number.")
    parser.add_argument(
        "--label",
        default="",
        help="Label of the version: stable or canary. By default the highest version answers.",
    )
    parser.add_argument("--batch_size", type=int, default=8, help="Most pictures in a request.")
    parser.add_argument("--timeout", type=float, default=30, help="Seconds for one try.")
    parser.add_argument("--deadline", type=float, default=120, help="Seconds for all tries.")
    parser.add_argument("--seed", type=int, help="Only if the export samples: a random seed.")
    parser.add_argument("--json", action="store_true", help="Print a JSON object per picture.")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Prints a line per picture: path, caption and score; errors go to standard error.

    Returns:
      The exit code: 0; 1 if a picture has no caption or the server failed; 130 after Ctrl-C; 141
      if the reader of standard output has gone, as in `... | head`.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error escapes such names already
        utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        # A name that is not UTF-8 is written with its own bytes, as `ls` does.
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
    options = vars(_arguments(given))
    pictures, seed, as_json = (options.pop(key) for key in ("pictures", "seed", "json"))
    failed = 0
    try:
        for result in Client(**options).caption(pictures, seed):
            failed += result.status != OK
            if as_json:
                print(_json(dataclasses.asdict(result)), flush=True)
            elif result.status == OK:
                print(
                    _line(result.source),
                    result.caption,
                    f"{result.score:.4f}",
                    sep="\t",
                    flush=True,
                )
            else:
                print(
                    f"error: {_line(result.source)}: {result.status}", file=sys.stderr, flush=True
                )
    except (ServerError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: Interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Python writes what is left at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
