"""Reads the captions, divides the images into splits, and looks for the pictures."""

import collections
import contextlib
import dataclasses
import functools
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfcap import errors, files, segmentation
from tfcap.data import films
from tfcap.images import is_picture_name
from tfcap.preparing import ready, spelling
from tfcap.preparing.settings import Settings, allowed_skips
from tfcap.preparing.sources import READERS, recognise
from tfcap.preparing.sources.contents import without_captions
from tfcap.preparing.sources.entry import (
    SPLITS,
    Entry,
    SkippedRow,
    Source,
    accepted,
    require_unique,
)
from tfcap.preparing.sources.rows import first_row, kind_of
from tfcap.preparing.sources.splits import Divided, divide, usual_split
from tfcap.preparing.sources.tables import beginning, first_lines

FRAMES = 16  # of a clip, for the sources of videos
FIRST = 20  # files that are looked for: one that is missing says little, all say a wrong directory
_COCO = re.compile(r"(^|/)(COCO_\w+_)?\d{12}\.jpg$")  # names of pictures in its releases
_CLIPS = ("gif", "clips", "msrvtt")  # sources whose entries are clips
_ROWS = ("csv", "tsv", "jsonl")  # sources of rows whose names may be chosen
# Sources whose captions may be in several languages.
_SPOKEN = (*_ROWS, "json", "blip", "xmodaler", "gif", "clips", "imagefolder", "parquet", "parallel")
_FOLDERS = ("imagefolder", "sidecar")  # sources whose captions lie beside the pictures
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def local_captions(settings: Settings) -> Iterator[Settings]:
    """Copies remote caption files to this machine while the `with` block runs.

    Args:
      settings: the settings of prepare.

    Yields:
      A copy of the settings whose `captions` are the paths of the copied files; `settings` itself
      if no file is remote.
    """
    captions = settings.captions
    texts = [captions] if isinstance(captions, str | os.PathLike) else captions or []
    paths = [path for text in texts for path in os.fspath(text).split(",") if path]
    if not any(map(files.is_remote, paths)):
        yield settings
        return
    with contextlib.ExitStack() as stack:
        copies = [stack.enter_context(files.local_copy(path)) for path in paths]
        yield dataclasses.replace(settings, captions=copies)


class Inputs(NamedTuple):
    """What prepare reads before it writes anything.

    Attributes:
      settings: the settings; `source` is the detected layout in place of "auto".
      entries: the images; each has a split.
      divided: the result of `divide`. `divided.entries` is the same list as `entries`.
        `divided.written` is the content of splits.json; None if the splits are those of the caption
        files.
      skipped: rows of the caption files that cannot be used, with the reasons.
    """

    settings: Settings
    entries: list[Entry]
    divided: Divided
    skipped: list[SkippedRow]


def _say_further(entries: Sequence[Entry]) -> None:
    """Names the splits that training and validation do not read, but evaluation may."""
    usual = (None, *SPLITS)
    counts = collections.Counter(entry.split for entry in entries if entry.split not in usual)
    if counts:
        splits = ", ".join(f"{split} ({number} images)" for split, number in counts.items())
        _log.info(
            f"note: beside {', '.join(SPLITS)} there are the splits {splits}; only `split` of "
            "tfcap.evaluate reads them"
        )


def _say_views(settings: Settings, entries: Sequence[Entry]) -> None:
    """Says how many images have several pictures, and checks that the settings suit them."""
    several = [len(entry.pictures) for entry in entries if entry.further]
    if not several:
        return
    _log.info(f"note: {len(several)} images have several pictures, up to {max(several)}")
    for name in ("frames", "keep_pictures", "objects"):
        if getattr(settings, name):
            raise errors.UsageError(
                f"`{name}` cannot be used with images of several pictures. Leave it out."
            )


def read(settings: Settings) -> Inputs:
    """Reads the caption files: detects their layout and divides the images into splits.

    Args:
      settings: the settings of prepare; remote caption files must have been copied, see
        `local_captions`.

    Raises:
      UsageError: `captions` is missing, or settings do not suit the layout.
      ValueError: the files cannot be used, or more rows cannot be used than `max_skipped` allows.
    """
    settings = _with_source(settings)
    path = settings.caption_paths[0]
    source = _source(settings)
    entries = accepted(READERS[settings.source].read(source))
    if settings.vocab is None and not any(entry.captions for entry in entries):
        raise ValueError(without_captions(path, settings.source))
    _say_further(entries)
    most = allowed_skips(settings.max_skipped, len(entries) + len(source.skipped))
    if len(source.skipped) > most:
        raise ValueError(
            f"{len(source.skipped)} rows cannot be used, but `max_skipped` allows {most}. The "
            "reasons are printed above. Repair the rows or raise `max_skipped`."
        )
    if source.images is not None:
        entries = [
            e if e.content else e.renamed(functools.partial(spelling.on_disk, source.images))
            for e in entries
        ]
    _say_views(settings, entries)
    require_unique(entries, path)
    lists = None if settings.split_ids is None else pathlib.Path(settings.split_ids)
    divided = divide(entries, settings.splits, settings.seed, lists, source.images)
    if source.images is not None and settings.features is None:
        # Only now, because lists of splits have the names of the caption file.
        found = _in_folders(source.images, entries)
        named = [e._replace(file_name=found.get(e.id, e.file_name)) for e in divided.entries]
        divided = divided._replace(entries=_of_coco(source.images, named))
    return Inputs(settings, divided.entries, divided, source.skipped)


