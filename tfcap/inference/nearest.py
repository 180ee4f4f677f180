"""Finds the images whose vectors are nearest to a picture or a sentence.

Letters: B images of a batch, R regions, F feature width, F2 width of a vector of a whole image, D
width of the vector of an image in the search, M indexed images, Q queries, k neighbours.

The vectors of a split are stored in a memory-mapped file. The file name is a digest of everything
that the vectors depend on, so another model or other data gives another file.
"""

import collections
import functools
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tfcap import files, progress, segmentation
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.data.tokens import tokenize_all
from tfcap.files import arrays_sha256
from tfcap.inference import likelihood
from tfcap.layers.common import masked_mean
from tfcap.models.captioner import Captioner

DIRECTORY = "vectors"  # inside the prepared directory
REFERENCES = "train"  # the split whose captions give sentences their vectors
MOST_SIMILAR = 50  # captions whose images give a sentence its vector
Array = TypeVar("Array", bound=np.ndarray)
_log = logging.getLogger(__name__)
_RECORDS = 64  # records read together
_BLOCK = 16384  # vectors multiplied together; their products stay in the processor's cache
_QUERIES = 256  # queries multiplied together


class Space:
    """Computes a vector of each image, so that similar images have near vectors.

    By default the vector is the mean of the features of the image's regions. With an m-RNN it is
    the refined feature of the image, g2(V_I I) without a bias (Mao et al., ICLR 2015, section 8).
    Here I is the feature of the image, V_I is a trained matrix, and g2(x) = 1.7159 tanh(2 x / 3).

    Args:
      refine: an m-RNN, whose refined features are the vectors; None takes the mean of the features.
      mean: a vector that is subtracted from each vector, float32 [D], where D is the width of the
        vectors. The difference is scaled to length 1, so that the nearest vectors are those with
        the highest cosine. None leaves all vectors as they are.

    Raises:
      ValueError: `refine` is no m-RNN.
    """

    def __init__(self, refine: Captioner | None = None, mean: np.ndarray | None = None):
        refined = getattr(refine, "refined_features", None)
        if refine is not None and refined is None:
            raise ValueError(
                "Only an m-RNN (models mrnn and mrnn_shared) has refined features, but this model "
                f"is {refine.name}. Give the run of an m-RNN."
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
        """Computes the vectors of images.

        Args:
          features: features of the R regions of B images, vectors of width F, float32 [B, R, F].
          mask: bool [B, R], False for padding; None if there is no padding.
          image: features of the whole images, vectors of width F2, which an m-RNN may read, float32
            [B, F2]; None if the data has no such features.

        Returns:
          float32 [B, D]: a vector of width D for each image.
        """
        if mask is None:
            mask = tf.ones(tf.shape(features)[:2], tf.bool)
        inputs = {"features": tf.convert_to_tensor(features, tf.float32), "mask": mask}
        if image is not None:
            inputs["image"] = image
        return self.centre(self._vectors(inputs).numpy())

    def centre(self, vectors: np.ndarray) -> np.ndarray:
        """Subtracts `mean` from vectors and scales the differences to length 1.

        If `mean` is None, the vectors are returned as they are.

        Args:
          vectors: B vectors of width D, float32 [B, D].
        """
        if self._mean is None:
            return vectors
        vectors = vectors - self._mean
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, np.float32(1e-12))


