"""Reads JSON whose lists refer to each other or to files: Karpathy's splits, COCO and MSR-VTT."""

import collections
import logging
import os
import pathlib
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tfcap.files import read_json
from tfcap.marks import mark_of
from tfcap.preparing.sources.entry import SPLITS, Entry, Source, head
from tfcap.preparing.sources.names import id_fields, split_in, texts, unmarked
from tfcap.preparing.sources.rows import clip_file
from tfcap.preparing.sources.splits import split_name, split_of

_WORDS = "tokenized_caption"  # key of STAIR Captions
_PROBES = 20  # pictures that are looked for in each folder
_log = logging.getLogger(__name__)


def begins(*keys: str) -> Callable[[pathlib.Path], bool]:
    """Makes a `Layout.recognises`: whether a file begins like a JSON object with some keys."""

    def recognises(path: pathlib.Path) -> bool:
        content = head(path).removeprefix(b"\xef\xbb\xbf")
        start = re.sub(rb"\s", b"", content[:99]).startswith(b'{"')
        return start and all(f'"{key}"'.encode() in content for key in keys)

    return recognises


def _items(path: pathlib.Path, key: str, items: object) -> Iterator[tuple[str, Any]]:
    """Yields (location, item) of a list in a JSON file; raises ValueError if it is not a list."""
    if not isinstance(items, list):
        raise ValueError(
            f"{path} has no list {key!r}. Correct it, or name its layout with `source`."
        )
    for number, item in enumerate(items):
        yield f"{path}: {key} {number}", item


def _object(path: pathlib.Path) -> dict[str, Any]:
    content = read_json(path, "Correct it, or name another file with `captions`.")
    return content if isinstance(content, dict) else {}


def _id_fields(key: str, value: object) -> dict[str, Any]:
    """Returns `names.id_fields`; ids that are whole numbers must be those of one image each."""
    fields = id_fields(key, value)
    return {**fields, "id_column": ""} if fields["id"] >= 0 else fields


def _note_others(path: pathlib.Path, others: Mapping[Any, object]) -> None:
    """Says that captions are left out because the file does not list their images, `others`."""
    if others:
        first = next(iter(others))
        _log.info(f"note: {path}: captions of {len(others)} others, such as {first}, are left out")


# ---- Karpathy ----------------------------------------------------------------------------------


def karpathy(source: Source) -> list[Entry]:
    """Reads the layout `karpathy`: Karpathy's splits, such as `dataset_coco.json`.

    The file is `{"images": [{"filename", "split", "sentences": [{"raw"}]}]}`. An image may also
    have `filepath`, and `cocoid` or `imgid`; a sentence may also have `tokens` and `sentid`. An
    image may be without sentences. The split `restval` joins `train`, as in every paper on COCO.
    The id is `cocoid`, else `imgid`, else the position in the file.

    Args:
      source: what to read; `captions` is the file.
    """
    path = source.one_file()

    def parse(image: dict[str, Any]) -> Entry:
        key = "cocoid" if "cocoid" in image else "imgid"
        written = map(_sentence, image.get("sentences", []))
        marks = [(mark_of(sentence), sentence) for sentence in written]
        sentences = [sentence for mark, sentence in marks if not mark]
        numbers = tuple(sentence.get("sentid") for sentence in sentences)
        return Entry(
            file_name=posixpath.join(image.get("filepath", ""), image["filename"]),
            split=split_name(image["split"]),
            captions=tuple(sentence["raw"] for sentence in sentences),
            words=tuple(tuple(s["tokens"]) for s in sentences) if source.reads_words else (),
            caption_ids=numbers if all(isinstance(one, int) for one in numbers) else (),
            rejected=tuple(mark for mark, _ in marks if mark),
            **_id_fields(key, image.get(key)),
        )

    return source.entries(_items(path, "images", _object(path).get("images")), parse, join=False)


def _sentence(item: Any) -> Any:
    """Returns a sentence of Karpathy's layout; some files have a text in place of the object."""
    if isinstance(item, str):
        return {"raw": item}
    if "raw" not in item:
        raise ValueError(f"a sentence has no key 'raw'; its keys are: {', '.join(item)[:200]}")
    return item


# ---- COCO -------------------------------------------------------------------------------------


def is_coco(path: pathlib.Path) -> bool:
    """True for a file that begins like an object with the images or the annotations of COCO."""
    others = begins("videos")(path) or begins("filename")(path)
    annotations = begins("annotations", "image_id", "caption")(path)
    return not others and (annotations or begins("images", "file_name", "id")(path))


def coco(source: Source) -> list[Entry]:
    """Reads the layout `coco`: official caption files such as `captions_train2014.json`.

    A file is `{"images": [{"id", "file_name"}], "annotations": [{"id", "image_id", "caption"}]}`.
    The split is the value of the key `split` or `subset` of the image or annotation, else the split
    in the name of the file. If there is only a train file, the images have no split, and prepare
    draws the splits. A file `image_info_test2014.json` has no captions; its images get the split
    test2014. The pictures may be in the directory `source.images`, or in the subdirectory that
    COCO's download has, such as `train2014/`.

    Args:
      source: what to read; `captions` are the files.
    """
    infos = [re.fullmatch(r"image_info_(\w[\w-]*)", path.stem) for path in source.captions]
    splits = [
        info[1] if info else split_of(path.stem)
        for info, path in zip(infos, source.captions, strict=True)
    ]
    only_train = [split for split in splits if split is None or split in SPLITS] == ["train"]
    entries: list[Entry] = []
    for path, split in zip(source.captions, splits, strict=True):
        drawn = only_train and split == "train"
        entries += _coco_file(source, path, None if drawn else split)
    if all(entry.has_id for entry in entries):
        return entries
    return [e.without_id()._replace(id=number) for number, e in enumerate(entries)]


