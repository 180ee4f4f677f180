"""Checks the directories that prepare reads, before it writes anything."""

import itertools
import pathlib
from collections.abc import Sequence

from tfcap.preparing.settings import Settings
from tfcap.preparing.sources import ImageEntry

FIRST = 20  # files that are looked for: one that is missing says little, all say a wrong directory
_FOLDERS = 50  # directories that are searched for the files of a wrong --images


def check_directories(settings: Settings, entries: Sequence[ImageEntry]) -> None:
    """Checks that the directory of `settings` exists and has picture files of `entries`.

    Raises:
      ValueError: --images or --features is no directory, or none of the first `FIRST` files is in
        --images.
    """
    flag = "--images" if settings.features is None else "--features"
    folder = pathlib.Path(settings.features or settings.images or "")
    if not folder.is_dir():
        raise ValueError(
            f"{flag} must be an existing directory. Received: {folder}. Correct the path."
        )
    if settings.features is not None:
        return  # `ReadyFeatures` looks for its first files under two names
    names = [entry.file_name for entry in entries[:FIRST]]
    if any((folder / name).exists() for name in names):
        return
    of_caption_file = f"the first {len(names)} file names of {settings.captions}"
    raise ValueError(
        f"None of {of_caption_file} is in {folder}, for example {names[0]}: wrong --images? "
        f"{_remedy(folder, names)}"
    )


def _remedy(folder: pathlib.Path, names: Sequence[str]) -> str:
    """Names a directory near `folder` that has one of the files, if there is one."""
    inside = (path for path in folder.iterdir() if path.is_dir())
    for place in (folder.parent, *itertools.islice(inside, _FOLDERS)):
        if any((place / name).exists() for name in names):
            return f"{place} has them: give --images {place}"
    return "Give the directory that these names are relative to."
