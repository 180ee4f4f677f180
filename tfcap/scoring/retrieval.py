"""Ranks captions for images and images for captions by log P(caption | image).

Where captions are ranked for an image, log P(caption) is subtracted (Mao et al., ICLR 2015;
docs/systems.md 6.4), unless no image is given to estimate it, see `marginal`.

Letters: I images, N captions, Q queries, K images of a shortlist, n candidates.
"""

import hashlib
import json
import time

import numpy as np

from tfcap import cli, runs
from tfcap.data import tokens
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.files import arrays_sha256
from tfcap.ids import UNK
from tfcap.metrics import retrieval
from tfcap.scoring import candidates, likelihood, marginal, score_files


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
        self._scorer: likelihood.PairScorer | None = None

    def captions(self) -> tuple[list[str], np.ndarray]:
        """Returns all captions of the images, and the position of the image of each, int64 [N]."""
        stored = stored_captions(self.data, self.split)
        each = [stored[image] for image in self.ids]
        if bare := [image for image, captions in zip(self.ids, each, strict=True) if not captions]:
            raise ValueError(
                f"Retrieval needs captions of every image. Received: split {self.split} of "
                f"{self.data.folder}, where image {bare[0]} has none. Choose another split."
            )
        owners = np.repeat(np.arange(len(each)), [len(captions) for captions in each])
        return [caption for captions in each for caption in captions], owners

    def scorer(self, captions: likelihood.EncodedCaptions) -> likelihood.PairScorer:
        """Returns the scorer of the images, which is traced once, for these captions."""
        if self._scorer is None:
            self._scorer = likelihood.PairScorer(self.run.model, self.data.input_specs, captions)
        self._scorer.use(captions)
        return self._scorer

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
        for rows, block in zip(cli.progress(parts, len(parts), label), blocks, strict=True):
            matrix[rows] = scorer(**block)
        return len(missing)

    def fill_some(
        self, matrix: np.ndarray, scorer: likelihood.PairScorer, wanted: np.ndarray
    ) -> int:
        """Computes the `wanted` scores of the rows that are missing in a matrix.

        Args:
          matrix: float32 [I, N], NaN where a row is missing; filled in place, with -inf where no
            score is wanted.
          scorer: scores the N captions.
          wanted: bool [I, N].

        Returns:
          The number of scores that were computed.
        """
        missing, every = score_files.missing(matrix), scorer.captions
        blocks = likelihood.images(self.data, self.split, missing, 1, self._regions)
        label, done = f"scoring candidates, images of {self.split}", 0
        shown = cli.progress(missing, len(missing), label)
        for row, block in zip(shown, blocks, strict=True):
            places = np.flatnonzero(wanted[row])
            scores = np.full(len(every.words), -np.inf, np.float32)
            if len(places):
                part = every._replace(tokens=every.tokens[places], words=every.words[places])
                scorer.use(part)
                scores[places] = scorer(**block)[0]
            matrix[row] = scores
            done += len(places)
        scorer.use(every)
        return done


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


