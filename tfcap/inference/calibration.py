"""Fits the confidence of a captioner: a second opinion on the training images, then the logistic.

The `WordExpectation` learns from the features and the references of the training images. The
logistic function is fitted on images that the captioner was not trained on, because on its training
images it is too sure.

Letters: N training images, C references of an image, T length of a reference, B images of a batch,
F feature width, V vocabulary, M captions, S signals, H hidden units.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfcap import progress
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.decoding.confidence import SIGNALS, Confidence, centred
from tfcap.ids import PAD, UNK
from tfcap.inference.decode import decode_split
from tfcap.inference.nearest import REFERENCES, Space, open_index
from tfcap.metrics import calibration
from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.results import Hypotheses, Scores
from tfcap.runs import Run

HIDDEN = 256
STEPS = 4000
FOLDS = 10  # of the cross-validation
_BATCH = 64
_MOST = 10  # references of an image that are read
_SCALE = 10.0  # of the targets, so that they have about the size of what the network begins with
_RATE = 1e-3
_DECAY = 1e-2  # of the weights
_DROPOUT = (0.2, 0.5)  # of the features and of the hidden units
_PENALTY = 3.0  # of the squared weights of the logistic function
_CHUNK = 16384  # captions turned into ids together


# ---- the second opinion --------------------------------------------------------------------------


def fit_expectation(
    vectors: np.ndarray, tokens: np.ndarray, vocab_size: int, steps: int = STEPS, seed: int = 1
) -> dict[str, np.ndarray]:
    """Trains a `WordExpectation` with AdamW, whose rate falls to 0 along a cosine.

    Args:
      vectors: the mean of the features of each training image, float32 [N, F].
      tokens: the references of each image, int32 [N, C, T]: words, then EOS, then PAD. An image
        with fewer references has rows of PAD.
      vocab_size: number of words, V.
      steps: number of steps, each of 64 images.
      seed: random seed.

    Returns:
      The arrays of the `WordExpectation`.
    """
    rng = np.random.default_rng(seed)
    idf = inverse_frequencies(tokens, vocab_size)
    mean = np.mean(vectors, 0, np.float64).astype(np.float32)
    initial = keras.initializers.HeNormal(seed)
    network = keras.Sequential(
        [
            keras.layers.Input((vectors.shape[1],)),
            keras.layers.Dropout(_DROPOUT[0], seed=seed),
            keras.layers.Dense(HIDDEN, "relu", kernel_initializer=initial),
            keras.layers.Dropout(_DROPOUT[1], seed=seed + 1),
            keras.layers.Dense(vocab_size, kernel_initializer="zeros"),
        ]
    )
    rate = keras.optimizers.schedules.CosineDecay(_RATE, steps)
    network.compile(keras.optimizers.AdamW(rate, weight_decay=_DECAY), "mse")
    weights_of = tf.function(lambda tokens: reference_weights(tokens, idf), autograph=False)
    rows = np.concatenate(
        [rng.permutation(len(vectors)) for _ in range(1 + steps * _BATCH // len(vectors))]
    )
    for step in progress.progress(range(steps), steps, "learning the words of images"):
        batch = rows[step * _BATCH : (step + 1) * _BATCH]
        units = centred(vectors[batch], mean)
        network.train_on_batch(units, _SCALE * weights_of(tokens[batch]))
    hidden, hidden_bias, words, words_bias = network.get_weights()
    return {
        "mean": mean,
        "hidden": hidden,
        "hidden_bias": hidden_bias,
        "words": words.T / _SCALE,
        "words_bias": words_bias / _SCALE,
        "idf": idf,
    }


def inverse_frequencies(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Computes ln(N / df) of each word, where df of the N images have the word in a reference.

    A word that is in no reference counts as if it were in one. The special tokens have 0.

    Args:
      tokens: the references of N images, int32 [N, C, T].
      vocab_size: number of words, V.

    Returns:
      float32 [V].

    Example:
      >>> tokens = np.array([[[4, 5, 2]], [[4, 6, 2]]])
      >>> print(inverse_frequencies(tokens, 7).round(2))
      [0.   0.   0.   0.   0.   0.69 0.69]
    """
    images = len(tokens)
    flat = tokens.reshape(images, -1)
    pairs = np.unique(np.arange(images)[:, None] * vocab_size + flat)
    counts = np.bincount(pairs % vocab_size, minlength=vocab_size)
    result = np.log(images / np.maximum(1, counts)).astype(np.float32)
    result[: UNK + 1] = 0.0
    return result


