r"""Converts released weights, without PyTorch and without Caffe.

python -m tfcap.convert --from xlan caption_model_37.pth --vocab coco_vocabulary.txt \
    --model_dir runs/xlan_released
python -m tfcap.convert --from bottom_up resnet101_faster_rcnn_final.caffemodel --out detector

The commands caption, evaluate and export use the new directory like a run of `tfcap.train`, and
`python -m tfcap.train --model_dir DIR` continues training from the weights. `prepare --backbone
bottom_up --weights detector` makes regions of photographs with the detector.
"""

import time

from absl import flags

from tfcap import cli, errors
from tfcap.backbones import DETECTOR
from tfcap.importers import FAMILIES


def _define_flags() -> None:
    flags.DEFINE_enum("from", None, [*FAMILIES, DETECTOR], "Released code that wrote the file.")
    flags.DEFINE_string(
        "vocab", None, "File with the words of the checkpoint, in the order of ids."
    )
    flags.DEFINE_string("model_dir", None, "Run directory to write.")
    flags.DEFINE_integer(
        "max_length",
        None,
        "Longest caption in words; default: as in the released code.",
        lower_bound=2,
    )
    flags.DEFINE_string(
        "params_override", "", "Changes of the configuration: YAML text, a.b=1,c=2 or a YAML file."
    )
    flags.DEFINE_string(
        "regions",
        None,
        "Directory of a converted detector. The run gets a copy of it and captions photographs.",
    )
    flags.DEFINE_string("out", None, "With --from=bottom_up: the detector's directory, to write.")
    flags.DEFINE_string(
        "objects_vocab", None, "With --from=bottom_up: objects_vocab.txt, a class per line."
    )
    flags.DEFINE_string(
        "attributes_vocab", None, "With --from=bottom_up: attributes_vocab.txt, one per line."
    )
    flags.DEFINE_integer(
        "boxes",
        None,
        "With --from=bottom_up: regions of each picture, such as 36; default: 10 to 100.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "form",
        "caffe",
        ["caffe", "milvlg"],
        "With --from=bottom_up: whose rules choose proposals, where the two codes differ.",
    )


def _run(argv: list[str]) -> None:
    values, family, start = flags.FLAGS, flags.FLAGS["from"].value, time.monotonic()
    cli.require("from", *(["out"] if family == DETECTOR else ["vocab", "model_dir"]))
    if len(argv) != 2:
        raise errors.UsageError(f"Give one checkpoint to convert, not {len(argv) - 1}.")
    if family == DETECTOR:
        from tfcap.importers import detector

        out = values.out
        names = values.objects_vocab, values.attributes_vocab
        line = detector.convert(argv[1], out, *names, values.boxes, values.form)
    else:
        from tfcap.importers.convert import convert

        out, options = values.model_dir, (values.max_length, values.params_override)
        line = convert(family, argv[1], values.vocab, out, *options, values.regions)
    print(f"{out}: {line}; {errors.duration(time.monotonic() - start)}")


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
