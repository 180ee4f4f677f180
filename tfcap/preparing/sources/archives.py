"""Reads data sets that are folders or archives: imagefolder, sidecar files, WebDataset, TFDS."""

import collections
import contextlib
import logging
import os
import pathlib
import tarfile
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, BinaryIO, NamedTuple

from tfcap import progress
from tfcap.data import films
from tfcap.files import read_json
from tfcap.images import ENDINGS, is_picture, is_picture_name, left_out
from tfcap.preparing.sources.entry import Entry, FilePart, Source
from tfcap.preparing.sources.names import captions_of, columns_of, entry_of, split_in, unmarked
from tfcap.preparing.sources.parquet import METADATA, joined, picture_of
from tfcap.preparing.sources.rows import Row, json_row, rows_of
from tfcap.preparing.sources.splits import files_of, split_name, split_of_path
from tfcap.preparing.sources.tables import text_lines
from tfcap.preparing.spelling import nfc

Rows = Iterator[tuple[Any, ...]]
_log = logging.getLogger(__name__)

# ---- folders of pictures -----------------------------------------------------------------------

_METADATA = ("metadata.csv", "metadata.jsonl", METADATA)


def is_imagefolder(path: pathlib.Path) -> bool:
    """True for a directory that has `metadata.csv`, `metadata.jsonl` or `metadata.parquet`.

    The file may be in a subdirectory. The path of a `metadata.parquet` itself gives True, too.
    """
    return path.name == METADATA or bool(path.is_dir() and files_of([path], *_METADATA))


def imagefolder(source: Source) -> list[Entry]:
    """Reads the layout `imagefolder` of Hugging Face: directories of pictures with a metadata file.

    The file is `metadata.csv`, `metadata.jsonl` or `metadata.parquet`. A row has the captions and
    the path of the picture, which is relative to the directory of the metadata file. The column of
    the path is `file_name`, `video` or another name of `names.IMAGE_COLUMNS`. The split is in the
    column `split`, or else in the names of directories, as in `train/metadata.csv`. Images are
    numbered from 0.

    Args:
      source: what to read; `captions` is the directory.
    """

    def rows() -> Rows:
        for path, split in files_of([source.one_file()], *_METADATA):
            for row in rows_of(path, source):
                yield row.location, row._replace(split=split), path.parent.absolute()

    def parse(row: Row, folder: pathlib.Path) -> Entry:
        values = row.read()
        name = next((values[key] for key in ("file_name", "video") if values.get(key)), None)
        entry = entry_of({**values, "path": name} if name else values, source)
        split = entry.split or row.split or split_of_path(pathlib.PurePath(entry.file_name).parent)
        entry = entry.renamed(lambda name: os.path.join(folder, name))
        return entry.without_id()._replace(split=split)

    entries = source.entries(rows(), parse)
    path = source.one_file()
    root = (path if path.is_dir() else path.parent).resolve()
    images = (source.images or root).resolve()
    files = [file for file, _ in files_of([root], "*")]
    named = {nfc(str(images / name)) for entry in entries for name in entry.pictures}
    alone = {file for file in files if is_picture(file) and nfc(str(file)) not in named}
    _note_left_out(files, {"pictures are in no row of the metadata": alone})
    return entries


def _note_left_out(files: Sequence[pathlib.Path], reasons: Mapping[str, Sized]) -> None:
    """Says how many files are left out for each reason, and which pictures are not decoded."""
    for reason, left in reasons.items():
        if len(left):
            _log.info(f"note: {len(left)} {reason} and are left out")
    if note := left_out(files):
        _log.info(f"note: {note}")


_TEXTS = (".txt", ".caption")  # beside a picture; the first that is there counts


class _Folder(NamedTuple):
    """The files of a folder and of the folders in it, without hidden ones, in their order.

    Attributes:
      files: all files.
      pictures: those that are pictures.
      texts: those that may hold captions.
      pairs: text -> the picture or film that it describes, in the order of the texts.
    """

    files: list[pathlib.Path]
    pictures: set[pathlib.Path]
    texts: list[pathlib.Path]
    pairs: dict[pathlib.Path, pathlib.Path]


