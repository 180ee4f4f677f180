"""Reads the captions that a model learns from, and says what training would lose of them.

They differ from the references if the data was prepared with --tokens=given. The records then have
the words of the caption file. The references, which are scored, have the raw captions if these
consist of the same words.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import tokenize_all
from tfcap.ids import UNK

_BATCH = 256
_SOME = 1000  # references that show whether they consist of the words of the vocabulary


def cut_note(lengths: Sequence[int], max_length: int) -> str:
    """Says that `max_length` cuts more than 1 % of the captions, and what keeps them whole; or ''.

    Args:
      lengths: the number of captions with 0, 1, 2, ... words.
      max_length: T; a caption of T or more words has no place for its end mark.
    """
    total, cut = sum(lengths), sum(lengths[max_length:])
    if cut <= total / 100:
        return ""
    whole = next(n for n in range(max_length, len(lengths) + 1) if sum(lengths[n:]) <= total / 100)
    return (
        f"{cut} of {total} training captions have {max_length} words or more, so "
        f"task.max_length={max_length} cuts them, and they lose their end mark, from which the "
        f"model learns to end. task.max_length={whole} keeps 99 % of the captions whole."
    )


def losses(data: PreparedData, split: str, max_length: int, max_regions: int) -> list[str]:
    """Returns a sentence for each part of a split that training does not read.

    Args:
      data: the prepared directory; one of an older version does not tell how long its captions are.
      split: the split of the training.
      max_length: `task.max_length`.
      max_regions: `task.train_data.max_regions`; 0 reads all.
    """
    notes = [cut_note(data.split(split).get("lengths", []), max_length)]
    if 0 < max_regions < data.max_regions:
        notes.append(
            f"images have up to {data.max_regions} regions, of which "
            f"task.train_data.max_regions={max_regions} keeps the first {max_regions} and drops up "
            f"to {data.max_regions - max_regions}. 0 keeps all."
        )
    return [note for note in notes if note]


def unlike_references(data: PreparedData, split: str) -> str:
    """Says that the references of a split have hardly a word of the vocabulary; else ''.

    Captions of the model cannot reach them: the scores are near 0 whatever it learns.
    """
    texts = itertools.chain.from_iterable(data.references(split).values())
    words = itertools.chain.from_iterable(tokenize_all(list(itertools.islice(texts, _SOME))))
    ids = data.vocab.ids(words)
    if not ids or ids.count(UNK) < 0.9 * len(ids):
        return ""
    return (
        f"{100 * ids.count(UNK) / len(ids):.0f} % of the words of the references of {split} are "
        "not in vocab.txt, so the scores are near 0 whatever the model learns. References and "
        "tokens must have the same words: put spaces between the words of the captions, and "
        "prepare the data again."
    )


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
