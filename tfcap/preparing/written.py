"""What prepare knows of the shards of a data set: which are finished, and what they hold."""

import collections
import os
from collections.abc import Sequence
from typing import Any

from tfcap import files
from tfcap.preparing.sources import Entry, FilePart
from tfcap.preparing.state import State


class Written:
    """The descriptions of the finished shards of a data set.

    Args:
      shards: names and images of all shards.
      state: reads the descriptions.
      images: the directory of the pictures; None without one. A finished shard is written again if
        one of the pictures that it skipped was repaired since.

    Attributes:
      known: the descriptions by the names of the shards, without words.
      left: the shards that are not finished, or that skipped a picture which was repaired.
      repaired: the names of the latter. `State.forget` must remove their descriptions.
    """

    def __init__(
        self,
        shards: Sequence[tuple[str, list[Entry]]],
        state: State,
        images: str | os.PathLike | None = None,
    ):
        self._images = images
        self._places = {
            entry.file_name: os.fspath(entry.content.path)
            for _, members in shards
            for entry in members
            if isinstance(entry.content, FilePart) and entry.content.is_file
        }
        self._splits = {name: members[0].split or "" for name, members in shards}
        self._state = state
        self._words: dict[str, collections.Counter[str]] = {}
        self.known: dict[str, dict[str, Any]] = {}
        self.repaired = [name for name in self._splits if self._was_repaired(name)]
        self.left = [
            shard for shard in shards if shard[0] in self.repaired or self.read(shard[0]) is None
        ]

    @property
    def images_left(self) -> int:
        """Returns how many images are in shards that are not finished."""
        return sum(len(members) for _, members in self.left)

    def read(self, name: str) -> dict[str, Any] | None:
        """Reads the description of a shard; None if the shard is not finished."""
        known = self._state.shard(name)
        if known is not None:
            # Words and captions of all shards would need much memory.
            known.pop("captions", None)
            words = self._words.setdefault(self._splits[name], collections.Counter())
            words.update(known.pop("words"))
            self.known[name] = known
        return known

    def _was_repaired(self, name: str) -> bool:
        """Returns whether a file that was skipped in a finished shard was put there or changed."""
        known = self._state.shard(name)
        if known is None or not known["skipped"]:
            return False
        written = self._state.written(name)
        for item in known["skipped"]:
            path = self._places.get(item["file_name"])
            if path is None and self._images is not None:
                path = os.path.join(self._images, item["file_name"])
            if path is None:
                continue
            missing = item["reason"].startswith("no such file")
            if files.exists(path) and (missing or files.changed(path) > written):
                return True
        return False

    def by_split(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the descriptions of each split, in the order of the shards."""
        result: dict[str, list[dict[str, Any]]] = {}
        for name, split in self._splits.items():
            result.setdefault(split, []).append(self.known[name])
        return result

    def words(self, count_splits: str) -> collections.Counter[str]:
        """Returns how often each word occurs in the splits that the vocabulary counts."""
        total: collections.Counter[str] = collections.Counter()
        for split, words in self._words.items():
            if count_splits == "all" or split == "train":
                total.update(words)
        return total

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """Returns the descriptions of the images that were skipped, in the order of the shards."""
        return [
            item for name in self._splits for item in self.known.get(name, {}).get("skipped", ())
        ]
