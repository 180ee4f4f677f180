"""The words of a data set: counted from its training captions, or given with --vocab."""

import collections
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tfcap.data.document_frequency import (
    DOCUMENT_FREQUENCY,
    DocumentFrequencies,
    check_ids,
    load_document_frequencies,
)
from tfcap.data.prepared import VOCABULARY, cut_note
from tfcap.data.tokens import Vocab
from tfcap.ids import UNK
from tfcap.preparing.captions import Kept, changed_tokens, lengths
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources import Entry

HIGH_UNKNOWN = 5.0  # percent of <unk> above which a remedy is printed; Flickr8k has 2.5 with 5
MAX_LENGTH = 20  # task.max_length of the experiments
FEW_WORDS = 1.5  # words of a caption: fewer on average are sentences without spaces
_NO_TRAIN = (
    "The caption file must have usable images in the split 'train', because their captions give"
    " the vocabulary. Received: none. Add them, or give a vocabulary with --vocab."
)
_ALL_SKIPPED = (
    "The split 'train' must have an image that is not skipped, because its captions give the"
    " vocabulary. Received: none; the reasons are printed above. Repair the images and give the"
    " same command again, or give a vocabulary with --vocab."
)


class Words(NamedTuple):
    """A vocabulary and its document frequencies.

    Attributes:
      vocab: the vocabulary.
      min_count: smallest number of occurrences of a word; None for a given vocabulary.
      frequencies: document frequencies, or None if there are none.
      origin: where the document frequencies come from: "train" (counted), "file" (given) or None.
    """

    vocab: Vocab
    min_count: int | None
    frequencies: DocumentFrequencies | None
    origin: str | None


def load_given(
    vocab_file: str | None, frequency_file: str | None
) -> tuple[Vocab | None, DocumentFrequencies | None]:
    """Reads the files of --vocab and --document_frequency.

    A table of document frequencies holds word ids. With another vocabulary it would be silently
    wrong, so the vocab.txt beside the table must have the same words.

    Args:
      vocab_file: a vocab.txt, or None.
      frequency_file: a document_frequency.npz, or None; it needs a vocabulary.

    Returns:
      The vocabulary and the document frequencies, None where no file is given.

    Raises:
      ValueError: an unreadable file, or document frequencies of another vocabulary.
    """
    if vocab_file is None:
        return None, None
    vocab = Vocab.load(vocab_file)
    if frequency_file is None:
        return vocab, None
    path = pathlib.Path(frequency_file)
    table = load_document_frequencies(path.parent, path.name)
    beside = path.parent / VOCABULARY
    if beside.exists() and Vocab.load(beside).sha256 != vocab.sha256:
        raise ValueError(
            f"--document_frequency must belong to the vocabulary of --vocab. Received: {path}, "
            f"but {beside} has other words than {vocab_file}. Give the {DOCUMENT_FREQUENCY} and "
            f"the {VOCABULARY} of the same prepared directory."
        )
    check_ids(table, len(vocab), f"--document_frequency {path}", "--vocab")
    if not beside.exists():
        print(
            f"warning: there is no {beside}, so it is not known whether {path} was counted with "
            f"the words of {vocab_file}",
            flush=True,
        )
    return vocab, table


def load(
    settings: Settings, entries: Sequence[Entry], images: Sequence[Kept]
) -> tuple[Vocab | None, DocumentFrequencies | None]:
    """Loads the given vocabulary, if any, and prints statistics of the words of the captions.

    Args:
      settings: the settings of prepare.
      entries: the images with their own tokens.
      images: the same images, tokenized.

    Returns:
      Vocabulary and document frequencies, None where no file is given.

    Raises:
      ValueError: an unreadable file, no training image or no frequent word. These errors come
        before the features are extracted, which can take hours.
    """
    vocab, frequencies = load_given(settings.vocab, settings.document_frequency)
    if settings.tokens == "given":
        number, example = changed_tokens(entries, images)
        if number:
            print(
                f"note: {number} tokens of the captions are no words of the tokenizer, which "
                f"splits or drops them, for example {example!r}",
                flush=True,
            )
    warn_of_long_words(images)  # it explains the error and the numbers that may follow
    if vocab is None:
        require_train(images)
        print_unknown(images, settings.min_count, settings.count_splits)
    else:
        print_coverage(settings.vocab or "", vocab, images)
    if note := cut_note(lengths(i for i in images if i.split == "train"), MAX_LENGTH):
        print(f"note: {note}", flush=True)
    return vocab, frequencies


