"""Reads the caption files of MSR-VTT (Xu et al., CVPR 2016)."""

import pathlib
import re
from typing import Any

from tfcap.files import read_json
from tfcap.preparing.sources.entry import (
    Given,
    ImageEntry,
    caption,
    file_name,
    head,
    names_of,
    reader,
    split_name,
)
from tfcap.preparing.sources.gif import clip_file

_REMEDY = "Give the files of MSR-VTT with --captions, or correct this one."
_NUMBER = re.compile(r"\D*(\d{1,18})")


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a file begins like an object with videos or sentences of videos."""
    content = head(path)
    begins = re.match(rb'(\xef\xbb\xbf)?\s*{\s*"', content)
    lists = b'"videos"' in content or b'"sentences"' in content
    return bool(begins) and lists and b'"video_id"' in content


@reader("msrvtt", recognises)
def msrvtt(given: Given) -> list[ImageEntry]:
    """Reads MSR-VTT. The train and test parts were released as two files: give both.

    `{"videos": [{"video_id": "video0", "split": "train", "validate" or "test"}], "sentences":
    [{"caption", "video_id"}]}`. The id of `video12` is 12. Its file is `video12.gif` or the folder
    of frames `video12` below --images, or `video12.npy` below --features.

    Args:
      given: the paths of the files, and the directory of the clips.

    Returns:
      The clips in the order of the files.

    Raises:
      ValueError: not such a file, an unknown split, a repeated id, or a sentence of no video.
    """
    videos: dict[str, str] = {}  # the split by the name of the video
    captions: dict[str, list[str]] = {}
    contents = [(path, _load(path)) for path in given.captions]
    for path, content in contents:
        for place, video in enumerate(content["videos"]):
            try:
                name = file_name(_field(video, "video_id"))
                split = split_name(_field(video, "split"))
                if name in videos:
                    raise ValueError(f"video_id must be unique. Received: {name!r} again")
            except ValueError as error:
                raise ValueError(f"{path}: video {place} of the list: {error}. {_REMEDY}") from None
            videos[name], captions[name] = split, []
    for path, content in contents:
        for place, sentence in enumerate(content["sentences"]):
            try:
                name = _field(sentence, "video_id")
                text = caption(_field(sentence, "caption"))
                if not isinstance(name, str) or name not in videos:
                    raise ValueError(f"video_id must be one of the videos. Received: {name!r:.80}")
            except ValueError as error:
                raise ValueError(
                    f"{path}: sentence {place} of the list: {error}. {_REMEDY}"
                ) from None
            captions[name].append(text)
    if not videos:
        raise ValueError(
            f"{names_of(given.captions)} must have a video. Received: none. Give the files of "
            "MSR-VTT with --captions."
        )
    numbers = _numbers(list(videos))
    return [
        ImageEntry(
            place if numbers is None else numbers[place],
            clip_file(given.images, name),
            split,
            tuple(captions[name]),
            own_id=numbers is not None,
        )
        for place, (name, split) in enumerate(videos.items())
    ]


def _load(path: pathlib.Path) -> dict[str, list[Any]]:
    content = read_json(path, _REMEDY)
    lists = ("videos", "sentences")
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key, []), list) for key in lists
    ):
        raise ValueError(
            f"{path} must be an object with the lists 'videos' and 'sentences', as MSR-VTT has "
            f"them. Received: {type(content).__name__}. {_REMEDY}"
        )
    return {key: content.get(key, []) for key in lists}


def _field(item: Any, key: str) -> Any:
    if not isinstance(item, dict) or key not in item:
        raise ValueError(f"it must be a JSON object with the key {key!r}. Received: {item!r:.80}")
    return item[key]


def _numbers(names: list[str]) -> list[int] | None:
    """Returns the number in each name; None if a name has none, or two have the same."""
    matches = [_NUMBER.fullmatch(name) for name in names]
    numbers = [int(match[1]) for match in matches if match]
    return numbers if len(set(numbers)) == len(names) else None