def _folder(root: pathlib.Path) -> _Folder:
    """Finds the text of each picture: `1.txt` or `1.caption` for `1.jpg`, or else `1.jpg.txt`."""
    files = [file for file, _ in files_of([root], "*")]
    pictures = set(filter(is_picture, files))
    texts = [file for file in files if file.suffix.lower() in _TEXTS]
    left = {text.with_suffix(text.suffix.lower()): text for text in texts}
    pairs: dict[pathlib.Path, pathlib.Path] = {}
    for file in sorted((f for f in files if f in pictures or _is_film(f)), key=_order):
        for name in filter(left.__contains__, _texts_of(file)):
            pairs[left.pop(name)] = file
            break
    return _Folder(files, pictures, texts, {text: pairs[text] for text in texts if text in pairs})


def _texts_of(file: pathlib.Path) -> list[pathlib.Path]:
    return [file.with_suffix(t) for t in _TEXTS] + [file.with_name(file.name + t) for t in _TEXTS]


def _is_film(path: pathlib.Path) -> bool:
    return is_picture_name(path.name, films.ENDINGS)


def _order(path: pathlib.Path) -> tuple[int, bool]:
    """Sorts files of the same name: their text belongs to the first."""
    endings = (*ENDINGS, "", *films.ENDINGS)
    ending = path.suffix.lower()
    return endings.index(ending if ending in endings else ""), path.suffix != ending


def is_sidecar(path: pathlib.Path) -> bool:
    """True for a directory with a picture or film and its text file, such as `1.jpg` and `1.txt`.

    False if the directory has a metadata file: the layout `imagefolder` reads it.
    """
    if not path.is_dir() or files_of([path], *_METADATA):
        return False
    files = [file for file, _ in files_of([path], "*")]
    suffixes = {file: file.suffix.lower() for file in files}
    texts = {f.with_suffix(suffix) for f, suffix in suffixes.items() if suffix in _TEXTS}
    described = (file for file in files if not texts.isdisjoint(_texts_of(file)))
    return any(is_picture(file) or _is_film(file) for file in described)


def unknown_folder(path: pathlib.Path) -> str:
    """Returns the text of an error for a directory that has none of the layouts.

    The text names what the directory has: Arrow files, pictures without captions, or pictures of
    kinds that are not decoded. If the directory has none of these, the text is "".
    """
    files = [file for file, _ in files_of([path], "*")]
    if any(file.suffix == ".arrow" for file in files):
        return (
            f"{path} has Arrow files of Hugging Face's datasets, which are not read. Write each "
            "split as Parquet, dataset['train'].to_parquet('data/train.parquet'), and give their "
            "directory with `captions`."
        )
    if path.is_dir() and any(map(is_picture, files)):
        tables = [f.name for f in files if f.suffix in (".csv", ".tsv", ".jsonl", ".json")]
        example = f", such as {tables[0]}," if tables else ""
        return (
            f"{path} has pictures, and no captions beside them: those of dog.jpg are in dog.txt or "
            f"dog.caption. Write them, or give a table of captions{example} with `captions`."
        )
    note = left_out(files)
    return f"{path} has no pictures that can be read: {note}." if note else ""


