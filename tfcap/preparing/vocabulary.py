"""Splits captions into words, and counts or reads the vocabulary and document frequencies."""

import collections
import itertools
import logging
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tfcap import errors, segmentation
from tfcap.data import tokens
from tfcap.data.document_frequency import (
    DOCUMENT_FREQUENCY,
    DocumentFrequencies,
    check_ids,
    count_ngrams,
    ends,
    load_document_frequencies,
)
from tfcap.data.notes import cut_note
from tfcap.data.prepared import VOCABULARY
from tfcap.data.tokens import Vocab
from tfcap.ids import UNK
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources.entry import Entry

HIGH_UNKNOWN = 5.0  # percent of <unk> above which a remedy is printed; Flickr8k has 2.5 with 5
MAX_LENGTH = 20  # task.max_length of the experiments
FEW_WORDS = 1.5  # words of a caption: fewer on average are sentences without spaces
_log = logging.getLogger(__name__)


def tokenize(entries: Sequence[Entry], way: str = segmentation.RAW) -> list[Entry]:
    """Splits the captions of images into words, and removes captions without a word.

    Args:
      entries: the images.
      way: how captions are cut into words, one of `segmentation.WAYS`. With `given` the words come
        from the caption file (`Entry.words`). Those that contain punctuation are still split,
        because training reads the words from the records as one text and splits that again.

    Returns:
      A copy of each image, in order, with `words` and the remaining captions. An image stays even
      if it has no caption left. Unless `way` is `raw`, `Entry.stored` is set to the words of each
      caption with spaces between them; the records get these texts as captions.

    Raises:
      ValueError: the words of a caption are missing from the file.
    """
    images = list(_tokenized(entries, way))
    if way != segmentation.GIVEN:
        return images
    of_file = {word for entry in entries for words in entry.words for word in words}
    if changed := sorted(of_file - {word for image in images for ws in image.words for word in ws}):
        _log.info(
            f"note: {len(changed)} tokens of the captions are no words of the tokenizer, which "
            f"splits or drops them, for example {changed[0]!r}"
        )
    return _comparable(images)


def _tokenized(entries: Sequence[Entry], way: str) -> Iterator[Entry]:
    texts = [_texts(entry) if way == segmentation.GIVEN else entry.captions for entry in entries]
    words_of_all = iter(tokens.tokenize_all(list(itertools.chain.from_iterable(texts)), way))
    for entry, texts_of_image in zip(entries, texts, strict=True):
        kept = [
            (caption, " ".join(words) if segmentation.is_cut(way) else text, words)
            for caption, text in zip(entry.captions, texts_of_image, strict=True)
            if (words := next(words_of_all))
        ]
        if dropped := len(entry.captions) - len(kept):
            text = f"captions without a word, dropped: {dropped} of {entry.file_name}"
            _log.warning(errors.escaped(text))
        yield entry._replace(
            captions=tuple(caption for caption, _, _ in kept),
            # One string per different word: a large data set has millions of words.
            words=tuple(tuple(map(sys.intern, words)) for _, _, words in kept),
            stored=None if way == segmentation.RAW else tuple(text for _, text, _ in kept),
        )


def _texts(entry: Entry) -> list[str]:
    """Returns the words of each caption in the file, with spaces between them."""
    if len(entry.words) < len(entry.captions):
        raise ValueError(
            f"`tokens=given` needs the words of each caption in the caption file, but they are "
            f"missing for image {entry.id} ({entry.file_name}). Add them, or leave out `tokens`."
        )
    return [" ".join(words) for words in entry.words]


def _comparable(images: Sequence[Entry]) -> list[Entry]:
    """Returns images whose references are split into the same words as their records.

    With `tokens=given` a model writes the words of the caption file with spaces between them.
    Scores split the raw captions at spaces: in a language without spaces, captions and references
    would have no word in common.
    """
    raw = iter(tokens.tokenize_all([caption for image in images for caption in image.captions]))
    result = []
    changed = 0
    for image in images:
        of_file = {word for words in image.words for word in words}
        same = [word in of_file for _ in image.captions for word in next(raw)]
        if 2 * sum(same) < len(same):
            image = image._replace(captions=tuple(map(" ".join, image.words)))
            changed += 1
        result.append(image)
    if changed:
        _log.info(
            f"note: {changed} of {len(images)} images have other words in their raw captions: "
            "their references are the given tokens"
        )
    return result


def lengths(images: Iterable[Entry]) -> list[int]:
    """Counts captions by their length.

    Args:
      images: images with their words, see `tokenize`.

    Returns:
      The number of captions with 0, 1, 2, ... words.
    """
    counts = collections.Counter(len(words) for image in images for words in image.words)
    return [counts[number] for number in range(max(counts, default=-1) + 1)]


