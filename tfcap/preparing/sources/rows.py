"""Groups rows of captions by image, for sources that have a row per caption."""

import re
from collections.abc import Sequence

from tfcap.preparing.sources.entry import ImageEntry

_COCO_NAME = re.compile(r"(?:.*/)?(?:COCO_\w+_)?(\d{12})\.jpg", re.I)


class IdsDiffer(ValueError):
    """An image has two ids: perhaps all ids of the file are those of the captions."""

    remedy = "If the ids are those of captions, rename the column `id` to `caption_id`."


class Rows:
    """Collects the captions of each image, in the order in which the images first appear."""

    def __init__(self) -> None:
        self._captions: dict[str, list[str]] = {}
        self._facts: dict[str, tuple[str | None, int | None]] = {}
        self._owners: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._captions)

    def add(
        self,
        name: str,
        captions: Sequence[str],
        split: str | None = None,
        number: int | None = None,
    ) -> None:
        """Adds a row.

        Args:
          name: file name of the image.
          captions: its captions in this row; may be none.
          split: its split, or None.
          number: its id, or None. All rows have one, or none has.

        Raises:
          IdsDiffer: another row gives the image another id.
          ValueError: another row gives the image another split, or its id to another image.
        """
        before = self._facts.get(name)
        if before is not None and None not in (before[1], number) and before[1] != number:
            raise IdsDiffer(
                f"the id must be that of the image. Received: {before[1]} and {number} for {name}"
            )
        if before is not None and before != (split, number):
            raise ValueError(
                f"{name} must have the same split and id in all rows. Received: "
                f"{before[0]}, {before[1]} and {split}, {number}"
            )
        if number is not None and self._owners.get(number, name) != name:
            raise ValueError(
                f"image ids must be unique. Received: {number} for {self._owners[number]} and for "
                f"{name}"
            )
        if self._facts and (number is None) != (not self._owners):
            raise ValueError(f"all rows must have an id, or none. Received: {number}")
        if number is not None:
            self._owners[number] = name
        self._facts[name] = split, number
        self._captions.setdefault(name, []).extend(captions)

    def entries(self) -> list[ImageEntry]:
        """Returns the images. If the rows have no ids, the ids are the numbers in names of COCO.

        If a name is none of COCO, or two have the same number, all are numbered from 0.
        """
        numbers = [number for _, number in self._facts.values() if number is not None]
        own = True
        if not numbers:
            matches = [_COCO_NAME.fullmatch(name) for name in self._facts]
            numbers = [int(match[1]) for match in matches if match]
            if len(set(numbers)) < len(self._facts):
                numbers, own = list(range(len(self._facts))), False
        return [
            ImageEntry(number, name, split, tuple(self._captions[name]), own_id=own)
            for number, (name, (split, _)) in zip(numbers, self._facts.items(), strict=True)
        ]
