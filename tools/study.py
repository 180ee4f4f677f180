"""Trains every system in the same way, with the same tuning and seeds, and writes one table.

python tools/study.py --data=shapes --rows=updown,xlan --seeds=3
python tools/study.py --data=data/flickr8k --seeds=3 --tune

Each run is `tfcap.train` and then `tfcap.evaluate`. The first half of the images of `val` chooses
the best checkpoint, the learning rate and the dropout; the second half gives the scores of the
table. A finished run is only read, and an interrupted one goes on, so give the same command again
to continue. The directory of a study holds runs/NAME, their captions, logs, and results/NAME.json,
which has the settings and scores of a run. The table is made from `results` alone.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.metrics import bootstrap, coco, results
from tfcap.prepare import prepare

RATES = (0.002, 0.001, 0.0005)  # the first ones are the defaults
DROPOUTS = (0.1, 0.3)
BATCH = 10  # images of a training step
CAPTIONS = 5  # captions of an image
VALIDATIONS = 6  # of a run


class Row(NamedTuple):
    """A system that is trained, a row of the table.

    Attributes:
      name: the name in the table.
      experiment: the experiment of cross-entropy.
      options: options of the model that differ from the experiment.
      widths: options of the model that are multiples of the common width, with their factors.
      self_critical: whether the system is trained further by self-critical training.
    """

    name: str
    experiment: str
    options: Mapping[str, Any] = {}
    widths: Mapping[str, float] = {"width": 1}
    self_critical: bool = False


_ATTENTION = {"width": 1, "attention_width": 0.5}
_EXPANSION = {"width": 1, "inner_width": 2}
_MRNN = {"embed_width": 1, "width": 1, "multimodal_width": 2}
_BASE = {"encoder_block": "attention", "decoder_block": "attention", "reduce": False}
_VECTORS = {"encoder_vectors": 64, "decoder_vectors": 16}
_ROW1 = {"encoder_layers": 0, "attention": "additive"}
_ROW2 = {"encoder_layers": 0, "activation": "relu"}
_ROW3 = {"encoder_layers": 1, "activation": "relu"}
# The rows of X-LAN are rows 1, 2, 3 and 7 of table 3 of its paper.
ROWS = {
    "show_tell": Row("Show and Tell", "show_tell"),
    "attention_lstm": Row("attention LSTM", "attention_lstm", {}, _ATTENTION),
    "updown": Row("Up-Down", "updown", {}, _ATTENTION, True),
    "lbpf": Row("LBPF", "lbpf", {}, _ATTENTION, True),
    "rfnet": Row("RFNet", "rfnet", {}, _ATTENTION, True),
    "hip": Row("HIP, without graphs", "hip", {"regions": 0}, _ATTENTION, True),
    "aoanet": Row("AoANet", "aoanet", self_critical=True),
    "sgae": Row("SGAE, without scene graphs", "sgae", {}, _ATTENTION),
    "xlan_row1": Row("X-LAN row 1 (conventional attention, no encoder)", "xlan", _ROW1, _ATTENTION),
    "xlan_row2": Row("X-LAN row 2 (X-Linear attention, no encoder)", "xlan", _ROW2),
    "xlan_row3": Row("X-LAN row 3 (one X-Linear layer)", "xlan", _ROW3),
    "xlan": Row("X-LAN", "xlan", {"encoder_layers": 4}, self_critical=True),
    "transformer": Row("Transformer", "transformer", self_critical=True),
    "ort": Row("Object Relation Transformer", "ort", self_critical=True),
    "m2": Row("Meshed-Memory Transformer", "m2", self_critical=True),
    "xtransformer": Row("X-Transformer", "xtransformer", self_critical=True),
    "expansionnet_base": Row("ExpansionNet's Base", "expansionnet", _BASE, _EXPANSION),
    "expansionnet": Row("ExpansionNet", "expansionnet", _VECTORS, _EXPANSION, True),
    "mrnn": Row("m-RNN", "mrnn", {}, _MRNN),
    "mrnn_recurrent": Row(
        "m-RNN, image in the recurrent layer", "mrnn", {"variant": "vis_in_rnn"}, _MRNN
    ),
    "mrnn_no_image": Row("m-RNN, no image", "mrnn", {"variant": "rnn_base"}, _MRNN),
    "mrnn_shared": Row("m-RNN with shared weights", "mrnn_shared", {}, _MRNN),
}
# What the papers claim: the first is above the second.
CLAIMS = (
    ("xlan", "updown"),
    ("xlan", "attention_lstm"),
    ("updown", "attention_lstm"),
    ("xlan_row2", "xlan_row1"),
    ("xlan_row3", "xlan_row2"),
    ("xlan", "xlan_row3"),
    ("xtransformer", "transformer"),
    ("expansionnet", "expansionnet_base"),
    ("expansionnet", "transformer"),
    ("mrnn", "mrnn_recurrent"),
    ("aoanet", "updown"),
    ("xlan", "aoanet"),
    ("lbpf", "updown"),
    ("hip", "updown"),
    ("ort", "transformer"),
    ("m2", "transformer"),
)


class Job(NamedTuple):
    """A run of training.

    Attributes:
      row: a key of `ROWS`.
      stage: `xe` or `scst`.
      rate: learning rate of cross-entropy; self-critical training has a tenth.
      dropout: all dropout rates of the model.
      seed: random seed.
    """

    row: str
    stage: str
    rate: float
    dropout: float
    seed: int

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.row}_{self.stage}_lr{self.rate:g}_dropout{self.dropout:g}_seed{self.seed}"


def changes(job: Job, args: argparse.Namespace, half: int) -> dict[str, Any]:
    """Returns the experiment of a run and the changes to its configuration, without paths.

    Args:
      job: the run.
      args: the command line.
      half: number of images of `val` that choose checkpoints.
    """
    row = ROWS[job.row]
    first = job.stage == "xe"
    experiment = row.experiment if first else f"{row.experiment}_scst"
    model = configs.resolve(experiment).task.model.get().as_dict()
    chosen = {key: job.dropout for key in model if key.endswith("_dropout")}
    chosen |= {key: round(factor * args.width) for key, factor in row.widths.items()}
    if model.get("standardize"):  # all systems read the same numbers
        chosen["standardize"] = False
    task: dict[str, Any] = {
        "seed": job.seed,
        "metrics": ["BLEU", "CIDEr"],
        "model": {row.experiment: chosen | dict(row.options)},
        "train_data": {"global_batch_size": BATCH, "captions_per_image": CAPTIONS},
        "validation_data": {"global_batch_size": 50, "limit": half},
    }
    if not first:
        task["self_critical"] = {"samples": CAPTIONS}
    steps = max(1, (args.examples if first else args.scst_examples) // (BATCH * CAPTIONS))
    interval = max(1, steps // VALIDATIONS)
    trainer = {
        "train_steps": steps,
        "validation_interval": interval,
        "checkpoint_interval": interval,
        "shown_images": 0,
        # The score of the beam search falls first in self-critical training.
        "patience": 2 if first else 0,
        "optimizer_config": {
            "ema_decay": round(1 - 1 / max(2, 0.05 * steps), 6),
            "schedule": {
                "name": "linear",
                "learning_rate": job.rate if first else job.rate / 10,
                "warmup_steps": max(1, steps // 20),
                "decay_start": steps // 3,
                "decay_steps": max(1, steps // 10),
                "decay_rate": 0.75,
            },
        },
    }
    return {"experiment": experiment, "changes": {"task": task, "trainer": trainer}}


class Study:
    """Trains, scores and keeps the results of the runs of one directory."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.out = pathlib.Path(args.out)
        for name in ("runs", "captions", "results", "logs"):
            (self.out / name).mkdir(parents=True, exist_ok=True)
        data = PreparedData.load(args.data)
        ids = data.index("val").id.tolist()
        self.half = len(ids) // 2
        captions = data.references("val")
        self.references = {image: captions[image] for image in ids[self.half :] if captions[image]}
        self.scorer = coco.CocoScorer(("BLEU", "METEOR", "CIDEr"))
        self.results: dict[Job, dict[str, Any]] = {}

    def run(self, jobs: Iterable[Job]) -> None:
        """Runs the jobs that have no result yet, and reads the results of the others."""
        for job in jobs:
            path = self.out / "results" / f"{job.name}.json"
            settings = json.loads(json.dumps(changes(job, self.args, self.half)))
            if path.exists():
                result = json.loads(path.read_text())
                result["settings"].pop("data", None)
                if result["settings"] != settings:
                    raise ValueError(
                        f"{path} has other settings. Remove it or choose another --out."
                    )
            else:
                minutes = self._train(job) + self._evaluate(job)
                result = {"settings": settings, "cpu_minutes": round(minutes, 2)}
                result |= self._scores(job)
                path.write_text(json.dumps(result))
            self.results[job] = result
            summary = {
                key: value for key, value in result.items() if key not in ("settings", "images")
            }
            print(json.dumps({"name": job.name} | summary), flush=True)

    def _train(self, job: Job) -> float:
        settings = changes(job, self.args, self.half)
        task = settings["changes"]["task"]
        task["data_dir"] = os.path.abspath(self.args.data)
        if job.stage == "scst":
            first = self.out / "runs" / job._replace(stage="xe").name
            task["init_checkpoint"] = str(first / "best_ckpt")
        return self._command(
            job,
            "tfcap.train",
            f"--experiment={settings['experiment']}",
            f"--model_dir={self.out / 'runs' / job.name}",
            f"--params_override={json.dumps(settings['changes'])}",
        )

    def _evaluate(self, job: Job) -> float:
        return self._command(
            job,
            "tfcap.evaluate",
            f"--model_dir={self.out / 'runs' / job.name}",
            "--split=val",
            "--scores=CIDEr",
            f"--output={self.out / 'captions' / f'{job.name}.json'}",
        )

    def _command(self, job: Job, *command: str) -> float:
        """Runs a command; returns its minutes of processor time."""
        log = self.out / "logs" / f"{job.name}.txt"
        before = os.times()
        with open(log, "a", encoding="utf-8") as file:
            line = [sys.executable, "-m", *command]
            done = subprocess.run(line, stdout=file, stderr=subprocess.STDOUT)
        if done.returncode:
            raise ValueError(f"{command[0]} of {job.name} failed. {log} has its output.")
        after = os.times()
        seconds = after.children_user + after.children_system
        return (seconds - before.children_user - before.children_system) / 60

    def _scores(self, job: Job) -> dict[str, Any]:
        """Returns the scores on the second half of `val`, and what the first half chose."""
        captions = results.load_results(self.out / "captions" / f"{job.name}.json")
        judged = {image: captions[image] for image in captions if image in self.references}
        results.check_ids(self.references, judged)
        scores = self.scorer.score(self.references, judged)
        run = runs.load(str(self.out / "runs" / job.name))
        best = runs.read_best(runs.best_directory(run.directory, run.params))
        return {
            "scores": {key: round(score, 3) for key, score in scores.corpus.items()},
            "images": {
                "CIDEr": [round(values["CIDEr"], 2) for values in scores.per_image.values()]
            },
            "chosen": best["CIDEr"],
            "step": int(best["best_ckpt_global_step"]),
            "parameters": runs.count_parameters(run.model),
        }

    def best(self, row: str) -> Job:
        """Returns the run of the first seed with the best score on the images that choose."""
        tried = [job for job in self.results if job[:2] == (row, "xe") and job.seed == 1]
        return max(sorted(tried, reverse=True), key=lambda job: self.results[job]["chosen"])

    def table(self) -> str:
        """Returns the scores with intervals over images and seeds, and the claims of the papers."""
        lines = [
            "| system | parameters | seeds | rate, dropout | minutes | BLEU-4 | METEOR | CIDEr "
            "| 95 % interval |",
            "|" + "---|" * 9,
        ]
        scores = {}
        for key in itertools.product(self.args.rows, ("xe", "scst")):
            best = self.best(key[0])._replace(stage=key[1])
            jobs = [job for job in self.results if job[:4] == best[:4]]
            if jobs:
                scores[key] = [self._read(self.results[job]) for job in jobs]
                lines.append(self._row(key, jobs, scores[key]))
        pairs = [((a, stage), (b, stage)) for stage in ("xe", "scst") for a, b in CLAIMS]
        pairs += [((row, "scst"), (row, "xe")) for row in ROWS]
        pairs = [(a, b) for a, b in pairs if a in scores and b in scores]
        if pairs:
            lines += ["", "| claim | difference in CIDEr | 95 % interval | result |"]
            lines.append("|" + "---|" * 4)
        for above, below in pairs:
            change = bootstrap.differences(scores[below], scores[above])["CIDEr"]
            verdicts = {"higher": "holds", "lower": "the opposite holds"}
            lines.append(
                f"| {_name(above)} is above {_name(below)} | {change.value:+.1f} "
                f"| {change.low:+.1f} to {change.high:+.1f} "
                f"| {verdicts.get(change.verdict, change.verdict)} |"
            )
        return "\n".join(lines) + "\n"

    def _row(self, key: tuple[str, str], jobs: list[Job], scores: list[results.Scores]) -> str:
        """Returns the row of a system and stage, whose runs differ in their seeds."""
        rows = [self.results[job] for job in jobs]
        interval = bootstrap.intervals(scores)["CIDEr"]
        cells = [
            _name(key),
            f"{rows[0]['parameters'] / 1e6:.2f} M",
            str(len(jobs)),
            f"{jobs[0].rate:g}, {jobs[0].dropout:g}",
            f"{sum(row['cpu_minutes'] for row in rows) / len(rows):.1f}",
        ]
        for name in ("BLEU-4", "METEOR", "CIDEr"):  # without Java there is no METEOR
            values = [row["scores"].get(name, math.nan) for row in rows]
            cells.append(f"{sum(values) / len(values):.1f}")
        return f"| {' | '.join(cells)} | {interval.low:.1f} to {interval.high:.1f} |"

    def _read(self, result: Mapping[str, Any]) -> results.Scores:
        """Returns the CIDEr of a result as the bootstrap reads it."""
        values = zip(self.references, result["images"]["CIDEr"], strict=True)
        images = {image: {"CIDEr": value} for image, value in values}
        return results.Scores({"CIDEr": result["scores"]["CIDEr"]}, images)


