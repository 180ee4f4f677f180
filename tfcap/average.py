"""Averages the weights of a run's last checkpoints and writes them as a new run.

python -m tfcap.average --model_dir runs/xtransformer --last 2 --out runs/averaged
"""

from absl import flags

from tfcap import cli


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    flags.DEFINE_string("model_dir", None, "Directory of a training run.")
    flags.DEFINE_integer("last", 2, "Number of newest checkpoints to average.", lower_bound=1)
    flags.DEFINE_string("out", None, "Run directory to write.")


def _run() -> None:
    given = flags.FLAGS
    cli.require("model_dir", "out")
    from tfcap.runs.average import write

    paths = write(given.model_dir, given.last, given.out)
    steps = ", ".join(path.rpartition("-")[2] for path in paths)
    print(f"{given.out}: the mean of {len(paths)} checkpoints, steps {steps}")
    print(f"scores:   python -m tfcap.evaluate --model_dir {given.out}")


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
