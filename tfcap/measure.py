"""Times training steps, decoding, rewards and the input pipeline for `tfcap.benchmark`.

Letters: B images, S captions or samples per image, C references per image, R regions, F feature
width, T `max_length`, V vocabulary.

The timed functions are those of training and decoding, compiled as there. Their inputs are random,
and captions have their full length. Untrained weights almost never emit the end mark, so decoding
runs its full length too (`full_length`); trained systems stop after about 11 of 17 words.
"""

import collections
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from pycocoevalcap.cider.cider_scorer import CiderScorer

from tfcap import configs, decoding, runs
from tfcap.data import pipeline
from tfcap.data.document_frequency import DocumentFrequencies, document_frequencies
from tfcap.data.prepared import PreparedData
from tfcap.ids import EOS, PAD, UNK
from tfcap.objectives import rewards
from tfcap.preparing.features.backbone import Backbone
from tfcap.training import optim
from tfcap.training.self_critical import SelfCriticalTask
from tfcap.training.task import CaptionTask

REFERENCES = 5  # C
SHORTEST, LONGEST = 9, 15  # number of words of a random reference
BATCHES = 20  # batches of one repetition: a single batch could have been made before the clock ran


class Sizes(NamedTuple):
    """Sizes of the random inputs."""

    images: int  # B
    regions: int  # R
    features: int  # F
    vocab: int  # V
    corpus: int = 5000  # images in the table of document frequencies


def measure(
    what: str, params: configs.Experiment, sizes: Sizes, repeats: int, data_dir: str = ""
) -> dict[str, Any]:
    """Measures one kind of work.

    Args:
      what: xe, scst, beam, greedy, reward or input.
      params: the configuration.
      sizes: sizes of the inputs.
      repeats: number of timed calls after the warm-up.
      data_dir: the prepared directory that `input` reads.

    Returns:
      `seconds` of a call, and what follows from its median.
    """
    config, images = params.task, sizes.images
    if what == "reward":
        return _reward(params, sizes, repeats)
    if what == "input":
        captions = BATCHES * images * config.train_data.captions_per_image
        seconds = timed({what: _batches(params, sizes, data_dir)}, repeats)[what]
        return {"batches": BATCHES, **_rates(seconds, BATCHES * images, captions)}
    model = runs.build_model(config, sizes.vocab, sizes.features)
    inputs = _random_inputs(params, sizes)
    if what in ("beam", "greedy"):
        decode = _decoding(what, params, model, inputs)
        seconds = timed({what: decode}, repeats)[what]
        full = bool(tf.reduce_any(decode()[..., -1] != PAD))
        return {**_rates(seconds, images, images), "full_length": full}
    step = _training_step(what, params, sizes, model, inputs)
    seconds = timed({what: step}, repeats)[what]
    each = config.self_critical.samples
    if what == "xe":
        each = config.train_data.captions_per_image
    return _rates(seconds, images, images * each)


def timed(functions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, dict]:
    """Times functions: two calls of each for warm-up, then `repeats` calls of each.

    The timed calls alternate between the functions, so that a slower machine slows all of them.

    Returns:
      For each function the seconds of its `first` call, which compiles, and the `median`, the `min`
      and the `max` of the timed ones.
    """
    first = {name: _seconds(function) for name, function in functions.items()}
    for function in functions.values():
        _seconds(function)
    calls: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            calls[name].append(_seconds(function))
    return {
        name: {
            "first": _rounded(first[name]),
            "median": _rounded(statistics.median(seconds)),
            "min": _rounded(min(seconds)),
            "max": _rounded(max(seconds)),
        }
        for name, seconds in calls.items()
    }


def _seconds(function):
    start = time.perf_counter()
    function()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - start


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")  # times range from microseconds to minutes


def _rates(seconds, images, captions):
    median = seconds["median"]
    return {
        "seconds": seconds,
        "images_per_second": _rounded(images / median),
        "captions_per_second": _rounded(captions / median),
        "milliseconds_per_caption": _rounded(1000 * median / captions),
    }


def _random_inputs(params, sizes):
    """Makes a batch: `features` [B, R, F], `mask` [B, R], `tokens` [B, S, T + 1] without EOS."""
    shape = (sizes.images, sizes.regions)
    captions = params.task.train_data.captions_per_image
    tokens = (sizes.images, captions, params.task.max_length + 1)
    return {
        "features": tf.random.stateless_normal((*shape, sizes.features), (1, 2)),
        "mask": tf.ones(shape, tf.bool),
        "tokens": tf.random.stateless_uniform(tokens, (3, 4), UNK + 1, sizes.vocab, tf.int32),
    }


def _compiled(function, jit_compile=None):
    return tf.function(function, autograph=False, jit_compile=jit_compile).get_concrete_function()


def _training_step(what, params, sizes, model, inputs):
    """Returns a compiled step of training, the optimizer included."""
    arguments = (params.task, None, params.trainer.optimizer_config)
    xla = params.runtime.enable_xla
    if what == "xe":
        task = CaptionTask(*arguments, xla=xla)
    else:
        table = _random_table(sizes.corpus, sizes.vocab)
        options = params.task.self_critical.reward.as_dict()
        reward = rewards.Reward(table, sizes.vocab, **options)
        task = SelfCriticalTask(*arguments, reward=reward, xla=xla)
        words = random_captions(sizes.images, sizes.vocab, seed=1)
        inputs["references"] = reward.references(tf.constant(padded(words)))
    optimizer = task.build_optimizer(model, optim.Plateau(0, 1.0, metric="CIDEr", higher=True))
    metrics = task.build_metrics()
    step = _compiled(lambda: task.train_step(inputs, model, optimizer, metrics))
    return functools.partial(_call, step, (task, model, optimizer, metrics))