def sidecar(source: Source) -> list[Entry]:
    """Reads the layout `sidecar`: directories with a text file for each picture.

    The text file of `1.jpg` is `1.txt`, `1.caption` or `1.jpg.txt`, with one caption per line. The
    split is in the names of directories, as in `train/1.jpg`. If `source.clips` is True, films such
    as `1.mp4` are read like pictures. Messages count the files that are left out: pictures without
    a text file, text files without a picture, and films. Images are numbered from 0.

    Args:
      source: what to read; `captions` is the directory.
    """
    kinds = " or ".join(_TEXTS)
    folder = _folder(root := source.one_file())
    pictures = {t: f for t, f in folder.pairs.items() if source.clips or not _is_film(f)}
    used = pictures or folder.pairs  # if there are films alone, prepare asks for `frames`
    _note_left_out(
        folder.files,
        {
            f"pictures have no {kinds} file": folder.pictures - {*used.values()},
            f"{kinds} files belong to no picture": {*folder.texts} - {*folder.pairs},
            "films are read only with `frames`": {*folder.pairs} - {*used},
        },
    )

    def parse(text: pathlib.Path) -> Entry:
        split = split_of_path(text.relative_to(root).parent)
        name = str(used[text].absolute())
        return Entry(-1, name, split, tuple(filter(None, map(str.strip, text_lines(text)))))

    return source.entries(((str(text), text) for text in used), parse)


# ---- WebDataset --------------------------------------------------------------------------------

_CAPTIONS = ("txt", "caption", "json")
_KINDS = {kind: kind for kind in _CAPTIONS} | {ending[1:]: "picture" for ending in ENDINGS}
_LOOKED_FOR = (
    "A key has one picture, which ends in .jpg, .png, .webp and so on, and captions, which end in "
    ".txt, .caption or .json"
)
_MAIN = ("image", "img", "input", "photo", "picture", "rgb")  # in names such as `1.image.jpg`
_LISTED = 5  # endings that a message names
Sample = dict[str, tarfile.TarInfo]  # a kind of `_KINDS` -> member


def is_tar(path: pathlib.Path) -> bool:
    """True for a tar file, compressed or not."""
    return path.is_file() and tarfile.is_tarfile(path)


def webdataset(source: Source) -> list[Entry]:
    """Reads the layout `webdataset`: tar files, in which files with the same key belong together.

    The key is the name of a file up to the first dot: `1.jpg` and `1.json` have the key `1`. The
    captions of a picture are in the JSON under `captions`, `caption` or another name of
    `names.CAPTION_COLUMNS`, or in a `.txt` or `.caption` file, one per line. The split is in the
    JSON under `split`, or else in the name of the tar file. Nothing is unpacked: pictures are read
    from the tar file when they are needed. Other files are left out, and a message counts them.
    Images are numbered from 0.

    Args:
      source: what to read; `captions` are tar files or directories of them.

    Returns:
      An entry per picture; a picture that is in several splits has an entry in each.
    """
    left: collections.Counter[str] = collections.Counter()  # ending -> members left out

    def rows() -> Rows:
        samples = 0
        for path, split in files_of(source.captions, "*.tar"):
            with open(path, "rb") as file:
                for sample, endings in _samples(path, left):
                    samples += 1
                    name = next(iter(sample.values())).name
                    yield f"{path}: {name!r}", file, path, sample, endings, split
        kinds = [f"{count} {ending or 'without ending'}" for ending, count in left.most_common()]
        if len(kinds) > _LISTED:
            kinds[_LISTED:] = [f"{len(kinds) - _LISTED} other endings"]
        if not samples:
            raise ValueError(
                f"{source.captions[0]} has no pictures with captions; its members are: "
                f"{', '.join(kinds) or 'none'}. {_LOOKED_FOR}."
            )
        if left:
            members = f"{left.total()} member{'s' * (left.total() > 1)}"
            _log.info(f"note: {members} left out ({', '.join(kinds)}). {_LOOKED_FOR}")

    def parse(
        file: BinaryIO, path: pathlib.Path, sample: Sample, endings: str, split: str | None
    ) -> Entry:
        picture = sample.get("picture")
        if picture is None:
            raise ValueError(
                f"the key has captions, but not exactly one picture; its files end in {endings}"
            )
        values = json_row(_text(file, sample["json"])) if "json" in sample else {}
        captions = captions_of(values, columns_of(tuple(values)).captions)
        if not captions and (text := sample.get("txt") or sample.get("caption")):
            captions = tuple(filter(str.strip, _text(file, text).split("\n")))
        split = split_in(values) or split
        captions, rejected = unmarked(values, captions)
        content = FilePart(path.absolute(), picture.offset_data, picture.size)
        return Entry(-1, picture.name, split, captions, content=content, rejected=rejected)

    entries = source.entries(rows(), parse, join=False)
    # There may be a sample for each caption.
    return joined(entries, picture_of(entries), source.drawn)


