"""Reads lists of the images of each split, for `--split_ids`."""

import pathlib
import re
from typing import Any

import numpy as np

from tfcap.files import read_json
from tfcap.preparing.sources.entry import SPLIT_NAMES, SPLITS, head

REMEDY = "docs/prepare.md describes split lists."
_MOST_BYTES = 1 << 28  # of one list; M2's longest has 5 MB
Key = int | str | tuple[str, int]  # an id, a file name, or both
# A word of its own, as in `coco_train_ids` and `trainImages`, but not in `retrieval`.
_SPLIT_WORD = re.compile(rf"(?<![A-Za-z])(?i:{'|'.join(SPLIT_NAMES)})(?![a-z])")


def read_lists(path: pathlib.Path) -> dict[str, list[Key]]:
    """Reads lists of images per split.

    Args:
      path: a directory with a list per split, or a JSON file. The file name of a list tells the
        split (`coco_train_ids.npy`, `karpathy_val_images.txt`; `restval` joins `train`). A list is
        an npy file of ids or names, or text with an id, a name, or a name and an id per line. A
        JSON file is `splits.json`, which prepare writes, or Karpathy's `dataset_coco.json`. Other
        names of a split, such as `restval` or `validation`, are read in both.

    Raises:
      ValueError: there are no such lists, one cannot be read, or one would be left out.
    """
    if path.is_dir():
        lists = _folder_lists(path)
    elif path.suffix == ".json" or head(path, 1) == b"{":
        lists = _json_lists(path)
    else:
        raise ValueError(
            "--split_ids must be a directory with a list per split, or a JSON file. Received: "
            f"{path}. {REMEDY}"
        )
    if not any(lists.values()):
        raise ValueError(
            f"--split_ids must have lists of the splits. Received: {path} without any. {REMEDY}"
        )
    return lists


def split_of(stem: str) -> str | None:
    """Returns the split that a file name tells, as in `captions_train2014`; None if none or two."""
    stem = stem.replace("test-dev", "test")  # image_info_test-dev2015
    splits = {SPLIT_NAMES[name.lower()] for name in _SPLIT_WORD.findall(stem)}
    return splits.pop() if len(splits) == 1 else None


def _folder_lists(folder: pathlib.Path) -> dict[str, list[Key]]:
    """Returns the lists of a directory.

    Raises:
      ValueError: a list cannot be read, or a file such as `test.csv` would be left out.
    """
    lists: dict[str, list[Key]] = {}
    unread: dict[str, pathlib.Path] = {}
    for file in sorted(folder.iterdir()):
        split, ending = split_of(file.stem), file.suffix.lower()
        if split is None or file.name.startswith(".") or not file.is_file():
            continue
        if ending in _READERS:
            lists.setdefault(split, []).extend(_READERS[ending](file))
        elif file.stem.lower() in SPLIT_NAMES:
            unread[split] = file
    for split, file in unread.items():
        if split not in lists:
            raise ValueError(
                f"Lists of splits must end in {' or '.join(_READERS)}. Received: {file}. Write the "
                "list as text, an id or a name a line, or move the file to another directory."
            )
    return lists


def _json_lists(path: pathlib.Path) -> dict[str, list[Key]]:
    content = read_json(path, REMEDY)
    if isinstance(content, dict) and isinstance(content.get("images"), list):
        return _karpathy_lists(path, content["images"])
    described = f"{path} must be an object with lists of ids or file names under "
    described += f"{', '.join(SPLIT_NAMES)}."
    if not isinstance(content, dict):
        raise ValueError(f"{described} Received: {str(content)[:80]}. {REMEDY}")
    lists: dict[str, list[Key]] = {split: [] for split in SPLITS}
    for name, keys in content.items():
        split = SPLIT_NAMES.get(name.strip().lower())
        if split is None and not isinstance(keys, list):
            continue  # "seed" and the like in splits.json
        whole = isinstance(keys, list) and all(
            isinstance(key, int | str) and not isinstance(key, bool) for key in keys
        )
        if split is None or not whole:
            raise ValueError(f"{described} Received: {str(keys)[:80]} under {name!r:.80}. {REMEDY}")
        lists[split] = lists[split] + keys
    return lists


def _karpathy_lists(path: pathlib.Path, images: list[Any]) -> dict[str, list[Key]]:
    """Returns the splits of a caption file of Karpathy: COCO ids, or file names without them."""
    lists: dict[str, list[Key]] = {split: [] for split in SPLITS}
    for position, image in enumerate(images):
        split = image.get("split") if isinstance(image, dict) else None
        key = image.get("cocoid", image.get("filename")) if isinstance(image, dict) else None
        if split not in SPLIT_NAMES or not isinstance(key, int | str):
            raise ValueError(
                f"{path}: image {position} of the list: must have 'split' and 'cocoid' or "
                f"'filename'. Received: {str(image)[:80]}"
            )
        lists[SPLIT_NAMES[split]].append(key)
    return lists


def _npy_list(path: pathlib.Path) -> list[Key]:
    """Reads numbers or names from an npy file; never unpickles."""
    _check_size(path)
    try:
        # A mapping compares the promised size with the file before it takes memory.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # errors of headers, zip files and pickles have no common base
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} must be an npy file of numbers or names, without pickled objects. Received: "
            f"{reason:.120}. Write the list as text, an id or a name a line."
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuU":
        kind = getattr(array, "dtype", type(array).__name__)
        raise ValueError(f"{path} must hold whole numbers or names. Received: {kind}. {REMEDY}")
    return array.ravel().tolist()


def _text_list(path: pathlib.Path) -> list[Key]:
    """Reads a line each: an id, a file name, or a file name and an id."""
    _check_size(path)
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"Cannot read {path}: {error}. {REMEDY}") from None
    keys: list[Key] = []
    for line in filter(None, map(str.strip, lines)):
        with_id = re.fullmatch(r"(.*\.\w{3,4})[\s,]+(\d{1,19})", line)
        keys.append((with_id[1], int(with_id[2])) if with_id else line)
    return keys


_READERS = {".npy": _npy_list, ".txt": _text_list}


def _check_size(path: pathlib.Path) -> None:
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise ValueError(
            f"{path} must have at most {_MOST_BYTES} bytes. Received: {size}. {REMEDY}"
        )
