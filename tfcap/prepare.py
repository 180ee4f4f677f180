"""Turns captions and images into the records that training reads.

python -m tfcap.prepare --captions captions.csv --images photographs --out data/mine
python -m tfcap.prepare --source shapes --out data/shapes

The command writes into --out: sharded TFRecords, vocab.txt, document_frequency.npz,
references_<split>.json, the backbone's weights, and dataset.json last. An interrupted prepare
continues where it stopped when the same command is given again: `.shards` describes the finished
shards.
"""

import pathlib

from absl import flags

from tfcap import cli, errors
from tfcap.arguments import takes
from tfcap.preparing.settings import Settings


def _define_flags() -> None:
    cli.define(Settings)


def _run(argv: list[str]) -> None:
    if argv[1:] and flags.FLAGS.engine != "beam":
        raise errors.UsageError(
            f"{argv[1]!r} is not a flag. Flags begin with --. Only `engine=beam` takes other "
            "words, the options of Beam."
        )
    try:
        prepare(**cli.values(Settings), engine_options=tuple(argv[1:]))
    except KeyboardInterrupt:
        raise errors.Interrupted(
            "Interrupted. Give the same command again to continue.", code=130
        ) from None


@takes(Settings)
def prepare(settings: Settings) -> pathlib.Path | str:
    """Turns captions and images into a prepared directory, from which captioners are trained.

    Returns:
      The path of the prepared directory; a string, not a Path, if it lies in remote storage.

    Raises:
      ValueError: the input is bad, more images than `max_skipped` allows cannot be read, or `out`
        holds files that were made with other settings.
    """
    from tfcap.preparing import build

    return build.prepare(settings)


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
