"""Ranks captions for images and images for captions by log P(caption | image).

Letters: I images, N captions, F feature width.
"""

import hashlib
import json
import time

import numpy as np

from tfcap import console, runs
from tfcap.data import tokens
from tfcap.data.prepared import PreparedData
from tfcap.files import arrays_sha256
from tfcap.ids import UNK
from tfcap.metrics import retrieval
from tfcap.scoring import likelihood, score_files


class Pairs:
    """The images of a split, to be scored with captions by a run.

    Args:
      run: the trained captioner.
      data: the prepared directory.
      split: name of the split.
      limit: number of images from the start of the split; 0 takes all.
      block: images scored together.

    Raises:
      ValueError: the split has no images.
    """

    def __init__(self, run: runs.Run, data: PreparedData, split: str, limit: int, block: int):
        self.run, self.data, self.split, self.block = run, data, split, block
        index = data.index(split)
        self.ids = [int(image) for image in (index.id[:limit] if limit else index.id)]
        if not self.ids:
            raise ValueError(
                f"split must have at least one image. Received: {split} of {data.folder}."
            )
        self._regions = run.max_regions

    def captions(self) -> tuple[list[str], np.ndarray]:
        """Returns all captions of the images, and the position of the image of each, int64 [N]."""
        references = self.data.references(self.split)
        each = [references[image] for image in self.ids]
        if bare := [image for image, captions in zip(self.ids, each, strict=True) if not captions]:
            raise ValueError(
                f"Retrieval needs captions of every image. Received: split {self.split} of "
                f"{self.data.folder}, where image {bare[0]} has none. Choose another split."
            )
        owners = np.repeat(np.arange(len(each)), [len(captions) for captions in each])
        return [caption for captions in each for caption in captions], owners

    def fill(self, matrix: np.ndarray, scorer: likelihood.PairScorer, split: str, places) -> int:
        """Computes the missing rows of a matrix of scores.

        Args:
          matrix: float32 [len(places), N], NaN where a score is missing; filled in place.
          scorer: scores the N captions.
          split: the split of the images.
          places: positions in the split, one for each row.

        Returns:
          The number of rows that were computed.
        """
        missing = score_files.missing(matrix)
        parts = [missing[at : at + self.block] for at in range(0, len(missing), self.block)]
        blocks = likelihood.images(self.data, split, places[missing], self.block, self._regions)
        label = f"scoring images of {split}, blocks of {self.block}"
        for rows, block in zip(console.progress(parts, len(parts), label), blocks, strict=True):
            matrix[rows] = scorer(**block)
        return len(missing)

    def means(self) -> np.ndarray:
        """Computes the mean feature of the regions of each image, float32 [I, F]."""
        places = np.arange(len(self.ids))
        means = []
        for block in likelihood.images(self.data, self.split, places, self.block, self._regions):
            weights = block["mask"].numpy().astype(np.float32)[..., None]
            means.append((block["features"].numpy() * weights).sum(1) / weights.sum(1))
        return np.concatenate(means)


def settings(
    run: runs.Run, data: PreparedData, split: str, encoded: likelihood.EncodedCaptions, images: int
) -> dict:
    """Describes what the scores depend on, to recognise scores of other models or data."""
    task = run.params.task
    built = [task.model.as_dict(), run.max_regions or 0]
    described = json.dumps(built, sort_keys=True).encode()
    fingerprint = json.dumps(data.fingerprint, sort_keys=True).encode()
    return {
        "model": arrays_sha256(run.model.checkpoint_items["weights"], described),
        "data": hashlib.sha256(fingerprint).hexdigest(),
        "split": split,
        "images": images,
        "sentences": hashlib.sha256(encoded.tokens.tobytes()).hexdigest(),
        "precision": run.model.dtype_policy.name,
    }


def marginal_places(data: PreparedData, number: int, seed: int) -> np.ndarray:
    """Draws positions of training images, int64, without repeats.

    A larger number extends the draw of a smaller number. If the split has fewer images, all of them
    are returned.
    """
    images = data.split("train")["images"]
    return np.random.default_rng(seed).permutation(images)[:number]


