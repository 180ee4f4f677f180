"""Reads the captions, and checks the directories of prepare, before anything is written."""

import contextlib
import dataclasses
import fnmatch
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfcap import cli, files
from tfcap.preparing import spelling
from tfcap.preparing.features import ready
from tfcap.preparing.settings import Settings, allowed_skips
from tfcap.preparing.sources import (
    READERS,
    Entry,
    SkippedRow,
    Source,
    recognise,
    require_unique,
)
from tfcap.preparing.sources.splits import Divided, divide
from tfcap.preparing.state import OUTPUTS

FRAMES = 16  # of a clip, for the sources of videos
FIRST = 20  # files that are looked for: one that is missing says little, all say a wrong directory
_WITH_LISTS = ("flickr8k", "iaprtc12")  # sources with lists of the splits beside the captions
_CLIPS = ("gif", "msrvtt")  # sources whose entries are clips
_FOLDERS = 50  # directories that are searched for the files of a wrong --images


@contextlib.contextmanager
def with_local_captions(settings: Settings) -> Iterator[Settings]:
    """Yields settings with local caption files; copies of remote files exist until the block ends.

    Raises:
      OSError: a remote file cannot be read.
    """
    given = settings.captions
    several = [given] if isinstance(given, str | os.PathLike) else given or []
    each = [one for path in several for one in _divided(os.fspath(path))]
    if not any(map(files.is_remote, each)):
        yield settings
        return
    with contextlib.ExitStack() as stack:
        copies = [stack.enter_context(files.local_copy(path)) for path in each]
        yield dataclasses.replace(settings, captions=copies)


def check_places(settings: Settings) -> None:
    """Raises UsageError if an input has the name of a file that prepare writes into --out."""
    several = {
        "captions": map(os.fspath, settings.caption_paths),
        "split_ids": [os.fspath(settings.split_ids or "")],
        "document_frequency": [os.fspath(settings.document_frequency or "")],
    }
    for flag, paths in several.items():
        for path in filter(None, paths):
            folder, name = os.path.split(_real(path))
            same = folder == _real(settings.out)
            if same and any(fnmatch.fnmatch(name, pattern) for pattern in OUTPUTS):
                raise cli.UsageError(
                    f"--{flag} must not be a file that prepare writes into --out. Received: "
                    f"{path}. Choose another --out."
                )


def _real(path: str | os.PathLike) -> str:
    return files.absolute(path) if files.is_remote(path) else os.path.realpath(path)


def check_remote(settings: Settings, source: str) -> None:
    """Raises UsageError if lists of the splits lie beside remote captions, which are copied alone.

    Args:
      settings: as they were given.
      source: the source that was found.
    """
    given = settings.captions
    several = [given] if isinstance(given, str | os.PathLike) else given or []
    if source in _WITH_LISTS and settings.split_ids is None and settings.splits == "source":
        if any(files.is_remote(path) for path in several):
            raise cli.UsageError(
                f"--captions must be on a local disk for --source={source}, because the lists of "
                f"its splits lie beside it. Received: {several[0]}. Copy the directory, or give "
                "the lists with --split_ids."
            )


def _divided(path: str) -> list[str]:
    """Splits a path at its commas if a part is remote; returns other paths unchanged."""
    return list(filter(None, path.split(","))) if "://" in path else [path]


class Inputs(NamedTuple):
    """What prepare reads before it writes.

    Attributes:
      settings: the settings, with the source that was found.
      entries: the images; all have a split.
      divided: the same images, and how they were divided into splits.
      skipped: rows of the caption files that cannot be used.
    """

    settings: Settings
    entries: list[Entry]
    divided: Divided
    skipped: list[SkippedRow]


