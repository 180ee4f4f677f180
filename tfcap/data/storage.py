"""The small files of a prepared directory: fingerprint, references, document frequencies, index.

Every writer builds a temporary file in the same directory and renames it when it is whole; every
reader distrusts what it reads: sizes are checked before memory is taken, nothing is unpickled.
"""

import collections
import contextlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfcap.data import tokens

FINGERPRINT = "dataset.json"
VOCABULARY = "vocab.txt"
DOCUMENT_FREQUENCY = "document_frequency.npz"
FORMAT = 1
MAX_NGRAM = 4
_MAX_ARRAY_BYTES = 4 << 30  # larger than any feature file or table known to us


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[str]:
    """Gives a temporary name beside ``path``; renames it at the end, deletes it on an error."""
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".tmp-{os.getpid()}-{name}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:  # on disk before it has its name
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes readable UTF-8 JSON in one step; NaN is an error, not an invalid file."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1, allow_nan=False)
        file.write("\n")


def read_json(path: str | os.PathLike) -> Any:
    """Reads JSON. Raises ValueError with one line if it is missing or damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror}. Run prepare again.") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}). Run prepare again.") from None


def load_npz(
    path: str | os.PathLike, names: Sequence[str] | None = None, remedy: str = "Run prepare again."
) -> dict[str, np.ndarray]:
    """Reads arrays of an npz from anybody: no pickle, and no size believed before it is checked.

    Args:
      path: the file.
      names: arrays that must be there; None reads all.
      remedy: last sentence of the error messages.

    Raises:
      ValueError: missing, damaged, pickled or implausibly large content.
    """
    try:
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as arrays:
            result = {}
            for name in arrays.files if names is None else names:
                _check_member(archive, f"{name}.npy")
                result[name] = arrays[name]
            return result
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {remedy}") from None
    except Exception as error:  # zip, zlib, header and pickle errors have no common base
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a usable npz file: {reason}. {remedy}") from None


def _check_member(archive: zipfile.ZipFile, name: str) -> None:
    """Compares the size that an array's header promises with the size of its zip member."""
    if name not in archive.namelist():
        raise ValueError(f"array {name[:-4]!r} is missing")
    size = archive.getinfo(name).file_size
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise ValueError(f"array {name[:-4]!r} has unknown format {version}")
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"array {name[:-4]!r} holds pickled objects, which are refused")
        promised = dtype.itemsize
        for side in shape:
            promised *= int(side)
        if promised != size - file.tell() or promised > _MAX_ARRAY_BYTES:
            raise ValueError(f"array {name[:-4]!r} promises {promised} bytes in {size}")


