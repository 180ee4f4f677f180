"""Writes and checks the archive that COCO's caption server takes.

The archive captions_NAME_results.zip holds two files in COCO's result format:
captions_test2014_NAME_results.json and captions_val2014_NAME_results.json. Each must hold every
image of its split exactly once: 40,775 images of image_info_test2014.json, and 40,504 images of
captions_val2014.json. The server scores the captions of test2014 in c5 and c40.
"""

import collections
import json
import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfcap import files
from tfcap.files import read_json, replacing
from tfcap.metrics import results

VAL, TEST = "val2014", "test2014"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LISTS = {VAL: "captions_val2014.json", TEST: "image_info_test2014.json"}
_LARGEST = 1 << 28  # bytes of a file in the archive; captions of 41,000 images have 4 MB
_DATE = (1980, 1, 1, 0, 0, 0)  # the same captions give the same bytes


def algorithm_name(name: str) -> str:
    """Returns the name of the algorithm, which becomes part of the file names.

    Raises:
        ValueError: It does not have 1 to 100 of the characters letter, digit, ".", "_" and "-", or
            does not begin with a letter or a digit.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            "--name must be 1 to 100 letters, digits, '.', '_' or '-', and begin with a letter or "
            f"a digit. Received: {name!r:.120}. Give a name such as my_model."
        )
    return name


def result_name(split: str, name: str) -> str:
    """Returns the file name of the captions of a split."""
    return f"captions_{split}_{name}_results.json"


def archive_name(name: str) -> str:
    """Returns the file name of the archive."""
    return f"captions_{name}_results.zip"


def list_of_images(split: str, folders: Iterable[str | os.PathLike] = (".", "annotations")) -> str:
    """Finds COCO's file that lists the images of a split in `folders`, and returns its path.

    Raises:
        ValueError: It is in none of the folders.
    """
    folders = list(folders)
    for folder in folders:
        path = os.path.join(folder, _LISTS[split])
        if os.path.isfile(path):
            return os.path.normpath(path)
    raise ValueError(
        f"The file {_LISTS[split]} of COCO lists the images that {split} must have. Received: none "
        f"in {' and '.join(map(str, folders))}. Give its path with --{split[:-4]}_images."
    )


def read_image_ids(path: str | os.PathLike) -> list[int]:
    """Reads the ids of "images" of a COCO file, with or without captions.

    Raises:
        ValueError: The file cannot be read or has another format, or an id occurs twice.
    """
    content = read_json(path, results.REMEDY)
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not images:
        raise ValueError(
            f'{path} must hold an object with a list "images" of at least one. '
            f"Received: {results.kind(content)}. {results.REMEDY}"
        )
    ids = [results.integer(image, "id", f"{path}: image {n}") for n, image in enumerate(images)]
    if twice := _twice(ids):
        raise ValueError(f'{path}: "images" must hold every id once. Received: {twice[0]} twice.')
    return ids


def _twice(ids: Iterable[int]) -> list[int]:
    """Returns the ids that occur more than once."""
    return [image for image, count in collections.Counter(ids).items() if count > 1]


def check_images(images: Iterable[int], wanted: Sequence[int], place: str, listed: str) -> None:
    """Checks that exactly the images of a list are there, each once.

    Args:
        images: Ids of the images that have a caption or will get one.
        wanted: Ids of the images that must be there.
        place: What holds `images`, for the message.
        listed: The file that lists `wanted`.

    Raises:
        ValueError: An image is missing, is not listed or occurs twice.
    """
    images = list(images)
    have = set(images)
    if twice := _twice(images):
        raise ValueError(
            f"{place} must have every image once. Received: more than one caption for "
            f"{results.some(twice)}. Keep one of them."
        )
    if missing := [image for image in wanted if image not in have]:
        raise ValueError(
            f"{place} must have all {len(wanted)} images of {listed}. Received: no "
            f"{results.some(missing)}. Prepare all images of that file; none may be skipped."
        )
    wanted_ids = set(wanted)
    if others := [image for image in images if image not in wanted_ids]:
        raise ValueError(
            f"{place} must have the images of {listed} only. Received: {results.some(others)}. "
            "Give the directory, the split or the file that belongs to this list."
        )


def pack(folder: str | os.PathLike, name: str, wanted: Mapping[str, Sequence[int]]) -> str:
    """Packs the two result files of a directory; the archive appears only when it is complete.

    Args:
        folder: The directory with the files of `result_name`; it gets the archive.
        name: The name of the algorithm.
        wanted: Split -> ids of the images that must be there, for `VAL` and `TEST`.

    Returns:
        The path of the archive, which has been read again and checked.

    Raises:
        ValueError: A file is missing, or an image is missing, is not wanted or occurs twice.
    """
    path = os.path.join(folder, archive_name(algorithm_name(name)))
    with replacing(path) as temporary:
        with zipfile.ZipFile(temporary, "w") as archive:
            for split in wanted:
                member = zipfile.ZipInfo(result_name(split, name), _DATE)
                member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                content = files.read_bytes(os.path.join(folder, member.filename))
                archive.writestr(member, content)
        check_archive(temporary, name, wanted)
    return path


def check_archive(
    path: str | os.PathLike, name: str, wanted: Mapping[str, Sequence[int]]
) -> dict[str, dict[int, str]]:
    """Reads an archive and checks its two files.

    Args:
        path: The archive.
        name: The name of the algorithm.
        wanted: Split -> ids of the images that must be there.

    Returns:
        Split -> image id -> caption.

    Raises:
        ValueError: It is no zip file, has other files or is damaged, or an image is missing, is not
            wanted or occurs twice.
    """
    names = {split: result_name(split, name) for split in wanted}
    try:
        with zipfile.ZipFile(path) as archive:
            if sorted(archive.namelist()) != sorted(names.values()):
                raise ValueError(
                    f"the files {archive.namelist()!r} instead of {sorted(names.values())}"
                )
            if max(info.file_size for info in archive.infolist()) > _LARGEST:
                raise ValueError(f"a file in it has more than {_LARGEST} bytes")
            texts = {split: archive.read(member) for split, member in names.items()}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} must be a submission of {name}. Received: {error}. Write it again."
        ) from None
    captions = {}
    for split, text in texts.items():
        place = f"{path}: {names[split]}"
        entries = results.result_entries(_json(text, place), place)
        check_images([image for image, _ in entries], wanted[split], place, _LISTS[split])
        captions[split] = dict(entries)
    return captions


def _json(text: bytes, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} must be JSON. Received: {error}. Write it again.") from None
