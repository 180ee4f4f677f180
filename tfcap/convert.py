r"""Converts released weights, without PyTorch and without Caffe.

python -m tfcap.convert --from xlan caption_model_37.pth --vocab coco_vocabulary.txt \
    --model_dir runs/xlan_released
python -m tfcap.convert --from bottom_up resnet101_faster_rcnn_final.caffemodel --out detector

The directory of a converted captioner is used like a run of `tfcap.train`: caption, evaluate and
export take it as `--model_dir`, and `python -m tfcap.train --model_dir DIR` continues training from
its weights. With the directory of a converted detector, `tfcap.prepare --backbone bottom_up
--weights detector` extracts the features of regions from photographs.
"""

import time

from tfcap import cli, errors
from tfcap.arguments import argument, arguments
from tfcap.backbones import DETECTOR
from tfcap.importers import FAMILIES


@arguments
class _Arguments:
    """The arguments of the command."""

    family: str | None = argument(
        "Released code that wrote the file.",
        default=None,
        choices=[*FAMILIES, DETECTOR],
        name="from",
    )
    vocab: str | None = argument(
        "File with the words of the checkpoint, in the order of ids.", default=None
    )
    model_dir: str | None = argument("Run directory to write.", default=None)
    max_length: int | None = argument(
        "Longest caption in words; default: as in the released code.", default=None, least=2
    )
    params_override: str = argument(
        "Changes of the configuration: YAML text, a.b=1,c=2 or a YAML file.", default=""
    )
    regions: str | None = argument(
        "Directory of a converted detector. The run gets a copy of it and captions photographs.",
        default=None,
    )
    out: str | None = argument(
        "With `family=bottom_up`: directory of the detector to write.", default=None
    )
    objects_vocab: str | None = argument(
        "With `family=bottom_up`: objects_vocab.txt, a class per line.", default=None
    )
    attributes_vocab: str | None = argument(
        "With `family=bottom_up`: attributes_vocab.txt, one per line.", default=None
    )
    boxes: int | None = argument(
        "With `family=bottom_up`: number of regions of each picture, such as 36; by default as "
        "many as are found, but 10 to 100.",
        default=None,
        least=1,
    )
    form: str = argument(
        "With `family=bottom_up`: implementation whose rules choose the regions: caffe, the "
        "original, or milvlg, the one in PyTorch.",
        default="caffe",
        choices=["caffe", "milvlg"],
    )


def _define_flags() -> None:
    cli.define(_Arguments)


def _run(argv: list[str]) -> None:
    start = time.monotonic()
    args = _Arguments(**cli.values(_Arguments))
    paths = argv[1:]
    needed = ["out"] if args.family == DETECTOR else ["vocab", "model_dir"]
    for name in ("family", *needed):
        if not getattr(args, name):
            raise errors.UsageError(
                f"`{name}` is missing. A conversion needs "
                f"{', '.join(f'`{other}`' for other in ('family', *needed))} and a checkpoint."
            )
    if len(paths) != 1:
        raise errors.UsageError(
            f"Give the path of one checkpoint to convert, not {len(paths)} paths."
        )
    convert = _detector if args.family == DETECTOR else _captioner
    out, line = convert(args, paths[0])
    print(f"{out}: {cli.with_flags(line)}; {errors.duration(time.monotonic() - start)}")


def _captioner(args: _Arguments, path: str) -> tuple[str, str]:
    """Converts a captioner; returns the directory and a line that describes it."""
    from tfcap.importers.convert import convert

    assert args.family and args.vocab and args.model_dir
    line = convert(
        args.family,
        path,
        args.vocab,
        args.model_dir,
        args.max_length,
        args.params_override,
        args.regions,
    )
    return args.model_dir, line


def _detector(args: _Arguments, path: str) -> tuple[str, str]:
    """Converts a detector; returns the directory and a line that describes it."""
    from tfcap.importers import detector

    assert args.out
    line = detector.convert(
        path, args.out, args.objects_vocab, args.attributes_vocab, args.boxes, args.form
    )
    return args.out, line


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