def reference_weights(tokens: tf.Tensor, idf: np.ndarray) -> tf.Tensor:
    """Computes the mean weight of each word in the references of images, see `WordExpectation`.

    Args:
      tokens: C references of each of B images, int32 [B, C, T]; rows of PAD are no references.
      idf: the idf of each word, float32 [V].

    Returns:
      float32 [B, V].
    """
    shape = tf.shape(tokens)
    rows = tf.reshape(tokens, [-1, shape[2]])  # [B C, T]
    number = tf.range(tf.shape(rows)[0])[:, None] * tf.ones_like(rows)
    weights = tf.scatter_nd(
        tf.stack([number, rows], -1), tf.gather(idf, rows), [tf.shape(rows)[0], len(idf)]
    )
    weights = tf.math.divide_no_nan(weights, tf.norm(weights, axis=-1, keepdims=True))
    real = tf.cast(tf.reduce_any(tokens != PAD, -1), tf.float32)
    sums = tf.reduce_sum(tf.reshape(weights, [shape[0], shape[1], len(idf)]), 1)
    return tf.math.divide_no_nan(sums, tf.reduce_sum(real, -1, keepdims=True))


def read_references(run: Run, data: PreparedData) -> np.ndarray:
    """Reads the captions of the training images as tokens, int32 [N, C, T], at most ten of each."""
    captions = stored_captions(data, REFERENCES)
    texts = [captions[image][:_MOST] for image in data.index(REFERENCES).id.tolist()]
    flat = [text for row in texts for text in row]
    length = run.model.max_length
    encoded = [
        run.vocab.encode(tf.constant(flat[start : start + _CHUNK]), length).numpy()[:, 1:]
        for start in range(0, len(flat), _CHUNK)
    ]
    tokens = np.full([len(texts), max(map(len, texts)), encoded[0].shape[1]], PAD, np.int32)
    numbers = [(image, index) for image, row in enumerate(texts) for index in range(len(row))]
    tokens[tuple(np.array(numbers).T)] = np.concatenate(encoded)
    return tokens


# ---- the logistic function -----------------------------------------------------------------------


def fit_logistic(signals: np.ndarray, usable: np.ndarray) -> tuple[np.ndarray, float]:
    """Fits a logistic function by Newton's method, with a penalty on its squared weights.

    The penalty is on the weights of the signals divided by their standard deviations.

    Args:
      signals: the signals of M captions, float64 [M, S].
      usable: whether each caption is usable, bool [M].

    Returns:
      The weights float64 [S] and the bias.
    """
    mean, deviation = signals.mean(0), np.maximum(signals.std(0), 1e-6)
    inputs = np.concatenate([(signals - mean) / deviation, np.ones([len(signals), 1])], 1)
    penalty = np.append(np.full(signals.shape[1], _PENALTY), 1e-3)
    weights = np.zeros(inputs.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-inputs @ weights))
        slope = inputs.T @ (p - usable) + penalty * weights
        curvature = (inputs.T * (p * (1 - p))) @ inputs + np.diag(penalty)
        step = np.linalg.solve(curvature, slope)
        weights -= step
        if np.abs(step).max() < 1e-9:
            break
    scaled = weights[:-1] / deviation
    return scaled, float(weights[-1] - scaled @ mean)


