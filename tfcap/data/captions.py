"""Reads the captions that a model learns from: those of the records of a split.

They differ from the references if the data was prepared with --tokens=given. The records then have
the words of the caption file, and the references have the raw captions, which are scored.
"""

import numpy as np
import tensorflow as tf

from tfcap.data.prepared import PreparedData

_BATCH = 256


def stored_captions(data: PreparedData, split: str) -> dict[int, list[str]]:
    """Returns the captions of the records by image id, in the order of the references.

    Give these to the tokenizer wherever a model scores or reads the words of captions.

    Args:
      data: the prepared directory.
      split: its split.

    Raises:
      ValueError: the split does not exist, or a record is damaged.
    """
    if data.fingerprint.get("tokens") != "given":
        return data.references(split)
    positions = np.arange(len(data.index(split).id))
    records = data.examples(split, tf.data.Dataset.from_tensor_slices(positions))
    spec = {
        "image/id": tf.io.FixedLenFeature([], tf.int64),
        "captions": tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64),
    }
    captions: dict[int, list[str]] = {}
    with data.readable_errors():
        for serialized in records.batch(_BATCH):
            example = tf.io.parse_example(serialized, spec)
            texts = example["captions"].to_list()
            for image, own in zip(example["image/id"].numpy().tolist(), texts, strict=True):
                captions[image] = [text.decode("utf-8", "replace") for text in own]
    return captions