def rank(
    pairs: Pairs, marginal_images: int, seed: int, output: str | None = None, shortlist: int = 0
) -> tuple[dict[str, retrieval.Summary], str]:
    """Scores all pairs of images and captions and ranks in both directions.

    Args:
      pairs: the images and their captions.
      marginal_images: number of training images whose probabilities normalise the scores of a
        caption; 0 does not normalise.
      seed: random seed of the choice of these images.
      output: directory that keeps the scores; None keeps nothing.
      shortlist: number of nearest images whose captions are ranked in a further summary; 0 makes
        no such summary.

    Returns:
      The summaries by direction, and a note on unknown words and cut captions.
    """
    run, data = pairs.run, pairs.data
    captions, owners = pairs.captions()
    encoded = likelihood.encode(run.vocab, captions, run.params.task.max_length)
    scorer = likelihood.PairScorer(run.model, data.input_specs, encoded)
    images = len(pairs.ids)
    identity = settings(run, data, pairs.split, encoded, images)
    about = {"checkpoint": run.checkpoint, "data_dir": data.folder}
    files = score_files.ScoreFiles(output, identity, about)
    start, columns = time.monotonic(), len(captions)
    scores = files.rows("pairs", (images, columns))
    done = pairs.fill(scores, scorer, pairs.split, np.arange(images))
    marginal = None
    if marginal_images:
        places = marginal_places(data, marginal_images, seed)
        given = files.rows(f"marginal-seed{seed}", (len(places), columns))
        done += pairs.fill(given, scorer, "train", places)
        marginal = retrieval.log_marginal(given)
    seconds = time.monotonic() - start
    if done:
        print(
            f"{done * columns} pairs in {console.duration(seconds)}, "
            f"{seconds / done / columns:.2g} s each",
            flush=True,
        )
    queries = {
        "image to text": retrieval.image_to_text(scores, owners, marginal),
        "text to image": retrieval.text_to_image(scores, owners),
    }
    if shortlist:
        nearest = retrieval.nearest(pairs.means(), shortlist)
        queries[f"image to text, {nearest.shape[1]} nearest"] = retrieval.image_to_text(
            scores, owners, marginal, nearest
        )
    note = encoded.note()
    return {name: retrieval.summarize(list(each)) for name, each in queries.items()}, note


def find(pairs: Pairs, queries: list[str], top: int) -> tuple[list[list[tuple[int, float]]], str]:
    """Finds the images for which each query is most probable.

    Args:
      pairs: the images.
      queries: captions to search by.
      top: number of images for each query.

    Returns:
      For each query `top` pairs (position of the image, log P(query | image)), best first; and a
      note on unknown words.

    Raises:
      console.UsageError: a query has no word, or none that the model knows.
    """
    run = pairs.run
    unknown = []
    for query, words in zip(queries, tokens.tokenize_all(queries), strict=True):
        outside = [
            word for word, place in zip(words, run.vocab.ids(words), strict=True) if place == UNK
        ]
        if len(outside) == len(words):
            raise console.UsageError(
                f"--query must have a word that the model knows. Received: {query!r}."
            )
        unknown += [word for word in outside if word not in unknown]
    encoded = likelihood.encode(run.vocab, queries, run.params.task.max_length)
    scores = np.full((len(pairs.ids), len(queries)), np.nan, np.float32)
    scorer = likelihood.PairScorer(run.model, pairs.data.input_specs, encoded)
    pairs.fill(scores, scorer, pairs.split, np.arange(len(pairs.ids)))
    matches = []
    for column in scores.T:
        best = np.argsort(-column, kind="stable")[:top]
        matches.append([(int(place), float(column[place])) for place in best])
    note = f"the model does not know {', '.join(unknown)}; " if unknown else ""
    if encoded.cut:
        note += f"{encoded.cut} of the queries were cut to {encoded.tokens.shape[1]} words; "
    return matches, note.removesuffix("; ")
