"""Reads caption files in the layout of Karpathy's splits."""

import pathlib
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from tfcap.files import read_json
from tfcap.preparing.sources.entry import (
    Given,
    ImageEntry,
    caption,
    file_name,
    head,
    image_number,
    reader,
    require_unique,
    split_name,
)


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a file begins like an object with images that have `filename` and `split`."""
    content = head(path)
    start = re.match(rb'(\xef\xbb\xbf)?\s*{\s*"', content)
    keys = (b'"images"', b'"filename"', b'"split"')
    return bool(start) and all(key in content for key in keys)


@reader("karpathy", recognises)
def karpathy(given: Given) -> list[ImageEntry]:
    """Reads a caption file in the layout of Karpathy's splits (`dataset_coco.json` and the like).

    `{"images": [{"filepath" (optional), "filename", "cocoid" or "imgid" (optional), "split",
    "sentences": [{"raw", "tokens" (optional), "sentid" (optional)}] (optional)}]}`. The split
    `restval` joins `train`, as in every paper on COCO. Ids are `cocoid`, else `imgid`, else the
    position in the file.

    Args:
      given: the path of the JSON file, and whether its tokens are needed.

    Returns:
      The images in the order of the file.

    Raises:
      ValueError: not such a file, an unknown split, a repeated id, tokens that are missing, or a
        file name outside the directory of images.
    """
    path = given.one_file()
    entries: list[ImageEntry] = []
    for position, image in enumerate(_load(path)):
        try:
            entries.append(_entry(image, position, given))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path}: image {position} of the list: {reason}") from None
    require_unique(entries, path)
    return entries


def _load(path: pathlib.Path) -> list[Any]:
    content = read_json(path, "Give a caption file in Karpathy's layout with --captions.")
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not images:
        raise ValueError(
            f"{path} must be in Karpathy's layout, an object with a list 'images' of at least one."
            f" Received: {type(content).__name__} with"
            f" {sorted(content)[:5] if isinstance(content, dict) else 'no keys'}."
        )
    return images


def _entry(image: Mapping[str, Any], position: int, given: Given) -> ImageEntry:
    if not isinstance(image, dict):
        raise ValueError(f"an image must be an object. Received: {image!r:.80}")
    split = split_name(image["split"])
    own = image.get("cocoid", image.get("imgid"))
    number = image_number(position if own is None else own)
    sentences = image.get("sentences", [])
    if not isinstance(sentences, list):
        raise ValueError(f"the sentences must be a list. Received: {sentences!r:.80}")
    for sentence in sentences:
        if not isinstance(sentence, dict):
            raise ValueError(
                f"a sentence must be an object with 'raw'. Received: {sentence!r:.80}. Write "
                '{"raw": "the caption"}'
            )
    captions = tuple(caption(sentence["raw"], "raw") for sentence in sentences)
    words = (
        tuple(_tokens(sentence["tokens"]) for sentence in sentences) if given.given_tokens else None
    )
    caption_ids = tuple(sentence.get("sentid") for sentence in sentences)
    if not all(isinstance(one, int) for one in caption_ids):
        caption_ids = ()
    return ImageEntry(
        number,
        _file_name(image, given.images),
        split,
        captions,
        words,
        caption_ids=caption_ids,
        own_id=own is not None,
    )


def _tokens(tokens: Any) -> tuple[str, ...]:
    if not isinstance(tokens, list):
        raise ValueError(f"the tokens must be a list of words. Received: {tokens!r:.80}")
    return tuple(caption(token, "tokens") for token in tokens)


def _file_name(image: Mapping[str, Any], images: pathlib.Path | None) -> str:
    """Returns folder and name joined; refuses names of files outside the image directory."""
    folder, name = image.get("filepath", ""), image["filename"]
    if not isinstance(folder, str) or not isinstance(name, str) or not name:
        raise ValueError(f"the file name must be text. Received: {folder!r:.80}, {name!r:.80}")
    return file_name(posixpath.join(folder, name), images)
