"""Finds the images whose vectors are nearest to a picture or a sentence.

Letters: B images of a batch, R regions, F feature width, D width of a vector, M indexed images, Q
queries, k neighbours.

The vectors of a split are stored in a memory-mapped file. The file name is a digest of everything
that the vectors depend on, so another model or other data gives another file.
"""

import collections
import functools
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import files, progress
from tfcap.data import tokens
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.files import arrays_sha256
from tfcap.inference import likelihood
from tfcap.layers.common import masked_mean

FOLDER = "vectors"  # inside the prepared directory
REFERENCES = "train"  # the split whose captions give sentences their vectors
BEST = 50  # the most similar captions, whose images give a sentence its vector
_RECORDS = 64  # records read together
_BLOCK = 16384  # vectors multiplied together; their products stay in the processor's cache
_QUERIES = 256  # queries multiplied together


class Space:
    """Computes the vector that represents an image in the search.

    By default it is the mean of the features over the image's regions. With an m-RNN it is the
    output g2(V_I I) without bias (Mao et al., ICLR 2015, section 8: features refined by the
    captions that the model was trained with).

    `mean` [D] is subtracted from each vector, and the result is scaled to length 1: then the
    nearest vectors are those with the highest cosine. None does not change the vectors.
    """

    def __init__(self, refine: Any = None, mean: np.ndarray | None = None):
        refined = getattr(refine, "refined_features", None)
        if refine is not None and refined is None:
            raise ValueError(
                f"Only an m-RNN (models mrnn and mrnn_shared) has refined features, and this run "
                f"is {getattr(refine, 'name', refine)}."
            )
        self._mean = None if mean is None else mean.astype(np.float32)
        weights = {} if refine is None else refine.checkpoint_items["weights"]
        self.sha256 = arrays_sha256(weights, b"" if self._mean is None else self._mean.tobytes())
        self.name = ("refined" if refined else "original") + ("" if mean is None else "-centred")

        @tf.function(autograph=False, reduce_retracing=True)
        def vectors(inputs):
            return refined(inputs) if refined else masked_mean(inputs["features"], inputs["mask"])

        self._vectors = vectors

    def vectors(
        self, features: tf.Tensor, mask: tf.Tensor | None = None, image: tf.Tensor | None = None
    ) -> np.ndarray:
        """Computes the vectors float32 [B, D] of B images.

        `features` are float32 [B, R, F]; `mask` is bool [B, R], None if all regions are real;
        `image` float32 [B, F2] are vectors of the whole images, which an m-RNN may read.
        """
        if mask is None:
            mask = tf.ones(tf.shape(features)[:2], tf.bool)
        inputs = {"features": tf.convert_to_tensor(features, tf.float32), "mask": mask}
        if image is not None:
            inputs["image"] = image
        return self.centre(self._vectors(inputs).numpy())

    def centre(self, vectors: np.ndarray) -> np.ndarray:
        """Subtracts the mean, if any, from float32 [B, D] and scales to length 1."""
        if self._mean is None:
            return vectors
        vectors = vectors - self._mean
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, np.float32(1e-12))


