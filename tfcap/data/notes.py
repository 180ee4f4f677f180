"""Notes on prepared data: what training does not read of it, and words that scores cannot match."""

import itertools
from collections.abc import Sequence

from tfcap.data.prepared import PreparedData
from tfcap.ids import UNK

_SOME = 1000  # references that show whether they consist of the words of the vocabulary


def cut_note(lengths: Sequence[int], max_length: int) -> str:
    """Returns a warning if training cuts more than 1 % of the captions, otherwise "".

    The warning names a length that keeps at least 99 % of the captions whole. A caption of T or
    more words is cut, because the end mark counts as a word, too.

    Args:
      lengths: the number of captions with 0, 1, 2, ... words.
      max_length: largest number of words of a caption in training, the end mark included, T.
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


def unread_notes(data: PreparedData, split: str, max_length: int, max_regions: int) -> list[str]:
    """Returns a sentence for each part of the data that training does not read.

    Such parts are the ends of long captions, and regions beyond the largest number.

    Args:
      data: the prepared data.
      split: name of the split for training.
      max_length: largest number of words of a caption in training, the end mark included, T.
      max_regions: largest number of regions of an image that training reads; 0 means all
        regions.
    """
    notes = [cut_note(data.split(split).get("lengths", []), max_length)]
    if 0 < max_regions < data.max_regions:
        notes.append(
            f"images have up to {data.max_regions} regions, of which "
            f"task.train_data.max_regions={max_regions} keeps the first {max_regions} and drops up "
            f"to {data.max_regions - max_regions}. 0 keeps all."
        )
    return [note for note in notes if note]


def unknown_words_note(data: PreparedData, split: str) -> str:
    """Returns a warning if at least 90 % of the words of the references are unknown, otherwise "".

    A word is unknown if it is not in the vocabulary. Only the first 1,000 references are read. With
    so many unknown words all scores are near 0, whatever the model learns, because the captions of
    the model consist of words of the vocabulary.

    Args:
      data: the prepared data.
      split: name of the split with the references.
    """
    texts = itertools.chain.from_iterable(data.references(split).values())
    words = itertools.chain.from_iterable(data.vocab.split(list(itertools.islice(texts, _SOME))))
    ids = data.vocab.ids(words)
    if not ids or ids.count(UNK) < 0.9 * len(ids):
        return ""
    return (
        f"{100 * ids.count(UNK) / len(ids):.0f} % of the words of the references of {split} are "
        "not in vocab.txt, so the scores are near 0 whatever the model learns. References and "
        "tokens must have the same words: for a language without spaces give `tokens` of "
        "tfcap.prepare, and prepare the data again."
    )
