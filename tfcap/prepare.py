"""Turns captions and images into the records that training reads.

python -m tfcap.prepare --captions captions.csv --images photographs --out data/mine
python -m tfcap.prepare --source shapes --out data/shapes

The command writes into --out: sharded TFRecords, vocab.txt, document_frequency.npz,
references_<split>.json, the backbone's weights, and dataset.json, which is written last. If an
interrupted command is given again, it continues where it stopped: the directory `.shards` lists the
finished shards.
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
      The path of the prepared directory, as a Path, or as a string if it is in remote storage.

    Raises:
      ValueError: the captions, pictures or features cannot be used; more images than `max_skipped`
        allows cannot be used; or `out` holds files that were made with other settings.
    """
    from tfcap.preparing import build

    return build.prepare(settings)


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