def write_npz(path: str | os.PathLike, **arrays: np.ndarray) -> None:
    """Writes arrays as npz in one step."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def write_fingerprint(folder: str | os.PathLike, fingerprint: Mapping[str, Any]) -> None:
    """Writes dataset.json, the last file of a preparation: its presence says all is there."""
    write_json(os.path.join(folder, FINGERPRINT), {"format": FORMAT, **fingerprint})


def read_fingerprint(folder: str | os.PathLike) -> dict[str, Any]:
    """Reads and checks dataset.json.

    Raises:
      ValueError: no prepared directory, another format, or an entry missing or of a wrong type.
    """
    path = os.path.join(folder, FINGERPRINT)
    if not os.path.exists(path):
        raise ValueError(
            f"{folder} holds no {FINGERPRINT}: not a prepared directory, or prepare was "
            "interrupted. Run prepare, it continues where it stopped."
        )
    value = read_json(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        received = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise ValueError(
            f"{path} must have format {FORMAT}. Received: {received!r}. "
            "Run this version's prepare into a new directory."
        )
    if value.get("tokenizer") != tokens.TOKENIZER:
        raise ValueError(
            f"{path} was made with tokenizer {value.get('tokenizer')!r}, this version has "
            f"{tokens.TOKENIZER!r}. Run prepare again."
        )
    try:
        _check_types(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: entry missing or wrong: {error}. Run prepare again.") from None
    return value


def _check_types(value: dict[str, Any]) -> None:
    """Raises KeyError or TypeError unless all entries that readers rely on are well formed."""

    def whole(where: Mapping[str, Any], key: str, least: int) -> None:
        number = where[key]
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise TypeError(f"{key} must be an integer of at least {least}, not {number!r}")

    whole(value, "vocab_size", len(tokens.SPECIALS))
    if not isinstance(value["vocab_sha256"], str):
        raise TypeError("vocab_sha256 must be a string")
    whole(value["features"], "dim", 1)
    whole(value["features"], "max_regions", 1)
    for split in value["splits"].values():
        whole(split, "images", 0)
        whole(split, "captions", 0)
        for shard in split["shards"]:
            whole(shard, "records", 1)
            whole(shard, "bytes", 1)
            name = shard["file"]
            if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".."):
                raise TypeError(f"file must be a plain file name, not {name!r}")


def references_path(folder: str | os.PathLike, split: str) -> str:
    """Where the references of a split lie."""
    return os.path.join(folder, f"references_{split}.json")


def write_references(
    folder: str | os.PathLike, split: str, items: Iterable[tuple[int, str, Sequence[str]]]
) -> int:
    """Writes references_<split>.json, COCO caption annotations with raw captions.

    Args:
      folder: the prepared directory.
      split: its name.
      items: (image id, file name, captions) per image.

    Returns:
      The number of captions.
    """
    images, annotations = [], []
    for image_id, file_name, captions in items:
        images.append({"id": int(image_id), "file_name": file_name})
        for caption in captions:
            annotations.append(
                {"id": len(annotations) + 1, "image_id": int(image_id), "caption": caption}
            )
    value = {"info": {"description": f"references, split {split}"}, "licenses": []}
    write_json(
        references_path(folder, split), {**value, "images": images, "annotations": annotations}
    )
    return len(annotations)


def load_references(
    folder: str | os.PathLike, split: str
) -> tuple[dict[int, str], dict[int, list[str]]]:
    """Reads references_<split>.json: file name per image id, captions per image id."""
    path = references_path(folder, split)
    value = read_json(path)
    try:
        names = {int(image["id"]): str(image["file_name"]) for image in value["images"]}
        captions: dict[int, list[str]] = {image_id: [] for image_id in names}
        for annotation in value["annotations"]:
            captions[int(annotation["image_id"])].append(str(annotation["caption"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a COCO caption file: {type(error).__name__} {error}. Run prepare again."
        ) from None
    return names, captions


class DocumentFrequencies(NamedTuple):
    """In how many training images each n-gram occurs (n = 1 … 4), M different n-grams."""

    ngrams: np.ndarray  # int32 [M, 4], token ids, 0-padded on the right, sorted
    counts: np.ndarray  # int32 [M]
    images: int  # number of images counted


def document_frequencies(images: Iterable[Iterable[Sequence[int]]]) -> DocumentFrequencies:
    """Counts n-grams over images, for the idf of CIDEr-D (systems that train with SCST).

    The end mark is a word here, as in the released JDAI and ExpansionNet rewards: EOS is appended
    to each caption. An image counts an n-gram once, however many of its captions hold it.

    Args:
      images: per image, per caption the word ids (no BOS, EOS or PAD).

    Raises:
      ValueError: no image, or an id that is a mark and not a word.
    """
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    number = 0
    for captions in images:
        number += 1
        found = set()
        for caption in captions:
            if caption and min(caption) < tokens.UNK:
                raise ValueError(f"Image {number}: word ids are >= 3. Received: {list(caption)}.")
            words = (*caption, tokens.EOS)
            for n in range(1, MAX_NGRAM + 1):
                found.update(zip(*(words[i:] for i in range(n)), strict=False))
        counts.update(found)
    if not number:
        raise ValueError("Document frequencies need at least one image. Received: none.")
    ordered = sorted(counts)
    ngrams = np.zeros([len(ordered), MAX_NGRAM], np.int32)
    for n in range(1, MAX_NGRAM + 1):
        rows = [i for i, ngram in enumerate(ordered) if len(ngram) == n]
        if rows:
            ngrams[rows, :n] = [ordered[i] for i in rows]
    return DocumentFrequencies(ngrams, np.array([counts[g] for g in ordered], np.int32), number)


def write_document_frequencies(folder: str | os.PathLike, table: DocumentFrequencies) -> None:
    """Writes document_frequency.npz."""
    write_npz(
        os.path.join(folder, DOCUMENT_FREQUENCY),
        ngrams=table.ngrams,
        counts=table.counts,
        images=np.int64(table.images),
    )


def load_document_frequencies(folder: str | os.PathLike) -> DocumentFrequencies:
    """Reads and checks document_frequency.npz."""
    path = os.path.join(folder, DOCUMENT_FREQUENCY)
    arrays = load_npz(path, ("ngrams", "counts", "images"))
    ngrams, counts, images = arrays["ngrams"], arrays["counts"], arrays["images"]
    if (
        (ngrams.dtype, counts.dtype, images.dtype) != (np.int32, np.int32, np.int64)
        or ngrams.shape != (len(ngrams), MAX_NGRAM)
        or counts.shape != (len(ngrams),)
        or images.shape != ()
        or not ((counts >= 1) & (counts <= images)).all()
    ):
        raise ValueError(
            f"{path} must hold ngrams int32 [M, 4], counts int32 [M] in 1..images, images int64. "
            f"Received: {ngrams.dtype} {ngrams.shape}, {counts.dtype} {counts.shape}, "
            f"{images.dtype} {images.shape}. Run prepare again."
        )
    return DocumentFrequencies(ngrams, counts, int(images))
