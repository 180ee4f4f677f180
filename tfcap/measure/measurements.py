"""The measurements of `tfcap.benchmark`; each returns the values of one line of JSON."""

import statistics
from typing import Any, NamedTuple

from tfcap import configs
from tfcap.data import pipeline
from tfcap.data.picture_data import picture_data
from tfcap.data.prepared import PreparedData
from tfcap.measure import operations, profiles, python_reward, timing, workloads
from tfcap.preparing.features.backbone import Backbone

DECODING = ("beam", "greedy")
BATCHES = 20  # batches of one repetition: a single batch could have been made before the clock ran


class Options(NamedTuple):
    """Options of a measurement."""

    repeats: int  # timed calls after the warm-up
    stages: bool = True  # time the stages too
    dtype: str = "float32"  # dtype of the matrix product that gives the peak rate
    peak_size: int = 0  # rows and columns of its matrices; 0 chooses a size
    data_dir: str = ""  # the prepared directory of `measure_input`
    operations: int = 0  # number of types of operations to profile


def measure(
    what: str, params: configs.Experiment, sizes: workloads.Sizes, options: Options
) -> dict[str, Any]:
    """Measures `what`: xe, scst, beam, greedy, retrieval, reward or input."""
    special = {"reward": measure_reward, "input": measure_input, "retrieval": measure_retrieval}
    if what in special:
        return special[what](params, sizes, options)
    return measure_work(what, params, sizes, options)


def measure_work(
    what: str, params: configs.Experiment, sizes: workloads.Sizes, options: Options
) -> dict[str, Any]:
    """Measures time, operations and stages of a work that `workloads.build` makes."""
    work = workloads.build(what, params, sizes, options.stages)
    prefixes = work.prefixes
    before = timing.matrix_peak(options.dtype, options.peak_size)
    times = timing.timed(prefixes, options.repeats)
    peak = statistics.median([before, timing.matrix_peak(options.dtype, options.peak_size)])
    counted = {name: operations.flops(function) for name, function in prefixes.items()}
    last = list(prefixes)[-1]
    rate = counted[last].flops / times[last].median
    return {
        "seconds": times[last].as_dict(),
        **(_stages(times, counted) if len(prefixes) > 1 else {}),
        **_rates(times[last].median, work.images, work.captions),
        **(_of_sentences(times[last], work.images) if what in DECODING else {}),
        "gflop": round(counted[last].flops / 1e9, 6),
        "uncounted": counted[last].uncounted,
        "gflop_per_second": round(rate / 1e9, 3),
        "peak_gflop_per_second": round(peak / 1e9, 3),
        "share_of_peak": round(rate / peak, 4),
        **({"full_length": work.full_length()} if work.full_length else {}),
        **({"expected_bytes": work.memory._asdict()} if work.memory else {}),
        **_costliest(prefixes[last], options.operations),
    }


def _costliest(function, number):
    """Profiles one call of a function, if `number` is above 0."""
    return {"operations": profiles.costliest(function, number)} if number else {}


def _stages(times, counted):
    """Computes seconds and operations of each stage, as differences of successive prefixes."""
    stages, seconds, flops = {}, 0.0, 0
    for name, measurement in times.items():
        stages[name] = {
            "seconds": float(f"{measurement.median - seconds:.4g}"),
            "gflop": round((counted[name].flops - flops) / 1e9, 6),
        }
        seconds, flops = measurement.median, counted[name].flops
    return {"stages": stages, "stages_are": "differences of the medians of compiled prefixes"}


def _of_sentences(measurement, images):
    """Computes the milliseconds for the best caption of an image."""
    return {"milliseconds_per_sentence": float(f"{1e3 * measurement.median / images:.4g}")}


def _rates(seconds, images, captions):
    """Computes the images and the captions per second."""
    return {
        "images_per_second": float(f"{images / seconds:.5g}"),
        "captions_per_second": float(f"{captions / seconds:.5g}"),
    }


def measure_retrieval(
    params: configs.Experiment, sizes: workloads.Sizes, options: Options
) -> dict[str, Any]:
    """Measures as `measure_work` does, and adds the cost of a pair of image and caption."""
    line = measure_work("retrieval", params, sizes, options)
    pairs = sizes.images * sizes.sentences
    line["pairs_per_second"] = line.pop("captions_per_second")
    return line | {
        "sentences": sizes.sentences,
        "seconds_per_pair": line["seconds"]["median"] / pairs,
        "gflop_per_pair": line["gflop"] / pairs,
    }


def measure_reward(
    params: configs.Experiment, sizes: workloads.Sizes, options: Options
) -> dict[str, Any]:
    """Measures CIDEr-D of the same captions in the graph and in Python, alternately."""
    captions = params.task.self_critical.samples
    work = python_reward.build(params.task.max_length, captions, sizes)
    times = timing.timed(work.functions, options.repeats)
    count = sizes.images * captions
    lines = {
        name: {
            "seconds": measurement.as_dict(),
            "captions_per_second": round(count / measurement.median, 1),
        }
        for name, measurement in times.items()
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


def measure_input(
    params: configs.Experiment, sizes: workloads.Sizes, options: Options
) -> dict[str, Any]:
    """Measures how fast the training batches of a prepared directory are read.

    With `task.backbone.trainable` the batches hold decoded pictures in place of features.
    """
    data = PreparedData.load(options.data_dir)
    if params.task.backbone.trainable:
        data = picture_data(data, Backbone.from_fingerprint(data.fingerprint, data.folder))
    batches = iter(
        pipeline.training_batches(
            data,
            batch_size=sizes.images,
            captions_per_image=sizes.captions,
            max_length=params.task.max_length,
            seed=params.task.seed,
            split=params.task.train_data.split,
            max_regions=params.task.train_data.region_limit,
            pad_to_max=params.task.train_data.pad_to_max,
        )
    )

    def several():
        for _ in range(BATCHES):
            next(batches)

    times = timing.timed({"input": several}, options.repeats)["input"]
    images = BATCHES * sizes.images
    rates = _rates(times.median, images, images * sizes.captions)
    return {"seconds": times.as_dict(), "batches": BATCHES, **rates}
