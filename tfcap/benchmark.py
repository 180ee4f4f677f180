"""Measures the speed of an experiment and prints one line of JSON for each measurement.

    python -m tfcap.benchmark --what=xe --experiment=xlan --paper_size --length=17 --dtype=bfloat16
    python -m tfcap.benchmark --what=beam --experiment=xlan --paper_size --length=17 --images=50
    python -m tfcap.benchmark --what=greedy,beam --experiment=mrnn --images=1 --threads=1
    python -m tfcap.benchmark --what=reward --images=50
    python -m tfcap.benchmark --what=input --data_dir=data/shapes --images=32
    python -m tfcap.benchmark --what=growth --grow=regions,beam --out=runs/growth
    python -m tfcap.benchmark --what=quality --data=data/mine --seeds=3 --tune
    python -m tfcap.benchmark --what=search --indexed=113287 --features=1024 --images=256
    python -m tfcap.benchmark --what=plan --points=1000000 --assume=prepare=400,price=0.5

`--what` is one of these, or several separated by commas:
* `xe` and `scst`: a training step.
* `beam` and `greedy`: decoding.
* `retrieval`: the scores of all pairs of images and captions.
* `reward`: CIDEr-D in the graph and, for comparison, in Python.
* `input`: the training batches of a prepared directory.
* `growth`: the training step, the beam search and retrieval over many sizes
  (`tfcap.measure.growth`).
* `quality`: what each system learns from the same number of captions, with the same tuning, seeds
  and intervals (`tfcap.measure.quality`).
* `search`: the search for the nearest of `--indexed` vectors of width `--features`, for `--images`
  queries, exact and through a graph (`tfcap.measure.search`).
* `plan`: a forecast of size, hours and cost for many images and workers. It measures nothing: the
  rates are those of `--assume`.

The measured function is the one that training, evaluation or export runs. Its inputs are random,
and captions have their full length. Untrained weights almost never emit the end mark, so decoding
also runs its full length (`full_length`); trained systems stop after about 11 of 17 words.

A line holds:
* the seconds of one call: median and spread after the warm-up. Repetitions in which this process
  waited for a processor are `dropped`. Decoding also has `milliseconds_per_sentence`, of the best
  caption of each image.
* the seconds of each stage. A function is compiled that ends with the stage, and one that ends with
  the stage before; the seconds are the difference of their medians.
* `gflop`, the floating-point operations of the matrix products (2 m n k), and their share of the
  rate that a large square product reaches in the same run (`peak_gflop_per_second`).
* with `--operations=10`, the ten types of operations that take most time, from one more call under
  TensorFlow's profiler. Their seconds are summed over all threads.
* `expected_bytes`, the forecast of the memory of a training step (`tfcap.training.memory`), and
  `peak_memory_gib`, the most that the process has taken so far.
"""

import json
import os
from typing import TYPE_CHECKING, Any

from absl import flags

from tfcap import cli, storage
from tfcap.measure import AXES, SYSTEMS, used_flags

if TYPE_CHECKING:
    from tfcap import configs
    from tfcap.measure import workloads


def _resolve() -> "configs.Experiment":
    """Resolves the experiment with the changes of the flags."""
    from tfcap import configs

    given = flags.FLAGS
    try:
        params = configs.resolve(given.experiment, given.config_file, given.params_override)
    except ValueError as error:
        raise cli.UsageError(str(error)) from error
    task: dict[str, Any] = {}
    if given.paper_size:
        task["model"] = configs.Model(type=params.task.model.type).as_dict()
    if given.length:
        task["max_length"] = given.length
    if given.samples:
        task["self_critical"] = {"samples": given.samples}
    params = params.replace(task=task) if task else params
    scst = params.task.self_critical
    if "scst" in given.what and scst.baseline == "others" and scst.samples < 2:
        raise cli.UsageError(
            "--samples must be at least 2 for --what=scst, whose baseline is the mean reward of "
            f"the other samples of an image. Received: {scst.samples}."
        )
    graphs = [what for what in given.what if what in ("xe", "scst", "beam", "greedy", "retrieval")]
    if graphs and params.task.backbone.trainable:
        raise cli.UsageError(
            f"--what={','.join(graphs)} measures a model of features, without its backbone. "
            "Received: task.backbone.trainable=true. Set it to false, or measure --what=input."
        )
    parts = params.task.micro_batches
    if "growth" in given.what and parts > 1:
        raise cli.UsageError(
            "--what=growth needs task.micro_batches=1, because it also measures a single image. "
            f"Received: {parts}."
        )
    if {"xe", "scst"} & set(given.what) and given.images % parts:
        raise cli.UsageError(
            f"--images must be a multiple of task.micro_batches ({parts}). Received: "
            f"{given.images}."
        )
    return params


