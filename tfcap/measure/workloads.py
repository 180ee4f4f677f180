"""Builds the compiled functions that the benchmark times.

Letters: B images, S captions or samples per image, C references per image, K beams, R regions,
F feature width, T `max_length`, V vocabulary.

They are the functions of training, evaluation and retrieval, with random inputs and captions of
full length. With untrained weights an end mark is rare, so that decoding runs its full length too.
A stage (forward, backward, ...) cannot be timed alone inside a compiled step. `Work.prefixes`
therefore holds a function for each stage that does all work up to its end; the time of a stage is
the difference of two of them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import configs, decoding, runs
from tfcap.data.document_frequency import DocumentFrequencies, document_frequencies
from tfcap.ids import EOS, PAD, UNK
from tfcap.objectives import rewards
from tfcap.scoring import likelihood
from tfcap.training import gradients, schedules
from tfcap.training.memory import Memory, forecast
from tfcap.training.self_critical import SelfCriticalTask
from tfcap.training.task import CaptionTask

REFERENCES = 5  # C
SHORTEST, LONGEST = 9, 15  # number of words of a random reference


class Sizes(NamedTuple):
    """Sizes of the inputs."""

    images: int  # B
    regions: int  # R
    features: int  # F
    vocab: int  # V
    captions: int  # S of cross-entropy
    beam: int  # K
    sentences: int  # captions that retrieval scores with each image
    corpus: int  # number of images in the table of document frequencies


class Work(NamedTuple):
    """Compiled functions to time.

    Attributes:
      prefixes: the functions by the stage that each ends with; the last one does all the work.
      images: number of images of one call.
      captions: number of captions of one call.
      memory: the forecast of a training step; None for other work.
      full_length: tells whether a decoding loop ran its full length; None if there is no loop.
      held: owners of the variables, which must live as long as the functions.
    """

    prefixes: dict[str, tf.types.experimental.ConcreteFunction]
    images: int
    captions: int
    memory: Memory | None = None
    full_length: Callable[[], bool] | None = None
    held: tuple[Any, ...] = ()


def build(what: str, params: configs.Experiment, sizes: Sizes, stages: bool = True) -> Work:
    """Builds the work that `--what` names.

    Args:
      what: xe, scst, beam, greedy or retrieval.
      params: the configuration.
      sizes: sizes of the inputs.
      stages: False builds only the function that does all the work.
    """
    model = runs.build_model(params.task, sizes.vocab, sizes.features)
    inputs = random_inputs(sizes, params.task.max_length)
    if what in ("xe", "scst"):
        return _training(what, params, sizes, model, inputs, stages)
    if what == "retrieval":
        whole = _scoring(params, sizes, model, inputs)
        work = Work({"score": compiled(whole)}, sizes.images, sizes.images * sizes.sentences)
    else:
        whole = compiled(_decoding(what, params, sizes, model, inputs))
        work = Work({"decode": whole}, sizes.images, sizes.images)
        work = work._replace(full_length=lambda: bool(tf.reduce_any(whole()[..., -1] != PAD)))
    if stages:
        encode = compiled(lambda: model.encode(inputs))
        work = work._replace(prefixes={"encode": encode, **work.prefixes})
    return work._replace(held=(model,))


def random_inputs(sizes: Sizes, length: int) -> dict[str, tf.Tensor]:
    """Makes a batch: `features` [B, R, F], `mask` [B, R], `tokens` [B, S, T + 1] without EOS."""
    shape = (sizes.images, sizes.regions)
    captions = (sizes.images, sizes.captions, length + 1)
    return {
        "features": tf.random.stateless_normal((*shape, sizes.features), (1, 2)),
        "mask": tf.ones(shape, tf.bool),
        "tokens": tf.random.stateless_uniform(captions, (3, 4), UNK + 1, sizes.vocab, tf.int32),
    }


def compiled(function: Callable[[], Any]) -> tf.types.experimental.ConcreteFunction:
    """Traces a function without arguments."""
    return tf.function(function, autograph=False).get_concrete_function()


def _training(what, params, sizes, model, inputs, stages):
    """Builds a training step and, with `stages`, its prefixes."""
    config, arguments = params.task, (params.task, None, params.trainer.optimizer_config)
    xla = params.runtime.enable_xla
    if what == "xe":
        task, captions = CaptionTask(*arguments, xla=xla), sizes.captions
    else:
        reward = random_reward(config, sizes)
        task = SelfCriticalTask(*arguments, reward=reward, xla=xla)
        captions = config.self_critical.samples
        words = random_captions(sizes.images, sizes.vocab, seed=1)
        inputs["references"] = reward.references(tf.constant(padded(words)))
    optimizer = task.build_optimizer(model, schedules.Plateau(0, 1.0, metric="CIDEr", higher=True))
    metrics = task.build_metrics()
    weights = model.trainable_variables

    def prepared():
        return task.prepared(inputs, model, tf.convert_to_tensor(optimizer.iterations))

    def objective(part):
        return task.objective(part, model, tf.convert_to_tensor(optimizer.iterations))

    def backward():
        names = [metric.name for metric in metrics]
        jit = task.compiled if xla else None
        return gradients.of_mean(objective, prepared(), weights, optimizer, names, 1, jit)[:2]

    prefixes = {}
    if stages and config.micro_batches == 1:
        if what == "scst" and config.self_critical.gradient == "rescoring":
            prefixes["encode"] = compiled(lambda: model.encode(inputs))
            prefixes["sample"] = compiled(lambda: prepared()["samples"])
            prefixes["reward"] = compiled(lambda: prepared()["advantages"])
        prefixes["forward"] = compiled(lambda: objective(prepared())[0])
        prefixes["backward"] = compiled(backward)
    step = compiled(lambda: task.train_step(inputs, model, optimizer, metrics))
    prefixes["optimizer"] = step
    memory = forecast(step, model, optimizer, micro_batches=config.micro_batches)
    held = model, optimizer, metrics, task
    return Work(prefixes, sizes.images, sizes.images * captions, memory, held=held)


def _decoding(what, params, sizes, model, inputs):
    """Returns a function that encodes the images and decodes captions."""
    length = params.task.max_length
    config = configs.decoding(params.task, "search=beam", sizes.beam)
    search = decoding.Search(runs.decoding_options(config, length), length)

    def decode():
        context = model.encode(inputs)
        if what == "beam":
            return search(model, context)[0]
        return decoding.sample(model, context, length)[0]

    if params.runtime.enable_xla:
        return tf.function(decode, autograph=False, jit_compile=True)
    return decode


def _scoring(params, sizes, model, inputs):
    """Returns a function that scores random captions with each image."""
    shape = (sizes.sentences, params.task.max_length)
    tokens = np.random.default_rng(5).integers(UNK + 1, sizes.vocab, shape, np.int32)
    words = np.full(shape[:1], shape[1], np.int32)
    scorer = likelihood.PairScorer(
        model, sizes.features, likelihood.EncodedCaptions(tokens, words, unknown=0, cut=0)
    )
    return lambda: scorer.scores(inputs["features"], inputs["mask"])


def random_captions(images: int, vocab: int, seed: int) -> list[list[list[int]]]:
    """Makes `REFERENCES` captions of `SHORTEST` to `LONGEST` words per image, without EOS.

    The probability of the word of rank n is about proportional to 1 / n, as in natural language.
    """
    rng = np.random.default_rng(seed)
    captions = []
    for _ in range(images):
        lengths = rng.integers(SHORTEST, LONGEST + 1, REFERENCES)
        captions.append([_words(rng, n, vocab) for n in lengths])
    return captions


def _words(rng, number, vocab):
    """Draws words by rank."""
    known = vocab - UNK - 1
    return (UNK + np.minimum(known, np.floor(known ** rng.random(number)))).astype(int).tolist()


def padded(images: list[list[list[int]]]) -> np.ndarray:
    """Returns captions with EOS and PAD as int32 [B, C, U]."""
    ended = [[[*caption, EOS] for caption in captions] for captions in images]
    longest = max(len(caption) for captions in ended for caption in captions)
    rows = [[c + [PAD] * (longest - len(c)) for c in captions] for captions in ended]
    return np.array(rows, np.int32)


@functools.lru_cache(1)
def random_table(corpus: int, vocab: int) -> DocumentFrequencies:
    """Counts the document frequencies of the random references of `corpus` images."""
    return document_frequencies(random_captions(corpus, vocab, seed=2))


def random_reward(config: configs.Task, sizes: Sizes) -> rewards.Reward:
    """Makes the configured reward with the table of random references."""
    table = random_table(sizes.corpus, sizes.vocab)
    return rewards.Reward(table, sizes.vocab, **config.self_critical.reward.as_dict())