class _Annotations(NamedTuple):
    """What the annotations of COCO say of an image."""

    captions: list[tuple[str, Any, tuple[str, ...]]]  # their ids and, with `tokens=given`, words
    rejected: list[str]  # the marks of captions that are left out
    splits: set[str]


def _coco_file(source: Source, path: pathlib.Path, split: str | None) -> list[Entry]:
    content = _object(path)
    by_image: dict[Any, _Annotations] = collections.defaultdict(lambda: _Annotations([], [], set()))

    def annotation(item: dict[str, Any]) -> tuple[Any, ...]:
        captions, rejected = unmarked(item, tuple(texts(item["caption"])))
        words = tuple(item[_WORDS].split()) if source.reads_words and _WORDS in item else ()
        numbered = [(text, item.get("id"), words) for text in captions]
        return item["image_id"], numbered, rejected, split_in(item)

    items = _items(path, "annotations", content.get("annotations", []))
    for _, (number, captions, rejected, stated) in source.usable(items, annotation):
        annotations = by_image[number]
        annotations.captions.extend(captions)
        annotations.rejected.extend(rejected)
        if stated:
            annotations.splits.add(stated)

    def parse(image: dict[str, Any]) -> Entry:
        annotations = by_image.pop(image["id"], _Annotations([], [], set()))
        captions = annotations.captions
        numbers = tuple(number for _, number, _ in captions if isinstance(number, int))
        splits = annotations.splits
        if stated := split_in(image):
            splits.add(stated)
        if len(splits) > 1:
            raise ValueError(
                f"{image['file_name']} is in several splits: {', '.join(sorted(splits))}"
            )
        return Entry(
            file_name=image["file_name"],
            split=splits.pop() if splits else split,
            captions=tuple(text for text, _, _ in captions),
            words=tuple(words for _, _, words in captions if words),
            caption_ids=numbers if len(numbers) == len(captions) else (),
            rejected=tuple(annotations.rejected),
            domain=str(image.get("domain") or ""),
            **_id_fields("id", image["id"]),
        )

    images = _items(path, "images", content.get("images"))
    entries = source.entries(images, parse, join=False)
    if not source.reads_words and repr(_WORDS) in repr(content.get("annotations", [])[:1]):
        _log.info(f"note: {path} has words of captions in {_WORDS}; `tokens=given` takes them")
    _note_others(path, by_image)
    folder = _folder(source.images, path.stem, [entry.file_name for entry in entries[:_PROBES]])
    return [entry._replace(file_name=folder + entry.file_name) for entry in entries]


def _folder(images: pathlib.Path | None, stem: str, names: Sequence[str]) -> str:
    """Returns the folder below `images` that has the pictures, such as `train2014/`, or ""."""
    match = re.search(r"[a-z]+(-dev)?(\d{4})$", stem)  # captions_train2014
    if images is None or match is None:
        return ""
    # The pictures of test-dev2015 are in test2015.
    folder = f"test{match[2]}/" if match[1] else f"{match[0]}/"
    if any(os.path.exists(images / name) for name in names):
        return ""
    return folder if any(os.path.exists(images / folder / name) for name in names) else ""


# ---- MSR-VTT -----------------------------------------------------------------------------------


def msrvtt(source: Source) -> list[Entry]:
    """Reads the layout `msrvtt`: the annotations of MSR-VTT (Xu et al., CVPR 2016).

    A file is `{"videos": [{"video_id": "video0", "split"}], "sentences": [{"caption",
    "video_id"}]}`, with the splits train, validate and test. Train and test were released as two
    files: give both. The id of `video12` is 12. Its clip, in `source.images`, is a film such as
    `video12.mp4`, the GIF file `video12.gif`, or the directory of frames `video12`.

    Args:
      source: what to read; `captions` are the files.
    """
    contents = [(path, _object(path)) for path in source.captions]

    def items(key: str) -> Iterator[tuple[str, Any]]:
        for path, content in contents:
            yield from _items(path, key, content.get(key, []))

    by_name: dict[str, list[str]] = collections.defaultdict(list)
    pairs = source.usable(items("sentences"), lambda item: (item["video_id"], item["caption"]))
    for _, (name, caption) in pairs:
        by_name[name].append(caption)

    def parse(video: dict[str, Any]) -> Entry:
        name = video["video_id"]
        file = clip_file(source.images, name)
        return Entry(-1, file, split_name(video["split"]), tuple(by_name.pop(name, ())))

    entries = source.entries(items("videos"), parse)
    _note_others(source.captions[0], by_name)
    matches = [re.fullmatch(r"\D*(\d{1,18})(\.\w+)?", entry.file_name) for entry in entries]
    numbers = [int(match[1]) for match in matches if match]
    if len(set(numbers)) < len(entries):
        return entries
    return [e._replace(id=n, has_id=True) for e, n in zip(entries, numbers, strict=True)]