def tar_members(path: str | os.PathLike) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yields the open tar file, and each of the files in it, in their order.

    Raises:
      ValueError: the tar file is compressed, or damaged.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            for info in tar:
                tar.members = []  # type: ignore[attr-defined]  # it keeps all of them otherwise
                if info.isreg():
                    yield tar, info
        with open(path, "rb") as file:  # tarfile takes a cut header for the end of the file
            file.seek(tar.offset)
            if file.read(512).strip(b"\0"):
                raise tarfile.ReadError("unexpected end of data")
    except tarfile.TarError as error:
        raise incomplete(path, error) from None


def incomplete(path: str | os.PathLike, error: tarfile.TarError) -> ValueError:
    """Returns the error to raise for a tar file that could not be read to its end."""
    return ValueError(
        f"{path} is not a complete, uncompressed tar file: {error}. Decompress it, or copy it "
        "again."
    )


def _samples(path: pathlib.Path, left: collections.Counter[str]) -> Iterator[tuple[Sample, str]]:
    """Yields the samples of a tar file, each with all endings of its key.

    Counts the endings of the members that are in no sample in `left`.
    """
    keys: dict[str, list[_Member]] = collections.defaultdict(list)
    for _, info in tar_members(path):
        member = _member(info)
        if not member.key.endswith("/"):  # hidden files, such as `._1.jpg`
            keys[member.key].append(member)
    for key, members in keys.items():
        samples = _samples_of(key, members)
        used = {id(info) for sample in samples for info in sample.values()}
        left.update(member.ending for member in members if id(member.info) not in used)
        endings = ", ".join(member.ending for member in members)
        yield from ((sample, endings) for sample in samples)


class _Member(NamedTuple):
    """A member of a tar file, `x/1.v2.jpg`.

    Attributes:
      key: the name up to the first dot, `x/1`.
      name: the name up to the ending that tells the kind, `x/1.v2`, as `v2.jpg` tells none.
      ending: what follows the key, `.v2.jpg`.
      kind: a kind of `_KINDS`, or "".
    """

    key: str
    name: str
    ending: str
    kind: str
    info: tarfile.TarInfo


def _member(info: tarfile.TarInfo) -> _Member:
    folder, _, base = info.name.rpartition("/")
    stem, dot, rest = base.partition(".")
    key = name = f"{folder}/{stem}"
    kind = _KINDS.get(rest.lower(), "")
    middle, _, last = rest.rpartition(".")
    if not kind and (kind := _KINDS.get(last.lower(), "")):
        name = f"{key}.{middle}"
    return _Member(key, name, dot + rest, kind, info)


def _samples_of(key: str, members: list[_Member]) -> list[Sample]:
    """Returns the samples with the same key: mostly one.

    `1.v1.jpg`, `1.v1.txt`, `1.v2.jpg` and `1.v2.txt` are two. Of `1.input.jpg` and `1.output.txt`,
    the only picture and the only text belong together. Where a key has several pictures, those
    without a text of the same name are left out, but for `1.jpg` or else `1.image.jpg`.
    """
    named: dict[str, Sample] = collections.defaultdict(dict)
    for member in members:
        if member.kind:
            named[member.name].setdefault(member.kind, member.info)
    pictures = [name for name, sample in named.items() if "picture" in sample]
    likely = [name for name in pictures if name.rpartition(".")[2].lower() in _MAIN] or pictures
    main = likely[0] if len(likely) == 1 and key not in pictures else key
    for kind in _CAPTIONS:
        others = [s[kind] for s in named.values() if kind in s and "picture" not in s]
        if main in named and len(others) == 1:
            named[main].setdefault(kind, others[0])
    return [
        sample
        for name, sample in named.items()
        if (name == main) + ("picture" in sample) + any(kind in sample for kind in _CAPTIONS) > 1
    ]