class Index:
    """Finds the nearest vectors by Euclidean distance, exactly.

    `vectors` are float32 [M, D], which may be memory-mapped, and `ids` int64 [M] their images.
    """

    def __init__(self, vectors: np.ndarray, ids: np.ndarray):
        self.vectors, self.ids = vectors, ids

    def search(
        self, queries: np.ndarray, k: int, own_ids: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds the k nearest images of each query float32 [Q, D], nearest first.

        An image with the same id as the query, `own_ids` int64 [Q], is left out. Returns positions
        int64 [Q, k] and distances float64 [Q, k]. k is at most the number of images; if a query has
        fewer neighbours, its row ends with position -1 and distance infinity.
        """
        k, own = min(k, len(self.ids)), np.full(len(queries), -1)
        if own_ids is not None:
            places = {image: place for place, image in enumerate(self.ids.tolist())}
            own = np.array([places.get(image, -1) for image in own_ids.tolist()], np.int64)
        positions = np.full([len(queries), k], -1, np.int64)
        distances = np.full([len(queries), k], np.inf)
        for start in range(0, len(queries), _QUERIES):
            part = np.arange(start, min(start + _QUERIES, len(queries)))
            for row, found in zip(part, self._nearest(queries[part], k, own[part]), strict=True):
                found = found[found >= 0]
                # Products of float32 are too coarse for equal and for very near images.
                exact = self.vectors[found].astype(np.float64) - queries[row]
                exact = np.sqrt((exact * exact).sum(1))
                order = np.lexsort((found, exact))
                positions[row, : len(order)] = found[order]
                distances[row, : len(order)] = exact[order]
        return positions, distances

    def _nearest(self, queries: np.ndarray, k: int, own: np.ndarray) -> np.ndarray:
        """Returns the positions [Q, k] of the k nearest, unordered, by |t|^2 - 2 q t."""
        positions = np.full([len(queries), k], -1, np.int64)
        best = np.full([len(queries), k], np.inf, np.float32)
        # Far from 0, products of float32 would lose the distances of images that are alike.
        centre = queries.mean(0)
        queries = queries - centre
        for start in range(0, len(self.ids), _BLOCK):
            block = self.vectors[start : start + _BLOCK] - centre
            values = np.einsum("md,md->m", block, block) - 2 * (queries @ block.T)
            inside = np.flatnonzero((own >= start) & (own < start + len(block)))
            values[inside, own[inside] - start] = np.inf
            values = np.concatenate([best, values], 1)
            chosen = np.argpartition(values, k - 1, 1)[:, :k]
            best = np.take_along_axis(values, chosen, 1)
            places = np.arange(start, start + len(block))
            places = np.concatenate([positions, np.tile(places, [len(queries), 1])], 1)
            positions = np.take_along_axis(places, chosen, 1)
        return np.where(np.isinf(best), -1, positions)


def load(
    data: PreparedData,
    space: Space,
    folder: str | os.PathLike | None = None,
    max_regions: int | None = None,
    splits: Sequence[str] = ("train",),
) -> Index:
    """Opens the index of the images of some splits, or makes it if there is none.

    `folder` is the directory of the stored vectors; "" takes a directory in the prepared data, None
    holds the vectors in memory. Regions beyond `max_regions` are ignored, as the model ignores
    them.
    """
    ids = np.concatenate([data.index(split).id for split in splits])
    if not len(ids):
        raise ValueError(f"{data.folder} has no images in {', '.join(splits)}.")
    path = os.path.join(
        folder or os.path.join(data.folder, FOLDER), _name(data, space, max_regions, splits)
    )
    compute = functools.partial(_compute, data, space, max_regions, splits, len(ids))
    if folder == "" and not os.path.exists(f"{path}.npy"):
        if files.is_remote(data.folder) or not os.access(data.folder, os.W_OK):
            print(f"{data.folder} cannot be written: the vectors are kept in memory", flush=True)
            folder = None
    if folder is None:
        return Index(compute(lambda shape: np.empty(shape, np.float32)), ids)
    if not os.path.exists(f"{path}.npy"):
        files.make_directory(os.path.dirname(path))
        with files.replacing(f"{path}.npy") as temporary:
            compute(
                lambda shape: np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            ).flush()
    return Index(np.load(f"{path}.npy", mmap_mode="r", allow_pickle=False), ids)


def _name(data, space, max_regions, splits) -> str:
    made = data.fingerprint
    keys = ("features", "backbone", "trained_backbone")
    parts = [
        [split, data.split(split)["shards"], data.index(split).id.tolist()] for split in splits
    ]
    content = [parts, {key: made.get(key) for key in keys}, max_regions, space.name, space.sha256]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{'+'.join(splits)}-{space.name}-{digest[:12]}"


def _compute(data, space, max_regions, splits, images: int, allocate: Callable) -> Any:
    """Computes the vectors of the splits, float32 [M, D], in an array that `allocate` makes."""
    vectors, done = None, 0
    for split in splits:
        size = len(data.index(split).id)
        blocks = likelihood.images(data, split, range(size), _RECORDS, max_regions)
        for block in progress.progress(blocks, -(-size // _RECORDS), f"vectors of {split}"):
            part = space.vectors(**block)
            if vectors is None:
                vectors = allocate((images, part.shape[1]))
            vectors[done : done + len(part)] = part
            done += len(part)
    return vectors


class Candidates:
    """Finds the images of a split that are nearest to a sentence or to another image.

    Nearness is the cosine of the angle between vectors from which the mean over the training images
    is subtracted: without this, all vectors of images have nearly the same direction.

    The data must have training images. `space` computes the vectors of images, and `index` is the
    index of `split`; the other arguments are those of `load`.
    """

    def __init__(
        self,
        data: PreparedData,
        split: str,
        folder: str | None = "",
        max_regions: int | None = None,
    ):
        self._data = data
        self._references = load(data, Space(), folder, max_regions, (REFERENCES,))
        self.space = Space(mean=np.asarray(np.mean(self._references.vectors, 0, np.float64)))
        self.index = load(data, self.space, folder, max_regions, (split,))

    @functools.cached_property
    def _captions(self) -> "SentenceVectors":
        captions, index = stored_captions(self._data, REFERENCES), self._references
        return SentenceVectors([captions[int(image)] for image in index.ids], index.vectors)

    def sentences(self, texts: Sequence[str]) -> np.ndarray:
        """Computes the vectors of sentences, float32 [Q, D]."""
        return self.space.centre(self._captions(texts))

    def nearest(self, vectors: np.ndarray, number: int) -> np.ndarray:
        """Finds the images nearest to vectors [Q, D]: positions in the split, int64 [Q, k]."""
        return self.index.search(vectors, number)[0]

    def among_sentences(self, vectors: np.ndarray, texts: Sequence[str], number: int) -> np.ndarray:
        """Finds the `texts` nearest to images [Q, D]: positions int64 [Q, k], nearest first."""
        return Index(self.sentences(texts), np.arange(len(texts))).search(vectors, number)[0]


class SentenceVectors:
    """Computes vectors of sentences in the space of the vectors of images.

    A captioner gives probabilities of sentences, not vectors. The vector of a sentence is the mean
    of the vectors of the images whose captions resemble the sentence most, weighted by the
    similarity. The similarity is the cosine of TF-IDF vectors of words and of pairs of neighbouring
    words. `captions` are the captions of each of the M images, `vectors` float32 [M, D] the vectors
    of the images, and `best` is the number of most similar captions whose images are averaged.
    """

    def __init__(self, captions: Sequence[Sequence[str]], vectors: np.ndarray, best: int = BEST):
        texts = [text for own in captions for text in own]
        self._vectors, self._best = vectors, min(best, len(texts))
        self._image = np.repeat(np.arange(len(captions)), [len(own) for own in captions])
        self._numbers: dict[Any, int] = {}
        flat: list[int] = []
        lengths: list[int] = []
        for words in tokens.tokenize_all(texts):
            terms = _terms(words)
            flat += [self._numbers.setdefault(term, len(self._numbers)) for term in terms]
            lengths.append(len(terms))
        # For each term its captions and its weight in each.
        keys = np.array(flat, np.int64) * len(texts) + np.repeat(np.arange(len(texts)), lengths)
        keys, counts = np.unique(keys, return_counts=True)
        term, place = np.divmod(keys, len(texts))
        images = np.unique(term * len(captions) + self._image[place])
        frequencies = np.bincount(images // len(captions), minlength=len(self._numbers))
        self._idf = np.log(len(np.unique(self._image)) / frequencies)
        weights = counts * self._idf[term]
        norms = np.sqrt(np.bincount(place, weights**2, minlength=len(texts)))
        self._weights = (weights / np.maximum(norms, 1e-12)[place]).astype(np.float32)
        self._captions = place.astype(np.int32)
        self._first = np.searchsorted(term, np.arange(len(self._numbers) + 1))

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """Computes the vectors float32 [Q, D].

        A sentence that shares no word with the captions gets the mean of all images.
        """
        vectors = np.zeros([len(sentences), self._vectors.shape[1]], np.float32)
        for row, words in enumerate(tokens.tokenize_all(list(sentences))):
            similar = np.zeros(len(self._image), np.float32)
            for term, count in collections.Counter(_terms(words)).items():
                if (number := self._numbers.get(term)) is not None:
                    part = slice(self._first[number], self._first[number + 1])
                    weight = np.float32(count * self._idf[number])
                    similar[self._captions[part]] += weight * self._weights[part]
            captions = np.argpartition(-similar, self._best - 1)[: self._best]
            weights = similar[captions]
            if weights.max() > 0:
                vectors[row] = weights @ self._vectors[self._image[captions]] / weights.sum()
            else:
                vectors[row] = np.mean(self._vectors, 0)
        return vectors


def _terms(words: Sequence[str]) -> list[Any]:
    return [*words, *zip(words, words[1:], strict=False)]
