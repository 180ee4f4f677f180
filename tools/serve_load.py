"""Asks `tfcap serve` with many clients at once, and prints tables of what came of it.

python tools/serve_load.py --seconds=600 --clients=1,4,16
python tools/serve_load.py --seconds=60 --model_dir runs/mine -- --batch_size=16

It starts the server in a process of its own, on made photographs; the words behind `--` are flags
of `tfcap serve`. One request in nine has a bad picture, which must be refused. Before, the captions
of the same pictures are computed in this process, one alone: each answer must be equal to them. At
the end the server is killed and started again while clients ask, who try again until they have an
answer. The clients take processor time from the server: give them other cores with `taskset`.
"""

import argparse
import base64
import http.client
import io
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import tfcap

PATH = "/api/generate"
PICTURES = 64


class Answer(NamedTuple):
    """What became of a request: its picture, the status, the text, and the seconds it took."""

    picture: int
    status: int
    text: str
    seconds: float


def photograph(seed: int) -> bytes:
    """Makes a JPEG file of 640 x 480 pixels: soft colours with fine grain, as photographs have."""
    rng = np.random.default_rng(seed)
    soft = Image.fromarray(rng.integers(0, 255, [6, 8, 3], np.uint8)).resize((640, 480))
    values = np.asarray(soft) + rng.normal(0, 12, [480, 640, 3])
    stream = io.BytesIO()
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=88)
    return stream.getvalue()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(port: int, flags: list[str]) -> subprocess.Popen:
    """Starts the server, and waits until it listens."""
    command = [sys.executable, "-m", "tfcap.serve", f"--port={port}", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    while not process.stdout.readline().startswith("Serving"):
        if process.poll() is not None:
            sys.exit("the server has ended")
    return process


class Client:
    """Asks for captions, one after the other, over one connection.

    Args:
      port: the port of the server.
      tries: whether a request is sent again while the server is busy or missing.
    """

    def __init__(self, port: int, tries: bool = False):
        self._port = port
        self._tries = tries
        self._link = self._open()

    def _open(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)

    def ask(self, picture: int, body: bytes) -> Answer:
        """Sends a request."""
        begin = time.perf_counter()
        while True:
            try:
                self._link.request("POST", PATH, body)
                answer = self._link.getresponse()
                content = answer.read()
                if answer.status not in (429, 503) or not self._tries:
                    break
            except (OSError, http.client.HTTPException):
                if not self._tries:
                    raise
                self._link.close()
                self._link = self._open()
            time.sleep(0.2)
        result: dict[str, Any] = json.loads(content)
        seconds = time.perf_counter() - begin
        return Answer(picture, answer.status, result.get("response", ""), seconds)


def load(
    port: int, clients: int, bodies: list[bytes], seconds: float, tries: bool = False
) -> list[Answer]:
    """Lets clients ask as fast as they get answers; returns the answers."""

    end = time.monotonic() + seconds

    def work(number: int) -> list[Answer]:
        client = Client(port, tries)
        rng = np.random.default_rng(number)
        answers = []
        while time.monotonic() < end:
            picture = int(rng.integers(len(bodies)))
            answers.append(client.ask(picture, bodies[picture]))
        return answers

    with ThreadPoolExecutor(clients) as pool:
        return [answer for part in pool.map(work, range(clients)) for answer in part]


def memory(port: int) -> float:
    """The memory of the server in megabytes, as it measures it."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    link.request("GET", "/metrics")
    page = link.getresponse().read().decode()
    found = re.search(r"^process_resident_memory_bytes (\S+)", page, re.M)
    return float(found[1]) / 1e6 if found else float("nan")


def wrong(answers: list[Answer], texts: list[str | None]) -> int:
    """Counts answers that are not what they must be; None stands for a bad picture."""
    return sum(
        one.status != 400 if texts[one.picture] is None else one.text != texts[one.picture]
        for one in answers
    )


def milliseconds(answers: list[Answer]) -> str:
    """The median, and the times that 5 and 1 of 100 requests exceed."""
    times = sorted(1000 * one.seconds for one in answers if one.status == 200)
    points = statistics.quantiles(times, n=100)
    return " | ".join(f"{points[at]:.0f}" for at in (49, 94, 98))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures tfcap serve under load.")
    parser.add_argument("--seconds", type=int, default=600, help="seconds for each row")
    parser.add_argument("--clients", default="1,4,16", help="numbers of clients, a row each")
    parser.add_argument("--model_dir", help="run or export to serve, in place of the packaged one")
    parser.add_argument("flags", nargs="*", help="other flags of tfcap serve, behind --")
    args = parser.parse_args()
    photographs = [photograph(seed) for seed in range(PICTURES)]
    captioner = tfcap.load(args.model_dir)
    if args.model_dir:
        args.flags.append(f"--model_dir={args.model_dir}")
    captioner(photographs[:2])
    begin = time.perf_counter()
    texts: list[str | None] = [captioner(content).text for content in photographs]
    alone = (time.perf_counter() - begin) / PICTURES
    bad = [b"", b"no picture", photographs[0][:5000], os.urandom(3000)] * 2
    texts += [None] * len(bad)
    images = [base64.b64encode(content).decode() for content in photographs + bad]
    bodies = [json.dumps({"images": [one], "stream": False}).encode() for one in images]

    print(f"one picture alone in a program: {1000 * alone:.0f} ms\n")
    port = free_port()
    process = start(port, args.flags)
    background = ThreadPoolExecutor(1)
    print("| clients | answers | a second | refused | wrong | ms: 50 % | 95 % | 99 % ", end="")
    print("| MB after each fifth of the time |")
    print("|---|---|---|---|---|---|---|---|---|")
    try:
        for clients in map(int, args.clients.split(",")):
            asking = background.submit(load, port, clients, bodies, args.seconds)
            megabytes = []
            for _ in range(5):
                time.sleep(args.seconds / 5)
                megabytes.append(f"{memory(port):.0f}")
            answers = asking.result()
            refused = sum(one.status == 400 for one in answers)
            rate = len(answers) / args.seconds
            print(
                f"| {clients} | {len(answers)} | {rate:.1f} | {refused} | {wrong(answers, texts)} "
                f"| {milliseconds(answers)} | {', '.join(megabytes)} |",
                flush=True,
            )
        asking = background.submit(load, port, 4, bodies, 20, True)
        deaths = [time.monotonic() + 3, time.monotonic() + 13]
        for death in deaths:
            time.sleep(max(0, death - time.monotonic()))
            process.kill()
            process.wait()
            process = start(port, args.flags)
        answers = asking.result()
        lost = wrong(answers, texts)
        print(f"\nkilled {len(deaths)} times: {len(answers)} answers, {lost} lost or wrong")
    finally:
        process.terminate()
        print(f"exit code after SIGTERM: {process.wait(60)}")


if __name__ == "__main__":
    main()
