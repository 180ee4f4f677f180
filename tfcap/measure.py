"""Times training steps, decoding, rewards and the input pipeline for `tfcap.benchmark`.

Letters: B images, S captions or samples per image, C references per image, R regions, F feature
width, T `max_length`, V vocabulary.

The timed functions are those of training and decoding, compiled as there: training does not know
the number of regions and words in advance, unless XLA compiles it. Except for `input`, their inputs
are random. Captions of training have `FEWEST` to `MOST` words, as long as those of COCO on average.
For self-critical training the bias of the end mark is raised, so that samples end, too, but those
of an untrained model differ more in length. Decoding keeps its weights, which almost never emit the
end mark, and runs its full length; `full_length` in the result says whether it did.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import configs, decoding, runs
from tfcap.backbones.backbone import Backbone
from tfcap.data import pipeline
from tfcap.data.document_frequency import DocumentFrequencies, document_frequencies
from tfcap.data.prepared import PreparedData
from tfcap.decoding.sampling import sample
from tfcap.decoding.search import Search
from tfcap.ids import BOS, EOS, PAD, UNK
from tfcap.models.captioner import Captioner
from tfcap.objectives import rewards
from tfcap.training import optim
from tfcap.training.self_critical import SelfCriticalTask
from tfcap.training.task import CaptionTask

REFERENCES = 5  # C
SHORTEST = 9  # fewest words of a random reference
LONGEST = 15  # most words of it
FEWEST = 7  # words of a caption in training; those of COCO have 10.5 words on average
MOST = 14
BATCHES = 20  # batches of one repetition: a single batch could have been made before the clock ran


class Sizes(NamedTuple):
    """Sizes of the random inputs that `measure` makes.

    Attributes:
      images: number of images in a batch.
      regions: number of regions of an image, each of which has a feature vector.
      features: number of components of a feature vector.
      vocab: number of words of the vocabulary.
      corpus: number of images whose captions give the table of document frequencies.
    """

    images: int
    regions: int
    features: int
    vocab: int
    corpus: int = 5000


def measure(
    what: str, params: configs.Experiment, sizes: Sizes, repeats: int, data_dir: str = ""
) -> dict[str, Any]:
    """Times one kind of work on random inputs.

    Args:
      what: the work: `xe`, `scst`, `beam`, `greedy`, `reward` or `input`, see `tfcap.benchmark`.
      params: the configuration of the experiment.
      sizes: the sizes of the random inputs.
      repeats: number of calls that are timed after the warm-up.
      data_dir: the directory of prepared data, which only `input` reads.

    Returns:
      A dictionary, which `tfcap.benchmark` prints as JSON. `seconds` has the seconds of the first
      call (`first`) and the `median`, `min` and `max` of the timed calls. Rates such as
      `images_per_second` are computed from the median. Some kinds of work have further values, such
      as `full_length` of decoding.
    """
    config = params.task
    images = sizes.images
    samples = config.self_critical.samples
    captions = config.train_data.captions_per_image
    if what == "reward":
        reward, table = _reward(params, sizes)
        rates = _rates(_timed(reward, repeats), images, images * samples)
        return {**rates, "captions": images * samples, "ngrams": len(table.ngrams)}
    if what == "input":
        seconds = _timed(_batches(params, sizes, data_dir), repeats)
        images *= BATCHES
        return {"batches": BATCHES, **_rates(seconds, images, images * captions)}
    model = runs.build_model(config, sizes.vocab, {"dim": sizes.features})
    inputs = _random_inputs(params, sizes)
    if what in ("beam", "greedy"):
        decode = _decoding(what, params, model, inputs)
        seconds = _timed(decode, repeats)
        full = bool(tf.reduce_any(decode()[..., -1] != PAD))
        return {**_rates(seconds, images, images), "full_length": full}
    seconds = _timed(_training_step(what, params, sizes, model, inputs), repeats)
    return _rates(seconds, images, images * (captions if what == "xe" else samples))


def _timed(function: Callable[[], object], repeats: int) -> dict[str, float]:
    """Returns the seconds of the first call, which compiles, and of `repeats` later calls."""
    calls = []
    for _ in range(2 + repeats):
        start = time.perf_counter()
        function()
        tf.test.experimental.sync_devices()
        calls.append(time.perf_counter() - start)
    first, _, *rest = calls
    seconds = {"first": first, "median": statistics.median(rest)}
    seconds |= {"min": min(rest), "max": max(rest)}
    return {name: _rounded(value) for name, value in seconds.items()}


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")  # times range from microseconds to minutes


def _rates(seconds: Mapping[str, float], images: int, captions: int) -> dict[str, Any]:
    median = seconds["median"]
    return {
        "seconds": seconds,
        "images_per_second": _rounded(images / median),
        "captions_per_second": _rounded(captions / median),
        "milliseconds_per_caption": _rounded(1000 * median / captions),
    }


def _random_inputs(params: configs.Experiment, sizes: Sizes) -> dict[str, tf.Tensor]:
    """Makes a batch: `features` [B, R, F], `mask` [B, R], `tokens` [B, S, T' + 1], EOS last."""
    shape = (sizes.images, sizes.regions)
    captions = (sizes.images, params.task.train_data.captions_per_image)
    length = params.task.max_length
    words = tf.random.stateless_uniform(captions, (5, 6), FEWEST, MOST + 1, tf.int32)[..., None]
    # XLA has one shape only; other batches are as long as their longest caption.
    last = length if params.runtime.enable_xla else min(int(tf.reduce_max(words)) + 1, length)
    place = tf.range(last + 1)
    tokens = (*captions, last + 1)
    tokens = tf.random.stateless_uniform(tokens, (3, 4), UNK + 1, sizes.vocab, tf.int32)
    tokens = tf.where(place == 0, BOS, tf.where(place == words + 1, EOS, tokens))
    return {
        "features": tf.random.stateless_normal((*shape, sizes.features), (1, 2)),
        "mask": tf.ones(shape, tf.bool),
        "tokens": tf.where(place > words + 1, PAD, tokens),
    }


def _compiled(function: Callable[[], object], jit_compile: bool | None = None) -> Callable:
    """Traces a function now; the result keeps the variables alive that the function reads."""
    traced = tf.function(function, autograph=False, jit_compile=jit_compile)
    traced.get_concrete_function()
    return traced


def _training_step(
    what: str,
    params: configs.Experiment,
    sizes: Sizes,
    model: Captioner,
    inputs: dict[str, tf.Tensor],
) -> Callable:
    """Returns a compiled step of training, the optimizer included."""
    optimization = params.trainer.optimizer_config
    xla = params.runtime.enable_xla
    task: CaptionTask
    references: dict[str, Any] = {}
    if what == "xe":
        task = CaptionTask(params.task, None, optimization, xla=xla)
    else:
        table = document_frequencies(_random_captions(sizes.corpus, sizes.vocab, seed=2))
        options = params.task.self_critical.reward.as_dict()
        reward = rewards.Reward(table, sizes.vocab, **options)
        task = SelfCriticalTask(params.task, None, optimization, reward=reward, xla=xla)
        words = _random_captions(sizes.images, sizes.vocab, seed=1)
        references = {"references": reward.references(tf.constant(_padded(words)))}
        if (bias := model.checkpoint_items["weights"].get("head/bias")) is not None:
            often = math.log(2 * sizes.vocab / (FEWEST + MOST))
            bias.assign(tf.where(tf.range(sizes.vocab) == EOS, often, bias))
    optimizer = task.build_optimizer(model, optim.Plateau(0, 1.0, metric="CIDEr", higher=True))
    metrics = task.build_metrics()
    unknown = {} if xla else {"features": 1, "mask": 1, "tokens": 2}  # axes of regions and words
    shapes = {name: value.shape.as_list() for name, value in inputs.items()}
    for name, axis in unknown.items():
        shapes[name][axis] = None
    specs = {name: tf.TensorSpec(shapes[name], value.dtype) for name, value in inputs.items()}
    step = tf.function(
        lambda batch: task.train_step(batch | references, model, optimizer, metrics),
        autograph=False,
        input_signature=[specs],
    )
    return lambda: step(inputs)


def _decoding(
    what: str,
    params: configs.Experiment,
    model: Captioner,
    inputs: dict[str, tf.Tensor],
) -> Callable:
    """Returns a compiled function that encodes the images and decodes their captions."""
    length = params.task.max_length
    config = configs.decoding(params.task, "search=beam", params.task.decoding.beam)
    search = Search(decoding.Options(**config.as_dict()), length)

    def decode() -> tf.Tensor:
        context = model.encode(inputs)
        if what == "beam":
            return search(model, context)[0]
        return sample(model, context, length)[0]

    return _compiled(decode, params.runtime.enable_xla or None)


def _batches(params: configs.Experiment, sizes: Sizes, data_dir: str) -> Callable[[], object]:
    """Returns a function that reads `BATCHES` training batches of a prepared directory.

    With `task.backbone.trainable` the batches hold decoded pictures in place of features.
    """
    config = params.task.train_data
    data = PreparedData.load(data_dir)
    if params.task.backbone.trainable:
        data = data.with_backbone(Backbone.from_fingerprint(data.fingerprint, data.folder))
    options = pipeline.BatchOptions(
        split=config.split,
        batch_size=sizes.images,
        captions_per_image=config.captions_per_image,
        max_length=params.task.max_length,
        max_regions=config.region_limit,
        pad_to_max=params.runtime.enable_xla,
    )
    batches = iter(pipeline.training_batches(data, options, seed=params.task.seed))
    return lambda: [next(batches) for _ in range(BATCHES)]


def _random_captions(images: int, vocab: int, seed: int) -> list[list[list[int]]]:
    """Makes `REFERENCES` captions of `SHORTEST` to `LONGEST` words for each image, without EOS.

    The probability of the word of rank n is about proportional to 1 / n, as in natural language.

    Args:
      images: number of images.
      vocab: size of the vocabulary, V.
      seed: random seed.
    """
    rng = np.random.default_rng(seed)
    words = vocab - UNK - 1
    captions = []
    for _ in range(images):
        lengths = rng.integers(SHORTEST, LONGEST + 1, REFERENCES)
        ranks = [np.minimum(words, np.floor(words ** rng.random(n))) for n in lengths]
        captions.append([(UNK + rank).astype(int).tolist() for rank in ranks])
    return captions


def _padded(images: list[list[list[int]]]) -> np.ndarray:
    """Returns captions with EOS and PAD as int32 [B, C, U], U the length of the longest."""
    ended = [[[*caption, EOS] for caption in captions] for captions in images]
    longest = max(len(caption) for captions in ended for caption in captions)
    rows = [[c + [PAD] * (longest - len(c)) for c in captions] for captions in ended]
    return np.array(rows, np.int32)


def _reward(params: configs.Experiment, sizes: Sizes) -> tuple[Callable, DocumentFrequencies]:
    """Returns a compiled CIDEr-D of random samples, and its table of document frequencies."""
    table = document_frequencies(_random_captions(sizes.corpus, sizes.vocab, seed=2))
    references = _padded(_random_captions(sizes.images, sizes.vocab, seed=1))
    # Samples [B, S, T] are references in which every second word is another one.
    samples = np.arange(params.task.self_critical.samples) % REFERENCES
    hypotheses = references[:, samples, : params.task.max_length]
    changed = (np.arange(hypotheses.shape[-1]) % 2 == 1) & (hypotheses > UNK)
    other = np.random.default_rng(3).integers(UNK + 1, sizes.vocab, hypotheses.shape, np.int32)
    tokens = tf.constant(np.where(changed, other, hypotheses))
    scorer = rewards.CiderD(table, sizes.vocab)
    references = tf.constant(references)
    return _compiled(lambda: scorer(tokens, scorer.references(references))), table
