"""Tokenizer and vocabulary: from captions to token ids and back.

Letters: V vocabulary size, T ``max_length`` (words plus end mark). ``...`` is any leading shape.

The tokenizer consists of TensorFlow and tensorflow-text operations. Python callers run the same
operations eagerly, so prepare, the input pipeline and rewards cannot disagree. `detokenize` uses
only operations of TensorFlow itself, because it is part of an exported model.
"""

import collections
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tfcap import files, segmentation
from tfcap.files import replacing
from tfcap.ids import BOS, EOS, PAD, UNK

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
# Articles, prepositions and forms of "to be", with which no English caption should end.
# Self-critical training can teach a model to stop after one of them. The list is that of the public
# self-critical code, with "and" added.
FUNCTION_WORDS = "a an the in for at of with before after on upon near to is are am and".split()
TOKENIZER = "tfcap-1"  # written into dataset.json; change it whenever `tokenize` changes

# Words are separated by characters that are neither letters, digits, underscores nor combining
# marks. Marks stay inside a word (Hindi vowel signs, letters without a composed form). A mark that
# follows no letter belongs to a symbol (the variation selector of an emoji) and is dropped.
_SEPARATOR = r"^[^\pL\pN_]+|[^\pL\pN\pM_][^\pL\pN_]*"
# A word without a letter or digit, with a space on each side. `_clean` puts two spaces between
# words, so that each of several such words in a row has its own.
_NO_LETTER = r"(^| )[_\pM]+( |$)"
_CHUNK = 16384  # captions tokenized at once by `tokenize_all`; bounds its memory


def tokenize(captions: tf.Tensor) -> tf.RaggedTensor:
    """Splits captions into lower-case words without punctuation, as a graph function.

    Captions get Unicode lower case and the normal form NFC. Words consist of letters, digits,
    underscores and combining marks, and every other character separates words: ``man's T-shirt,
    two-door`` has the words ``man s t shirt two door``. A word without a letter or digit, such as
    ``_``, is dropped. This is the rule of the released ExpansionNet code with three changes:

    * The released code makes a word of each punctuation mark or symbol, and drops only the words of
      a fixed list. So a symbol that is not in the list remains a word.
    * The released code makes a word of a line break. Here any white space separates words.
    * In the released code, a combining mark separates words. Here it stays in its word.

    Args:
      captions: N raw captions, string [N].

    Returns:
      The words of each caption, string [N, None], ragged.
    """
    return tf.strings.split(_clean(captions))


def _clean(captions: tf.Tensor) -> tf.Tensor:
    """Returns captions string [N] as their words in lower case with spaces between them."""
    import tensorflow_text as tf_text  # 0.7 s, which captioning a picture does not need

    # For the two operations below a string ends at NUL. Lower case comes before NFC,
    # because lowering a composed letter can leave a decomposed one behind.
    captions = tf.strings.regex_replace(captions, r"\x00", " ")
    captions = tf_text.normalize_utf8(tf.strings.lower(captions, encoding="utf-8"), "NFC")
    captions = tf.strings.regex_replace(captions, _SEPARATOR, "  ")
    return tf.strings.regex_replace(captions, _NO_LETTER, " ")


def tokenize_all(captions: Sequence[str], way: str = "raw") -> list[list[str]]:
    """Splits captions into words outside of a graph, by the rules of `tokenize` or in another way.

    Args:
      captions: raw captions.
      way: how data cuts its captions into words, one of `segmentation.WAYS`, see `Vocab.tokens`.

    Returns:
      A list of words for each caption.
    """
    if segmentation.is_cut(way):
        return segmentation.words_of(captions, way)
    result = []
    for start in range(0, len(captions), _CHUNK):
        words = tokenize(list(captions[start : start + _CHUNK]))
        texts = tf.strings.reduce_join(words, axis=-1, separator=" ").numpy()
        result += [text.decode("utf-8").split() for text in texts]
    return result


