"""Compares the nearest images by their features and by features that an m-RNN has refined.

Letters: I images, k neighbours, D width of a vector.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfcap import cli, visualize
from tfcap.data.prepared import PreparedData
from tfcap.nearest.space import Space
from tfcap.scoring.candidates import REFERENCES, of_split
from tfcap.visualize.figures import contact_sheet


class Nearest(NamedTuple):
    """The nearest training images of some images in a space.

    Attributes:
      name: the name of the space.
      ids: int64 [I, k], ids of the training images, nearest first.
      distances: float64 [I, k].
    """

    name: str
    ids: np.ndarray
    distances: np.ndarray


def nearest_images(
    data: PreparedData,
    split: str,
    space: Space,
    folder: str,
    images: int,
    top: int,
    max_regions: int | None = None,
) -> Nearest:
    """Finds the nearest training images of the first images of a split.

    Args:
      data: the prepared directory.
      split: its split.
      space: computes the vectors.
      folder: the directory that keeps the vectors, as of `candidates.Candidates`.
      images: I; with fewer images all of them are taken.
      top: k.
      max_regions: regions of an image beyond this number are ignored; None keeps all.
    """
    references = of_split(data, REFERENCES, space, folder, max_regions)
    queries = of_split(data, split, space, folder, max_regions, images)
    places, distances = references.search(queries.vectors, top, queries.ids)
    return Nearest(space.name, references.ids[places], distances)


def shared(first: Nearest, second: Nearest) -> float:
    """Returns the share of the neighbours that both spaces find, in percent."""
    pairs = zip(first.ids, second.ids, strict=True)
    return 100 * float(np.mean([np.isin(own, others).mean() for own, others in pairs]))


def show(data: PreparedData, split: str, spaces: Sequence[Nearest], sheet: str | None) -> None:
    """Prints the neighbours in two spaces, and draws them below each other.

    Args:
      data: the prepared directory.
      split: the split of the images.
      spaces: the neighbours of the same images in both spaces.
      sheet: the PNG to write; None draws nothing.
    """
    names, near = data.file_names(split), data.file_names(REFERENCES)
    images = data.index(split).id[: len(spaces[0].ids)].tolist()
    files, near_files = {}, {}
    if sheet:
        shown = {image for space in spaces for image in space.ids.ravel().tolist()}
        files = visualize.shown_paths(data, split, ids=images)
        near_files = visualize.shown_paths(data, REFERENCES, ids=shown)
    rows = []
    for place, image in enumerate(images):
        print(cli.escaped(names[image]))
        for space in spaces:
            found = list(zip(space.ids[place].tolist(), space.distances[place], strict=True))
            listed = ", ".join(f"{near[other]} {distance:.3g}" for other, distance in found)
            print(f"  {space.name}: {cli.escaped(listed)}")
            tiles = [(near_files.get(other), f"{distance:.3g}") for other, distance in found]
            own = (files.get(image), "the image")
            rows.append((f"{names[image]}, {space.name} features", [own, *tiles]))
    first, second = spaces
    print(
        f"{shared(first, second):.1f} % of the {first.ids.shape[1]} nearest images by {first.name} "
        f"features are among those by {second.name} features ({len(first.ids)} images)"
    )
    if sheet:
        contact_sheet(sheet, rows)
        print(f"written: {sheet}")
