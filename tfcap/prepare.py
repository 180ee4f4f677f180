"""Turns captions and images into the records that training reads.

python -m tfcap.prepare --captions captions.csv --images photographs --out data/mine
python -m tfcap.prepare --source shapes --out data/shapes

The command writes into --out: sharded TFRecords, vocab.txt, document_frequency.npz,
references_<split>.json, the backbone's weights, and dataset.json last. An interrupted prepare
continues where it stopped when the same command is given again: `.shards` describes the finished
shards.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from tfcap import cli, errors
from tfcap.backbones import default_weights
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources import READERS

BUILT_IN = ("shapes", "moving_shapes")


def _define_flags() -> None:
    flags.DEFINE_enum(
        "source",
        "auto",
        ["auto", *READERS, *BUILT_IN],
        "Layout of --captions; auto finds it by the content; shapes and moving_shapes: built-in "
        "drawings and clips.",
    )
    flags.DEFINE_multi_string(
        "captions", [], "Caption file or directory; several with commas or by repeating the flag."
    )
    flags.DEFINE_string("out", None, "Directory to write, on a disk or as in gs://bucket/data.")
    kinds: dict[Any, Callable[..., Any]] = {bool: flags.DEFINE_bool}
    kinds |= {int: flags.DEFINE_integer, int | None: flags.DEFINE_integer}
    for field in dataclasses.fields(Settings):
        if choices := field.metadata.get("choices"):
            flags.DEFINE_enum(field.name, field.default, choices, field.metadata["help"])
        elif field.metadata:
            define = kinds.get(field.type, flags.DEFINE_string)
            define(field.name, field.default, field.metadata["help"])


def _run(argv: list[str]) -> None:
    given = flags.FLAGS
    if argv[1:] and given.engine != "beam":
        raise errors.UsageError(f"{argv[1]!r} is not a flag; flags begin with --.")
    cli.require("out")
    # The defaults of the flags are for photographs, so only given values are passed on.
    keys = [field.name for field in dataclasses.fields(Settings) if field.metadata]
    asked = {key: given[key].value for key in keys if given[key].present}
    if argv[1:]:
        asked["engine_options"] = tuple(argv[1:])
    try:
        prepare(given.out, given.captions or None, source=given.source, **asked)
    except KeyboardInterrupt:
        raise errors.Interrupted(
            "Interrupted. Give the same command again to continue.", 130
        ) from None


def prepare(
    out: str | os.PathLike,
    captions: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    *,
    source: str = "auto",
    **settings: Any,
) -> pathlib.Path | str:
    """Prepares a data set for training; the arguments are the flags of the command.

    Args:
      out: the directory to write, also one of `tf.io.gfile` such as gs://bucket/data.
      captions: the caption file, or several of them. None for the built-in data, and if `images` is
        an `imagefolder` with its own captions.
      source: layout of the caption file; `auto` detects it. `shapes` and `moving_shapes` make the
        built-in data, without a file.
      **settings: further fields of `tfcap.preparing.settings.Settings`: `images`, `backbone`,
        `weights`, `grid`, `crops`, `vector`, `image_size`, `keep_pictures`, `frames`, `features`,
        `min_count`, `vocab` and others; for built-in data also `seed`, and `train`, `val` and
        `test`, the numbers of pictures.

    Returns:
      The directory that was written: a Path, or text if it is remote.

    Raises:
      ValueError: the input is bad, too many images are skipped, or `out` holds files that were
        made with other settings.
    """
    from tfcap.preparing import build

    out = os.path.expanduser(out)
    for key in ("images", "weights", "vocab", "document_frequency", "split_ids"):
        if settings.get(key):
            settings[key] = os.path.expanduser(settings[key])
    if source in BUILT_IN:
        if captions or settings.pop("images", None) or settings.pop("features", None):
            raise errors.UsageError(
                f"--source={source} makes its own captions and images. Leave out --captions, "
                "--images and --features."
            )
        return build.prepare_built_in(source, out, **settings)
    if source != "auto" and source not in READERS:
        raise errors.UsageError(
            f"--source must be one of auto, {', '.join((*READERS, *BUILT_IN))}."
        )
    if captions is None and settings.get("images") is None:
        raise errors.UsageError("--captions, the caption file, is missing.")
    if settings.get("weights") is None:
        settings["weights"] = default_weights(settings.get("backbone") or Settings.backbone)
    return build.prepare(Settings(captions, out, source, **settings))


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
