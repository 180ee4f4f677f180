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
from collections.abc import Sequence
from typing import Any

from absl import flags

from tfcap import cli
from tfcap.preparing.engines import ENGINES
from tfcap.preparing.features import BACKBONES, default_weights
from tfcap.preparing.sources import READERS
from tfcap.preparing.sources.splits import WAYS

_OF_BACKBONE = ("backbone", "weights", "grid", "crops", "vector", "image_size", "keep_pictures")
_PASSED_ON = (
    *("min_count", "vocab", "document_frequency", "max_skipped", "images_per_shard", "overwrite"),
    *("engine", "workers", "name", "images", "features", "seed", "splits", "split_ids", "tokens"),
    *("count_splits", "frames", "frame_order"),
)
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
    flags.DEFINE_string("images", None, "Directory of the image files.")
    flags.DEFINE_string(
        "backbone",
        "mobilenet_v2",
        f"Network that extracts the features: {', '.join(BACKBONES)}, or hub:PRESET of keras-hub.",
    )
    flags.DEFINE_string(
        "weights",
        None,
        "Weights of the network: 'imagenet' (the default; downloaded, but efficientnet_lite2 has "
        "them in the extra 'lite') or a file.",
    )
    flags.DEFINE_string(
        "features",
        None,
        "Ready-made features instead of a network: a file or directory, or several with commas "
        "between them (npz, npy, bottom-up or VinVL tsv, HDF5, LMDB, a matrix with ids).",
    )
    flags.DEFINE_string("out", None, "Directory to write, on a disk or as in gs://bucket/data.")
    flags.DEFINE_integer(
        "min_count", 5, "Words that are counted less often are left out of the vocabulary."
    )
    flags.DEFINE_integer(
        "grid", None, "Cells along a side of the feature grid, for example 7 or 4."
    )
    flags.DEFINE_integer(
        "crops", 1, "10: one feature vector per picture, the mean of ten crops (vgg16: fc7)."
    )
    flags.DEFINE_bool("vector", False, "One feature vector of the whole picture (vgg16: fc7).")
    flags.DEFINE_integer("image_size", None, "Pixels along a side that pictures are resized to.")
    flags.DEFINE_bool(
        "keep_pictures",
        False,
        "Store the pictures in the records, too, so that training can change the network.",
    )
    flags.DEFINE_integer(
        "frames", None, "Read clips, this many frames of each; 16 for gif and msrvtt."
    )
    flags.DEFINE_enum(
        "frame_order",
        "kept",
        ["kept", "shuffled"],
        "shuffled: frames in a random order; a model that uses their order then scores lower.",
    )
    flags.DEFINE_string(
        "vocab", None, "A vocab.txt to use instead of counting words, e.g. of a converted model."
    )
    flags.DEFINE_string(
        "document_frequency",
        None,
        "A document_frequency.npz of the words of --vocab to use instead of counting n-grams.",
    )
    flags.DEFINE_enum(
        "splits",
        "source",
        WAYS,
        "source: the splits of the caption file, or random ones if it has none; random: 90 % "
        "train, 5 % val, 5 % test; mrnn: the sizes of m-RNN's split of COCO.",
    )
    flags.DEFINE_string(
        "split_ids",
        None,
        "Directory with a list of ids or file names per split, or a JSON file such as splits.json.",
    )
    flags.DEFINE_enum(
        "tokens", "raw", ["raw", "given"], "given: use the words that the caption file has."
    )
    flags.DEFINE_enum(
        "count_splits", "train", ["train", "all"], "Splits whose words the vocabulary counts."
    )
    flags.DEFINE_string("name", None, "Name of the data set; default: name of the caption file.")
    flags.DEFINE_integer("seed", 1, "Random seed of random splits and of the built-in shapes.")
    flags.DEFINE_string(
        "max_skipped",
        "100",
        "Largest number of bad images to skip, or their largest share, as in 1%.",
    )
    flags.DEFINE_integer("images_per_shard", 512, "Images per TFRecord file.")
    flags.DEFINE_bool("overwrite", False, "Prepare everything in --out again.")
    flags.DEFINE_enum(
        "engine",
        "local",
        ENGINES,
        "local: processes of this machine; beam: Apache Beam, with its own options after --.",
    )
    flags.DEFINE_integer("workers", 1, "Processes of --engine=local.")


def _run(argv: list[str]) -> None:
    given = flags.FLAGS
    if argv[1:] and given.engine != "beam":
        raise cli.UsageError(f"{argv[1]!r} is not a flag; flags begin with --.")
    cli.require("out")
    # The defaults of these flags are for photographs, so only given values are passed on.
    keys = [*_PASSED_ON, *(key for key in _OF_BACKBONE if given[key].present)]
    asked = {key: given[key].value for key in keys}
    asked["engine_options"] = tuple(argv[1:])
    try:
        prepare(given.out, given.captions or None, source=given.source, **asked)
    except KeyboardInterrupt:
        raise cli.Interrupted(
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
      captions: the caption file, or several of them. None with `images`, the directory of an
        `imagefolder`, or for the built-in data.
      source: layout of the caption file; `auto` finds it, and `shapes` and `moving_shapes` make
        the built-in data and need no file.
      **settings: further fields of `tfcap.preparing.settings.Settings`: `images`, `backbone`,
        `weights`, `grid`, `crops`, `vector`, `image_size`, `keep_pictures`, `frames`, `features`,
        `min_count`, `vocab` and others; for built-in data also `seed`, and `train`, `val` and
        `test`, the numbers of pictures.

    Returns:
      The directory that was written; a remote path as text.

    Raises:
      ValueError: the input is bad, too many images are skipped, or `out` holds files that were
        made with other settings.
    """
    from tfcap.preparing import run
    from tfcap.preparing.settings import Settings

    out = os.path.expanduser(out)
    for key in ("images", "weights", "vocab", "document_frequency", "split_ids"):
        if settings.get(key):
            settings[key] = os.path.expanduser(settings[key])
    known = [field.name for field in dataclasses.fields(Settings)] + ["train", "val", "test"] * (
        source in BUILT_IN
    )
    if unknown := sorted(set(settings) - set(known)):
        raise cli.UsageError(f"prepare has no setting {unknown[0]}; it has {', '.join(known)}.")
    if source in BUILT_IN:
        if captions or settings.pop("images", None) or settings.pop("features", None):
            raise cli.UsageError(
                f"--source={source} makes its own captions and images. Leave out --captions, "
                "--images and --features."
            )
        return run.prepare_built_in(source, out, **settings)
    if source != "auto" and source not in READERS:
        raise cli.UsageError(f"--source is one of auto, {', '.join((*READERS, *BUILT_IN))}.")
    if captions is None and settings.get("images") is None:
        raise cli.UsageError("--captions, the caption file, is missing.")
    if settings.get("weights") is None:
        settings["weights"] = default_weights(settings.get("backbone") or Settings.backbone)
    return run.prepare(Settings(captions, out, source, **settings))


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
