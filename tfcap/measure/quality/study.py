"""Trains and scores all systems under the same tuning, run by run.

Each run is `python -m tfcap.train` and `python -m tfcap.evaluate` in processes of their own. The
scores on the first half of the images of `val` decide the best checkpoint, when training ends, the
learning rate and the dropout. The second half gives the scores of the table.

A directory of a study holds:

runs/NAME/           the directory of each run
captions/NAME.json   its captions of `val`
results/NAME.json    its settings, minutes, curve and scores, also of each image that judges
logs/NAME.txt        the output of its processes
quality.md           the table so far
curves.csv, .png     CIDEr on the first half of `val`, over the steps

The table is written from `results` alone. So results can be copied into the directory of another
study, which goes on from there.
"""

import os
from collections.abc import Iterator
from typing import Any

from tfcap import cli, runs
from tfcap.files import read_json, replacing, write_json
from tfcap.measure.quality import commands, curves, jobs, tables
from tfcap.measure.quality.judge import Judge
from tfcap.measure.quality.processes import Ended, Processes

_REMEDY = "Remove it, or choose another --out."


def study(options: jobs.Options, out: str) -> Iterator[dict[str, Any]]:
    """Trains and scores what `options` say, and yields the result of each job when it has ended.

    A finished job is only read, and an interrupted run goes on. Table and curves are written after
    each job. A job that fails does not end the others.

    Args:
      options: what to train.
      out: the directory of the study.

    Yields:
      The content of `results/NAME.json`, with `name`.

    Raises:
      ValueError: `out` has results of other settings, the data is bad, or at the end, a job failed;
        the message has the end of its output.
    """
    for folder in ("runs", "captions", "results", "logs"):
        os.makedirs(os.path.join(out, folder), exist_ok=True)
    with Judge(options.data_dir) as judge:
        yield from _Study(options, out, judge).results()


def _differences(expected: Any, received: Any, key: str = "settings") -> Iterator[str]:
    """Yields a sentence for each value of nested dictionaries that is not the expected one."""
    if isinstance(expected, dict) and isinstance(received, dict):
        for name in sorted({*expected, *received}):
            wanted, found = (one.get(name, "no such key") for one in (expected, received))
            yield from _differences(wanted, found, f"{key}.{name}")
    elif expected != received:
        yield f"Expected {key}: {expected!r}. Received: {received!r}"