def _decoding(what, params, model, inputs):
    """Returns a compiled function that encodes the images and decodes their captions."""
    length = params.task.max_length
    config = configs.decoding(params.task, "search=beam", params.task.decoding.beam)
    search = decoding.Search(decoding.Options(**config.as_dict()), length)

    def decode():
        context = model.encode(inputs)
        if what == "beam":
            return search(model, context)[0]
        return decoding.sample(model, context, length)[0]

    return functools.partial(_call, _compiled(decode, params.runtime.enable_xla or None), (model,))


def _call(function, owners):
    """Calls a compiled function. It holds no variables, so `owners` keeps them alive."""
    return function()


def _batches(params, sizes, data_dir):
    """Returns a function that reads `BATCHES` training batches of a prepared directory.

    With `task.backbone.trainable` they hold decoded pictures in place of features.
    """
    config = params.task.train_data
    data = PreparedData.load(data_dir)
    if params.task.backbone.trainable:
        data = data.with_backbone(Backbone.from_fingerprint(data.fingerprint, data.folder))
    batches = iter(
        pipeline.training_batches(
            data,
            batch_size=sizes.images,
            captions_per_image=config.captions_per_image,
            max_length=params.task.max_length,
            seed=params.task.seed,
            split=config.split,
            max_regions=config.region_limit,
            pad_to_max=config.pad_to_max,
        )
    )
    return lambda: [next(batches) for _ in range(BATCHES)]


def random_captions(images: int, vocab: int, seed: int) -> list[list[list[int]]]:
    """Makes `REFERENCES` captions of `SHORTEST` to `LONGEST` words per image, without EOS.

    The probability of the word of rank n is about proportional to 1 / n, as in natural language.
    """
    rng = np.random.default_rng(seed)
    known = vocab - UNK - 1
    captions = []
    for _ in range(images):
        lengths = rng.integers(SHORTEST, LONGEST + 1, REFERENCES)
        ranks = [np.minimum(known, np.floor(known ** rng.random(n))) for n in lengths]
        captions.append([(UNK + rank).astype(int).tolist() for rank in ranks])
    return captions


def padded(images: list[list[list[int]]]) -> np.ndarray:
    """Returns captions with EOS and PAD as int32 [B, C, U], U the longest one."""
    ended = [[[*caption, EOS] for caption in captions] for captions in images]
    longest = max(len(caption) for captions in ended for caption in captions)
    rows = [[c + [PAD] * (longest - len(c)) for c in captions] for captions in ended]
    return np.array(rows, np.int32)


@functools.lru_cache(1)
def _random_table(corpus: int, vocab: int) -> DocumentFrequencies:
    """Counts the document frequencies of the random references of `corpus` images."""
    return document_frequencies(random_captions(corpus, vocab, seed=2))


def _reward(params, sizes, repeats):
    """Times CIDEr-D of the same captions in the graph and in Python, alternately.

    `python` is the scorer that the released systems train with, which takes the number of scored
    captions as the number of images in the table. So that the results are comparable, the table
    here has this number of images too, and its counts are limited to it.
    """
    references = random_captions(sizes.images, sizes.vocab, seed=1)
    samples = params.task.self_critical.samples
    # Samples [B, S, T] are references in which every second word is another one.
    hypotheses = padded(references)[:, np.arange(samples) % REFERENCES, : params.task.max_length]
    changed = (np.arange(hypotheses.shape[-1]) % 2 == 1) & (hypotheses > UNK)
    other = np.random.default_rng(3).integers(UNK + 1, sizes.vocab, hypotheses.shape, np.int32)
    hypotheses = np.where(changed, other, hypotheses)
    table = _random_table(sizes.corpus, sizes.vocab)
    number = sizes.images * samples
    table = table._replace(counts=np.minimum(table.counts, number), images=number)
    scorer = rewards.CiderD(table, sizes.vocab)
    given, tokens = tf.constant(padded(references)), tf.constant(hypotheses)
    frequencies = collections.defaultdict(float)
    for ngram, count in zip(table.ngrams.tolist(), table.counts.tolist(), strict=True):
        frequencies[tuple(str(word) for word in ngram if word != PAD)] = float(count)
    texts = [
        (_text(row), [_text([*caption, EOS]) for caption in captions])
        for rows, captions in zip(hypotheses, references, strict=True)
        for row in rows
    ]

    def python():
        python_scorer = CiderScorer(n=4, sigma=6.0)
        for hypothesis, of_image in texts:
            python_scorer += (hypothesis, of_image)
        python_scorer.document_frequency = frequencies
        return np.array(python_scorer.compute_cider())

    graph = _compiled(lambda: scorer(tokens, scorer.references(given)))
    seconds = timed({"graph": graph, "python": python}, repeats)
    return {
        **{name: _rates(values, sizes.images, number) for name, values in seconds.items()},
        "captions": number,
        "ngrams": len(table.ngrams),
        "largest_difference": float(np.abs(graph().numpy().ravel() - python()).max()),
        "ratio": round(seconds["python"]["median"] / seconds["graph"]["median"], 2),
    }


def _text(words):
    return " ".join(str(word) for word in words if word != PAD)
