"""Writes the files beside the versions of a bundle, and keeps those that somebody has changed.

A person edits some of them: batching.config for another machine, the model card, a manifest. The
digests of what was written are kept in `RECORD`. A file with another digest stays as it is, and its
new content gets the name of the file with `.new` behind it. The record also has the digests of what
is being written, so that a killed process leaves no file that looks changed.
"""

import hashlib
import os
import pathlib
from collections.abc import Collection, Mapping

from tfcap.files import read_json, replacing, write_json

RECORD, NEW = ".bundle.json", ".new"


def write(folder: str, files: Mapping[str, bytes], programs: Collection[str] = ()) -> list[str]:
    """Writes the files in their order; each appears whole.

    Files of an earlier call that are not among `files` are removed, unless they were changed.

    Args:
      folder: the directory of the bundle.
      files: content by path relative to `folder`, with "/".
      programs: those of the files that can be run.

    Returns:
      The paths of the files that were changed and stay.

    Raises:
      ValueError: a directory has the name of a file.
      OSError: a file cannot be written.
    """
    before = _read_record(folder)
    for name in files:
        if os.path.isdir(os.path.join(folder, name)):
            raise ValueError(
                f"{name} must be a file in {folder}. Received: a directory. Move it away, or "
                "export to another directory."
            )
    for name in before.keys() - files.keys():
        if _digest(_content(folder, name)) in before[name]:
            os.remove(os.path.join(folder, name))
    after = {name: [_digest(content)] for name, content in files.items()}
    both = {name: [*before.get(name, []), *digests] for name, digests in after.items()}
    write_json(os.path.join(folder, RECORD), both, indent=2)
    changed = []
    for name, content in files.items():
        now, own = _content(folder, name), name
        if now not in (None, content) and _digest(now) not in before.get(name, []):
            changed.append(name)
            own = name + NEW
        elif os.path.isfile(os.path.join(folder, name + NEW)):  # it was taken, or is too old
            os.remove(os.path.join(folder, name + NEW))
        _write(os.path.join(folder, own), content, name in programs)
    write_json(os.path.join(folder, RECORD), after, indent=2)
    return changed


def _write(path: str, content: bytes, program: bool) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with replacing(path) as temporary:
        pathlib.Path(temporary).write_bytes(content)
        if program:
            mode = os.stat(temporary).st_mode
            os.chmod(temporary, mode | (mode & 0o444) >> 2)  # who may read it may run it


def _content(folder: str, name: str) -> bytes | None:
    """Returns the content of a file; None if there is none."""
    path = pathlib.Path(folder, name)
    return path.read_bytes() if path.is_file() else None


def _digest(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _read_record(folder: str) -> dict[str, list[str]]:
    """Returns the digests by name; empty if nothing was written yet.

    A damaged record counts as none: then files with another content stay.
    """
    path = os.path.join(folder, RECORD)
    if not os.path.exists(path):
        return {}
    try:
        content = read_json(path, "")
    except ValueError:
        return {}
    if not isinstance(content, dict):
        return {}
    return {
        name: digests
        for name, digests in content.items()
        if isinstance(digests, list) and not os.path.isabs(name) and ".." not in name.split("/")
    }
