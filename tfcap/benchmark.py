"""Times the hot paths of an experiment; prints one JSON line for each measurement.

    python -m tfcap.benchmark --what=xe --experiment=xlan --paper_size --length=17 --dtype=bfloat16
    python -m tfcap.benchmark --what=beam --experiment=xlan --paper_size --length=17 --images=50
    python -m tfcap.benchmark --what=reward --images=50
    python -m tfcap.benchmark --what=input --data_dir=data/shapes --images=32
    python -m tfcap.benchmark --what=growth --grow=regions,beam --out=runs/growth
    python -m tfcap.benchmark --what=quality --data=shapes

`xe` and `scst` are training steps, `beam` and `greedy` decoding, `retrieval` the score of every
image with every sentence, `reward` CIDEr-D in the graph beside the scorer in Python, `input` the
records of a prepared directory. `growth` repeats the training step and the beam search over sizes,
see `tfcap.measure.growth`; `quality` compares what the families learn, see `tfcap.quality`.

What is timed is the function that training, evaluation or export runs, on random inputs with
full-length captions. Untrained weights hardly ever emit an end mark, so that decoding runs its
full length too (`full_length`; trained systems stop after about 11 of 17 words).

Several of them, separated by commas, run in turn, and then `peak_memory_gib` is the most so far.

A line holds seconds of one call (medians and spread after warm-up; repetitions in which this
process had to wait for a processor are `dropped`), the stages, floating-point operations of the
matrix products (2 m n k, `gflop`), and their share of what a large square product reaches in the
same run, before and after (`peak_gflop_per_second`). Stages are differences of the medians of
compiled functions that each do everything up to the end of a stage.
"""

import json
import statistics
from typing import Any

import keras
import tensorflow as tf
from absl import flags

from tfcap import configs, console
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.measure import growth, operations, python_reward, quality, timing, workloads
from tfcap.training import keras3

WORK = ("xe", "scst", "beam", "greedy", "retrieval")
WHAT = (*WORK, "reward", "input", "growth", "quality")
BATCHES = 20  # one may lie ready: the rate of the input shows over many


def measure(what: str, params: configs.Experiment, sizes: workloads.Sizes) -> dict[str, Any]:
    """The line of one of `WORK`."""
    given = flags.FLAGS
    work = workloads.build(what, params, sizes, given.stages)
    prefixes = work.prefixes
    before = timing.matrix_peak(given.dtype, given.peak_size)
    times = timing.timed(prefixes, given.repeats)
    peak = statistics.median([before, timing.matrix_peak(given.dtype, given.peak_size)])
    counted = {name: operations.flops(function) for name, function in prefixes.items()}
    last = list(prefixes)[-1]
    rate = counted[last].flops / times[last].median
    return {
        "seconds": times[last].as_dict(),
        **(_stages(times, counted) if len(prefixes) > 1 else {}),
        **_rates(times[last].median, work.images, work.captions),
        "gflop": round(counted[last].flops / 1e9, 6),
        "uncounted": counted[last].uncounted,
        "gflop_per_second": round(rate / 1e9, 3),
        "peak_gflop_per_second": round(peak / 1e9, 3),
        "share_of_peak": round(rate / peak, 4),
        **({"full_length": work.full_length()} if work.full_length else {}),
        **({"expected_bytes": work.memory._asdict()} if work.memory else {}),
    }


def _stages(times, counted):
    """Each stage: what its prefix takes more than the one before."""
    stages, seconds, flops = {}, 0.0, 0
    for name, found in times.items():
        stages[name] = {
            "seconds": float(f"{found.median - seconds:.4g}"),
            "gflop": round((counted[name].flops - flops) / 1e9, 6),
        }
        seconds, flops = found.median, counted[name].flops
    return {"stages": stages, "stages_are": "differences of the medians of compiled prefixes"}


def _rates(seconds, images, captions):
    return {
        "images_per_second": float(f"{images / seconds:.5g}"),
        "captions_per_second": float(f"{captions / seconds:.5g}"),
    }


def measure_retrieval(params: configs.Experiment, sizes: workloads.Sizes) -> dict[str, Any]:
    """As `measure`, with the cost of a pair of image and sentence."""
    line = measure("retrieval", params, sizes)
    pairs = sizes.images * sizes.sentences
    line["pairs_per_second"] = line.pop("captions_per_second")
    return line | {
        "sentences": sizes.sentences,
        "seconds_per_pair": line["seconds"]["median"] / pairs,
        "gflop_per_pair": line["gflop"] / pairs,
    }


def measure_reward(params: configs.Experiment, sizes: workloads.Sizes) -> dict[str, Any]:
    """CIDEr-D of the same captions in the graph and in Python, in turn."""
    captions = params.task.self_critical.samples
    work = python_reward.build(params.task.max_length, captions, sizes)
    times = timing.timed(work.functions, flags.FLAGS.repeats)
    count = sizes.images * captions
    lines = {
        name: {"seconds": found.as_dict(), "captions_per_second": round(count / found.median, 1)}
        for name, found in times.items()
    }
    graph, ready, python = (times[name].median for name in ("graph", "ready", "python"))
    return {
        **lines,
        "hypotheses": count,
        "ngrams": work.ngrams,
        "largest_difference": work.largest_difference(),
        "ratio": round(python / graph, 2),
        "ratio_with_references_ready": round(python / ready, 2),
    }


