"""Reads the official caption files of COCO."""

import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from tfcap.files import read_json
from tfcap.preparing.sources.entry import (
    SPLITS,
    Given,
    ImageEntry,
    file_name,
    head,
    image_number,
    names_of,
    reader,
)
from tfcap.preparing.sources.fields import texts
from tfcap.preparing.sources.split_lists import split_of

_REMEDY = "Give an official caption file of COCO with --captions, or correct this one."
_PROBES = 20  # pictures that are looked for in each folder


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a file begins like an object with `images` that have `file_name` and `id`."""
    content = head(path)
    start = re.match(rb'(\xef\xbb\xbf)?\s*{\s*"', content)
    if not start or b'"videos"' in content or b'"filename"' in content:
        return False
    images = all(key in content for key in (b'"images"', b'"file_name"', b'"id"'))
    captions = all(key in content for key in (b'"annotations"', b'"image_id"', b'"caption"'))
    return images or captions


@reader("coco", recognises)
def coco(given: Given) -> list[ImageEntry]:
    """Reads one or several official caption files, `captions_train2014.json` and the like.

    `{"images": [{"id", "file_name"}], "annotations": [{"id", "image_id", "caption"}]}`. The names
    of the files tell the splits. If there is only a train file, the splits are drawn at random,
    unless --split_ids gives lists. A file `image_info_test2014.json` has no captions; its images
    are the split test2014. Pictures may lie in the folders of the download below --images
    (`train2014/`, `val2014/`).

    Args:
      given: the paths of the JSON files, and the directory of images.

    Returns:
      The images in the order of the files.

    Raises:
      ValueError: not such a file, an id twice, an annotation of an unknown image, or files of which
        only some tell a split.
    """
    splits = [_own_split(path.stem) or split_of(path.stem) for path in given.captions]
    if given.split_ids is None and None in splits and any(splits):
        raise ValueError(
            "Either all file names or none must have their split (train, val or test). Received: "
            f"{names_of(given.captions)}. Rename them, or give --split_ids."
        )
    only_train = [split for split in splits if split is None or split in SPLITS] == ["train"]
    entries: dict[int, ImageEntry] = {}
    for path, split in zip(given.captions, splits, strict=True):
        drawn = only_train and split == "train"
        images = _read(path, None if drawn else split, entries.keys(), given.images)
        names = [entry.file_name for entry in list(images.values())[:_PROBES]]
        folder = _folder(given.images, path.stem, names)
        for number, entry in images.items():
            entries[number] = entry._replace(file_name=folder + entry.file_name)
    return list(entries.values())


def _own_split(stem: str) -> str | None:
    """Returns the split of a file without captions: test2014 of image_info_test2014."""
    name = re.fullmatch(r"image_info_([A-Za-z0-9][A-Za-z0-9_-]*)", stem)
    return name[1] if name else None


def _read(
    path: pathlib.Path, split: str | None, others: Any, folder: pathlib.Path | None
) -> dict[int, ImageEntry]:
    """Returns the images of a file by id; `others` are the ids of the files before it."""
    content = read_json(path, _REMEDY)
    images = content.get("images") if isinstance(content, dict) else None
    annotations = content.get("annotations", []) if isinstance(content, dict) else None
    if not isinstance(images, list) or not images or not isinstance(annotations, list):
        raise ValueError(
            f"{path} must be in the layout of COCO, an object with a list 'images' of at least one "
            f"and a list 'annotations'. Received: {type(content).__name__} with "
            f"{sorted(content)[:5] if isinstance(content, dict) else 'no keys'}. {_REMEDY}"
        )
    names: dict[int, str] = {}
    for position, image in enumerate(images):
        try:
            number, name = _image(image, folder)
            if number in names or number in others:
                raise ValueError(f"image ids must be unique. Received: {number} again")
            names[number] = name
        except ValueError as error:
            raise ValueError(f"{path}: image {position} of the list: {error}. {_REMEDY}") from None
    captions: dict[int, list[tuple[str, int | None]]] = {number: [] for number in names}
    for position, annotation in enumerate(annotations):
        try:
            owner, texts_and_id = _annotation(annotation)
            if owner not in captions:
                raise ValueError(f"its image must be in the list 'images'. Received: {owner}")
            captions[owner].extend(texts_and_id)
        except ValueError as error:
            raise ValueError(
                f"{path}: annotation {position} of the list: {error}. {_REMEDY}"
            ) from None
    return {number: _entry(number, name, split, captions[number]) for number, name in names.items()}


def _image(image: Any, folder: pathlib.Path | None) -> tuple[int, str]:
    """Returns id and file name."""
    if not isinstance(image, dict) or "id" not in image or "file_name" not in image:
        raise ValueError(f"it must be an object with 'id' and 'file_name'. Received: {image!r:.80}")
    return image_number(image["id"]), file_name(image["file_name"], folder)


def _annotation(annotation: Any) -> tuple[int, list[tuple[str, int | None]]]:
    """Returns the id of the image, and the captions with the id of the annotation."""
    if not isinstance(annotation, dict) or not {"image_id", "caption"} <= annotation.keys():
        raise ValueError(
            f"it must be an object with 'image_id' and 'caption'. Received: {annotation!r:.80}"
        )
    number = annotation.get("id")
    own = number if isinstance(number, int) and not isinstance(number, bool) else None
    owner = image_number(annotation["image_id"], "image_id")
    return owner, [(one, own) for one in texts(annotation["caption"], "caption")]


def _entry(
    number: int, name: str, split: str | None, captions: Sequence[tuple[str, int | None]]
) -> ImageEntry:
    caption_ids = [own for _, own in captions if own is not None]
    whole = len(caption_ids) == len(captions)
    return ImageEntry(
        number,
        name,
        split,
        tuple(sentence for sentence, _ in captions),
        caption_ids=tuple(caption_ids) if whole else (),
        own_id=True,
    )


def _folder(images: pathlib.Path | None, stem: str, names: Sequence[str]) -> str:
    """Returns the folder below --images that has the pictures, as `train2014/`, or nothing."""
    if images is None or any(os.path.exists(images / name) for name in names):
        return ""
    match = re.search(r"[a-z]+\d{4}$", stem)  # captions_train2014
    folders = [match[0]] if match else []
    year = re.search(r"test-dev(\d{4})$", stem)  # the pictures of test-dev2015 are in test2015
    folders += [f"test{year[1]}"] if year else []
    for folder in folders:
        if any(os.path.exists(images / folder / name) for name in names):
            return f"{folder}/"
    return ""