class Vocabulary:
    """Makes the vocabulary of a data set in two steps, before and after the extraction of features.

    The constructor reads the files of `vocab` and `document_frequency` and logs how many words will
    become the unknown word <unk>. So its errors come before the extraction, which can take hours.
    After the extraction, `finish` counts the words of the images that have features.

    Args:
      settings: the settings of prepare.
      images: the images with their words, see `tokenize`.

    Attributes:
      vocab: the vocabulary from the file; None if words are counted.
      frequencies: the document frequencies from the file; None if n-grams are counted.

    Raises:
      ValueError: a file cannot be used, or words must be counted but no training image has a
        caption.
    """

    def __init__(self, settings: Settings, images: Sequence[Entry]):
        self.settings = settings
        self.vocab = None if settings.vocab is None else Vocab.load(settings.vocab)
        self.frequencies = None
        if self.vocab is not None and settings.document_frequency is not None:
            self.frequencies = _load_frequencies(settings.document_frequency, self.vocab)
        _warn_of_long_words(images)  # it explains the error and the numbers that may follow
        train = [image for image in images if image.split == "train"]
        if self.vocab is None:
            if not any(image.captions for image in train):
                others = sorted({image.split or "" for image in images if image.captions})
                where = f" The captions are in the splits {', '.join(others)}." if others else ""
                raise ValueError(
                    "No image of the split 'train' has a caption, so no words can be counted."
                    f"{where} Add captions, or give a vocabulary with `vocab`."
                )
            self._say_unknown(self._counts(images))
        else:
            ids = [i for image in train or images for ws in image.words for i in self.vocab.ids(ws)]
            share = 100 * (1 - ids.count(UNK) / max(len(ids), 1))
            kind = "training captions" if train else "captions"
            _log.info(f"{settings.vocab} has {share:.1f} % of the words of the {kind}")
        counts = lengths(train)
        if note := cut_note(counts, MAX_LENGTH):
            _log.info(f"note: {note}")
        if most := segmentation.REPORTS.get(settings.tokens):
            _log.info(
                f"note: R2Gen's code cuts reports, too: task.max_length={most} cuts the same "
                f"{sum(counts[most:])} of {sum(counts)} training captions"
            )

    def _counts(self, images: Iterable[Entry]) -> collections.Counter[str]:
        """Returns how often each word occurs in the splits that the vocabulary counts."""
        counts_all = self.settings.count_splits == "all"
        counted = (image.words for image in images if counts_all or image.split == "train")
        captions = itertools.chain.from_iterable(counted)
        return collections.Counter(itertools.chain.from_iterable(captions))

    def _say_unknown(self, counts: collections.Counter[str]) -> None:
        """Says the share of the counted words that will be <unk>, and a remedy if it is high."""
        least = self.settings.min_count
        Vocab.from_counts(counts, least)  # its error must come before the features take hours
        frequent = [count for count in counts.values() if count >= least]
        unknown = 100 * (1 - sum(frequent) / counts.total())
        if len(frequent) == len(counts):
            _log.info(f"vocabulary: all {len(frequent)} different words; none becomes <unk>")
            return
        train = self.settings.count_splits == "train"
        kind = "training captions" if train else "captions of all splits"
        _log.info(
            f"vocabulary: {len(frequent)} of {len(counts)} different words occur at least {least} "
            f"times. The others become <unk>: {unknown:.1f} % of the words of the {kind}"
        )
        if unknown > HIGH_UNKNOWN:
            _log.info(
                f"warning: {unknown:.1f} % is much, because the model cannot learn these words. "
                "Give a lower `min_count`"
            )

    def finish(self, images: Sequence[Entry]) -> tuple[Vocab, DocumentFrequencies | None]:
        """Returns vocabulary and document frequencies, from the user's files or else by counting.

        Args:
          images: the images that have a record, with their words.

        Returns:
          The vocabulary, and the document frequencies: for each n-gram, the number of training
          images that have it in a reference caption. The document frequencies are None if there is
          neither a file of them nor a training image.

        Raises:
          ValueError: words must be counted, but there is no training image.
        """
        train = [image for image in images if image.split == "train"]
        if not train and self.vocab is None:
            raise ValueError(
                "All images of the split 'train' were skipped; the reasons are printed above. "
                "Repair the images, or give a vocabulary with `vocab`."
            )
        vocab = self.vocab or Vocab.from_counts(self._counts(images), self.settings.min_count)
        if self.frequencies is not None:
            return vocab, self.frequencies
        if not train:
            _log.info(
                "note: no document frequencies, because there is no split 'train' and no "
                "`document_frequency`; CIDEr-D rewards and order=consensus need them"
            )
            return vocab, None
        captions = [words for image in train for words in image.words]
        ids = np.array(vocab.ids(itertools.chain.from_iterable(captions)), np.int32)
        caption_starts = ends([*map(len, captions)])
        first_captions = ends([len(image.words) for image in train])
        return vocab, count_ngrams(ids, caption_starts, first_captions)


def _load_frequencies(file: str | os.PathLike, vocab: Vocab) -> DocumentFrequencies:
    """Reads the file of `document_frequency`.

    It holds word ids. With another vocabulary it would be silently wrong, so the vocab.txt beside
    it must have the words of `vocab`.
    """
    path = pathlib.Path(file)
    beside = path.parent / VOCABULARY
    if beside.exists() and Vocab.load(beside).sha256 != vocab.sha256:
        raise ValueError(
            f"{path} was counted with {beside}, whose words differ from `vocab`. Give the "
            f"{DOCUMENT_FREQUENCY} and the {VOCABULARY} of the same prepared directory."
        )
    table = load_document_frequencies(path.parent, path.name)
    check_ids(table, len(vocab), f"`document_frequency={path}`", "`vocab`")
    return table


def _warn_of_long_words(images: Sequence[Entry]) -> None:
    """Warns of words that are as long as sentences: the language has no spaces."""
    captions = [words for image in images for words in image.words]
    average = sum(map(len, captions)) / max(len(captions), 1)
    if captions and average < FEW_WORDS:
        _log.info(
            f"warning: a caption has {average:.1f} words on average, for example {captions[0]}. "
            "The tokenizer separates words at spaces and punctuation, so a sentence in Chinese, "
            "Japanese or Thai is one word. Give `tokens=characters`, or the name of a word "
            "segmenter as `tokens`, or `tokens=given` if the caption file has the words"
        )
