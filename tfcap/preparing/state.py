"""What `prepare` remembers between runs: the finished shards and the skipped images."""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from tfcap.data.fingerprint import FINGERPRINT
from tfcap.data.prepared import PreparedData
from tfcap.files import read_json, write_json
from tfcap.preparing.sources import ImageEntry

STATE = ".prepare.json"
WEIGHTS = "backbone.weights.h5"


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Keeps a second prepare out of the directory; the lock ends with the process, however."""
    with open(folder / ".prepare.lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another prepare is writing to {folder}; wait for it, or choose another --out"
            ) from None
        yield


class State:
    """Which shards are finished, kept in `.prepare.json`.

    Args:
      folder: the directory that is being prepared.
      identity: all that the content of the shards depends on, as JSON.
      overwrite: whether files of another identity are removed or refused.

    Raises:
      ValueError: the directory was prepared with another identity.
    """

    def __init__(self, folder: pathlib.Path, identity: Mapping[str, Any], overwrite: bool):
        self.folder = folder
        self.path = folder / STATE
        self.content: dict[str, Any] = {"settings": dict(identity), "shards": {}}
        for leftover in folder.glob(".tmp-[0-9]*"):  # of a killed prepare, by its process number
            if leftover.is_file():
                leftover.unlink()
        if not self.path.exists() and not (folder / FINGERPRINT).exists():
            return
        try:
            old = read_json(self.path, "Run prepare again.")
            before, _ = old["settings"], old["shards"]
        except (ValueError, KeyError, TypeError):
            before = {}
        if before == identity:
            self.content = old
            return
        if not overwrite:
            every = {**before, **identity}
            keys = [key for key in every if before.get(key) != identity.get(key)]
            raise ValueError(
                f"{folder} was prepared with other settings ({', '.join(keys)} differ); choose"
                " another --out, or give --overwrite to replace it"
            )
        # The fingerprint first: without it nobody takes the rest for a finished data set.
        for pattern in (FINGERPRINT, STATE, "*.tfrecord", "*.index.npz", WEIGHTS):
            for file in folder.glob(pattern):
                file.unlink()
        for file in folder.glob("references_*.json"):
            file.unlink()

    def shard(self, name: str) -> dict[str, Any] | None:
        """What is known of a finished shard, if its file is there and of the right size."""
        known = self.content["shards"].get(name)
        if known is None or not known["records"]:
            return known
        path = self.folder / name
        return known if path.exists() and path.stat().st_size == known["bytes"] else None

    def save(self, **changes: Any) -> None:
        """Takes over `changes` and writes the state."""
        self.content.update(changes)
        write_json(self.path, self.content)


def is_whole(folder: pathlib.Path) -> bool:
    """Whether a finished directory still has all its files, as they were written."""
    try:
        data = PreparedData.load(folder)
        data.document_frequencies()
        for split in data.fingerprint["splits"]:
            data.file_names(split)
        made_by = data.fingerprint["backbone"]
    except (ValueError, KeyError):
        return False
    return made_by is None or made_by["weights"] is None or (folder / WEIGHTS).is_file()


class Skips:
    """The images that cannot be used, and how many of them there may be.

    Args:
      limit: more than so many end the run.
      total: images of the data set.
    """

    def __init__(self, limit: int, total: int):
        self.limit, self.total = limit, total
        self.items: list[dict[str, Any]] = []

    def add(self, entry: ImageEntry, reason: str) -> None:
        """Notes an image. Raises ValueError if it is one too many."""
        self.items.append({"id": entry.id, "file_name": entry.file_name, "reason": reason})
        if len(self.items) > self.limit:
            raise ValueError(
                f"{len(self.items)} of {self.total} images cannot be used, --max_skipped allows"
                f" {self.limit}; the last was {entry.file_name}: {reason}; mend the images or allow"
                " more, then give the same command again: finished shards are kept"
            )
