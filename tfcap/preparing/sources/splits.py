"""Divides images into splits: by names of files, by lists of ids or names, or at random."""

import contextlib
import fnmatch
import functools
import hashlib
import itertools
import json
import logging
import math
import os
import pathlib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tfcap.files import load_npy, read_json
from tfcap.preparing.sources.entry import SPLITS, Entry, file_name, head
from tfcap.preparing.spelling import nfc

WAYS = ("source", "random", "mrnn")
# Names of splits in files and directories of data sets. Every paper on COCO trains on restval.
_NAMES = {
    **dict.fromkeys(("train", "training", "restval"), "train"),
    **dict.fromkeys(("val", "valid", "validate", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
FURTHER = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # names of splits are parts of file names
# A word of its own, as in `coco_train_ids` and `trainImages`, but not in `retrieval`.
_WORD = re.compile(rf"(?<![A-Za-z])(?i:{'|'.join(_NAMES)})(?![a-z])")
_SHARES = (90.0, 5.0, 5.0)  # per cent of the images that are drawn for train, val and test
_FEW = 30  # pictures of val or test; the score of fewer changes much by chance
_MRNN = {"val": 4000, "test": 1000}  # images of the official val split in m-RNN's split of COCO
_REMEDY = "docs/prepare.md describes split lists."
_log = logging.getLogger(__name__)
Key = int | str | tuple[str, int]  # an id, a file name, or both


def split_name(text: object) -> str:
    """Returns "train", "val" or "test" for a usual name of a split, and keeps other names.

    Usual names are those of `usual_split`, such as `validation`. Any other name is a split of its
    own: `qual_dev` of DOCCI does not become "val". Spaces in such a name become "_".

    Raises:
      ValueError: `text` is no name, for example a number.
    """
    if split := usual_split(text):
        return split
    name = re.sub(r"\s+", "_", text.strip()) if isinstance(text, str) else ""
    if not FURTHER.fullmatch(name) or name.isdecimal():
        raise ValueError(
            f"the split {text!r:.80} is not a name. Write names, such as train, val and test, or "
            "remove the column of splits: prepare then draws them"
        )
    return name


def usual_split(text: object) -> str | None:
    """Returns "train", "val" or "test" for a usual name of this split, such as `validation`.

    A year may follow, as in `train2017`. It returns None for other names.
    """
    return _usual(text) if type(text) is str else None


@functools.lru_cache
def _usual(text: str) -> str | None:
    return _NAMES.get(re.sub(r"_?\d{4}$", "", text.strip().lower()))


def split_of(stem: str) -> str | None:
    """Returns the split that a file name contains, as "train" for `captions_train2014`.

    It returns None if the name contains no split, or several splits.

    Args:
      stem: the file name without its ending.
    """
    stem = stem.replace("test-dev", "test")  # image_info_test-dev2015
    splits = {_NAMES[name.lower()] for name in _WORD.findall(stem)}
    return splits.pop() if len(splits) == 1 else None


def split_of_path(path: pathlib.PurePath) -> str | None:
    """Returns the split that a path contains: "train" for `train-0.tar`, "val" for `dev/0.tar`.

    If several parts of the path contain a split, the last one counts. If no part does, it returns
    None.
    """
    return next(filter(None, map(split_of, reversed(path.parts))), None)


def files_of(
    paths: Sequence[pathlib.Path], *patterns: str
) -> list[tuple[pathlib.Path, str | None]]:
    """Lists files and the splits that their names contain.

    The split is looked for only in the part of a path below a directory in `paths`, or below the
    common directory of the files in `paths`, because a whole data set may be in a directory `test`.

    Args:
      paths: files and directories. The files are listed, whatever their names are.
      *patterns: patterns of file names, such as `*.tar`. In the directories and their
        subdirectories, only files that match a pattern are listed. Names that begin with a dot,
        such as `._a.tar`, are left out there.

    Returns:
      Each file and its split, or None for a file without a split in its name.
    """
    folders = [path.absolute().parent for path in paths if not path.is_dir()]
    shared = pathlib.Path(os.path.commonpath(folders)) if folders else pathlib.Path()
    result = []
    for path in paths:
        if not path.is_dir():
            result.append((path, split_of_path(path.absolute().relative_to(shared))))
            continue
        for directory, subdirectories, names in os.walk(path):
            subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))
            fitting = {name for pattern in patterns for name in fnmatch.filter(names, pattern)}
            for name in sorted(name for name in fitting if not name.startswith(".")):
                file = pathlib.Path(directory) / name
                result.append((file, split_of_path(file.relative_to(path))))
    return result


def shares(way: str) -> tuple[float, ...]:
    """Returns the percentages of train, val and test for a value of the setting `splits`.

    Args:
      way: a value such as "random:70,15,15", whose numbers sum to 100, or one of `WAYS`, which
        gives 90, 5 and 5.

    Raises:
      ValueError: `way` is another text, or the share of train is 0.
    """
    if way in WAYS:
        return _SHARES
    parts: tuple[float, ...] = ()
    with contextlib.suppress(ValueError):
        parts = tuple(map(float, way.removeprefix("random:").split(",")))
    if not way.startswith("random:") or len(parts) != len(SPLITS) or min(parts) < 0:
        parts = ()
    if not math.isclose(sum(parts), 100) or not parts[0]:
        raise ValueError(
            f"`splits` must be one of {', '.join(WAYS)}, or random:TRAIN,VAL,TEST with percentages "
            f"which sum to 100, as in random:70,15,15; not {way!r}"
        )
    return parts


class Divided(NamedTuple):
    """The images, each with a split.

    Attributes:
      entries: the images.
      written: the content of splits.json: how the images were divided, and a list for each split.
        A list has the file names of the images, or their ids if file names repeat, or the ids of
        captions if `split_ids` leaves out some captions of an image. None if the splits are those
        of the source.
    """

    entries: list[Entry]
    written: dict[str, Any] | None

    @property
    def digest(self) -> str | None:
        """SHA-256 of the lists in `written`, as hexadecimal text; None if `written` is None."""
        if self.written is None:
            return None
        lists = {split: self.written[split] for split in SPLITS}
        return hashlib.sha256(json.dumps(lists).encode()).hexdigest()


def divide(
    entries: Sequence[Entry],
    way: str = "source",
    seed: int = 1,
    split_ids: pathlib.Path | None = None,
    images: pathlib.Path | None = None,
) -> Divided:
    """Gives every image a split. Images of splits other than train, val and test keep theirs.

    Args:
      entries: the images.
      way: "source" takes the splits of the source, or random ones if it has none. "random" draws 90
        % train, 5 % val and 5 % test, and "random:70,15,15" other shares. "mrnn" draws 4,000 images
        for val and 1,000 for test from the official val split of COCO, as the paper on m-RNN does;
        all others are for train.
      seed: seed of the draw.
      split_ids: a file or directory with the images of each split, which replaces `way`. Images in
        no list are left out.
      images: the directory of the pictures; absolute names in lists must be below it.

    Raises:
      ValueError: only some images have a split in the source; or the lists of `split_ids` do not
        fit the images; or `way` cannot be used with these images.
    """
    further = [entry for entry in entries if entry.split not in (None, *SPLITS)]
    if further:
        rest = [entry for entry in entries if entry.split in (None, *SPLITS)]
        if not rest and split_ids is None:
            return Divided(further, None)
        usual = divide(rest, way, seed, split_ids, images)
        return Divided([*usual.entries, *further], usual.written)
    if split_ids is not None:
        return _by_lists(entries, split_ids, images)
    without = [entry for entry in entries if entry.split is None]
    if way == "source":
        if not without:
            return Divided(list(entries), None)
        if len(without) < len(entries):
            raise ValueError(
                f"{len(without)} of {len(entries)} images have no split, for example "
                f"{without[0].file_name}. Give `splits=random`, or lists with `split_ids`."
            )
    divided = _drawn(entries, way, seed)
    how = "mrnn" if way == "mrnn" else "random"
    written: dict[str, Any] = {"drawn": how, "seed": seed, **_written(divided)}
    counts = ", ".join(f"{len(written[split])} {split}" for split in SPLITS)
    _log.info(f"splits: drawn at random with seed {seed}: {counts}; see splits.json")
    if few := _few(written, way):
        _log.info(f"note: {few}")
    return Divided(divided, written)


def _few(lists: Mapping[str, Sequence[Key]], way: str) -> str:
    """Returns a warning that val or test have few pictures, or an empty text."""
    drawn = [split for split, share in zip(SPLITS[1:], shares(way)[1:], strict=True) if share]
    few = [f"{len(lists[split])} {split}" for split in drawn if len(lists[split]) < _FEW]
    total = sum(len(lists[split]) for split in SPLITS)
    if not few or total < len(SPLITS):
        return ""
    part = math.ceil(100 * _FEW / total)
    more = f"random:{100 - 2 * part},{part},{part}"
    remedy = f". `splits={more}` draws {_FEW} of each" if part <= 30 and way != more else ""
    return f"{' and '.join(few)} pictures are too few to choose and to score a checkpoint{remedy}"


def _drawn(entries: Sequence[Entry], way: str, seed: int) -> list[Entry]:
    """Returns the images with random splits; those of m-RNN draw val and test from COCO's val."""
    drawn = dict(zip(SPLITS, shares(way), strict=True))
    sizes = {split: _count(drawn[split], len(entries)) for split in ("val", "test")}
    indices = list(range(len(entries)))
    if way == "mrnn":
        sizes = _MRNN
        needed = sum(_MRNN.values())
        indices = [index for index, entry in enumerate(entries) if entry.split == "val"]
        if len(indices) < needed or any(e.split not in ("train", "val") for e in entries):
            raise ValueError(
                "`splits=mrnn` needs the official splits train and val of COCO, with "
                f"{needed} images in val, but there are {len(indices)}. Give "
                "captions_train2014.json and captions_val2014.json."
            )
    elif sum(sizes.values()) >= len(entries) > 0:
        raise ValueError(
            f"`splits={way}` leaves none of {len(entries)} images for train. Give train a larger "
            "share, or add images."
        )
    order = iter(_shuffled(entries, indices, seed))
    divided = [entry._replace(split="train") for entry in entries]
    for split, size in sizes.items():
        for index in itertools.islice(order, size):
            divided[index] = divided[index]._replace(split=split)
    return divided


def _count(share: float, images: int) -> int:
    """Returns how many of the images are `share` per cent: at least one of three or more."""
    if not share or images < len(SPLITS):
        return 0
    return max(1, round(share / 100 * images))


def _shuffled(entries: Sequence[Entry], indices: Iterable[int], seed: int) -> list[int]:
    """Returns indices of images in a random order.

    The order depends only on the seed and the file names, not on the order of the rows or on a
    library. If images are added later, most other images stay in their split.
    """
    unique = _have_unique_names(entries)

    def key(index: int) -> bytes:
        text = f"{seed}/{entries[index].file_name}"
        text = text if unique else f"{text}/{entries[index].id}"
        return hashlib.sha256(text.encode()).digest()

    return sorted(indices, key=key)


def _written(entries: Sequence[Entry], by_caption: bool = False) -> dict[str, list[Key]]:
    """Returns the images of each split: file names, or ids if names repeat, or ids of captions."""
    unique = _have_unique_names(entries)
    lists: dict[str, list[Key]] = {split: [] for split in SPLITS}
    for entry in entries:
        image = entry.file_name if unique else entry.id
        lists[entry.split or ""].extend(entry.caption_ids if by_caption else [image])
    return lists


def _have_unique_names(entries: Sequence[Entry]) -> bool:
    return len({entry.file_name for entry in entries}) == len(entries)


# ---- lists of --split_ids ----------------------------------------------------------------------


def _read_lists(path: pathlib.Path) -> dict[str, list[Key]]:
    """Reads lists of images per split from a directory with a list per split, or a JSON file.

    The split is in the file name of a list (`coco_train_ids.npy`, `karpathy_val_images.txt`;
    `restval` joins `train`). A list is an npy file of ids or names, or a text file with an id, a
    name, or a name and an id per line. A JSON file is `splits.json`, which prepare writes, or
    Karpathy's `dataset_coco.json`.
    """
    lists: dict[str, list[Key]] = {split: [] for split in SPLITS}
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
        for file in files:
            split = split_of(file.stem)
            if split and file.suffix.lower() == ".npy":
                lists[split] += load_npy(file, _REMEDY).ravel().tolist()
            elif split and file.suffix.lower() == ".txt":
                lists[split] += _text_list(file)
        for file in files:  # test.csv, which would be left out
            if not lists.get(_NAMES.get(file.stem.lower(), ""), True):
                raise ValueError(f"{file} is not a list: lists end in .txt or .npy. {_REMEDY}")
    elif path.suffix == ".json" or head(path, 1) == b"{":
        content = read_json(path, _REMEDY)
        images = content.get("images") if isinstance(content, dict) else None
        try:
            if images is None:
                for name, keys in content.items():
                    if isinstance(keys, list):
                        lists[_listed_split(name)] += keys
            for image in images or ():
                key = image["cocoid"] if "cocoid" in image else image["filename"]
                lists[_listed_split(image["split"])].append(key)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"{path} has no lists of train, val and test: {reason}. {_REMEDY}"
            ) from None
    if not any(lists.values()):
        raise ValueError(
            f"{path} must be a directory with a list per split, or a JSON file of lists. {_REMEDY}"
        )
    return lists