def print_coverage(vocab_file: str, vocab: Vocab, images: Sequence[Kept]) -> None:
    """Prints the percentage of the words of the captions that are in a given vocabulary."""
    train = [image for image in images if image.split == "train"]
    ids = [i for image in train or images for words in image.words for i in vocab.ids(words)]
    if ids:
        known = 100 * (1 - ids.count(UNK) / len(ids))
        kind = "training captions" if train else "captions"
        print(f"{vocab_file} has {known:.1f} % of the words of the {kind}", flush=True)


def counted(images: Sequence[Kept], count_splits: str) -> list[Kept]:
    """Returns the images whose words are counted: those of the split "train", or all."""
    return [image for image in images if count_splits == "all" or image.split == "train"]


def print_unknown(images: Sequence[Kept], min_count: int, count_splits: str = "train") -> None:
    """Prints the share of the counted words that will be <unk>, and a remedy if it is high.

    Raises:
      ValueError: no word occurs `min_count` times.
    """
    every = [words for image in counted(images, count_splits) for words in image.words]
    Vocab.build(every, min_count)  # its error must come before the features take hours
    counts = collections.Counter(word for words in every for word in words)

    def kept(least: int) -> tuple[int, float]:
        """Returns how many words occur `least` times, and the percentage of all that is <unk>."""
        known = [count for count in counts.values() if count >= least]
        return len(known), 100 * (1 - sum(known) / counts.total())

    words, unknown = kept(min_count)
    if words == len(counts):
        print(f"vocabulary: all {words} different words; none becomes <unk>", flush=True)
        return
    kind = "training captions" if count_splits == "train" else "captions of all splits"
    print(
        f"vocabulary: {words} of {len(counts)} different words occur at least {min_count} times. "
        f"The others become <unk>: {unknown:.1f} % of the words of the {kind}",
        flush=True,
    )
    if unknown > HIGH_UNKNOWN:
        fitting = (least for least in range(min_count - 1, 0, -1) if kept(least)[1] <= HIGH_UNKNOWN)
        least = next(fitting, 1)
        more, rest = kept(least)
        print(
            f"warning: {unknown:.1f} % is much, because the model cannot learn these words. With "
            f"--min_count {least} the vocabulary has {more} words, and {rest:.1f} % are <unk>",
            flush=True,
        )


def warn_of_long_words(images: Sequence[Kept]) -> None:
    """Prints a warning if whole sentences are one word: the language writes no spaces."""
    captions = [words for image in images for words in image.words]
    if not captions:
        return
    average = sum(map(len, captions)) / len(captions)
    if average < FEW_WORDS:
        print(
            f"warning: a caption has {average:.1f} words on average, for example {captions[0]}. "
            "The tokenizer separates words at spaces and punctuation, so a sentence in Chinese, "
            "Japanese or Thai is one word. Put spaces between the words of the captions first, "
            "with a word segmenter for the language, or give --tokens given if the caption file "
            "has the words",
            flush=True,
        )


def require_train(images: Sequence[Kept]) -> None:
    """Raises ValueError unless a training image with captions is there to count words from."""
    if not any(image.split == "train" and image.captions for image in images):
        raise ValueError(_NO_TRAIN)


def choose(
    counts: Mapping[str, int],
    min_count: int,
    count_ngrams: Callable[[Vocab], DocumentFrequencies] | None,
    vocab: Vocab | None = None,
    frequencies: DocumentFrequencies | None = None,
) -> Words:
    """Makes the vocabulary and the document frequencies that are not given.

    Args:
      counts: how often each word occurs in the captions that the vocabulary counts.
      min_count: smallest number of times that a word of the vocabulary occurs.
      count_ngrams: counts the document frequencies of the training captions with a vocabulary; None
        without training images.
      vocab: a given vocabulary, or None.
      frequencies: given document frequencies of `vocab`, or None.

    Raises:
      ValueError: no vocabulary is given and no training image is left.
    """
    least = None
    if vocab is None:
        if count_ngrams is None:
            raise ValueError(_ALL_SKIPPED)
        vocab, least = Vocab.from_counts(counts, min_count), min_count
    if frequencies is not None:
        return Words(vocab, least, frequencies, "file")
    if count_ngrams is None:
        print(
            "note: no document frequencies, because there is no split 'train' and no "
            "--document_frequency; CIDEr-D rewards and order=consensus need them",
            flush=True,
        )
        return Words(vocab, least, None, None)
    return Words(vocab, least, count_ngrams(vocab), "train")
