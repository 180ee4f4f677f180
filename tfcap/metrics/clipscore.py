"""CLIPScore and RefCLIPScore: how well a caption fits its picture in the space of CLIP.

Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", EMNLP 2021,
section 3, with the prefix "A photo depicts " before every text:

* CLIPScore = 2.5 max(cos(caption, picture), 0)
* RefCLIPScore = harmonic mean of CLIPScore and max(cos(caption, reference), 0) of the most similar
  reference

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
    """Computes "CLIPScore" and "RefCLIPScore" of each image.

    CLIPScore is 2.5 max(0, cosine of picture and caption). RefCLIPScore is the harmonic mean of
    CLIPScore and max(0, largest cosine of caption and reference).

    Args:
      references: image id -> references, not tokenized, of B images.
      predictions: image id -> caption, not tokenized.
      options: the options, with the networks of CLIP in `clip` and the paths of the pictures in
        `pictures`.

    Returns:
      Name of the score -> score of each image, float64 [B], not times 100, in the order of
      `references`.

    Raises:
      Unavailable: `options.clip` is None, or a picture is missing or cannot be read.

    Example:
      >>> class Lengths:  # in place of CLIP
      ...     def texts(self, texts):
      ...         return np.array([[len(text), 20] for text in texts])
      ...     pictures = texts
      >>> options = Options(pictures={1: "dog.png"}, clip=Lengths())
      >>> scores = clipscore({1: ["a dog"]}, {1: "a red dog"}, options)
      >>> scores["CLIPScore"].round(2), scores["RefCLIPScore"].round(2)
      (array([2.12]), array([1.36]))
    """
    encoder = options.clip
    if encoder is None:
        raise Unavailable(
            "CLIPScore needs the weights of CLIP: evaluate with `clip=DIR`, the directory of a "
            "preset of keras-hub."
        )
    if missing := [image for image in references if image not in options.pictures]:
        raise Unavailable(
            f"CLIPScore needs the picture of every image, but {len(missing)} of "
            f"{len(references)} pictures are missing. Give `data_dir`: prepared data whose "
            "directory of pictures still exists."
        )
    try:
        vectors = encoder.pictures([options.pictures[image] for image in references])
    except ValueError as error:  # the other scores are kept
        raise Unavailable(f"CLIPScore cannot read a picture: {error}") from error
    pictures = _unit(vectors)
    captions = _unit(_texts(encoder, [predictions[image] for image in references]))
    others = _unit(_texts(encoder, [text for texts in references.values() for text in texts]))
    scores = _WEIGHT * np.maximum((captions * pictures).sum(axis=1), 0)  # [B]
    best = np.zeros(len(scores))
    start = 0
    for row, texts in enumerate(references.values()):
        cosines = others[start : start + len(texts)] @ captions[row]
        best[row] = max(float(cosines.max()), 0.0)
        start += len(texts)
    sums = scores + best
    means = np.divide(2 * scores * best, sums, out=np.zeros(len(scores)), where=sums > 0)
    return {"CLIPScore": scores, "RefCLIPScore": means}


def _texts(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    """Returns the vectors of texts with the prefix, [n, D]."""
    return encoder.texts([PREFIX + text for text in texts])


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors [n, D] scaled to length 1, float64."""
    vectors = np.asarray(vectors, np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
