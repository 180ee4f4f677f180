"""Turns captions and images into what training reads: python -m tfcap.prepare.

R regions, F feature width.

Writes into --out: sharded TFRecords, vocab.txt, document_frequency.npz, references_<split>.json,
the backbone's weights, and dataset.json last of all. Killed at any moment, it goes on where it
stopped when the same command is given again: `.prepare.json` remembers the finished shards.
"""

from absl import flags

from tfcap import console
from tfcap.preparing.features.backbone import BACKBONES
from tfcap.preparing.run import Settings, prepare, prepare_shapes


def _define_flags() -> None:
    # Here and not on import: train imports this module and has flags of its own.
    flags.DEFINE_enum("source", "karpathy", ["karpathy", "shapes"], "Layout of the captions.")
    flags.DEFINE_string("captions", None, "Caption file (Karpathy's layout).")
    flags.DEFINE_string("images", None, "Directory of the image files.")
    flags.DEFINE_enum("backbone", "mobilenet_v2", BACKBONES, "Network that makes the features.")
    flags.DEFINE_string("weights", None, "'imagenet' (download, the default) or a file.")
    flags.DEFINE_string("features", None, "Directory of ready features, one npz per image.")
    flags.DEFINE_string("out", None, "Directory to write.")
    flags.DEFINE_integer("min_count", 5, "Words must occur so often in the training captions.")
    flags.DEFINE_integer(
        "grid", None, "Cells along a side of the feature grid, for example 7 or 4."
    )
    flags.DEFINE_integer("crops", 1, "10: one vector of ten crops of a picture (vgg16: fc7).")
    flags.DEFINE_string(
        "vocab", None, "A vocab.txt, e.g. of a converted model, instead of counting words."
    )
    flags.DEFINE_string("name", None, "Name of the data set.")
    flags.DEFINE_integer("seed", 1, "Of the built-in shapes.")
    flags.DEFINE_string("max_skipped", "100", "Bad images allowed: a number, or like 1%.")
    flags.DEFINE_integer("images_per_shard", 512, "Images per TFRecord file.")
    flags.DEFINE_bool("overwrite", False, "Replace what other settings left in --out.")


def _run() -> None:
    given = flags.FLAGS
    if given.out is None:
        raise console.UsageError("give --out, the directory to write")
    keys = ("min_count", "vocab", "max_skipped", "images_per_shard", "overwrite", "name")
    if given.source == "shapes":
        if given.captions or given.images or given.features:
            raise console.UsageError("--source=shapes makes its own captions and images; give none")
        # The defaults of these are those of real photographs.
        keys += tuple(key for key in ("backbone", "weights", "grid", "crops") if given[key].present)
        asked = {key: given[key].value for key in keys}
        prepare_shapes(given.out, seed=given.seed, **{**asked, "name": given.name or "shapes"})
        return
    if given.captions is None:
        raise console.UsageError("give --captions, the caption file")
    weights = given.weights
    if weights is None and given.backbone != "pixels":
        weights = "imagenet"
    keys += ("captions", "out", "images", "backbone", "features", "grid", "crops")
    prepare(Settings(weights=weights, **{key: given[key].value for key in keys}))


def main() -> None:
    """The command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
