"""Finds the source whose layout a path of --captions has, for `--source=auto`."""

import pathlib
from collections.abc import Sequence

from tfcap.preparing.sources.entry import RECOGNISERS, names_of
from tfcap.preparing.sources.tables import unknown_columns


def recognise(paths: Sequence[pathlib.Path]) -> str:
    """Returns the name of the one source that recognises all paths.

    Args:
      paths: files or directories of --captions; the directory of --images for sources without a
        caption file.

    Raises:
      ValueError: a path does not exist, or no source or several sources recognise the paths.
    """
    for path in paths:
        if not path.exists():
            raise ValueError(
                f"Cannot read {path}: No such file or directory. Correct the path of --captions."
            )
    sources = [
        name for name, recognises in RECOGNISERS.items() if all(recognises(path) for path in paths)
    ]
    if len(sources) == 1:
        return sources[0]
    known = ", ".join(sorted(RECOGNISERS))
    if sources:
        raise ValueError(
            f"--captions must be in the layout of one source. Received: {names_of(paths)}, which "
            f"fits {' and '.join(sources)}. Give --source={sources[0]} or another of them."
        )
    tables = [path for path in paths if path.suffix.lower() in (".csv", ".tsv", ".jsonl")]
    raise ValueError(
        f"--captions must be in a layout that tfcap knows. Received: {names_of(paths)}, which no "
        f"source recognises. Give --source, one of {known}; docs/prepare.md shows each layout."
        + "".join(f" As a table, {unknown_columns(path)}" for path in tables[:1])
    )


def described(name: str, paths: Sequence[pathlib.Path]) -> str:
    """Returns the printed line that names the source, such as `source: coco (3 files)`."""
    kind = "directory" if all(path.is_dir() for path in paths) else "file"
    plural = {"directory": "directories", "file": "files"}[kind]
    return f"source: {name} ({len(paths)} {kind if len(paths) == 1 else plural})"