class Vocab:
    """The vocabulary of a data set, which gives each word an id.

    The ids 0 to 3 are the special words <pad>, <bos>, <eos> and <unk>; frequent words come first
    among the others.

    Attributes:
      words: the V words in the order of their ids.
      tokens: how the data of the vocabulary cuts captions into words, one of `segmentation.WAYS`.

    Raises:
      ValueError: the four special words are not first, a word occurs twice, or a word is empty or
        has white space.
    """

    def __init__(
        self, words: Iterable[str], source: str = "vocabulary", tokens: str = segmentation.RAW
    ):
        """Makes a vocabulary.

        Args:
          words: all V words, the four special ones first.
          source: what an error calls the vocabulary, for example the path of its file.
          tokens: how captions are cut into words, one of `segmentation.WAYS`.
        """
        self.words = list(words)
        self.tokens = tokens
        wrong = next((word for word in self.words if word.split() != [word]), None)
        if wrong is not None or tuple(self.words[:4]) != SPECIALS:
            raise ValueError(
                f"{source} must have one word per line, and begin with {' '.join(SPECIALS)}. Use "
                "the vocab.txt that prepare wrote."
            )
        ((word, count),) = collections.Counter(self.words).most_common(1)
        if count > 1:
            raise ValueError(
                f"{source} has the word {word!r} twice. Use the vocab.txt that prepare wrote."
            )
        self._content = ("\n".join(self.words) + "\n").encode("utf-8")
        self._index = {word: i for i, word in enumerate(self.words) if i >= len(SPECIALS)}
        self._table: tf.lookup.StaticHashTable | None = None

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], min_count: int) -> "Vocab":
        """Builds a vocabulary of the words that occur `min_count` times or more.

        Frequent words come first; words that occur equally often are in alphabetical order.

        Args:
          counts: how often each word occurs in the *training* split.
          min_count: how often a word must occur to be in the vocabulary.

        Raises:
          ValueError: no word occurs so often.
        """
        kept = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        if not kept:
            raise ValueError(
                f"No word occurs {min_count} times or more among {len(counts)} different words. "
                "Lower `min_count` or add captions."
            )
        return cls([*SPECIALS, *(word for _, word in kept)])

    @classmethod
    def load(cls, path: str | os.PathLike, tokens: str = segmentation.RAW) -> "Vocab":
        """Reads a vocabulary from a file with a word on each line, in the order of the ids.

        Args:
          path: path of the file, a vocab.txt that `prepare` wrote.
          tokens: how captions are cut into words, one of `segmentation.WAYS`.

        Raises:
          ValueError: the file cannot be read, or is no vocabulary.
        """
        try:
            text = files.read_bytes(path).decode("utf-8")
        except OSError as error:
            raise ValueError(
                f"Cannot read {path}: {error.strerror}. Use the vocab.txt that prepare wrote."
            ) from None
        except UnicodeDecodeError:
            raise ValueError(
                f"{path} is not UTF-8. Use the vocab.txt that prepare wrote."
            ) from None
        # Not splitlines(), which also splits at other characters than a line feed.
        return cls(text.removesuffix("\n").split("\n"), str(path), tokens)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary as a text file with a word on each line, in the order of the ids.

        The file appears only when it is complete.

        Args:
          path: path of the file.
        """
        with replacing(path) as temporary, open(temporary, "wb") as file:
            file.write(self._content)

    @property
    def joins(self) -> bool:
        """Whether captions are shown joined, by the rule of `segmentation.joined`."""
        return self.tokens != segmentation.RAW

    def shown(self, caption: str) -> str:
        """Returns a caption as it is shown.

        Args:
          caption: the words of the caption with spaces between them.
        """
        return segmentation.joined(caption.split()) if self.joins else caption

    def __len__(self) -> int:
        return len(self.words)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file that `save` writes, as hexadecimal text."""
        return hashlib.sha256(self._content).hexdigest()

    def split(self, captions: Sequence[str]) -> list[list[str]]:
        """Cuts captions into words, outside of a graph, as the captions of the data were cut.

        Args:
          captions: raw captions, or captions as they are shown.

        Returns:
          A list of words for each caption.
        """
        return tokenize_all(captions, self.tokens)

    def ids(self, words: Iterable[str]) -> list[int]:
        """Returns the id of each word; UNK for words outside of the vocabulary.

        This method runs in Python. In a graph, use `encode`, which takes whole captions.

        Args:
          words: words as `tokenize` returns them.
        """
        return [self._index.get(word, UNK) for word in words]

    def encode(self, captions: tf.Tensor, max_length: int) -> tf.Tensor:
        """Encodes captions as token ids, as a graph function: BOS w1 … wL EOS PAD ….

        Captions are split into words as by `tokenize`; words outside of the vocabulary become UNK.
        If `segmentation` cuts the captions of the data, they come as the records have them, with
        spaces between their words, and are split at white space alone. Of a caption with T or more
        words, the result has the first T words and no EOS, because the model must not learn to
        stop in the middle of a caption. The released code of X-LAN and X-Transformer does the same.

        Args:
          captions: captions as the records have them, string [...], of any shape.
          max_length: largest number of words of a caption, the end mark EOS included, T.

        Returns:
          The ids, int32 [..., T+1].
        """
        captions = tf.convert_to_tensor(captions, tf.string)
        # The marks are words like others, which no caption can hold: a caption has no "<" left.
        # Each input pipeline builds this function at its start, so it has few operations: it calls
        # the operations under `tf.strings.split` and `tf.RaggedTensor`, which build many more.
        flat = tf.reshape(captions, [-1])
        spaced = flat if segmentation.is_cut(self.tokens) else _clean(flat)
        marked = tf.strings.join([SPECIALS[BOS], spaced, SPECIALS[EOS]], " ")
        words = tf.raw_ops.StringSplitV2(input=marked, sep="")
        ids = tf.raw_ops.RaggedTensorToTensor(
            shape=tf.constant([-1, max_length + 1], tf.int64),
            values=self._ids(words.values),
            default_value=PAD,
            row_partition_tensors=[
                tf.size(flat, tf.int64),
                tf.unstack(words.indices, axis=1)[0],  # the row of each word
            ],
            row_partition_types=["FIRST_DIM_SIZE", "VALUE_ROWIDS"],
        )  # [N, T+1]; words beyond it are cut off
        result = tf.reshape(ids, tf.concat([tf.shape(captions), [max_length + 1]], 0))
        return tf.ensure_shape(result, [*captions.shape, max_length + 1])

    def _ids(self, words: tf.Tensor) -> tf.Tensor:
        """Returns ids int32 [N] of words and of the marks BOS and EOS; UNK for other words."""
        if self._table is None:
            with tf.init_scope():  # the first call may happen while a graph is being built
                entries = [BOS, EOS, *range(len(SPECIALS), len(self.words))]
                self._table = tf.lookup.StaticHashTable(
                    tf.lookup.KeyValueTensorInitializer(
                        tf.constant([self.words[i] for i in entries], tf.string),
                        tf.constant(entries, tf.int32),
                    ),
                    default_value=UNK,
                )
        return self._table.lookup(words)

    def detokenize(self, tokens: tf.Tensor, joined: bool = True) -> tf.Tensor:
        """Decodes token ids to captions, as a graph function of TensorFlow's own operations.

        A caption ends at the first EOS. PAD and BOS are skipped, and one space is between two
        words.

        Args:
          tokens: the ids of captions of up to T tokens, int32 [..., T], of any leading shape.
          joined: whether the captions are as they are shown, by the rule of `segmentation.joined`,
            unless the attribute `tokens` is `raw`. False leaves a space between any two words.

        Returns:
          The captions, string [...].
        """
        tokens = tf.convert_to_tensor(tokens, tf.int32)
        ended = tf.cumsum(tf.cast(tokens == EOS, tf.int32), axis=-1) > 0
        # A space before every word and nothing for the marks: joining needs no separator.
        pieces = tf.constant(["", "", ""] + [f" {word}" for word in self.words[UNK:]])
        parts = tf.gather(pieces, tf.where(ended, PAD, tokens))
        captions = tf.strings.strip(tf.strings.reduce_join(parts, axis=-1))
        if joined and self.joins:
            for pattern in segmentation.JOINING:
                captions = tf.strings.regex_replace(captions, pattern, r"\1")
        return captions