def cross_fitted(signals: np.ndarray, usable: np.ndarray, seed: int = 1) -> np.ndarray:
    """Computes each caption's confidence by a function that was fitted without it: float64 [M].

    Args:
      signals, usable: as in `fit_logistic`.
      seed: random seed of the division into ten parts.
    """
    order = np.random.default_rng(seed).permutation(len(usable))
    result = np.zeros(len(usable))
    for part in np.array_split(order, min(FOLDS, len(order))):
        others = np.setdiff1d(order, part)
        weights, bias = fit_logistic(signals[others], usable[others])
        result[part] = 1 / (1 + np.exp(-(signals[part] @ weights + bias)))
    return result


def ciders(
    captions: Mapping[int, str], references: Mapping[int, Sequence[str]], tokens: str = "raw"
) -> np.ndarray:
    """Computes CIDEr of each caption, times 100, in the order of the references.

    Args:
      captions: image id -> caption.
      references: image id -> references.
      tokens: the way in which captions are cut into words, see `tfcap.segmentation`.
    """
    with CocoScorer(["CIDEr"], tokens=tokens) as scorer:
        scores = scorer.score(references, captions)
    return np.array([scores.per_image[image]["CIDEr"] for image in references])


def human_level(references: Mapping[int, Sequence[str]], tokens: str = "raw") -> float:
    """Returns the CIDEr, times 100, that three of four references reach against the others.

    Of each image the first reference is compared with its other references.

    Args:
      references: image id -> references.
      tokens: as in `ciders`.

    Raises:
      ValueError: fewer than two images have two references.
    """
    several = {image: texts for image, texts in references.items() if len(texts) > 1}
    if len(several) < 2:
        raise ValueError(
            "The images have one reference each, so that the level of a usable caption cannot be "
            "taken from them. Give it as `usable`."
        )
    first = {image: texts[0] for image, texts in several.items()}
    others = {image: texts[1:] for image, texts in several.items()}
    return round(float(np.percentile(ciders(first, others, tokens), 25)), 1)


# ---- both ----------------------------------------------------------------------------------------


class Fit(NamedTuple):
    """A fitted confidence, and how well it does on the images of its fit.

    Attributes:
      confidence: the confidence; `runs.write_confidence` stores it.
      measured: the measurements of a confidence that was fitted ten times, each time without a
        tenth of the images, for which it was then computed.
    """

    confidence: Confidence
    measured: calibration.Calibration


def calibrate(
    run: Run,
    data: PreparedData,
    split: str,
    usable: float | None = None,
    *,
    limit: int = 0,
    batch_size: int = 50,
    steps: int = STEPS,
    seed: int = 1,
) -> Fit:
    """Fits the confidence of a run.

    Args:
      run: the run.
      data: prepared data with the split train and the vocabulary of the run.
      split: the split whose images the logistic function is fitted on.
      usable: the smallest CIDEr of a usable caption, times 100; None takes `human_level`.
      limit: number of images to fit on, from the start of the split; 0 takes all.
      batch_size: number of images decoded together.
      steps: number of training steps of the `WordExpectation`.
      seed: random seed.

    Raises:
      ValueError: the images have no references, or all captions are usable or none is.
    """
    references = data.references(split)
    images = [i for i in data.index(split).id[: limit or None].tolist() if references[i]]
    if len(images) < 2:
        raise ValueError(
            f"The split {split} of {data.folder} has no references. Give another `split`."
        )
    references = {image: references[image] for image in images}
    search = run.search(data_dir=data.folder)
    way = run.vocab.tokens
    level = human_level(references, way) if usable is None else usable
    vectors = open_index(data, Space(), "", run.max_regions, (REFERENCES,)).vectors
    tokens = read_references(run, data)
    arrays = fit_expectation(np.asarray(vectors), tokens, len(run.vocab), steps, seed)
    decoded = decode_split(
        run,
        data,
        split,
        batch_size,
        search=search,
        limit=limit,
        seed=seed,
        measure=Confidence(arrays, {}).signals,
    ).of_images(images)
    assert decoded.confidences is not None
    signals = np.array([decoded.confidences[image][0] for image in images])
    scores = ciders(decoded.best(), references, way)
    enough = scores >= level
    if enough.all() or not enough.any():
        share = "all" if enough.any() else "none"
        raise ValueError(
            f"With the level {level:g}, {share} of the captions are usable. Their median CIDEr "
            f"is {np.median(scores):.1f}. Give another level as `usable`."
        )
    weights, bias = fit_logistic(signals, enough)
    measured = calibration.calibration(
        cross_fitted(signals, enough, seed), scores, level, orders_of(decoded)
    )
    content = {
        "usable": f"CIDEr of at least {level:g} on the images of the fit",
        "level": level,
        "signals": dict(zip(SIGNALS, weights.tolist(), strict=True)),
        "bias": bias,
        "checkpoint": os.path.basename(run.checkpoint),
        "data": os.path.basename(os.path.normpath(data.folder)),
        "split": split,
        "images": images,
        "references_sha256": data.split(split).get("references_sha256"),
        "decoding": run.params.task.decoding.as_dict(),
        "cross_validation": measured.as_dict(),
    }
    return Fit(Confidence(arrays, content), measured)


