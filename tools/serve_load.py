"""Sends requests of many clients to a server, and checks every answer.

    python tools/serve_load.py --client served/client --url http://127.0.0.1:8501 \\
        --expected captions.jsonl --clients 8 --minutes 10 --pid 1234

`captions.jsonl` is what `python -m tfcap.caption --json` printed about the pictures. Requests have
mixed sizes. Some hold a bad picture, whose neighbours must still be captioned, and some have inputs
that the model does not know. Prints requests and pictures per second, latency, errors, and the
memory of the server over time. Exits with 1 if a request failed or an answer was wrong.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import sys
import threading
import time

GOOD_SCORE = 1e-3  # scores of batches of other sizes differ by rounding


class Load:
    """What all clients share: pictures with their captions, and what was counted.

    Args:
      client: the client of the bundle.
      expected: files of `tfcap.caption --json`; an answer must be that of one of them.
      sizes: numbers of pictures in a request, drawn evenly.
      bad: the share of pictures that are bad.
      seed: the random seed that `tfcap.caption` had; None for an export that does not sample.
    """

    def __init__(self, client, errors, expected, sizes, bad, requests, seed=None):
        self.client, self._errors, self._sizes, self._bad = client, errors, sizes, bad
        self.right = collections.defaultdict(list)
        for path in expected:
            for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
                one = json.loads(line)
                self.right[one["image"]].append((one["captions"][0], one["scores"][0]))
        self._contents = {path: pathlib.Path(path).read_bytes() for path in self.right}
        self._broken = _broken(next(iter(self._contents.values())))
        self._first = None if seed is None else seed << 40  # `tfcap.decoding.options.first_seed`
        self.left = requests
        self.latencies, self.counts, self.examples = [], collections.Counter(), []
        self.lock, self.stopped = threading.Lock(), threading.Event()

    def run(self, number: int) -> None:
        """Is one client: sends one request after the other until the end."""
        draw = random.Random(number)
        while self._another():
            if draw.random() < self._bad / 4:
                self._send_unknown()
            else:
                self._send(draw)

    def _another(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left >= 0 and not self.stopped.is_set()

    def _send(self, draw: random.Random) -> None:
        count = draw.choice(self._sizes)
        paths, seed = self._draw(draw, count)
        paths = [None if draw.random() < self._bad else path for path in paths]
        broken = [draw.choice(self._broken) for _ in paths]
        contents = [self._contents[p] if p else b for p, b in zip(paths, broken, strict=True)]
        start = time.perf_counter()
        try:
            results = list(self.client.caption(contents, seed))
        except self._errors.ServerError as error:
            return self._note("failed", str(error))
        taken = time.perf_counter() - start
        with self.lock:
            self.latencies.append(taken)
            self.counts["pictures"] += len(paths)
        for path, result in zip(paths, results, strict=True):
            self._check(path, result)

    def _draw(self, draw, count):
        """Draws pictures and a seed; those with seeds follow each other, as their seeds do."""
        every = list(self.right)
        if self._first is None:
            return draw.choices(every, k=count), None
        place = draw.randrange(max(1, len(every) - count + 1))
        return every[place : place + count], self._first + place

    def _check(self, path, result) -> None:
        if path is None:
            good = result.status != "ok" and not result.caption
            self._note("bad pictures refused" if good else "wrong", f"a bad picture: {result}")
        elif not any(
            result.caption == caption and abs(result.score - score) < GOOD_SCORE
            for caption, score in self.right[path]
        ):
            self._note("wrong", f"{path}: {result}, expected {self.right[path]}")

    def _send_unknown(self) -> None:
        """Sends inputs that the model does not have; the server must refuse them."""
        try:
            self.client.server.predict([{"nonsense": b"x"}], 60.0)
        except (self._errors.Busy, self._errors.Missing):
            return  # the server restarts
        except self._errors.ServerError:
            return self._note("bad requests refused", "")
        self._note("wrong", "a request with an unknown input was answered")

    def _note(self, kind: str, example: str) -> None:
        with self.lock:
            self.counts[kind] += 1
            if kind in ("failed", "wrong") and len(self.examples) < 5:
                self.examples.append(f"{kind}: {example}")


def _broken(picture: bytes) -> list[bytes]:
    """Makes files that are no pictures."""
    return [b"", b"no picture", picture[: len(picture) // 2], b"\xff\xd8\xff\xe0" + bytes(40)]


def memory(pid: int) -> float:
    """Returns the memory of a process and of those below it, in MB; shared pages count once."""
    children = collections.defaultdict(list)
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            stat = pathlib.Path("/proc", name, "stat").read_text()
        except OSError:
            continue  # it has ended
        children[int(stat.rpartition(")")[2].split()[1])].append(int(name))
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        waiting += children[one]
        try:
            lines = pathlib.Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def _watch(pid_of, load, samples, start) -> None:
    while not load.stopped.wait(0 if not samples else 5):
        if size := memory(pid_of()):
            samples.append((time.monotonic() - start, size, len(load.latencies)))


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def report(load: Load, clients: int, seconds: float, samples) -> dict:
    """Returns what is printed, as numbers."""
    milliseconds = [1000 * value for value in load.latencies]
    return {
        "clients": clients,
        "seconds": round(seconds, 1),
        "requests": len(milliseconds),
        "pictures": load.counts["pictures"],
        "requests_per_second": round(len(milliseconds) / seconds, 1),
        "pictures_per_second": round(load.counts["pictures"] / seconds, 1),
        "p50_ms": round(_percentile(milliseconds, 0.5), 1),
        "p99_ms": round(_percentile(milliseconds, 0.99), 1),
        "longest_ms": round(max(milliseconds, default=0.0), 1),
        **{
            key.replace(" ", "_"): load.counts[key]
            for key in ("bad pictures refused", "bad requests refused", "wrong", "failed")
        },
        "memory_mb": [[round(second), round(size), done] for second, size, done in samples],
    }


def _print(found: dict) -> None:
    print(
        f"{found['clients']} clients, {found['seconds']:g} s: {found['requests']} requests with "
        f"{found['pictures']} pictures, {found['requests_per_second']} requests/s, "
        f"{found['pictures_per_second']} pictures/s"
    )
    print(
        f"latency: p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms, longest "
        f"{found['longest_ms']} ms"
    )
    print(
        f"answers: {found['wrong']} wrong, {found['failed']} failed, "
        f"{found['bad_pictures_refused']} bad pictures and {found['bad_requests_refused']} bad "
        "requests refused"
    )
    samples = found["memory_mb"]
    shown = samples[:: max(1, len(samples) // 10)]
    if samples and shown[-1] != samples[-1]:
        shown.append(samples[-1])
    for second, size, done in shown:
        print(f"memory: {size} MB after {second} s and {done} requests")


def _flags(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--client", required=True, help="The directory client/ of the bundle.")
    parser.add_argument("--url", default="http://127.0.0.1:8501", help="Address of the server.")
    parser.add_argument("--protocol", default="rest", help="rest, v2 or grpc.")
    parser.add_argument("--name", default="captions", help="Name of the model.")
    parser.add_argument("--label", default="", help="Label of the version that answers.")
    parser.add_argument("--expected", action="append", required=True, help="Captions as JSON.")
    parser.add_argument("--clients", type=int, default=8, help="Clients that send at once.")
    parser.add_argument("--minutes", type=float, default=10, help="How long they send.")
    parser.add_argument("--requests", type=int, default=sys.maxsize, help="Requests at most.")
    parser.add_argument("--batch_sizes", default="1,1,2,4,8", help="Pictures in a request.")
    parser.add_argument("--bad", type=float, default=0.05, help="Share of bad pictures.")
    parser.add_argument("--seed", type=int, help="If the export samples: that of tfcap.caption.")
    parser.add_argument("--pid", type=int, help="Process of the server, for its memory.")
    parser.add_argument("--pid_file", help="The same in a file, for a server that is restarted.")
    parser.add_argument("--begun", help="File to write when the clients begin.")
    parser.add_argument("--output", help="File to write the figures to, as JSON.")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Runs the clients; returns the exit code."""
    options = _flags(given)
    sys.path.insert(0, os.path.abspath(options.client))
    import captions_client
    import captions_protocols

    sizes = [int(size) for size in options.batch_sizes.split(",")]
    client = captions_client.Client(
        options.url, options.name, options.protocol, label=options.label, batch_size=max(sizes)
    )
    client.wait(60)
    load = Load(
        client, captions_protocols, options.expected, sizes, options.bad, options.requests,
        options.seed,
    )  # fmt: skip
    samples, start = [], time.monotonic()

    def pid_of():
        return int(pathlib.Path(options.pid_file).read_text() or 0)

    if options.pid or options.pid_file:
        which = (lambda: options.pid) if options.pid else pid_of
        threading.Thread(target=_watch, args=(which, load, samples, start), daemon=True).start()
    threads = [threading.Thread(target=load.run, args=(n,)) for n in range(options.clients)]
    for thread in threads:
        thread.start()
    if options.begun:
        pathlib.Path(options.begun).touch()
    end = start + 60 * options.minutes
    while any(thread.is_alive() for thread in threads) and time.monotonic() < end:
        time.sleep(0.05)
    load.stopped.set()
    for thread in threads:
        thread.join()
    found = report(load, options.clients, time.monotonic() - start, samples)
    _print(found)
    for example in load.examples:
        print(example, file=sys.stderr)
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(found) + "\n")
    return 1 if found["wrong"] or found["failed"] or not found["requests"] else 0


if __name__ == "__main__":
    sys.exit(main())
