r"""Fits the confidence of a run: the probability that a caption is usable.

python -m tfcap.calibrate --model_dir runs/mrnn --data_dir data/flickr8k
python -m tfcap.calibrate --model_dir runs/mrnn --usable 50

A caption is usable if its CIDEr against the references is at least `--usable`. The confidence is
computed from the mean log-probability of the words, and from a small network that learns from the
training images which words people use for such images. It is fitted on images that the run was not
trained on. The run stores it in confidence.json and confidence.npz; then captions have a
confidence, and `tfcap.evaluate --calibration` measures it on other images.
"""

import os
from typing import TYPE_CHECKING

from tfcap import cli, errors, pretrained
from tfcap.arguments import argument, arguments, takes

if TYPE_CHECKING:
    from tfcap.metrics.calibration import Calibration


@arguments
class Calibrate:
    """The arguments of the function `calibrate`, which are also the flags of the command."""

    model_dir: str = argument("Directory of the run; it gets the files.", kw_only=False)
    checkpoint: str = argument("Checkpoint to load: best, latest, or a path.", default="best")
    data_dir: str | None = argument(
        "Directory of the prepared data; by default that of the run.", default=None
    )
    split: str = argument("Split whose images are captioned for the fit.", default="val")
    limit: int = argument(
        "Use only so many images, the first of the split; 0 uses all.", default=0, least=0
    )
    usable: float | None = argument(
        "Smallest CIDEr, times 100, of a usable caption; by default that which three of four "
        "references reach against the other references of their image.",
        default=None,
        least=0,
    )
    beam: int | None = argument(
        "Beam width; by default that of the configuration of the run.", default=None, least=1
    )
    batch_size: int = argument("Number of images decoded together.", default=50, least=1)
    steps: int = argument("Number of training steps of the small network.", default=4000, least=1)
    seed: int = argument("Random seed of the fit.", default=1, least=0)


def _define_flags() -> None:
    cli.define(Calibrate)


def _run() -> None:
    calibrate(**cli.values(Calibrate))


@takes(Calibrate)
def calibrate(args: Calibrate) -> "Calibration":
    """Fits the confidence of a run, stores it in the directory of the run, and prints its scores.

    Returns:
      The scores by cross-validation on the images of the fit.
    """
    from tfcap import runs
    from tfcap.inference import calibration

    if args.split == "train":
        raise errors.UsageError(
            "On images of the split train the captioner is too sure of itself. Give another "
            "`split`."
        )
    if pretrained.directory_of(args.model_dir) != os.path.expanduser(args.model_dir):
        raise errors.UsageError(
            "`model_dir` must be a directory, which gets the files of the fit. Write "
            f"{args.model_dir} to a directory with `format=run` of tfcap.export, and give that."
        )
    run = runs.load(args.model_dir, args.checkpoint).with_decoding(beam=args.beam or 0)
    data = runs.load_data(run, args.data_dir)
    for split in ("train", args.split):
        if not data.fingerprint["splits"].get(split, {}).get("images"):
            raise errors.UsageError(
                f"{data.folder} has no images in the split {split}, which the fit needs. Give "
                "other data as `data_dir`."
            )
    print(f"{run.described} on {data.folder}, split {args.split}", flush=True)
    fit = calibration.calibrate(
        run,
        data,
        args.split,
        args.usable,
        limit=args.limit,
        batch_size=args.batch_size,
        steps=args.steps,
        seed=args.seed,
    )
    runs.write_confidence(run.directory, fit.confidence)
    print(fit.measured.format())
    print("these are images of the fit, each by a fit without it (cross-validation)")
    return fit.measured


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