def read(settings: Settings) -> Inputs:
    """Finds the source, reads its images, and divides them into splits.

    Raises:
      ValueError: the captions cannot be read, too many rows are bad, or --vocab is no file.
    """
    paths = settings.caption_paths
    if not paths:
        raise cli.UsageError("--captions must be the caption file. Received: nothing.")
    if settings.vocab is not None and not files.is_file(settings.vocab):
        # `Vocab.load` would say "Run prepare", and only after all captions are read.
        raise ValueError(
            f"--vocab must be an existing vocab.txt. Received: {settings.vocab}. Correct the path."
        )
    if settings.source == "auto":
        settings = dataclasses.replace(settings, source=recognise(paths))
        kind = "directory" if all(path.is_dir() for path in paths) else "file"
        count = f"1 {kind}" if len(paths) == 1 else f"{len(paths)} {kind.replace('y', 'ie')}s"
        print(f"source: {settings.source} ({count})", flush=True)
    settings = _with_frames(settings)
    share = str(settings.max_skipped).endswith("%")
    source = Source(
        paths,
        images=_directory(settings.images),
        seed=settings.seed,
        given_tokens=settings.tokens == "given",
        # A percentage is known when everything is read.
        most_skipped=float("inf") if share else allowed_skips(settings.max_skipped, 1),
    )
    entries = READERS[settings.source].read(source)
    most = allowed_skips(settings.max_skipped, len(entries) + len(source.skipped))
    if len(source.skipped) > most:
        raise ValueError(
            f"{len(source.skipped)} rows cannot be used, --max_skipped allows {most}. Repair the "
            "rows or raise --max_skipped."
        )
    if source.images is not None:
        entries = [_as_on_disk(entry, source.images) for entry in entries]
    require_unique(entries, paths[0])
    lists = None if settings.split_ids is None else pathlib.Path(settings.split_ids)
    divided = divide(entries, settings.splits, settings.seed, lists, source.images)
    return Inputs(settings, divided.entries, divided, source.skipped)


def _as_on_disk(entry: Entry, images: pathlib.Path) -> Entry:
    """Returns an entry whose file below --images has the name that the directory spells."""
    if entry.content is not None:
        return entry
    return entry._replace(file_name=spelling.on_disk(images, entry.file_name))


def _with_frames(settings: Settings) -> Settings:
    """Returns the settings with the number of frames that a source of videos has by itself.

    Raises:
      UsageError: other settings are only for pictures, or only for clips.
    """
    if settings.frames is None and settings.source in _CLIPS:
        settings = dataclasses.replace(settings, frames=FRAMES)
    if settings.frames is None:
        if settings.frame_order != "kept":
            raise cli.UsageError(
                "--frame_order needs --frames, or a source of videos. Received: "
                f"--frame_order={settings.frame_order} for --source={settings.source}."
            )
    elif settings.grid is not None or settings.crops != 1 or settings.keep_pictures:
        raise cli.UsageError(
            "--grid, --crops and --keep_pictures cannot be used with --frames or a source of "
            f"videos: each frame is one vector. Received: grid={settings.grid}, "
            f"crops={settings.crops}, keep_pictures={settings.keep_pictures}. Leave them out."
        )
    return settings


def check_directories(settings: Settings, entries: Sequence[Entry]) -> None:
    """Checks that the directory of `settings` exists and has picture files of `entries`.

    Raises:
      UsageError: neither pictures nor features are given.
      ValueError: --images or --features is no directory, or none of the first `FIRST` files is in
        --images.
    """
    if settings.features is not None:
        ready.recognise(settings.feature_paths)
        return  # `ReadyFeatures` looks for the first images under several names
    if all(entry.content is not None for entry in entries):
        return
    if settings.images is None:
        raise cli.UsageError(
            "prepare needs pictures or features. Received: neither. Give --images, a directory of "
            "image files, or --features."
        )
    folder = settings.images
    if not files.is_directory(folder):
        raise ValueError(
            f"--images must be an existing directory. Received: {folder}. Correct the path."
        )
    names = [entry.file_name for entry in entries if entry.content is None][:FIRST]
    if any(files.exists(os.path.join(folder, name)) for name in names):
        return
    found = "" if files.is_remote(folder) else spelling.near(folder, names[0])
    if found:
        raise ValueError(
            f"The file names of {settings.caption_paths[0]} must be those in {folder}. Received: "
            f"{names[0]}{found}. Correct the names in the captions, or rename the files."
        )
    of_caption_file = f"the first {len(names)} file names of {settings.caption_paths[0]}"
    raise ValueError(
        f"None of {of_caption_file} is in {folder}, for example {names[0]}: wrong --images? "
        f"{_remedy(folder, names)}"
    )


def _directory(images: str | None) -> pathlib.Path | None:
    """Returns --images for the readers of captions, which look into local directories only."""
    return None if images is None or files.is_remote(images) else pathlib.Path(images)


def _remedy(images: str, names: Sequence[str]) -> str:
    """Names a directory near `images` that has one of the files, if there is one."""
    if not files.is_remote(images):
        folder = pathlib.Path(images)
        inside = (path for path in folder.iterdir() if path.is_dir())
        for place in (folder.parent, *itertools.islice(inside, _FOLDERS)):
            if any((place / name).exists() for name in names):
                return f"{place} has them: give --images {place}"
    return "Give the directory that these names are relative to."
