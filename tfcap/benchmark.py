"""Times an experiment and prints one line of JSON for each measurement.

    python -m tfcap.benchmark --what=xe,scst --experiment=xlan --paper_size --dtype=bfloat16
    python -m tfcap.benchmark --what=greedy,beam --experiment=mrnn --images=1
    python -m tfcap.benchmark --what=beam --params_override=task.max_length=17,task.decoding.beam=5
    python -m tfcap.benchmark --what=reward --images=50
    python -m tfcap.benchmark --what=input --data_dir=data/shapes --images=32

`--what` is one of these, or several separated by commas:
* `xe` and `scst`: a training step.
* `beam` and `greedy`: decoding.
* `reward`: CIDEr-D.
* `input`: the training batches of a prepared directory.

A line holds the seconds of one call (the first call, which compiles; then median, least and most
after a warm-up), images and captions per second, milliseconds per caption, and the peak memory of
the process so far. The inputs are random, and captions have their full length, see `tfcap.measure`.
"""

import json

from absl import flags

from tfcap import cli, errors

WHAT = ("xe", "scst", "beam", "greedy", "reward", "input")


def _define_flags() -> None:
    flags.DEFINE_list("what", "xe", f"What to time: some of {', '.join(WHAT)}.")
    flags.DEFINE_string("experiment", "xtransformer", "Registered experiment.")
    flags.DEFINE_multi_string("config_file", [], "YAML file of changes; repeatable.")
    flags.DEFINE_string("params_override", "", "YAML text of changes, as in tfcap.train.")
    flags.DEFINE_bool("paper_size", False, "Use the model sizes of the paper.")
    flags.DEFINE_enum("dtype", "float32", ("float32", "bfloat16", "float16"), "Precision.")
    flags.DEFINE_integer("images", 10, "Number of images in a batch.", lower_bound=1)
    flags.DEFINE_integer("regions", 36, "Number of regions of an image.", lower_bound=1)
    flags.DEFINE_integer("features", 2048, "Width of the features.", lower_bound=1)
    flags.DEFINE_integer("vocab", 9490, "Size of the vocabulary.", lower_bound=5)
    flags.DEFINE_integer("repeats", 7, "Number of timed calls after the warm-up.", lower_bound=1)
    flags.DEFINE_string("data_dir", None, "For --what=input: prepared directory.")


def _run() -> None:
    given = flags.FLAGS
    if not given.what or set(given.what) - set(WHAT):
        raise errors.UsageError(
            f"--what is {','.join(given.what)!r}. Give some of {', '.join(WHAT)}."
        )
    if "input" in given.what and not given.data_dir:
        raise errors.UsageError("--what=input needs --data_dir, a prepared directory.")
    import keras
    import tensorflow as tf

    from tfcap import configs, measure
    from tfcap.layers import precision
    from tfcap.training.summaries import peak_memory

    try:
        params = configs.resolve(given.experiment, given.config_file, given.params_override)
    except ValueError as error:
        raise errors.UsageError(str(error)) from error
    if given.paper_size:
        params = params.replace(task={"model": configs.Model(params.task.model.type).as_dict()})
    if params.task.backbone.trainable and set(given.what) - {"input", "reward"}:
        raise errors.UsageError(
            "Only --what=input times a trained backbone. Set task.backbone.trainable=false."
        )
    precision.set_global(given.dtype)
    sizes = measure.Sizes(given.images, given.regions, given.features, given.vocab)
    settings = {
        "experiment": given.experiment,
        "model": {"type": params.task.model.type, **params.task.model.get().as_dict()},
        **{key: given[key].value for key in ("images", "regions", "features", "vocab", "dtype")},
        "captions_per_image": params.task.train_data.captions_per_image,
        "samples": params.task.self_critical.samples,
        "beam": params.task.decoding.beam,
        "length": params.task.max_length,
        "xla": params.runtime.enable_xla,
        "device": "GPU" if tf.config.list_physical_devices("GPU") else "CPU",
    }
    for what in given.what:
        keras.utils.set_random_seed(params.task.seed)
        line = measure.measure(what, params, sizes, given.repeats, given.data_dir or "")
        process, gpu = peak_memory()  # so far, in bytes; TensorFlow itself needs about 0.7 GiB
        memory = {
            "peak_memory_gib": round(process / 2**30, 3),
            "gpu_peak_memory_gib": None if gpu is None else round(gpu / 2**30, 3),
        }
        print(json.dumps({"what": what, **settings, **line, **memory}), flush=True)


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