def _sizes(params: "configs.Experiment") -> "workloads.Sizes":
    from tfcap.measure import workloads

    given = flags.FLAGS
    return workloads.Sizes(
        images=given.images,
        regions=given.regions,
        features=given.features,
        vocab=given.vocab,
        captions=given.captions or params.task.train_data.captions_per_image,
        beam=given.beam or params.task.decoding.beam,
        sentences=given.sentences,
        corpus=given.corpus,
    )


def _settings(what: str, params: "configs.Experiment", sizes: "workloads.Sizes") -> dict[str, Any]:
    """Returns the settings that each line repeats."""
    import tensorflow as tf

    given = flags.FLAGS
    gpus = tf.config.list_physical_devices("GPU")
    return {
        "what": what,
        "experiment": given.experiment,
        "model": {"type": params.task.model.type, **params.task.model.get().as_dict()},
        "images": sizes.images,
        "regions": sizes.regions,
        "captions_per_image": sizes.captions,
        "samples": params.task.self_critical.samples,
        "beam": sizes.beam,
        "length": params.task.max_length,
        "vocab": sizes.vocab,
        "features": sizes.features,
        "dtype": given.dtype,
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),  # 0: its choice
        "device": "GPU" if gpus else "CPU",
    }


def _quality() -> None:
    """Prints a line of JSON for each run when it ends, and then the table."""
    from tfcap.measure import quality

    given = flags.FLAGS
    if set(given.rows) - set(quality.KEYS):
        raise cli.UsageError(
            f"--rows must be some of {', '.join(quality.KEYS)}. Received: {','.join(given.rows)!r}."
        )
    data_dir, width = given.data, given.width
    if given.data == "shapes":
        from tfcap.preparing.run import prepare_shapes

        data_dir, width = str(prepare_shapes("data/shapes")), width or 128
    examples = given.steps * quality.STEP or given.examples
    options = quality.Options(
        storage.absolute(data_dir),
        given.rows or quality.KEYS,
        width or 256,
        examples,
        examples // 2 if given.scst_examples is None else given.scst_examples,
        given.seeds,
        given.tune,
        given.jobs or os.cpu_count() or 1,
    )
    out = os.path.abspath(given.out or "runs/quality")
    for result in quality.study(options, out):
        shown = ("name", "finished", "cpu_minutes", "scores", "chosen", "step", "parameters")
        print(json.dumps({key: result[key] for key in shown if key in result}), flush=True)
    with open(os.path.join(out, "quality.md"), encoding="utf-8") as file:
        print(f"\n{file.read()}", end="")


def _search() -> None:
    """Prints a line of JSON for each kind of vectors."""
    from tfcap.measure import search, timing

    given = flags.FLAGS
    for kind in given.vectors:
        if kind not in search.KINDS:
            raise cli.UsageError(
                f"--vectors must be some of {', '.join(search.KINDS)}. Received: {kind!r}."
            )
    for kind in given.vectors:
        options = search.Options(given.indexed, given.features, given.images, kind, given.repeats)
        line = {"what": "search", **search.measure(options), **timing.memory()}
        print(json.dumps(line), flush=True)


def _plan() -> None:
    """Prints the forecasts as a table."""
    from tfcap.measure import plan

    assumed, sizes = plan.assumptions(flags.FLAGS.assume), _points() or plan.IMAGES
    points = [plan.point(n, workers, assumed) for n in sizes for workers in plan.WORKERS]
    print(plan.table(points))


def _points() -> list[int]:
    """Returns the sizes of `--points`."""
    points = flags.FLAGS.points
    if not all(size.isdecimal() and int(size) for size in points):
        raise cli.UsageError(
            "--points must be whole numbers of at least 1, separated by commas. Received: "
            f"{','.join(points)!r}."
        )
    return [int(size) for size in points]


def _growth(params: "configs.Experiment") -> None:
    """Prints a line of JSON for each point, and then the table; writes table and plot."""
    from tfcap.layers import precision
    from tfcap.measure import growth

    given, points = flags.FLAGS, []
    precision.set_global(given.dtype)
    options = growth.Options(given.paper_size, given.repeats, given.limit, _points())
    measured = growth.measure(params, given.systems, given.grow, _sizes(params), options)
    for point in growth.kept(measured, given.out or "runs/growth"):
        print(json.dumps(point), flush=True)
        points.append(point)
    print(f"\n{growth.table(points)}")


def _run() -> None:
    given = flags.FLAGS
    used_flags.check(given.what, given)
    params = _resolve()
    if given.threads:
        from tfcap.measure import timing

        timing.limit_threads(given.threads)
    for what in given.what:
        if what == "quality":
            _quality()
        elif what == "search":
            _search()
        elif what == "plan":
            _plan()
        elif what == "growth":
            _growth(params)
        else:
            _line(what, params)


