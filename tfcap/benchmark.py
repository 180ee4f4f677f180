"""Times an experiment and prints one line of JSON for each measurement.

    python -m tfcap.benchmark --what=xe,scst --experiment=xlan --paper_size --dtype=bfloat16
    python -m tfcap.benchmark --what=greedy,beam --experiment=mrnn --images=1
    python -m tfcap.benchmark --what=beam --params_override=task.max_length=17,task.decoding.beam=5
    python -m tfcap.benchmark --what=reward --images=50
    python -m tfcap.benchmark --what=input --data_dir=data/shapes --images=32

`--what` is one of these, or several separated by commas:

* `xe` and `scst`: a step of cross-entropy training, or of self-critical training.
* `beam` and `greedy`: decoding by beam search, or by greedy search.
* `reward`: computing CIDEr-D, the reward of self-critical training.
* `input`: reading the training batches of a prepared directory.

A line holds the seconds of the first call, which compiles; the median, least and most seconds of
the calls after a warm-up; images and captions per second; milliseconds per caption; and the peak
memory so far, of the process and of the GPU. Only `input` reads data. The other measurements have
random inputs: captions of training are as long as those of COCO, and decoding runs to its full
length, see `tfcap.measure`.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfcap import cli, errors
from tfcap.arguments import argument, arguments

if TYPE_CHECKING:
    from tfcap.configs import Experiment

WHAT = ("xe", "scst", "beam", "greedy", "reward", "input")


@arguments
class _Arguments:
    """The arguments of the command."""

    what: Sequence[str] = argument(
        f"What to time: some of {', '.join(WHAT)}.", default=("xe",), many="commas"
    )
    experiment: str = argument("Registered experiment.", default="xtransformer")
    config_file: Sequence[str] = argument(
        "YAML file of changes; repeatable.", default=(), many="repeated"
    )
    params_override: str = argument("YAML text of changes, as in tfcap.train.", default="")
    paper_size: bool = argument("Use the model sizes of the paper.", default=False)
    dtype: str = argument(
        "Precision.", default="float32", choices=["float32", "bfloat16", "float16"]
    )
    images: int = argument("Number of images in a batch.", default=10, least=1)
    regions: int = argument("Number of regions of an image.", default=36, least=1)
    features: int = argument("Width of the features.", default=2048, least=1)
    vocab: int = argument("Size of the vocabulary.", default=9490, least=5)
    repeats: int = argument("Number of timed calls after the warm-up.", default=7, least=1)
    data_dir: str | None = argument("For `what=input`: prepared directory.", default=None)


def _define_flags() -> None:
    cli.define(_Arguments)


def _run() -> None:
    args = _Arguments(**cli.values(_Arguments))
    if not args.what or set(args.what) - set(WHAT):
        raise errors.UsageError(
            f"`what={','.join(args.what)}` must name one or more of {', '.join(WHAT)}."
        )
    if "input" in args.what and not args.data_dir:
        raise errors.UsageError("`what=input` needs `data_dir`, a prepared directory.")
    import keras

    from tfcap import measure
    from tfcap.layers import precision
    from tfcap.training.summaries import peak_memory

    params = _params(args)
    precision.set_global(args.dtype)
    sizes = measure.Sizes(args.images, args.regions, args.features, args.vocab)
    settings = _settings(args, params)
    for what in args.what:
        keras.utils.set_random_seed(params.task.seed)
        line = measure.measure(what, params, sizes, args.repeats, args.data_dir or "")
        process, gpu = peak_memory()  # so far, in bytes; TensorFlow itself needs about 0.7 GiB
        memory = {
            "peak_memory_gib": round(process / 2**30, 3),
            "gpu_peak_memory_gib": None if gpu is None else round(gpu / 2**30, 3),
        }
        print(json.dumps({"what": what, **settings, **line, **memory}), flush=True)


def _params(args: _Arguments) -> "Experiment":
    """Returns the configuration of the experiment that is timed."""
    from tfcap import configs

    try:
        params = configs.resolve(args.experiment, args.config_file, args.params_override)
    except ValueError as error:
        raise errors.UsageError(f"The experiment {args.experiment}: {error}") from error
    if args.paper_size:
        params = params.replace(task={"model": configs.Model(params.task.model.type).as_dict()})
    if params.task.backbone.trainable and set(args.what) - {"input", "reward"}:
        raise errors.UsageError(
            "Only `what=input` and `what=reward` can time an experiment that trains its backbone. "
            "For other measurements set task.backbone.trainable=false."
        )
    return params


def _settings(args: _Arguments, params: "Experiment") -> dict[str, Any]:
    """Returns what every line says of the experiment and of its sizes."""
    import tensorflow as tf

    values = dataclasses.asdict(args)
    return {
        "experiment": args.experiment,
        "model": {"type": params.task.model.type, **params.task.model.get().as_dict()},
        **{key: values[key] for key in ("images", "regions", "features", "vocab", "dtype")},
        "captions_per_image": params.task.train_data.captions_per_image,
        "samples": params.task.self_critical.samples,
        "beam": params.task.decoding.beam,
        "length": params.task.max_length,
        "xla": params.runtime.enable_xla,
        "device": "GPU" if tf.config.list_physical_devices("GPU") else "CPU",
    }


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
