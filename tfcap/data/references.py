"""Reads and writes references_<split>.json: the captions of a split as COCO annotations."""

import os
from collections.abc import Iterable, Sequence

from tfcap import storage
from tfcap.files import file_sha256, read_json, write_json

_MOST_BYTES = 1 << 34  # a hundred million captions; prepare itself has written the file


def references_path(folder: str | os.PathLike, split: str) -> str:
    """Returns the path of the references of a split."""
    return os.path.join(folder, f"references_{split}.json")


def write_references(
    folder: str | os.PathLike, split: str, items: Iterable[tuple[int, str, Sequence[str]]]
) -> int:
    """Writes references_<split>.json with raw captions.

    Args:
      folder: the prepared directory.
      split: name of the split.
      items: (image id, file name, captions) per image; captions may be empty.

    Returns:
      The number of captions.
    """
    images: list[dict] = []
    annotations: list[dict] = []
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
    folder: str | os.PathLike, split: str, digest: str | None = None
) -> tuple[dict[int, str], dict[int, list[str]]]:
    """Reads references_<split>.json: file name per image id, captions per image id.

    Args:
      folder: the prepared directory.
      split: name of the split.
      digest: the SHA-256 that the file must have; None if it is not known.

    Raises:
      ValueError: the file is missing, damaged or changed.
    """
    path = references_path(folder, split)
    if digest is not None and storage.exists(path) and file_sha256(path) != digest:
        raise ValueError(
            f"{path} must be the file that prepare wrote. Received: other content. Run prepare "
            "again. To change captions, change the input of prepare."
        )
    value = read_json(path, "Run prepare again.", _MOST_BYTES)
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