def _with_source(settings: Settings) -> Settings:
    """Returns the settings with the detected layout, and its images and frames."""
    paths = settings.caption_paths
    if not paths:
        raise errors.UsageError(
            "`captions`, the caption file, is missing. Give the file or its directory."
        )
    for name in ("vocab", "document_frequency"):
        # Loading them would say "Run prepare", and only after all captions are read.
        if (path := getattr(settings, name)) is not None and not files.is_file(path):
            raise ValueError(f"`{name}`: there is no file {path}. Correct the path.")
    if settings.source == "auto":
        source = _of_rows(settings) if settings.columns else recognise(paths)
        settings = dataclasses.replace(settings, source=source)
        kind = "directory" if all(path.is_dir() for path in paths) else "file"
        count = f"1 {kind}" if len(paths) == 1 else f"{len(paths)} {kind.replace('y', 'ie')}s"
        _log.info(f"source: {settings.source} ({count})")
    for name, sources in (("columns", _ROWS), ("language", _SPOKEN)):
        if getattr(settings, name) and settings.source not in sources:
            raise errors.UsageError(
                f"`{name}` cannot be used with `source={settings.source}`, but with: "
                f"{', '.join(sources)}. Leave it out, or name another source."
            )
    if settings.images is None and settings.source in _FOLDERS:
        folder = paths[0] if paths[0].is_dir() else paths[0].parent
        settings = dataclasses.replace(settings, images=os.fspath(folder))
    if settings.frames is None and settings.source in _CLIPS:
        settings = dataclasses.replace(settings, frames=FRAMES).checked()
    return settings


def _of_rows(settings: Settings) -> str:
    """Returns the layout of files of rows whose columns are chosen."""
    chosen = settings.chosen_columns.values()
    for path in settings.caption_paths:
        if not path.is_file():
            raise ValueError(f"There is no file {path}. Correct `captions`.")
        row = first_row(path)
        is_object = beginning(path).lstrip("\ufeff \t\r\n").startswith("{")
        is_lines = row and len(first_lines(path)) > 1
        if is_object and not is_lines and row.keys().isdisjoint(chosen):
            raise errors.UsageError(
                f"{path} is a JSON object. `columns` reads tables, JSON lines and JSON lists: "
                "write the rows as one of these, or leave out `columns`."
            )
    return kind_of(settings.caption_paths[0])


def _source(settings: Settings) -> Source:
    """Returns the files to read."""
    is_share = str(settings.max_skipped).endswith("%")
    is_remote = files.is_remote(settings.images)  # readers of captions look into local directories
    return Source(
        settings.caption_paths,
        images=pathlib.Path(settings.images) if settings.images and not is_remote else None,
        seed=settings.seed,
        drawn=settings.split_ids is not None or settings.splits.startswith("random"),
        reads_words=settings.tokens == segmentation.GIVEN,
        clips=settings.frames is not None,
        columns=settings.chosen_columns,
        language=settings.language or "",
        # A percentage is known when everything is read.
        most_skipped=float("inf") if is_share else allowed_skips(settings.max_skipped, 1),
    )