def _listed_split(text: object) -> str:
    if (split := split_name(text)) not in SPLITS:
        raise ValueError(f"the split {split!r} is not one of {', '.join(_NAMES)}")
    return split


def _text_list(path: pathlib.Path) -> list[Key]:
    """Reads lines with an id, a file name, or a file name and an id."""
    lines = filter(None, map(str.strip, path.read_text("utf-8-sig", "replace").splitlines()))
    both = [(re.fullmatch(r"(.*\.\w{3,4})[\s,]+(\d{1,19})", line), line) for line in lines]
    return [(match[1], int(match[2])) if match else line for match, line in both]


def _by_lists(entries: Sequence[Entry], path: pathlib.Path, images: pathlib.Path | None) -> Divided:
    """Divides images by the lists of `split_ids`; images in no list are left out."""
    lists = _read_lists(path)
    listed = sum(len(keys) for keys in lists.values())
    by_caption = {number: index for index, e in enumerate(entries) for number in e.caption_ids}
    # What a list may have: how to read its keys, and the index of the image of each. The first of
    # equally good kinds wins.
    kinds: dict[str, tuple[Callable[[Key], Any], Mapping[Any, int]]] = {
        "file names": (lambda key: _name(key, images), _names(entries)),
        "image ids": (_number, _ids(entries)),
        "caption ids": (_number, by_caption),
    }
    matches = {
        kind: {split: [index_of[key] for key in map(read, keys) if key in index_of]
               for split, keys in lists.items()}
        for kind, (read, index_of) in kinds.items()
    }  # fmt: skip
    counts = {kind: sum(map(len, by_split.values())) for kind, by_split in matches.items()}
    kind = max(counts, key=lambda name: counts[name])
    if not counts[kind]:
        example = next(key for keys in lists.values() for key in keys)
        raise ValueError(
            f"{path} lists {listed} ids or names, but none of them is in the captions. For "
            f"example, it lists {example!r:.80}, and the captions have "
            f"{entries[0].file_name!r:.80}. {_REMEDY}"
        )
    chosen: dict[int, str] = {}
    for split, indices in matches[kind].items():
        for index in indices:
            if chosen.setdefault(index, split) != split:
                raise ValueError(
                    f"{path} lists {entries[index].file_name} in {chosen[index]} and in {split}. "
                    "List it once."
                )
    divided = [entries[index]._replace(split=split) for index, split in sorted(chosen.items())]
    fewer = False  # whether captions of an image were left out
    if kind == "caption ids":
        captions = {_number(key) for keys in lists.values() for key in keys}
        whole = divided
        divided = [_only(entry, captions) for entry in whole]
        fewer = whole != divided
    _log.info(
        f"splits: {path} lists {listed} {kind}, of which {counts[kind]} are in the captions; "
        f"{len(entries) - len(divided)} images are in no list and are left out"
    )
    return Divided(divided, {"lists": kind, **_written(divided, by_caption=fewer)})


