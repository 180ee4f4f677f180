"""CLIPScore and RefCLIPScore: how well a caption fits its picture in the space of CLIP.

Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", EMNLP 2021,
section 3, with the prefix "A photo depicts " before every text:

* CLIPScore = 2.5 max(cos(caption, picture), 0)
* RefCLIPScore = harmonic mean of CLIPScore and the largest max(cos(caption, reference), 0)

The user provides the network, see `inference.clip`. Published values are those of ViT-B/32. Both
scores can be above 1.

Letters: B images, D width of the space.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tfcap.metrics.results import Encoder, Options, Unavailable

PREFIX = "A photo depicts "
_WEIGHT = 2.5


def clipscore(
    references: Mapping[int, Sequence[str]], predictions: Mapping[int, str], options: Options
) -> dict[str, np.ndarray]:
    """Computes "CLIPScore" and "RefCLIPScore", each float64 [B].

    References and captions are not tokenized. Without weights, or without the picture of every
    image, the scores are `Unavailable`.
    """
    encoder = options.clip
    if encoder is None:
        raise Unavailable(
            "it needs the weights of CLIP. Give tfcap.evaluate --clip DIR, a preset of keras-hub."
        )
    if lost := [image for image in references if image not in options.pictures]:
        raise Unavailable(
            f"it needs the picture of every image, and {len(lost)} of {len(references)} are "
            "missing. Give --data_dir: prepared data whose directory of pictures still exists."
        )
    try:
        vectors = encoder.pictures([options.pictures[image] for image in references])
    except ValueError as error:  # the other scores are kept
        raise Unavailable(f"it needs the picture of every image: {error}") from error
    pictures = _unit(vectors)
    captions = _unit(_texts(encoder, [predictions[image] for image in references]))
    flat = _unit(_texts(encoder, [text for texts in references.values() for text in texts]))
    fits = _WEIGHT * np.maximum((captions * pictures).sum(axis=1), 0)  # [B]
    best, start = np.zeros(len(fits)), 0
    for row, texts in enumerate(references.values()):
        near = flat[start : start + len(texts)] @ captions[row]
        best[row] = max(float(near.max()), 0.0)
        start += len(texts)
    both = np.divide(2 * fits * best, fits + best, out=np.zeros(len(fits)), where=fits + best > 0)
    return {"CLIPScore": fits, "RefCLIPScore": both}


def _texts(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    return encoder.texts([PREFIX + text for text in texts])


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors of length 1, float64 [n, D]."""
    vectors = np.asarray(vectors, np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
