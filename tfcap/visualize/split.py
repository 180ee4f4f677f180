"""Computes what a captioner looks at for the captions of a whole split."""

from collections.abc import Mapping

from tfcap import console
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import Vocab
from tfcap.models.captioner import Captioner
from tfcap.visualize.attention import Attended, attended, has_boxes


def attended_split(
    model: Captioner,
    vocab: Vocab,
    data: PreparedData,
    split: str,
    captions: Mapping[int, str],
    batch_size: int,
    max_regions: int | None = None,
) -> dict[int, Attended]:
    """Computes the attention of every word of one caption per image.

    Args:
      model: the captioner, weights restored.
      vocab: its words.
      data: the prepared directory that holds the images.
      split: its split.
      captions: the caption of each image by image id.
      batch_size: images computed together.
      max_regions: regions of an image beyond this number are ignored; None keeps all.

    Returns:
      The attention by image id, in the order of `captions`; empty if the regions have no boxes.
    """
    images = list(captions)
    result: dict[int, Attended] = {}
    starts = range(0, len(images), batch_size)
    for start in console.progress(starts, len(starts), "attention, batches"):
        part = images[start : start + batch_size]
        batch = data.read(split, part, max_regions)
        if not has_boxes(batch["boxes"]):
            return {}
        texts = [captions[image] for image in part]
        rows = attended(model, vocab, batch, batch["boxes"], texts)
        result |= dict(zip(part, rows, strict=True))
    return result