def _name(key: tuple[str, str]) -> str:
    return ROWS[key[0]].name + (", self-critical" if key[1] == "scst" else "")


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--data", default="shapes", help="shapes, or a prepared directory")
    add("--out", default="runs/quality", help="directory of the study")
    usual = ",".join(row for row in ROWS if row != "hip")  # its data must hold trees
    add("--rows", default=usual, help=f"systems to train, some of {', '.join(ROWS)}")
    add("--width", type=int, help="width of all systems, by default 256, on shapes 128")
    add("--examples", type=int, default=200_000, help="captions that a run sees")
    add("--scst_examples", type=int, default=100_000, help="those of a self-critical run; or 0")
    add("--seeds", type=int, default=1, help="number of seeds")
    add("--tune", action="store_true", help="choose learning rate and dropout of each system")
    args = parser.parse_args(arguments)
    args.rows = args.rows.split(",")
    args.width = args.width or (128 if args.data == "shapes" else 256)
    if args.data == "shapes":
        args.data = "data/shapes"
        prepare(args.data, source="shapes")
    return args


def main(arguments: list[str] | None = None) -> None:
    """Runs the study and prints the table."""
    args = parsed(arguments)
    study = Study(args)
    points = list(itertools.product(RATES, DROPOUTS))[: None if args.tune else 1]
    study.run(
        Job(row, "xe", rate, dropout, seed=1) for rate, dropout in points for row in args.rows
    )
    best = [study.best(row) for row in args.rows]
    seeds = range(1, args.seeds + 1)
    study.run(job._replace(seed=seed) for seed in seeds[1:] for job in best)
    if args.scst_examples:
        second = [job._replace(stage="scst") for job in best if ROWS[job.row].self_critical]
        study.run(job._replace(seed=seed) for seed in seeds for job in second)
    print(f"\n{study.table()}", end="")


if __name__ == "__main__":
    main()