def unseen(run: Run, data: PreparedData, split: str, images: Sequence[int]) -> list[int]:
    """Returns the images on which the confidence of a run was not fitted.

    Args:
      run: the run, which is calibrated.
      data: the prepared data of the images.
      split: name of the split.
      images: ids of the images.

    Raises:
      ValueError: fewer than two images are left.
    """
    assert run.confidence is not None
    fitted = run.confidence.calibration
    if data.split(split).get("references_sha256") == fitted["references_sha256"]:
        of_fit = set(fitted["images"])
        images = [image for image in images if image not in of_fit]
    if len(images) < 2:
        raise ValueError(
            f"The confidence of {run.directory} was fitted on these images of the split {split}. "
            "Give another `split`, or fit it on fewer images, with `limit` of tfcap.calibrate."
        )
    return list(images)


def measure(
    run: Run, data: PreparedData, split: str, captions: Hypotheses, scores: Scores
) -> tuple[calibration.Calibration, list[str]]:
    """Measures the confidence of a run in the best captions of a split.

    Args:
      run: the run, which is calibrated.
      data: the prepared data of the images.
      split: name of the split.
      captions: the captions, with the confidence in them.
      scores: their scores, with the CIDEr of each image.

    Returns:
      The measurements, and lines of text: on images that are left out because the confidence was
      fitted on them, and on decoding options that are not those of the fit.

    Raises:
      ValueError: fewer than two images are left.
    """
    images = unseen(run, data, split, list(captions.captions))
    assert run.confidence is not None
    fitted = run.confidence.calibration
    notes = []
    if left_out := len(captions.captions) - len(images):
        notes.append(f"{left_out} images are left out: the confidence was fitted on them")
    decoding = run.params.task.decoding.as_dict()
    if others := [key for key, value in decoding.items() if fitted["decoding"].get(key) != value]:
        notes.append(f"the confidence was fitted with other decoding: {', '.join(others)} differ")
    captions = captions.of_images(images)
    assert captions.confidences is not None
    measured = calibration.calibration(
        np.array([values[0] for values in captions.confidences.values()]),
        np.array([scores.per_image[image]["CIDEr"] for image in images]),
        fitted["level"],
        orders_of(captions),
    )
    return measured, notes


def orders_of(captions: Hypotheses) -> dict[str, np.ndarray]:
    """Returns other numbers by which captions can be ordered: their log-probabilities.

    Args:
      captions: the captions, with their log-probabilities.

    Returns:
      Name -> float64 [M], a number for the best caption of each image.
    """
    assert captions.log_probs is not None
    sums = np.array([values[0] for values in captions.log_probs.values()])
    words = np.array([1 + len(texts[0].split()) for texts in captions.captions.values()])
    return {"mean log-probability": sums / words, "summed log-probability": sums}
