"""Times on a GPU what `export.py` wrote and, if it is there, the released PyTorch code beside it.

python tools/gpu/run.py WORKS OUT
python tools/gpu/run.py WORKS OUT --released=CODE --seconds=545

It needs JAX (tried with 0.11.2), and no TensorFlow. CODE holds clones of
JDAI-CV/image-captioning (d39126d) and jchenghu/ExpansionNet_v2 (eb7f1c9), which need PyTorch,
easydict and PyYAML.

Each work is a process. Some prepare side by side: they compile, draw weights and call twice. One
that is ready is timed alone, while the others are stopped, which makes their compilations longer.
XLA tries kernels while other works do so too, and may choose others the next time.
After `--seconds`, or at SIGTERM, the rest are killed. When a work ends, OUT/results.jsonl gets a
line: all times, the peak memory, the kernels that took longest, and the clocks before and after,
which are only read. OUT/*.txt has the messages. At the end come a table with medians and extremes,
and the names of the works without a time.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).parent
# The first work compiles longest; these flags show how much of it is the trial of kernels.
FLAGS = ("--xla_gpu_enable_triton_gemm=false", "--xla_gpu_autotune_level=0")
CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu"


class Work(NamedTuple):
    """What to time: whose code, the name in works.jsonl, and a flag of XLA or `--compile`."""

    side: str
    name: str
    option: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


def plan(args: argparse.Namespace) -> list[Work]:
    """Returns all works, the most important first."""
    lines = (args.works / "works.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    works = [Work("tfcap", entries[0]["name"], option) for option in ("", *FLAGS)]
    compiled = []
    for entry in entries:
        works.append(Work("tfcap", entry["name"]))
        if args.released and entry["kind"] in ("step", "beam", "picture"):
            works.append(Work("released", entry["name"]))
            compiled.append(Work("released", entry["name"], "--compile"))
    return list(dict.fromkeys(works + compiled))


class Runner:
    """Runs works, of which some prepare side by side and one at a time is timed."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.results: list[dict[str, Any]] = []
        self.running: set[subprocess.Popen] = set()
        self.over = False
        self.alone = threading.Lock()  # held while a work is timed; then none starts

    def signal(self, number: int, spared: subprocess.Popen | None = None) -> None:
        for process in self.running - {spared}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def stop(self, *_: object) -> None:
        """Ends all works."""
        self.over = True
        self.signal(signal.SIGKILL)

    def run(self, work: Work) -> None:
        """Runs a work, and writes what came of it."""
        begin = time.monotonic()
        result = {"exit": "not started"} if self.over else self._run(work)
        result |= {"work": work._asdict(), "seconds": round(time.monotonic() - begin, 1)}
        self.results.append(result)
        with open(self.args.out / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(work, spread(result) or f"exit: {result['exit']}", result["seconds"], flush=True)

    def _run(self, work: Work) -> dict[str, Any]:
        # The processes share the memory of the GPU, and Inductor's own could not be stopped.
        settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        if work.side == "tfcap":
            command = [sys.executable, HERE / "program.py", self.args.works, work.name]
            settings["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {work.option}".strip()
        else:
            command = [sys.executable, HERE / "released.py", self.args.released, work.name]
            command += work.option.split()
        with open(self.args.out / f"{work}.txt".replace(" ", "_"), "w") as log, self.alone:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | settings,
                start_new_session=True,
            )
            self.running.add(process)
            if self.over:  # the others have been killed already
                process.kill()
        lines = (line for line in process.stdout if line.startswith("{"))
        result = json.loads(next(lines, "{}"))
        if result:
            with self.alone:
                self.signal(signal.SIGSTOP, process)
                result["clocks"] = [clocks()]
                with contextlib.suppress(BrokenPipeError):
                    print(file=process.stdin, flush=True)
                with contextlib.suppress(ValueError):  # the rest of a line of a killed work
                    for line in lines:
                        result |= json.loads(line)
                result["clocks"].append(clocks())
                self.signal(signal.SIGCONT)
        result["exit"] = process.wait()
        self.running.discard(process)
        return result


def clocks() -> str:
    """The clocks of the GPU; empty without one."""
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return ""


def answer(call, prepared: dict[str, Any], memory, calls: int = 20) -> None:
    """Says that the work of this process is ready, waits for its turn, and times calls.

    Args:
      call: does the work once, and waits until it is done.
      prepared: what is known before.
      memory: returns the peak of the memory on the device in bytes.
      calls: number of timed calls; fewer, but at least three, if they take more than 15 s.
    """
    print(json.dumps(prepared), flush=True)
    if not sys.stdin.readline():
        sys.exit("run.py has ended")
    call()
    call()
    times: list[float] = []
    end = time.monotonic() + 15
    while len(times) < calls and (len(times) < 3 or time.monotonic() < end):
        begin = time.perf_counter()
        call()
        times.append(round(1000 * (time.perf_counter() - begin), 2))
    print(json.dumps({"milliseconds": times, "memory_mb": memory() >> 20}), flush=True)


def spread(result: dict[str, Any]) -> str:
    """The median, the least and the most of the times; empty without them."""
    times = result.get("milliseconds")
    return times and f"{statistics.median(times):.4g} ({min(times):.4g} to {max(times):.4g})" or ""


def table(works: list[Work], results: list[dict[str, Any]]) -> str:
    """Returns a Markdown table, and under it the works without a time."""
    found = {Work(**result["work"]): result for result in results if spread(result)}
    lines = ["| work | compiled in s | tfcap, ms | MB | released, ms | torch.compile, ms | ratio |"]
    lines.append("|---|---|---|---|---|---|---|")
    for work in works:
        if work.side == "tfcap" and work in found:
            ours = found[work]
            peers = [found.get(Work("released", work.name, how), {}) for how in ("", "--compile")]
            medians = [statistics.median(peer["milliseconds"]) for peer in peers if peer]
            cells = [" ".join(filter(None, work[1:])), ours["compile_s"], spread(ours)]
            cells += [ours["memory_mb"], *map(spread, peers), ""]
            if medians:
                cells[-1] = f"{min(medians) / statistics.median(ours['milliseconds']):.1f}"
            lines.append(f"| {' | '.join(map(str, cells))} |")
    missing = [str(work) for work in works if work not in found]
    return "\n".join([*lines, "", f"Without a time: {', '.join(missing) or 'none'}"])


def main(arguments: list[str] | None = None) -> None:
    """Runs all works."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("works", type=pathlib.Path, help="the directory that export.py wrote")
    parser.add_argument("out", type=pathlib.Path, help="the directory to write")
    parser.add_argument("--released", type=pathlib.Path, help="the directory of the clones")
    parser.add_argument("--seconds", type=float, default=545, help="seconds for all of it")
    jobs = max(2, (os.cpu_count() or 1) // 2)
    parser.add_argument("--jobs", type=int, default=jobs, help="works that prepare side by side")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    runner = Runner(args)
    works = plan(args)
    signal.signal(signal.SIGTERM, runner.stop)
    timer = threading.Timer(args.seconds, runner.stop)
    timer.start()
    try:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(runner.run, works))
    finally:
        timer.cancel()
    print(table(works, runner.results))


if __name__ == "__main__":
    main()