def rank(
    pairs: Pairs,
    marginal_images: int,
    seed: int,
    output: str | None = None,
    shortlist: np.ndarray | None = None,
    first: candidates.Candidates | None = None,
    number: int = 0,
    normalise: str = "images",
) -> tuple[dict[str, retrieval.Summary], str]:
    """Scores pairs of images and captions and ranks in both directions.

    Args:
      pairs: the images and their captions.
      marginal_images: number of training images whose probabilities normalise the scores of a
        caption; 0 does not normalise.
      seed: random seed of the choice of these images.
      output: directory that keeps the scores; None keeps nothing.
      shortlist: int [I, K], for each image the images whose captions are ranked in a further
        summary; None makes no such summary.
      first: chooses candidates by vectors; only these pairs are scored, and all others are ranked
        after them. None scores all pairs.
      number: the candidates of each caption and of each image. All pairs are scored if there are
        not more images and captions than this.
      normalise: how these images normalise, see `marginal.log_marginals`.

    Returns:
      The summaries by direction, and a note on unknown words and cut captions.
    """
    run, data = pairs.run, pairs.data
    captions, owners = pairs.captions()
    encoded = likelihood.encode(run.vocab, captions, run.params.task.max_length)
    images, columns = len(pairs.ids), len(captions)
    wanted = None
    if first is not None and number < max(images, columns):
        wanted = _wanted(first, captions, number)
    identity = settings(run, data, pairs.split, encoded, images)
    if wanted is not None:
        chosen = b"".join(np.packbits(one).tobytes() for one in wanted)
        identity["candidates"] = hashlib.sha256(chosen).hexdigest()
    about = {"checkpoint": run.checkpoint, "data_dir": data.folder}
    files = score_files.ScoreFiles(output, identity, about)
    scorer = pairs.scorer(encoded)
    start, log_sums, done = time.monotonic(), None, 0
    scores = files.rows("pairs" if wanted is None else "candidates", (images, columns))
    if wanted is None:
        done += columns * pairs.fill(scores, scorer, pairs.split, np.arange(images))
        by_image, by_caption, label = scores, scores, ""
    else:
        done += pairs.fill_some(scores, scorer, wanted[0] | wanted[1])
        by_image, by_caption = (np.where(one, scores, -np.inf) for one in wanted)
        label = f", {number} candidates"
    if marginal_images:
        log_sums, rows = marginal.log_marginals(
            pairs, scorer, files, marginal_images, seed, normalise
        )
        done += columns * rows
    if done:
        seconds = time.monotonic() - start
        took = f"{done} pairs in {cli.duration(seconds)}, {seconds / done:.2g} s each"
        print(took, flush=True)
    queries = {
        f"image to text{label}": retrieval.image_to_text(by_image, owners, log_sums),
        f"text to image{label}": retrieval.text_to_image(by_caption, owners),
    }
    if shortlist is not None:
        queries[f"image to text{label}, {shortlist.shape[1]} nearest"] = retrieval.image_to_text(
            by_image, owners, log_sums, shortlist
        )
    return {name: retrieval.summarize(list(each)) for name, each in queries.items()}, encoded.note()


def _wanted(
    first: candidates.Candidates, captions: list[str], number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which captions are candidates of an image, and images of a caption: bool [I, N]."""
    shape = (len(first.index.ids), len(captions))
    of_images, of_captions = np.zeros(shape, bool), np.zeros(shape, bool)
    np.put_along_axis(of_images, first.among_sentences(captions, number), True, 1)
    np.put_along_axis(of_captions.T, first.of_sentences(captions, number), True, 1)
    return of_images, of_captions


def find(
    pairs: Pairs, queries: list[str], top: int, chosen: np.ndarray | None = None
) -> tuple[list[list[tuple[int, float]]], str]:
    """Finds the images for which each query is most probable.

    Args:
      pairs: the images.
      queries: captions to search by.
      top: number of images for each query.
      chosen: int64 [Q, n], for each query the positions of the images that are scored, see
        `candidates.Candidates`; None scores all images.

    Returns:
      For each query `top` pairs (position of the image, log P(query | image)), best first; and a
      note on unknown words.

    Raises:
      cli.UsageError: a query has no word, or none that the model knows.
    """
    run = pairs.run
    unknown = []
    for query, words in zip(queries, tokens.tokenize_all(queries), strict=True):
        outside = [
            word for word, place in zip(words, run.vocab.ids(words), strict=True) if place == UNK
        ]
        if len(outside) == len(words):
            raise cli.UsageError(
                f"A query must have a word that the model knows. Received: {query!r}."
            )
        unknown += [word for word in outside if word not in unknown]
    encoded = likelihood.encode(run.vocab, queries, run.params.task.max_length)
    places = np.arange(len(pairs.ids)) if chosen is None else np.unique(chosen)
    scores = np.full((len(places), len(queries)), np.nan, np.float32)
    scorer = pairs.scorer(encoded)
    pairs.fill(scores, scorer, pairs.split, places)
    matches = []
    for number, column in enumerate(scores.T):
        own = places if chosen is None else np.sort(chosen[number])
        column = column[np.searchsorted(places, own)]
        best = np.argsort(-column, kind="stable")[:top]
        matches.append([(int(own[place]), float(column[place])) for place in best])
    note = f"the model does not know {', '.join(unknown)}; " if unknown else ""
    if encoded.cut:
        note += f"{encoded.cut} of the queries were cut to {encoded.tokens.shape[1]} words; "
    return matches, note.removesuffix("; ")
