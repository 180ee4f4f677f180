"""Times the hot paths of an experiment; prints one JSON line. Or compares what the families learn.

    python -m tfcap.benchmark --what=xe --experiment=xtransformer --images=10 --regions=36
    python -m tfcap.benchmark --what=input --data_dir=data/shapes --images=32
    python -m tfcap.benchmark --what=quality --data=shapes

What is timed is the function that training, evaluation or export runs, on random inputs with
full-length captions (`input`: the records of a prepared directory). Times are seconds. `quality`
trains every family for the same number of steps and prints a table of their scores.
"""

import json
import resource
import statistics
import time
from collections.abc import Callable

import keras
import tensorflow as tf
from absl import flags

from tfcap import configs, console, decoding, quality
from tfcap.data import pipeline
from tfcap.data.records import PreparedData
from tfcap.tasks import captioning, keras3, optim

WHAT = ("xe", "beam", "greedy", "input", "quality")


def timed(function: Callable[[], object], repeats: int) -> dict[str, float]:
    """First call (with tracing), and median, least and greatest of `repeats` further calls."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    steady = times[2:]
    return {
        "first": round(times[0], 4),
        "median": round(statistics.median(steady), 4),
        "min": round(min(steady), 4),
        "max": round(max(steady), 4),
    }


def model_function(params, what: str) -> Callable[[], object]:
    """The compiled function of `xe`, `beam` or `greedy` on random inputs."""
    task = params.task
    model = captioning.build_model(task, flags.FLAGS.vocab, flags.FLAGS.features)
    shape = (flags.FLAGS.images, flags.FLAGS.regions)
    captions = task.train_data.captions_per_image
    inputs = {
        "features": tf.random.stateless_normal((*shape, flags.FLAGS.features), (1, 2)),
        "mask": tf.ones(shape, tf.bool),
        "tokens": tf.random.stateless_uniform(
            (flags.FLAGS.images, captions, task.max_length + 1),
            (3, 4),
            4,
            flags.FLAGS.vocab,
            tf.int32,
        ),
    }
    if what == "xe":
        trainer = captioning.CaptionTask(task, None, params.trainer.optimizer_config)
        optimizer = trainer.build_optimizer(
            model, optim.Plateau(0, 1.0, metric="CIDEr", higher=True)
        )
        metrics = trainer.build_metrics()
        step = tf.function(
            lambda: trainer.train_step(inputs, model, optimizer, metrics), autograph=False
        )
        return lambda: step()["loss"].numpy()
    context = tf.function(lambda: model.encode(inputs), autograph=False)
    options = captioning.beam_options(task)

    @tf.function(autograph=False)
    def decode():
        if what == "beam":
            return decoding.beam_search(model, context(), **options)[0]
        return decoding.sample(model, context(), task.max_length)[0]

    return lambda: decode().numpy()


def input_function(params) -> Callable[[], object]:
    """The next training batch of a prepared directory."""
    if not flags.FLAGS.data_dir:
        raise console.UsageError("--what=input needs --data_dir")
    batches = iter(
        pipeline.training_batches(
            PreparedData.load(flags.FLAGS.data_dir),
            batch_size=flags.FLAGS.images,
            captions_per_image=params.task.train_data.captions_per_image,
            max_length=params.task.max_length,
            seed=params.task.seed,
        )
    )

    def several():  # one batch may lie ready: the rate shows over many
        for _ in range(20):
            next(batches)

    return several


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    flags.DEFINE_enum("what", "xe", WHAT, "Training step, decoding, input, or quality.")
    flags.DEFINE_string("experiment", "xtransformer", "Registered experiment.")
    flags.DEFINE_multi_string("config_file", [], "YAML of differences; repeatable.")
    flags.DEFINE_string("params_override", "", "As in tfcap.train.")
    flags.DEFINE_integer("images", 10, "Images of a batch.", lower_bound=1)
    flags.DEFINE_integer("regions", 36, "Regions of an image.", lower_bound=1)
    flags.DEFINE_integer("features", 2048, "Width of the features.", lower_bound=1)
    flags.DEFINE_integer("vocab", 9490, "Size of the vocabulary.", lower_bound=5)
    flags.DEFINE_enum("dtype", "float32", ("float32", "bfloat16", "float16"), "Precision.")
    flags.DEFINE_string("data_dir", None, "Prepared data, for --what=input.")
    flags.DEFINE_string("data", "shapes", "For --what=quality: shapes, or a prepared directory.")
    flags.DEFINE_integer("steps", 1000, "For --what=quality: of training.", lower_bound=1)
    flags.DEFINE_string("out", "runs/quality", "For --what=quality: where the runs are kept.")
    flags.DEFINE_integer("repeats", 7, "Timed repetitions after warm-up.", lower_bound=1)
    flags.DEFINE_bool("paper_size", False, "The model at the width of its paper.")


def _quality() -> None:
    """One JSON line for each system as it is done, and the table."""
    given, results = flags.FLAGS, []
    data_dir = "" if given.data == "shapes" else given.data
    for result in quality.compare(given.out, data_dir, given.steps):
        print(json.dumps(result), flush=True)
        results.append(result)
    print(f"\n{quality.table(results)}")


def _main() -> None:
    if flags.FLAGS.what == "quality":
        _quality()
        return
    try:
        params = configs.resolve(
            flags.FLAGS.experiment, flags.FLAGS.config_file, flags.FLAGS.params_override
        )
    except ValueError as error:
        raise console.UsageError(str(error)) from error
    if flags.FLAGS.paper_size:
        paper = configs.Model(type=params.task.model.type)
        params = params.replace(task={"model": paper.as_dict()})
    keras3.set_precision(flags.FLAGS.dtype)
    keras.utils.set_random_seed(params.task.seed)
    if flags.FLAGS.what == "input":
        times, images = timed(input_function(params), flags.FLAGS.repeats), 20 * flags.FLAGS.images
    else:
        times, images = (
            timed(model_function(params, flags.FLAGS.what), flags.FLAGS.repeats),
            flags.FLAGS.images,
        )
    result = {
        "what": flags.FLAGS.what,
        "experiment": flags.FLAGS.experiment,
        "model": params.task.model.get().as_dict(),
        "images": flags.FLAGS.images,
        "regions": flags.FLAGS.regions,
        "captions_per_image": params.task.train_data.captions_per_image,
        "dtype": flags.FLAGS.dtype,
        "seconds": times,
        # Of the whole process, TensorFlow itself (about 0.5) included.
        "peak_memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "images_per_second": round(images / times["median"], 2),
    }
    print(json.dumps(result))


def main() -> None:
    """The command."""
    _define_flags()
    console.run(_main)


if __name__ == "__main__":
    main()
