"""Finds images and sentences for queries and prints them: the parts of `tfcap.retrieve`.

Letters: B pictures, R regions, F feature width.
"""

import numpy as np

from tfcap import cli, runs, visualize
from tfcap.captioning import captioner_of_run
from tfcap.data.prepared import PreparedData
from tfcap.nearest.space import Space
from tfcap.retrieving import spaces
from tfcap.scoring.candidates import Candidates
from tfcap.scoring.retrieval import Pairs, find
from tfcap.scoring.sentences import find_sentences
from tfcap.visualize import contact_sheet


def compare_spaces(run: runs.Run, data: PreparedData, given) -> None:
    """Prints and draws the nearest images by original and by refined features."""
    refining = Space("refined", *runs.load_refined(run, data, given.refined))
    found = [
        spaces.nearest_images(
            data, given.split, space, given.index, given.neighbours, given.top, run.max_regions
        )
        for space in (Space("original"), refining)
    ]
    spaces.show(data, given.split, found, given.sheet)


def first_stage(run: runs.Run, data: PreparedData, given) -> Candidates:
    """Opens the index of vectors that the flags describe; arguments as of `answer`."""
    space = Space("original")
    if given.refined:
        space = Space("refined", *runs.load_refined(run, data, given.refined))
    return Candidates(
        data, given.split, space, given.index, run.max_regions, given.limit, given.approximate
    )


def answer(pairs: Pairs, first: Candidates | None, given) -> None:
    """Prints the images and the sentences that are found for the queries, and draws the images.

    Args:
      pairs: the run and the images of the split.
      first: chooses the candidates; None scores everything.
      given: the values of the flags.
    """
    if given.query or given.query_image:
        _images(pairs, first, given)
    if given.image:
        _sentences(pairs, first, given)


def _sentences(pairs: Pairs, first: Candidates | None, given) -> None:
    features = captioner_of_run(pairs.run).features(given.image)
    found = find_sentences(
        pairs,
        features,
        given.top,
        given.marginal_images,
        given.seed,
        given.normalise,
        first,
        given.candidates,
    )
    for path, sentences in zip(given.image, found, strict=True):
        print(cli.escaped(path))
        for number, (sentence, score) in enumerate(sentences, start=1):
            print(f"{number:4d}  {score:8.2f}  {sentence}")


def _images(pairs: Pairs, first: Candidates | None, given) -> None:
    texts, labels = list(given.query), list(given.query)
    chosen = []
    if first and texts:
        chosen.append(first.of_sentences(texts, given.candidates))
    if given.query_image:
        captions, features = _described(pairs.run, given.query_image)
        texts += captions
        pictures = zip(given.query_image, captions, strict=True)
        labels += [f"{path}: {caption}" for path, caption in pictures]
        if first:
            chosen.append(first.nearest(first.space.vectors(features), given.candidates))
    matches, note = find(pairs, texts, given.top, np.concatenate(chosen) if chosen else None)
    names = pairs.data.file_names(pairs.split)
    for label, images in zip(labels, matches, strict=True):
        print(cli.escaped(label))
        for number, (place, score) in enumerate(images, start=1):
            print(f"{number:4d}  {score:8.2f}  {cli.escaped(names[pairs.ids[place]])}")
    if note:
        print(f"note: {note}")
    if given.sheet:
        _sheet(given.sheet, pairs, labels, matches)
        print(f"written: {given.sheet}")


def _described(run: runs.Run, paths: list[str]) -> tuple[list[str], np.ndarray]:
    """Captions picture files; returns the captions and the features float32 [B, R, F]."""
    captioner = captioner_of_run(run)
    return [str(caption) for caption in captioner(paths)], captioner.features(paths)


def _sheet(path, pairs, queries, matches) -> None:
    """Writes the found pictures as a PNG with a row for each query."""
    shown = {pairs.ids[place] for images in matches for place, _ in images}
    files = visualize.shown_paths(pairs.data, pairs.split, ids=shown)
    rows = []
    for query, images in zip(queries, matches, strict=True):
        tiles = [
            (files.get(pairs.ids[place]), f"{n}   {score:.2f}")
            for n, (place, score) in enumerate(images, start=1)
        ]
        rows.append((query, tiles))
    contact_sheet.write(path, rows)