def measure_input(params: configs.Experiment, sizes: workloads.Sizes) -> dict[str, Any]:
    """Training batches of a prepared directory."""
    if not flags.FLAGS.data_dir:
        raise console.UsageError("--what=input needs --data_dir")
    batches = iter(
        pipeline.training_batches(
            PreparedData.load(flags.FLAGS.data_dir),
            batch_size=sizes.images,
            captions_per_image=sizes.captions,
            max_length=params.task.max_length,
            seed=params.task.seed,
        )
    )

    def several():
        for _ in range(BATCHES):
            next(batches)

    times = timing.timed({"input": several}, flags.FLAGS.repeats)["input"]
    images = BATCHES * sizes.images
    rates = _rates(times.median, images, images * sizes.captions)
    return {"seconds": times.as_dict(), "batches": BATCHES, **rates}


def _resolve() -> configs.Experiment:
    """The experiment as the flags change it."""
    given = flags.FLAGS
    try:
        params = configs.resolve(given.experiment, given.config_file, given.params_override)
    except ValueError as error:
        raise console.UsageError(str(error)) from error
    task: dict[str, Any] = {}
    if given.paper_size:
        task["model"] = configs.Model(type=params.task.model.type).as_dict()
    if given.length:
        task["max_length"] = given.length
    if given.samples:
        task["self_critical"] = {"samples": given.samples}
    return params.replace(task=task) if task else params


def _sizes(params: configs.Experiment) -> workloads.Sizes:
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


def _settings(what: str, params: configs.Experiment, sizes: workloads.Sizes) -> dict[str, Any]:
    """What a line says about what was measured."""
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
        "device": "GPU" if gpus else "CPU",
    }


def _quality() -> None:
    """One JSON line for each system as it is done, and the table."""
    given, results = flags.FLAGS, []
    data_dir = "" if given.data == "shapes" else given.data
    for result in quality.compare(given.out or "runs/quality", data_dir, given.steps):
        print(json.dumps(result), flush=True)
        results.append(result)
    print(f"\n{quality.table(results)}")


def _growth(params: configs.Experiment) -> None:
    """One JSON line for each point as it is done, the table and the plot."""
    given, points = flags.FLAGS, []
    keras3.set_precision(given.dtype)
    try:
        sizes = [int(size) for size in given.points]
    except ValueError as error:
        raise console.UsageError(f"--points must be whole numbers. Received: {error}") from error
    options = growth.Options(given.paper_size, given.repeats, given.limit, sizes)
    for point in growth.measure(params, given.systems, given.grow, _sizes(params), options):
        print(json.dumps(point), flush=True)
        points.append(point)
    print(f"\n{growth.write(points, given.out or 'runs/growth')}")


def _main() -> None:
    given = flags.FLAGS
    unknown = [what for what in given.what if what not in WHAT]
    if unknown or not given.what:
        raise console.UsageError(
            f"--what must be some of {', '.join(WHAT)}. Received: {','.join(given.what)!r}"
        )
    params = _resolve()
    for what in given.what:
        if what == "quality":
            _quality()
        elif what == "growth":
            _growth(params)
        else:
            _line(what, params)


def _line(what: str, params: configs.Experiment) -> None:
    """Measures and prints."""
    sizes = _sizes(params)
    keras3.set_precision(flags.FLAGS.dtype)
    keras.utils.set_random_seed(params.task.seed)
    special = {"reward": measure_reward, "input": measure_input, "retrieval": measure_retrieval}
    if what in special:
        line = special[what](params, sizes)
    else:
        line = measure(what, params, sizes)
    print(json.dumps({**_settings(what, params, sizes), **line, **timing.memory()}), flush=True)


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    flags.DEFINE_list("what", "xe", f"What is measured, one or several of {', '.join(WHAT)}.")
    flags.DEFINE_string("experiment", "xtransformer", "Registered experiment.")
    flags.DEFINE_multi_string("config_file", [], "YAML of differences; repeatable.")
    flags.DEFINE_string("params_override", "", "As in tfcap.train.")
    flags.DEFINE_bool("paper_size", False, "The model at the width of its paper.")
    flags.DEFINE_enum("dtype", "float32", ("float32", "bfloat16", "float16"), "Precision.")
    numbers = {
        "images": (10, 1, "Images of a batch."),
        "regions": (36, 1, "Regions of an image."),
        "features": (2048, 1, "Width of the features."),
        "vocab": (9490, 5, "Size of the vocabulary."),
        "captions": (0, 0, "Captions per image; 0: the experiment's."),
        "samples": (0, 0, "Samples per image of scst and reward; 0: the experiment's."),
        "beam": (0, 0, "Width of the search; 0: the experiment's."),
        "length": (0, 0, "task.max_length; 0: the experiment's."),
        "sentences": (50, 1, "For --what=retrieval: scored with each image."),
        "corpus": (5000, 1, "Images whose random references make the table of the reward."),
        "repeats": (7, 1, "Timed repetitions after warm-up."),
        "peak_size": (0, 0, "Of the square product that is the peak; 0: 2048, on a GPU 8192."),
        "steps": (1000, 1, "For --what=quality: of training."),
    }
    for name, (default, least, text) in numbers.items():
        flags.DEFINE_integer(name, default, text, lower_bound=least)
    flags.DEFINE_bool("stages", True, "Time the stages too, and not the whole alone.")
    flags.DEFINE_string("data_dir", None, "Prepared data, for --what=input.")
    flags.DEFINE_string("data", "shapes", "For --what=quality: shapes, or a prepared directory.")
    flags.DEFINE_string("out", "", "Directory of quality and growth; runs/quality, runs/growth.")
    flags.DEFINE_list("grow", list(growth.AXES), "For --what=growth: what grows.")
    flags.DEFINE_list("points", [], "For --what=growth: sizes in place of the usual ones.")
    flags.DEFINE_list("systems", list(growth.SYSTEMS), "For --what=growth.")
    flags.DEFINE_float("limit", 60.0, "For --what=growth: seconds that a call may take.")


def main() -> None:
    """The command."""
    _define_flags()
    console.run(_main)


if __name__ == "__main__":
    main()
