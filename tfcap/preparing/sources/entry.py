"""One image of a data set: what every reader of captions returns."""

from typing import NamedTuple

SPLITS = ("train", "val", "test")


class ImageEntry(NamedTuple):
    """One image of a data set.

    Attributes:
      id: number of the image, unique in the data set.
      file_name: path relative to the directory of images, with forward slashes and without "..".
      split: "train", "val" or "test".
      captions: raw captions, as the file has them; may be none.
    """

    id: int
    file_name: str
    split: str
    captions: tuple[str, ...]
