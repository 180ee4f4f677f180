"""Keeps the state of `prepare` between runs: the settings, and the shards that are finished."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfcap import files
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY
from tfcap.data.prepared import FINGERPRINT, PreparedData
from tfcap.files import read_json, write_json
from tfcap.preparing import sidecars
from tfcap.preparing.features import saved
from tfcap.preparing.sources import Entry

STATE = ".prepare.json"
SPLIT_LISTS = "splits.json"  # the images of each split, where the source itself has no splits
# The fingerprint first: without it the rest does not look like a finished data set. The state last:
# it says that prepare has written the rest.
# `*` also matches the index of features, `.features.index.json`: the new run has just written it.
_OWN_FILES = [FINGERPRINT, f"{sidecars.FOLDER}/*", "*.tfrecord", "[!.]*.index.npz"]
_OWN_FILES += [DOCUMENT_FREQUENCY, "references_*.json", SPLIT_LISTS, STATE]
# Names that users give their own files, too; `vocab.txt` may be the words of another data set.
OUTPUTS = [FINGERPRINT, SPLIT_LISTS, DOCUMENT_FREQUENCY, "references_*.json"]
OUTPUTS += ["*-of-[0-9]*.tfrecord", "[!.]*.index.npz"]
_LEFT_PRESETS = (f".tmp-[0-9]*-{saved.PRESET}", f".old-[0-9]*-{saved.PRESET}")
_LEFTOVERS = (".tmp-[0-9]*", f"{sidecars.FOLDER}/.tmp-[0-9]*")


class State:
    """The settings of a directory, which `.prepare.json` keeps, and its finished shards.

    Args:
      folder: the directory that is being prepared.
      identity: the settings that the content of the shards depends on, as JSON.
      overwrite: whether finished shards are replaced. Otherwise those of the same identity are
        kept, and those of another one are an error. Without a finished shard, new settings replace
        old ones.

    Attributes:
      content: what `.prepare.json` holds.
      digest: SHA-256 of `identity`, which the descriptions of shards also hold.
      replaces: whether `begin` removes the files of an earlier prepare.

    Raises:
      ValueError: the directory has finished shards of another identity, or files of the names that
        prepare writes, which it did not write.
    """

    def __init__(self, folder: str, identity: Mapping[str, Any], overwrite: bool):
        self.folder = folder
        self.path = os.path.join(folder, STATE)
        self.content: dict[str, Any] = {"settings": dict(identity)}
        self.digest = sidecars.settings_digest(identity)
        self.replaces = False
        self._has_shards = sidecars.exist(folder)
        is_finished = files.exists(os.path.join(folder, FINGERPRINT))
        if not files.exists(self.path):
            _refuse_foreign(folder)
        if not is_finished and not files.exists(self.path):
            return
        try:
            old = dict(read_json(self.path, "Run prepare again."))
            # Older versions kept the finished shards here.
            before, shards = old["settings"], bool(old.pop("shards", None)) or self._has_shards
            if not isinstance(before, dict):
                raise TypeError("settings must be a group of entries")
        except (ValueError, KeyError, TypeError):
            before, shards = {}, bool(files.matching(folder, "*.tfrecord"))
        self._has_shards = shards
        if before == identity and not (overwrite and (shards or is_finished)):
            self.content = old
            return
        self.replaces = True
        if not overwrite and (shards or is_finished):
            every = {**before, **identity}
            keys = [key for key in every if before.get(key) != identity.get(key)]
            raise ValueError(
                f"{folder} was prepared with other settings. Different: {', '.join(keys)}. Choose"
                " another --out, or give --overwrite to replace it."
            )

    def require_decoder(self, version: str) -> None:
        """Records the version of the picture decoder, which must be the same for all shards.

        Call it if shards must still be written.

        Raises:
          ValueError: finished shards were made with another version, or before there were versions.
        """
        before = self.content.get("decoder")
        if self._has_shards and before != version and not self.replaces:
            raise ValueError(
                f"{self.folder} has shards of an interrupted prepare that decoded pictures with "
                f"{before or 'an older version'}, not with {version}. The other shards would have "
                "other features. Choose another --out, or give --overwrite to prepare all of them "
                "again."
            )
        self.content["decoder"] = version

    def begin(self) -> None:
        """Removes files of a killed prepare or of other settings, and writes the settings."""
        self.sweep()
        for pattern in _OWN_FILES if self.replaces else (FINGERPRINT,):
            self._remove(pattern)
        for name in saved.SAVED if self.replaces else ():
            files.remove(os.path.join(self.folder, name))
        self.replaces = False
        files.make_directory(os.path.join(self.folder, sidecars.FOLDER))
        self.save()

    def sweep(self) -> None:
        """Removes the unfinished files of processes that were killed."""
        for pattern in _LEFTOVERS:
            self._remove(pattern)
        for pattern in _LEFT_PRESETS:
            for path in files.matching(self.folder, pattern):
                files.remove(path)

    def _remove(self, pattern: str) -> None:
        for path in files.matching(self.folder, pattern):
            if not files.is_directory(path):
                files.remove(path)

    def shard(self, name: str) -> dict[str, Any] | None:
        """Returns the description of a finished shard; None if it must be written."""
        return None if self.replaces else sidecars.read(self.folder, self.digest, name)

    def forget(self, name: str) -> None:
        """Removes the description of a shard, so that a worker writes the shard again."""
        files.remove(sidecars.path_of(self.folder, name))

    def written(self, name: str) -> float:
        """Returns when the description of a shard was written, in seconds of the system's clock."""
        return files.changed(sidecars.path_of(self.folder, name))

    def save(self, **changes: Any) -> None:
        """Updates `content` with `changes` and writes it."""
        self.content.update(changes)
        write_json(self.path, self.content)