def _names(entries: Sequence[Entry]) -> dict[str, int]:
    """Returns file name -> index, also without folder and ending if that is unique."""
    names: dict[str, int | None] = {}
    for index, entry in enumerate(entries):
        path = pathlib.PurePosixPath(nfc(entry.file_name))
        for name in {str(path), path.name, str(path.with_suffix("")), path.stem}:
            names[name] = None if name in names else index
    unique = {name: index for name, index in names.items() if index is not None}
    return unique | {nfc(entry.file_name): index for index, entry in enumerate(entries)}


def _ids(entries: Sequence[Entry]) -> dict[int, int]:
    """Returns id -> index; empty if ids are only counters.

    If file names repeat, `splits.json` has the counters.
    """
    if not any(entry.has_id for entry in entries) and _have_unique_names(entries):
        return {}
    return {entry.id: index for index, entry in enumerate(entries)}


def _number(key: Key) -> int | None:
    """Returns the id in an item of a list, or None."""
    text = str(key[1] if isinstance(key, tuple) else key)
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _name(key: Key, images: pathlib.Path | None) -> str:
    """Returns the file name in an item of a list, without folders if it is not below `images`."""
    name = str(key[0] if isinstance(key, tuple) else key)
    with contextlib.suppress(ValueError):
        return nfc(file_name(name, images))
    return nfc(name.rpartition("/")[2])


def _only(entry: Entry, caption_ids: Container[int | None]) -> Entry:
    """Returns the entry with only the captions whose ids are in `caption_ids`."""
    kept = [n for n, number in enumerate(entry.caption_ids) if number in caption_ids]
    return entry._replace(
        captions=tuple(entry.captions[n] for n in kept),
        words=tuple(entry.words[n] for n in kept) if entry.words else (),
        caption_ids=tuple(entry.caption_ids[n] for n in kept),
    )