def _line(what: str, params: "configs.Experiment") -> None:
    """Measures `what` and prints one line of JSON."""
    import keras

    from tfcap.layers import precision
    from tfcap.measure import measurements, timing

    given, sizes = flags.FLAGS, _sizes(params)
    precision.set_global(given.dtype)
    keras.utils.set_random_seed(params.task.seed)
    options = measurements.Options(
        given.repeats,
        given.stages,
        given.dtype,
        given.peak_size,
        given.data_dir or "",
        given.operations,
    )
    line = measurements.measure(what, params, sizes, options)
    print(json.dumps({**_settings(what, params, sizes), **line, **timing.memory()}), flush=True)


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    names = ", ".join(used_flags.WHAT)
    flags.DEFINE_list("what", "xe", f"What to measure: one or several of {names}.")
    flags.DEFINE_string("experiment", "xtransformer", "Registered experiment.")
    flags.DEFINE_multi_string("config_file", [], "YAML file of changes; repeatable.")
    flags.DEFINE_string("params_override", "", "YAML text of changes, as in tfcap.train.")
    flags.DEFINE_bool("paper_size", False, "Use the model sizes of the paper.")
    flags.DEFINE_enum("dtype", "float32", ("float32", "bfloat16", "float16"), "Precision.")
    numbers = {
        "images": (10, 1, "Number of images in a batch."),
        "regions": (36, 1, "Number of regions of an image."),
        "features": (2048, 1, "Width of the features."),
        "vocab": (9490, 5, "Size of the vocabulary."),
        "captions": (0, 0, "Captions per image; 0 takes the value of the experiment."),
        "samples": (
            0,
            0,
            "Samples per image; 0 takes the value of the experiment.",
        ),
        "beam": (0, 0, "Number of beams; 0 takes the value of the experiment."),
        "length": (0, 0, "Longest caption, task.max_length; 0 takes the value of the experiment."),
        "sentences": (50, 1, "For --what=retrieval and growth: captions scored with each image."),
        "corpus": (
            5000,
            1,
            "For --what=scst and reward: images that are counted for the document frequencies.",
        ),
        "repeats": (7, 1, "Number of timed calls after the warm-up."),
        "peak_size": (0, 0, "Size of the square product; 0 takes 2048, on a GPU 8192."),
        "threads": (0, 0, "Number of threads that compute; 0 leaves the choice to TensorFlow."),
        "operations": (0, 0, "Number of types of operations to list with their seconds."),
        "indexed": (113287, 100, "For --what=search: number of vectors that are searched."),
        "steps": (0, 0, "For --what=quality: training steps of a run; 0 takes --examples."),
        "examples": (200_000, 100, "For --what=quality: captions that a run sees."),
        "scst_examples": (
            None,
            0,
            "For --what=quality: sampled captions of a self-critical run; half of --examples by "
            "default, 0 leaves these runs out.",
        ),
        "seeds": (1, 1, "For --what=quality: number of seeds."),
        "width": (0, 0, "For --what=quality: width of all systems; 0 is 128 on shapes, else 256."),
        "jobs": (0, 0, "For --what=quality: processes at once; 0 is the number of processors."),
    }
    for name, (default, least, text) in numbers.items():
        flags.DEFINE_integer(name, default, text, lower_bound=least)
    flags.DEFINE_bool("stages", True, "Also time the stages of each work.")
    flags.DEFINE_string("data_dir", None, "For --what=input: prepared directory.")
    flags.DEFINE_string("data", "shapes", "For --what=quality: shapes, or a prepared directory.")
    flags.DEFINE_bool(
        "tune", False, "For --what=quality: choose learning rate and dropout of each system."
    )
    flags.DEFINE_list("rows", [], "For --what=quality: systems to train; all by default.")
    flags.DEFINE_string("out", "", "Output directory; runs/quality or runs/growth by default.")
    flags.DEFINE_list(
        "vectors", ["clustered", "random"], "For --what=search: how the vectors are drawn."
    )
    flags.DEFINE_list("grow", list(AXES), "For --what=growth: sizes to vary.")
    flags.DEFINE_list("points", [], "For --what=growth and plan: values in place of the defaults.")
    flags.DEFINE_list("assume", [], "For --what=plan: changes of its rates, as in price=0.5.")
    flags.DEFINE_list("systems", list(SYSTEMS), "For --what=growth: systems to measure.")
    flags.DEFINE_float(
        "limit", 60.0, "For --what=growth: longest call in seconds; longer ones are skipped."
    )


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