def _text(file: BinaryIO, member: tarfile.TarInfo) -> str:
    file.seek(member.offset_data)
    return file.read(member.size).decode("utf-8-sig").replace("\r\n", "\n")


# ---- TensorFlow Datasets -----------------------------------------------------------------------

INFO = "dataset_info.json"
_REMEDY = "Prepare it again with TensorFlow Datasets."


def is_tfds(path: pathlib.Path) -> bool:
    """True for `dataset_info.json` of TensorFlow Datasets.

    Hugging Face has a file of the same name, but without a list of splits.
    """
    if path.name != INFO:
        return False
    with contextlib.suppress(ValueError):
        info = read_json(path, _REMEDY)
        return isinstance(info, dict) and isinstance(info.get("splits"), list)
    return False


def tfds(source: Source) -> list[Entry]:
    """Reads the layout `tfds`: TFRecord files of `coco_captions` from TensorFlow Datasets.

    The split `restval` joins `train`. Ids are those of COCO. Pictures are read from the TFRecord
    files when they are needed.

    Args:
      source: what to read; `captions` is a directory such as `tensorflow_datasets/coco_captions`,
        or that of a version, `2014/1.1.0`.
    """
    root = source.one_file()
    infos = files_of([root], INFO)
    if len(infos) != 1:
        raise ValueError(
            f"{root} has {len(infos)} files {INFO}, but must have one. Give the directory of one "
            "version, such as 2014/1.1.0."
        )
    folder = infos[0][0].parent

    def rows() -> Rows:
        info = read_json(infos[0][0], _REMEDY)
        for split in info["splits"]:
            name = f"{info['name']}-{split['name']}.{info.get('fileFormat', 'tfrecord')}"
            lengths = split["shardLengths"]
            for number, length in enumerate(lengths):
                path = folder / f"{name}-{number:05d}-of-{len(lengths):05d}"
                records = progress.progress(
                    _records(path), int(length), f"reading {path}", "record"
                )
                for position, record in enumerate(records):
                    yield f"{path}: record {position}", path, split["name"], *record

    try:
        return source.entries(rows(), _tfds_entry, join=False)
    except (KeyError, TypeError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else "is damaged"
        raise ValueError(f"{infos[0][0]} {what}. {_REMEDY}") from None


def _records(path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
    """Yields the position and the content of each record. Raises ValueError for a damaged file."""
    import tensorflow as tf

    from tfcap.data.prepared import without_tuning
    from tfcap.data.record import FRAMING

    position = 12  # a length and a checksum stand before a record
    try:
        for record in without_tuning(tf.data.TFRecordDataset(str(path))).as_numpy_iterator():
            yield position, record
            position += len(record) + FRAMING
    except tf.errors.OpError as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} cannot be read: {reason}. {_REMEDY}") from None


def _tfds_entry(path: pathlib.Path, split: str, start: int, record: bytes) -> Entry:
    """Returns the entry of a record whose content begins at the position `start` of its file."""
    import tensorflow as tf

    features: Any = tf.train.Example.FromString(record).features.feature
    names = features["image/filename"].bytes_list.value
    numbers = features["image/id"].int64_list.value
    pictures = features["image"].bytes_list.value
    if not (names and numbers and pictures):
        raise ValueError("the record must have the features image, image/filename and image/id")
    captions = features["captions/text"].bytes_list.value
    # The message holds the picture as it is, so that it can be read from the file later.
    offset = start + record.find(pictures[0])
    return Entry(
        numbers[0],
        names[0].decode("utf-8", "replace"),
        split_name(split),
        tuple(text.decode("utf-8", "surrogateescape") for text in captions),
        content=FilePart(path.absolute(), offset, len(pictures[0])),
        has_id=True,
    )