class Index:
    """Finds the images whose vectors are nearest to a query, by exact Euclidean distance.

    Args:
      vectors: the vectors of M images, of width D, float32 [M, D]; the array may be memory-mapped.
      ids: the id of each image, int64 [M].
    """

    def __init__(self, vectors: np.ndarray, ids: np.ndarray):
        self.vectors = vectors
        self.ids = ids

    def search(
        self, queries: np.ndarray, k: int, query_ids: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds the k images whose vectors are nearest to each query.

        Args:
          queries: Q vectors of width D, float32 [Q, D].
          k: number of images to find for a query. If the index has fewer images, k is their number.
          query_ids: the image id of each query, int64 [Q], if the queries are images. The image
            with the id of the query is left out of its result. None leaves out no image.

        Returns:
          The positions of the images in the index, int64 [Q, k], and their distances, float64
          [Q, k], nearest first. If fewer than k images remain because one is left out, the row ends
          with the position -1 and the distance infinity.
        """
        k = min(k, len(self.ids))
        excluded = np.full(len(queries), -1)
        if query_ids is not None:
            position_of = {image: position for position, image in enumerate(self.ids.tolist())}
            excluded = np.array([position_of.get(i, -1) for i in query_ids.tolist()], np.int64)
        positions = np.full([len(queries), k], -1, np.int64)
        distances = np.full([len(queries), k], np.inf)
        for start in range(0, len(queries), _QUERIES):
            rows = np.arange(start, min(start + _QUERIES, len(queries)))
            nearest = self._nearest(queries[rows], k, excluded[rows])
            for row, candidates in zip(rows, nearest, strict=True):
                candidates = candidates[candidates >= 0]
                # Products of float32 are too coarse for equal and for very near images.
                exact = self.vectors[candidates].astype(np.float64) - queries[row]
                exact = np.sqrt((exact * exact).sum(1))
                order = np.lexsort((candidates, exact))
                positions[row, : len(order)] = candidates[order]
                distances[row, : len(order)] = exact[order]
        return positions, distances

    def _nearest(self, queries: np.ndarray, k: int, excluded: np.ndarray) -> np.ndarray:
        """Returns the positions [Q, k] of the k nearest, unordered, by |t|^2 - 2 q t."""
        positions = np.full([len(queries), k], -1, np.int64)
        best = np.full([len(queries), k], np.inf, np.float32)
        # Far from 0, products of float32 would lose the distances of images that are alike.
        centre = queries.mean(0)
        queries = queries - centre
        for start in range(0, len(self.ids), _BLOCK):
            block = self.vectors[start : start + _BLOCK] - centre
            values = np.einsum("md,md->m", block, block) - 2 * (queries @ block.T)
            rows = np.flatnonzero((excluded >= start) & (excluded < start + len(block)))
            values[rows, excluded[rows] - start] = np.inf
            values = np.concatenate([best, values], 1)
            chosen = np.argpartition(values, k - 1, 1)[:, :k]
            best = np.take_along_axis(values, chosen, 1)
            block_positions = np.tile(np.arange(start, start + len(block)), [len(queries), 1])
            block_positions = np.concatenate([positions, block_positions], 1)
            positions = np.take_along_axis(block_positions, chosen, 1)
        return np.where(np.isinf(best), -1, positions)


def open_index(
    data: PreparedData,
    space: Space,
    directory: str | os.PathLike | None = None,
    max_regions: int | None = None,
    splits: Sequence[str] = ("train",),
) -> Index:
    """Returns the `Index` of the images of some splits, from stored or newly computed vectors.

    Args:
      data: the prepared data.
      space: computes the vectors of the images.
      directory: the directory that keeps the vectors for the next time; "" takes the directory
        `vectors` inside the prepared directory. None keeps the vectors in memory only.
      max_regions: largest number of regions of an image to read; None reads all.
      splits: names of the splits. Their images follow each other in the index.

    Raises:
      ValueError: the splits have no images.
    """
    ids = np.concatenate([data.index(split).id for split in splits])
    if not len(ids):
        raise ValueError(
            f"{data.folder} has no images in the splits {', '.join(splits)}. Name other splits."
        )
    compute = functools.partial(_compute, data, space, max_regions, splits, len(ids))
    name = f"{_name(data, space, max_regions, splits)}.npy"
    path = os.path.join(directory or os.path.join(data.folder, DIRECTORY), name)
    if directory == "" and not os.path.exists(path):
        if files.is_remote(data.folder) or not os.access(data.folder, os.W_OK):
            _log.info(f"{data.folder} cannot be written: the vectors are kept in memory")
            directory = None
    if directory is None:
        return Index(compute(lambda shape: np.empty(shape, np.float32)), ids)
    if not os.path.exists(path):
        files.make_directory(os.path.dirname(path))
        with files.replacing(path) as temporary:
            stored = compute(
                lambda shape: np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            )
            stored.flush()
    return Index(np.load(path, mmap_mode="r", allow_pickle=False), ids)


def _name(data: PreparedData, space: Space, max_regions: int | None, splits: Sequence[str]) -> str:
    """Returns the name of the file of the vectors; it has a digest of what they depend on."""
    keys = ("features", "backbone", "trained_backbone")
    made_with = {key: data.fingerprint.get(key) for key in keys}
    parts = [
        [split, data.split(split)["shards"], data.index(split).id.tolist()] for split in splits
    ]
    content = [parts, made_with, max_regions, space.name, space.sha256]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{'+'.join(splits)}-{space.name}-{digest[:12]}"


def _compute(
    data: PreparedData,
    space: Space,
    max_regions: int | None,
    splits: Sequence[str],
    images: int,
    allocate: Callable[[tuple[int, int]], Array],
) -> Array:
    """Computes the vectors of the splits, float32 [M, D], in an array that `allocate` makes."""
    vectors: Array | None = None
    done = 0
    for split in splits:
        size = len(data.index(split).id)
        blocks = likelihood.read_images(data, split, range(size), _RECORDS, max_regions)
        label = f"vectors of {split}"
        for block in progress.progress(blocks, math.ceil(size / _RECORDS), label):
            part = space.vectors(block["features"], block["mask"], block.get("image"))
            if vectors is None:
                vectors = allocate((images, part.shape[1]))
            vectors[done : done + len(part)] = part
            done += len(part)
    assert vectors is not None  # there are images
    return vectors


class Candidates:
    """Finds the images of a split that are most similar to a sentence or to another image.

    The images found are candidates, which a captioner then scores. The similarity is the cosine of
    the angle between two vectors. The mean vector of the training images is subtracted from both
    vectors, because otherwise all vectors of images have nearly the same direction.

    Args:
      data: prepared data with training images and their captions.
      split: the split whose images are found.
      directory: the directory that keeps the vectors for the next time; "" takes the directory
        `vectors` inside the prepared directory. None keeps the vectors in memory only.
      max_regions: largest number of regions of an image to read; None reads all.

    Attributes:
      space: the `Space` that computes the vectors of images.
      index: the `Index` of the images of `split`.
    """

    def __init__(
        self,
        data: PreparedData,
        split: str,
        directory: str | None = "",
        max_regions: int | None = None,
    ):
        self._data = data
        self._references = open_index(data, Space(), directory, max_regions, (REFERENCES,))
        self.space = Space(mean=np.asarray(np.mean(self._references.vectors, 0, np.float64)))
        self.index = open_index(data, self.space, directory, max_regions, (split,))

    @functools.cached_property
    def _sentence_vectors(self) -> "SentenceVectors":
        captions = stored_captions(self._data, REFERENCES)
        index = self._references
        texts = [captions[int(image)] for image in index.ids]
        return SentenceVectors(texts, index.vectors, way=self._data.vocab.tokens)

    def sentences(self, texts: Sequence[str]) -> np.ndarray:
        """Computes the vectors of sentences in the space of the vectors of images.

        Args:
          texts: Q sentences.

        Returns:
          A vector of width D for each sentence, float32 [Q, D].
        """
        return self.space.centre(self._sentence_vectors(texts))

    def nearest(self, vectors: np.ndarray, number: int) -> np.ndarray:
        """Finds the images of the split that are most similar to sentences or other images.

        Args:
          vectors: Q vectors of sentences or images, of width D, float32 [Q, D].
          number: number of images to find for each vector.

        Returns:
          The positions of the images in the split, int64 [Q, k], most similar first. k is `number`,
          or the number of images in the split if that is smaller.
        """
        return self.index.search(vectors, number)[0]

    def among_sentences(self, vectors: np.ndarray, texts: Sequence[str], number: int) -> np.ndarray:
        """Finds the texts that are most similar to images.

        Args:
          vectors: the vectors of Q images, of width D, float32 [Q, D].
          texts: the sentences to choose from.
          number: number of texts to find for each image.

        Returns:
          The positions of the found texts in `texts`, int64 [Q, k], most similar first. k is
          `number`, or the number of texts if that is smaller.
        """
        return Index(self.sentences(texts), np.arange(len(texts))).search(vectors, number)[0]


Term = str | tuple[str, str]  # a word, or two neighbouring words


class SentenceVectors:
    """Computes vectors of sentences in the space of the vectors of images.

    `sentence_vectors(sentences)` returns float32 [Q, D] for Q sentences. The captions most similar
    to a sentence are found, and the vector of the sentence is the mean of the vectors of their
    images. The weights of this mean are the similarities.

    The similarity of two sentences is the cosine of their TF-IDF vectors, whose terms are words and
    pairs of neighbouring words. A term that occurs c times in a sentence has the value c ln(n / m),
    where n images have captions, and m of them have the term in a caption.

    Args:
      captions: the captions of each of M images.
      vectors: the vectors of the images, of width D, float32 [M, D].
      most_similar: number of captions whose images are averaged for a sentence.
      way: how captions and sentences are cut into words, one of `segmentation.WAYS`.
    """

    def __init__(
        self,
        captions: Sequence[Sequence[str]],
        vectors: np.ndarray,
        most_similar: int = MOST_SIMILAR,
        way: str = segmentation.RAW,
    ):
        texts = [text for captions_of_image in captions for text in captions_of_image]
        self._vectors = vectors
        self._way = way
        self._most_similar = min(most_similar, len(texts))
        counts = [len(captions_of_image) for captions_of_image in captions]
        self._image = np.repeat(np.arange(len(captions)), counts)  # of each caption
        self._numbers: dict[Term, int] = {}
        flat: list[int] = []
        lengths: list[int] = []
        for words in tokenize_all(texts, way):
            terms = _terms(words)
            flat += [self._numbers.setdefault(term, len(self._numbers)) for term in terms]
            lengths.append(len(terms))
        # For each term its captions and its weight in each.
        keys = np.array(flat, np.int64) * len(texts) + np.repeat(np.arange(len(texts)), lengths)
        keys, counts_in_caption = np.unique(keys, return_counts=True)
        term, caption = np.divmod(keys, len(texts))
        images = np.unique(term * len(captions) + self._image[caption])
        frequencies = np.bincount(images // len(captions), minlength=len(self._numbers))
        self._idf = np.log(len(np.unique(self._image)) / frequencies)
        weights = counts_in_caption * self._idf[term]
        norms = np.sqrt(np.bincount(caption, weights**2, minlength=len(texts)))
        self._weights = (weights / np.maximum(norms, 1e-12)[caption]).astype(np.float32)
        self._captions = caption.astype(np.int32)
        self._first = np.searchsorted(term, np.arange(len(self._numbers) + 1))

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """Computes the vectors of sentences.

        A sentence that shares no word with the captions gets the mean of the vectors of all images.

        Args:
          sentences: Q sentences.

        Returns:
          A vector of width D for each sentence, float32 [Q, D].
        """
        vectors = np.zeros([len(sentences), self._vectors.shape[1]], np.float32)
        for row, words in enumerate(tokenize_all(list(sentences), self._way)):
            similarities = np.zeros(len(self._image), np.float32)
            for term, count in collections.Counter(_terms(words)).items():
                if (number := self._numbers.get(term)) is not None:
                    part = slice(self._first[number], self._first[number + 1])
                    weight = np.float32(count * self._idf[number])
                    similarities[self._captions[part]] += weight * self._weights[part]
            captions = np.argpartition(-similarities, self._most_similar - 1)
            captions = captions[: self._most_similar]
            weights = similarities[captions]
            if weights.max() > 0:
                vectors[row] = weights @ self._vectors[self._image[captions]] / weights.sum()
            else:
                vectors[row] = np.mean(self._vectors, 0)
        return vectors


def _terms(words: Sequence[str]) -> list[Term]:
    return [*words, *zip(words, words[1:], strict=False)]