class _Study:
    """The state of a study: finished jobs, and what failed."""

    def __init__(self, options: jobs.Options, out: str, judge: Judge):
        self.options, self.out, self.judge = options, out, judge
        self.finished: dict[jobs.Job, dict[str, Any]] = {}
        self.failed: dict[jobs.Job, str] = {}
        self._left: dict[jobs.Job, list[list[str]]] = {}  # commands of the running jobs

    def results(self) -> Iterator[dict[str, Any]]:
        """Runs all jobs, see `study`."""
        with Processes() as processes:
            try:
                yield from self._run(processes)
            finally:
                for ended in processes.stop():
                    self._note(ended)
        self.write()
        if self.failed:
            job, reason = next(iter(self.failed.items()))
            raise ValueError(f"{len(self.failed)} runs failed. {job.name}: {reason}")

    def _run(self, processes: Processes) -> Iterator[dict[str, Any]]:
        while True:
            for job in self._new():
                if self._read(job).get("finished"):
                    self.finished[job] = self._read(job)
                    yield {"name": job.name, **self.finished[job]}
                    break  # the plan may have more jobs now
                if len(processes.running) < self.options.jobs:
                    if self._forget_lost(job):
                        break  # what the job builds on is trained again before it
                    self._left[job] = self._lines(job)
                    self._next(job, processes)
            else:
                if not processes.running:
                    return
                ended = processes.wait()
                if self._after(ended, processes):
                    self.write()
                    yield {"name": ended.key.name, **self.finished[ended.key]}

    def _forget_lost(self, job: jobs.Job) -> bool:
        """Marks finished runs as unfinished if `job` builds on them and they have no directory.

        Results that were copied from another study have none. Returns whether there were such runs.
        """
        lost = [
            run
            for run in job.builds_on
            if run in self.finished and not os.path.isdir(commands.run_of(self.out, run))
        ]
        for run in lost:
            del self.finished[run]
            write_json(self._path(run), self._unfinished(run), indent=None)
        return bool(lost)

    def _unfinished(self, job: jobs.Job) -> dict[str, Any]:
        return {"settings": self._settings(job), "finished": False, "cpu_minutes": 0.0}

    def _new(self) -> list[jobs.Job]:
        """Returns the jobs that have neither ended nor started, in the order of the plan."""
        known = {**self.finished, **self.failed, **self._left}
        return [job for job in jobs.plan(self.options, self._chosen()) if job not in known]

    def _chosen(self) -> dict[jobs.Job, float]:
        scores = {job: float(result["chosen"]) for job, result in self.finished.items()}
        return scores | dict.fromkeys(self.failed, jobs.FAILED)

    def _path(self, job: jobs.Job) -> str:
        return os.path.join(self.out, "results", f"{job.name}.json")

    def _settings(self, job: jobs.Job) -> dict[str, Any]:
        of_job = commands.settings(job, self.options, self.judge.half)
        return {"data": self.judge.data, **of_job}

    def _lines(self, job: jobs.Job) -> list[list[str]]:
        return commands.command_lines(job, self.options, self.out, self.judge.half)

    def _read(self, job: jobs.Job) -> dict[str, Any]:
        """Reads what is known of a job. Raises ValueError for a job with other settings."""
        path, unfinished = self._path(job), self._unfinished(job)
        if not os.path.exists(path):
            return unfinished
        result = read_json(path, _REMEDY)
        if not isinstance(result, dict):
            raise ValueError(f"{path} must have the settings of this command. {_REMEDY}")
        if differences := list(_differences(unfinished["settings"], result.get("settings"))):
            raise ValueError(
                f"{path} must have the settings of this command. {differences[0]}. {_REMEDY}"
            )
        return result

    def _next(self, job: jobs.Job, processes: Processes) -> None:
        """Starts the next command of a job."""
        write_json(self._path(job), self._read(job), indent=None)
        log = os.path.join(self.out, "logs", f"{job.name}.txt")
        processes.start(job, self._left[job].pop(0), log)

    def _note(self, ended: Ended) -> dict[str, Any]:
        """Adds the time of a process to the file of its job; returns the content."""
        result = self._read(ended.key)
        result["cpu_minutes"] = round(result["cpu_minutes"] + ended.cpu_seconds / 60, 2)
        write_json(self._path(ended.key), result, indent=None)
        return result

    def _after(self, ended: Ended, processes: Processes) -> bool:
        """Notes what a process did; returns whether its job is finished."""
        job, result = ended.key, self._note(ended)
        if ended.code == cli.AGAIN:
            raise cli.Interrupted(
                f"{job.name} was ended by SIGTERM. Give the same command again to continue.",
                cli.AGAIN,
            )
        if ended.code:
            self.failed[job] = ended.reason
            del self._left[job]
            return False
        if self._left[job]:
            self._next(job, processes)
            return False
        del self._left[job]
        self.finished[job] = {**result, **self._outcome(job), "finished": True}
        write_json(self._path(job), self.finished[job], indent=None)
        return True

    def _outcome(self, job: jobs.Job) -> dict[str, Any]:
        """Returns parameters, curve and scores of a job whose commands have run."""
        scores = self.judge.scores(commands.captions_of(self.out, job))
        outcome: dict[str, Any] = {
            "scores": {key: round(score, 3) for key, score in scores.corpus.items()},
            "images": {"CIDEr": [round(own["CIDEr"], 2) for own in scores.per_image.values()]},
        }
        if len(job.seeds) > 1:
            members = [self.finished[member] for member in job.members]
            parameters = sum(member["parameters"] for member in members)
            return {**outcome, "chosen": 0.0, "parameters": parameters}
        folder = commands.run_of(self.out, job)
        run = runs.load(folder)
        best = runs.read_best(runs.best_directory(folder, run.params))
        curve = curves.scalars(os.path.join(folder, "validation"))["CIDEr"]
        return {
            **outcome,
            "chosen": best["CIDEr"],
            "step": int(best["best_ckpt_global_step"]),
            "parameters": runs.count_parameters(run.model),
            "curve": {str(step): round(value, 3) for step, value in sorted(curve.items())},
        }

    def write(self) -> None:
        """Writes the table and the curves of the finished jobs."""
        best = {
            job.row: job for job in jobs.best(self.options, self._chosen()) if self.options.tune
        }
        judged = {job: self.judge.read(result) for job, result in self.finished.items()}
        lines = tables.systems(judged, best)
        text = "\n\n".join([tables.table(lines, self.finished, best), tables.claims_table(lines)])
        with replacing(os.path.join(self.out, "quality.md")) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text.strip() + "\n")
        curves.write(
            self.out,
            {
                job.name: {int(step): value for step, value in result["curve"].items()}
                for job, result in self.finished.items()
                if "curve" in result
            },
        )