def _in_folders(images: pathlib.Path, entries: list[Entry]) -> dict[int, str]:
    """Finds pictures whose names lack the ending or the folder of their split.

    `train2014/a.jpg` and `train_images/a.jpg` are such pictures for `a` of the split train, for
    `train/a.jpg`, and for `a` without a split if it is `COCO_train2014_000000000009`. `a.jpg` is
    one for `beach/a.jpg`, if no other name ends in `a.jpg`. A number is found with the zeros that
    COCO has. Names that have an ending keep it. Two names never get the same picture.

    Args:
      images: the directory of the pictures.
      entries: the images, with the splits of the caption files.

    Returns:
      Id of the image -> the name under which its picture is found, if this is another name.
    """
    names = [entry.file_name for entry in entries if entry.content is None]
    if not names or any(os.path.exists(images / name) for name in names[:FIRST]):
        return {}
    found: dict[tuple[str | None, str], str] = {}
    for path in filter(is_picture_name, spelling.below(images)):
        top, _, rest = path.partition("/")
        split = usual_split(top.removesuffix("_images"))
        for name in (path, os.path.splitext(path)[0]):
            found.setdefault((None, name), path)
            if split:
                found.setdefault((split, name.removeprefix(f"{top}/")), path)
    ends = collections.Counter(map(os.path.basename, set(names)))

    def there(entry: Entry) -> str:
        name = entry.file_name
        top, _, rest = name.partition("/")
        coco = re.match(r"COCO_([a-z]+\d{4})_", name)
        split = usual_split(top.removesuffix("_images"))
        keys = [(None, name), (entry.split, name)]
        keys += [(split, rest)] if split else []
        keys += [(usual_split(coco[1]), name)] if coco else []
        end = os.path.basename(name)
        number = name.zfill(12) if name.isdecimal() else end
        keys += [(entry.split, number), (None, number)] if ends[end] == 1 else []
        return next((found[key] for key in keys if key in found), name)

    pairs = [(entry, there(entry)) for entry in entries if not entry.further]
    same = collections.Counter(new for _, new in {(entry.file_name, new) for entry, new in pairs})
    new = [(e, path) for e, path in pairs if path != e.file_name and same[path] == 1]
    if new:
        _log.info(
            f"note: {len(new)} of {len(entries)} pictures are found under another name: "
            f"{new[0][1]} for {new[0][0].file_name}"
        )
    return {entry.id: path for entry, path in new}


def _of_coco(images: pathlib.Path, entries: list[Entry]) -> list[Entry]:
    """Finds pictures of COCO that have the names of another release, 2014 or 2017.

    Both releases number the pictures in the same way.
    """
    names = [entry.file_name for entry in entries if entry.content is None][:FIRST]
    if not names or not all(map(_COCO.search, names)):
        return entries
    if any(os.path.exists(images / name) for name in names):
        return entries
    on_disk = {spelling.number(name): name for name in spelling.below(images) if _COCO.search(name)}
    numbers = {entry.file_name: spelling.number(entry.file_name) for entry in entries}
    renamed = {name: on_disk[number] for name, number in numbers.items() if number in on_disk}
    if not any(name in renamed for name in names):
        return entries
    old, new = next(iter(renamed.items()))
    _log.info(
        f"note: {len(renamed)} of {len(numbers)} pictures of COCO have names of another release: "
        f"{new} for {old}"
    )
    return [e._replace(file_name=renamed.get(e.file_name, e.file_name)) for e in entries]


def check_images(settings: Settings, entries: Sequence[Entry]) -> None:
    """Checks that pictures or ready-made features are where the settings say.

    Only the first 20 pictures (`FIRST`) are looked for, and it is enough if one of them exists.
    Other missing pictures are skipped later, when pictures are read.

    Args:
      settings: the settings of prepare.
      entries: the images.

    Raises:
      UsageError: `images` is missing, or the images are films and `frames` is missing.
      ValueError: the directory `images` does not exist or has none of the first 20 pictures; or a
        path of `features` does not exist or has an unknown layout.
    """
    if settings.features is not None:
        for paths in settings.feature_sets:
            ready.recognise(paths)
        return  # `ready.ReadyFeatures` looks for the first images under several names
    looked_for = [entry for entry in entries if entry.content is None][:FIRST]
    names = [entry.file_name for entry in looked_for]
    if not names:
        return
    folder = settings.images
    captions = settings.caption_paths[0]
    if settings.frames is None and all(name.lower().endswith(films.ENDINGS) for name in names):
        raise errors.UsageError(
            f"`frames` is missing: {names[0]} is a film. Give the number of frames to use of each "
            "film, such as `frames=16`."
        )
    if folder is None:
        raise errors.UsageError(
            "`images`, the directory of the pictures, is missing. Give it, or give ready-made "
            "features with `features`."
        )
    if not files.is_directory(folder):
        raise ValueError(f"`images`: there is no directory {folder}. Correct the path.")
    if any(files.exists(os.path.join(folder, name)) for name in names):
        return
    hint = "" if files.is_remote(folder) else spelling.near(folder, names[0])
    if hint:
        raise ValueError(
            f"{captions} names {names[0]}, which is not in {folder}{hint}. Correct the names in "
            "the captions, or rename the files."
        )
    hint = "" if files.is_remote(folder) else spelling.elsewhere(folder, names[0])
    are_ids = looked_for[0].has_id and names[0] == str(looked_for[0].id)
    where = " (ids, because no column has names of pictures)" if are_ids else ""
    raise ValueError(
        f"None of the first {len(names)} file names in {captions}{where} exists in {folder}, for "
        f"example {names[0]}{hint}. Give as `images` the directory to which these names are "
        f"relative{', or correct the names' if hint else ''}."
    )
