"""Divides images into splits: by lists of ids or names, or at random."""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tfcap.preparing.sources.entry import SPLITS, ImageEntry, file_name
from tfcap.preparing.sources.split_lists import REMEDY, Key, read_lists
from tfcap.preparing.spelling import loose, nfc

WAYS = ("source", "random", "mrnn")
SHARE = 0.05  # of the images that go into val, and into test
_DIGITS = 20  # of the largest number of 64 bits
MRNN = {"val": 4000, "test": 1000}  # images of the official val split in m-RNN's split of COCO


class Divided(NamedTuple):
    """Images with a split each.

    Attributes:
      entries: the images.
      written: the content of splits.json: how they were divided, and the images of each split, or
        the captions, where lists leave out some of an image; None if the source has the splits.
    """

    entries: list[ImageEntry]
    written: dict[str, Any] | None

    @property
    def digest(self) -> str | None:
        """SHA-256 of `written`, or None."""
        if self.written is None:
            return None
        lists = {split: self.written[split] for split in SPLITS}
        return hashlib.sha256(json.dumps(lists).encode()).hexdigest()


def divide(
    entries: Sequence[ImageEntry],
    way: str = "source",
    seed: int = 1,
    split_ids: pathlib.Path | None = None,
    images: pathlib.Path | None = None,
) -> Divided:
    """Gives every image a split.

    Args:
      entries: the images; their `split` may be None. Images of other splits than train, val and
        test, such as test2014, keep them.
      way: one of `WAYS`. "source" keeps the splits of the source, and draws random ones if it has
        none; "random" always draws them: 90 % train, 5 % val, 5 % test; "mrnn" draws the split of
        m-RNN from the official splits of COCO.
      seed: random seed of the draw.
      split_ids: lists of the images of each split, which replace the splits of `way`; or None.
      images: the directory of --images, which absolute names in lists begin with; or None.

    Raises:
      ValueError: lists that cannot be read or do not fit, or splits for some of the images only.
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
    unassigned = sum(entry.split is None for entry in entries)
    if way == "source":
        if not unassigned:
            return Divided(list(entries), None)
        if unassigned < len(entries):
            first = next(entry for entry in entries if entry.split is None)
            raise ValueError(
                "The splits must be given for all images or for none. Received: "
                f"{unassigned} of {len(entries)} images without a split, for example "
                f"{first.file_name}. Give --splits=random, or lists with --split_ids."
            )
    chosen = _draw_mrnn(entries, seed) if way == "mrnn" else _draw(entries, seed)
    divided = [entry._replace(split=split) for entry, split in zip(entries, chosen, strict=True)]
    how = "mrnn" if way == "mrnn" else "random"
    written: dict[str, Any] = {"drawn": how, "seed": seed, **_written(divided)}
    counts = ", ".join(f"{len(written[split])} {split}" for split in SPLITS)
    print(f"splits: drawn at random with seed {seed}: {counts}; see splits.json", flush=True)
    return Divided(divided, written)


def _draw(entries: Sequence[ImageEntry], seed: int) -> list[str]:
    """Returns a random split per image: 90 % train, 5 % val and 5 % test, at least one each."""
    part = max(1, round(SHARE * len(entries))) if len(entries) >= len(SPLITS) else 0
    chosen = ["train"] * len(entries)
    order = _shuffled(entries, range(len(entries)), seed)
    for place in order[:part]:
        chosen[place] = "val"
    for place in order[part : 2 * part]:
        chosen[place] = "test"
    return chosen


def _draw_mrnn(entries: Sequence[ImageEntry], seed: int) -> list[str]:
    """Returns the split per image as m-RNN has it: val and test come from the official val."""
    official = [place for place, entry in enumerate(entries) if entry.split == "val"]
    needed = sum(MRNN.values())
    if len(official) < needed or any(entry.split not in ("train", "val") for entry in entries):
        raise ValueError(
            f"--splits=mrnn must have the official splits train and val of COCO, with {needed} "
            f"images in val. Received: {len(official)} images in val of {len(entries)}. Give "
            "captions_train2014.json and captions_val2014.json."
        )
    chosen, start = ["train"] * len(entries), 0
    order = _shuffled(entries, official, seed)
    for split, number in MRNN.items():
        for place in order[start : start + number]:
            chosen[place] = split
        start += number
    return chosen


def _shuffled(entries: Sequence[ImageEntry], places: Iterable[int], seed: int) -> list[int]:
    """Returns places in a random order.

    It depends on the seed and the file names only: not on the order of the rows, nor on a version
    of a library. Images that are added later leave most of the others where they are.
    """

    unique = _have_unique_names(entries)

    def key(place: int) -> bytes:
        name, number = entries[place].file_name, entries[place].id
        text = f"{seed}/{name}" if unique else f"{seed}/{name}/{number}"
        return hashlib.sha256(text.encode()).digest()

    return sorted(places, key=key)


def _written(entries: Sequence[ImageEntry], by_caption: bool = False) -> dict[str, list[Key]]:
    """Returns the images of each split: file names, or ids if names repeat.

    Args:
      entries: the images.
      by_caption: whether the lists have the ids of the captions in place of the images.
    """
    unique = _have_unique_names(entries)
    lists: dict[str, list[Key]] = {split: [] for split in SPLITS}
    for entry in entries:
        image = entry.file_name if unique else entry.id
        lists[entry.split or ""].extend(entry.caption_ids if by_caption else [image])
    return lists


def _by_lists(
    entries: Sequence[ImageEntry], path: pathlib.Path, images: pathlib.Path | None
) -> Divided:
    """Divides images by the lists of --split_ids; images in no list are left out."""
    lists = read_lists(path)
    numbers = {split: [_number(key) for key in keys] for split, keys in lists.items()}
    names = {split: [_name(key, images) for key in keys] for split, keys in lists.items()}
    listed = sum(len(keys) for keys in lists.values())
    kinds: dict[str, dict[Any, tuple[int, int | None]]] = {
        # The first of equals wins.
        "file names": _names(entries),
        "image ids": _ids(entries),
        "caption ids": {
            number: (place, number)
            for place, entry in enumerate(entries)
            for number in entry.caption_ids
        },
    }
    read: dict[str, Mapping[str, Sequence[Any]]]
    read = {"file names": names, "image ids": numbers, "caption ids": numbers}
    matches = {
        kind: sum(key in known for keys in read[kind].values() for key in keys)
        for kind, known in kinds.items()
    }
    kind = max(matches, key=lambda name: matches[name])
    if not matches[kind]:
        example = next(key for keys in lists.values() for key in keys)
        same = [e.file_name for e in entries if loose(e.file_name) == loose(_name(example, images))]
        near = f" (the captions have {same[0]!r:.80})" if same else ""
        raise ValueError(
            f"--split_ids must list ids or file names of the captions. Received: {path}, where "
            f"none of {listed} is known, for example {example!r:.80}{near}. {REMEDY}"
        )
    chosen, captions = _chosen(entries, read[kind], kinds[kind])
    divided = [
        _only(entries[place], captions[place])._replace(split=split)
        for place, split in sorted(chosen.items())
    ]
    left_out = len(entries) - len(divided)
    print(
        f"splits: {path} lists {listed} {kind}, of which {matches[kind]} are in the captions; "
        f"{left_out} images are in no list and are left out",
        flush=True,
    )
    # Only caption ids tell which captions of an image were left out.
    fewer = any(
        len(one.captions) < len(entries[place].captions)
        for one, place in zip(divided, sorted(chosen), strict=True)
    )
    return Divided(divided, {"lists": kind, **_written(divided, by_caption=fewer)})


def _ids(entries: Sequence[ImageEntry]) -> dict[Any, tuple[int, int | None]]:
    """Returns the places of images by id; none where a reader counted the images.

    Where names repeat, `splits.json` has the numbers of the reader.
    """
    if not any(entry.own_id for entry in entries) and _have_unique_names(entries):
        return {}
    return {entry.id: (place, None) for place, entry in enumerate(entries)}


def _have_unique_names(entries: Sequence[ImageEntry]) -> bool:
    return len({entry.file_name for entry in entries}) == len(entries)


def _number(key: Key) -> int | None:
    """Returns the number that a key of a list is or has, or None."""
    number = key[1] if isinstance(key, tuple) else key
    return int(number) if str(number).isdecimal() and len(str(number)) < _DIGITS else None


def _name(key: Key, images: pathlib.Path | None) -> str:
    """Returns the file name that a key of a list is or has; without folders if not of `images`."""
    name = str(key[0] if isinstance(key, tuple) else key)
    with contextlib.suppress(ValueError):
        return nfc(file_name(name, images))
    return nfc(name.rpartition("/")[2])


def _chosen(
    entries: Sequence[ImageEntry],
    lists: Mapping[str, Sequence[Any]],
    known: Mapping[Any, tuple[int, int | None]],
) -> tuple[dict[int, str], dict[int, set[int]]]:
    """Returns the split and the listed caption ids by the place of an image."""
    chosen: dict[int, str] = {}
    captions: dict[int, set[int]] = {}
    for split, keys in lists.items():
        for key in keys:
            place, caption_id = known.get(key, (None, None))
            if place is None:
                continue
            if chosen.setdefault(place, split) != split:
                raise ValueError(
                    f"--split_ids must have an image in one split only. Received: "
                    f"{entries[place].file_name} in {chosen[place]} and in {split}. {REMEDY}"
                )
            own = captions.setdefault(place, set())
            if caption_id is not None:
                own.add(caption_id)
    return chosen, captions


def _only(entry: ImageEntry, caption_ids: set[int]) -> ImageEntry:
    """Keeps the captions that a list of caption ids names; all of them for other lists."""
    if not caption_ids or len(caption_ids) == len(entry.caption_ids):
        return entry
    kept = [n for n, number in enumerate(entry.caption_ids) if number in caption_ids]
    words = None if entry.words is None else tuple(entry.words[n] for n in kept)
    return entry._replace(
        captions=tuple(entry.captions[n] for n in kept),
        words=words,
        caption_ids=tuple(entry.caption_ids[n] for n in kept),
    )


def _names(entries: Sequence[ImageEntry]) -> dict[Any, tuple[int, int | None]]:
    """Returns places by file name, with and without folder and ending, where that is unique."""
    names: dict[Any, tuple[int, int | None] | None] = {}
    for place, entry in enumerate(entries):
        path = pathlib.PurePosixPath(nfc(entry.file_name))
        for name in {str(path), path.name, str(path.with_suffix("")), path.stem}:
            names[name] = None if name in names else (place, None)
    unique = {name: target for name, target in names.items() if target is not None}
    unique.update((nfc(entry.file_name), (place, None)) for place, entry in enumerate(entries))
    return unique
