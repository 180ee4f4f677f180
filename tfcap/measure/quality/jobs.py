"""The jobs of a study, and the order in which they run."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from tfcap.measure.quality.rows import ROWS

RATES = (0.002, 0.001, 0.0005)  # the first one is the default
DROPOUTS = (0.1, 0.3)
BATCH, CAPTIONS = 10, 5  # images of a training step, captions of an image
FAILED = float("-inf")


@dataclasses.dataclass(frozen=True)
class Options:
    """What a study trains.

    Attributes:
      data_dir: the prepared directory.
      rows: keys of `ROWS`.
      width: width of all systems.
      examples: captions that a run of cross-entropy sees.
      scst_examples: sampled captions that a self-critical run sees; 0 leaves such runs out.
      seeds: number of seeds of the best options.
      tune: whether the options are chosen among all rates and dropouts; else the defaults are used.
      jobs: number of processes at once.
    """

    data_dir: str
    rows: Sequence[str]
    width: int = 256
    examples: int = 200_000
    scst_examples: int = 100_000
    seeds: int = 1
    tune: bool = False
    jobs: int = 1


@dataclasses.dataclass(frozen=True)
class Job:
    """A run of training, or the ensemble of several runs, and its captions of `val`.

    Attributes:
      row: a key of `ROWS`.
      stage: `xe` or `scst`.
      rate: the learning rate of cross-entropy; self-critical training has a tenth.
      dropout: all dropout rates of the model.
      seeds: the seed of the run, or the seeds of the members of an ensemble.
    """

    row: str
    stage: str
    rate: float
    dropout: float
    seeds: tuple[int, ...] = (1,)

    @property
    def name(self) -> str:
        """The name of its files."""
        seeds = "+".join(map(str, self.seeds))
        return f"{self.row}_{self.stage}_lr{self.rate:g}_dropout{self.dropout:g}_seed{seeds}"

    @property
    def members(self) -> "tuple[Job, ...]":
        """The run of each seed."""
        return tuple(dataclasses.replace(self, seeds=(seed,)) for seed in self.seeds)

    @property
    def first_stage(self) -> "Job":
        """The run of cross-entropy from which a self-critical run starts."""
        return dataclasses.replace(self, stage="xe")

    @property
    def builds_on(self) -> "tuple[Job, ...]":
        """The runs whose weights it needs."""
        if len(self.seeds) > 1:
            return self.members
        return () if self.stage == "xe" else (self.first_stage,)


def plan(options: Options, scores: Mapping[Job, float]) -> list[Job]:
    """Returns the jobs that can run or have run, in the order in which they should run.

    First every row runs once with the defaults, so that the table is useful early. Then come the
    other options of the tuning, the other seeds, self-critical training and the ensembles.

    Args:
      options: what to train.
      scores: the score of each finished job on the half of `val` that chooses; `FAILED` for a job
        that failed, on which no other job is built.
    """
    jobs = [Job(row, "xe", *point) for point in _points(options) for row in options.rows]
    chosen = list(best(options, scores))
    seeds = range(1, options.seeds + 1)
    jobs += [dataclasses.replace(job, seeds=(s,)) for s in seeds[1:] for job in chosen]
    if options.scst_examples:
        tuned = [
            dataclasses.replace(job, stage="scst", seeds=(seed,))
            for seed in seeds
            for job in chosen
            if ROWS[job.row].self_critical
        ]
        jobs += [job for job in tuned if scores.get(job.first_stage, FAILED) > FAILED]
    if options.seeds > 1:
        for stage in ("xe", "scst"):
            together = [dataclasses.replace(j, stage=stage, seeds=tuple(seeds)) for j in chosen]
            jobs += [
                job
                for job in together
                if all(scores.get(member, FAILED) > FAILED for member in job.members)
            ]
    return jobs


def best(options: Options, scores: Mapping[Job, float]) -> Iterator[Job]:
    """Yields the best run of each row whose tuning has ended; the arguments are those of `plan`."""
    for row in options.rows:
        tuned = [Job(row, "xe", *point) for point in _points(options)]
        if all(job in scores for job in tuned):
            job = max(tuned, key=lambda job: scores[job])
            if scores[job] > FAILED:
                yield job


def _points(options: Options) -> list[tuple[float, float]]:
    """Returns the rates and dropouts that are tried, the defaults first."""
    every = [(rate, dropout) for rate in RATES for dropout in DROPOUTS]
    return every if options.tune else every[:1]