def _refuse_foreign(folder: str) -> None:
    """Raises ValueError if files would be replaced that prepare did not write."""
    with contextlib.suppress(ValueError):
        content = read_json(os.path.join(folder, FINGERPRINT), "")
        if isinstance(content, dict) and {"vocab_sha256", "splits"} <= set(content):
            return  # of any version: a copy of a prepared directory, without the hidden files
    found = [path for pattern in OUTPUTS for path in files.matching(folder, pattern)]
    if found:
        names = ", ".join(sorted(os.path.basename(path) for path in found))
        raise ValueError(
            f"--out must not hold files that prepare would replace and did not write. Received: "
            f"{folder} with {names}. Choose another --out, or move these files."
        )


def is_whole(folder: str) -> bool:
    """Returns whether a directory is finished and still has all its files unchanged."""
    try:
        data = PreparedData.load(folder)
        if data.has_document_frequencies:
            data.document_frequencies()
        for split in data.fingerprint["splits"]:
            data.file_names(split)
        made_by = data.fingerprint["backbone"]
        if made_by is None or made_by["weights"] is None:
            return True
        saved.checked_weights(made_by, folder)
        return files.exists(os.path.join(folder, os.path.basename(made_by["weights"])))
    except (ValueError, KeyError):
        return False


class Skips:
    """Collects the images that cannot be used, and ends the run when there are too many.

    Args:
      limit: the most images that may be skipped.
      total: images of the data set.
      rows: rows of the caption files that were skipped before, which count as well.
      before: images of other shards that were skipped before, which count as well.

    Attributes:
      items: the images that were added.
    """

    def __init__(self, limit: int, total: int, rows: int = 0, before: int = 0):
        self.limit, self.total, self.rows, self.before = limit, total, rows, before
        self.items: list[dict[str, Any]] = []

    def add(self, entry: Entry, reason: str) -> None:
        """Adds an image. Raises ValueError if more than `limit` are skipped."""
        self.extend([{"id": entry.id, "file_name": entry.file_name, "reason": reason}])

    def extend(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Adds images, given as in `items`. Raises ValueError if more than `limit` are skipped."""
        self.items += map(dict, items)
        skipped = self.before + len(self.items)
        if items and skipped + self.rows > self.limit:
            last = items[-1]
            rows = f" {self.rows} rows of the captions are skipped as well." if self.rows else ""
            raise ValueError(
                f"{skipped} of {self.total} images cannot be used, --max_skipped allows"
                f" {self.limit}.{rows} The last image is {last['file_name']}: {last['reason']}."
                " Repair the images or raise --max_skipped, then give the same command again:"
                " finished shards are kept, and repaired images of --images are read. After other"
                " repairs add --overwrite."
            )
