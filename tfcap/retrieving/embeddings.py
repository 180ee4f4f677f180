"""Finds the words with the nearest embeddings.

Letters: V vocabulary, E embedding width.
"""

from collections.abc import Sequence

import numpy as np

from tfcap import cli, runs
from tfcap.data.tokens import SPECIALS, Vocab

TABLE = "embed_tokens/embeddings"


def nearest_words(
    table: np.ndarray, vocab: Vocab, words: Sequence[str], top: int
) -> list[list[tuple[str, float]]]:
    """Finds the words whose embeddings are nearest to those of given words.

    Source: the supplement of m-RNN (Mao et al., ICLR 2015), Euclidean distance.

    Args:
      table: float [V, E], the embeddings.
      vocab: the V words.
      words: the given words.
      top: number of words to find for each; the word itself does not count.

    Returns:
      For each word `top` pairs (word, distance), nearest first.

    Raises:
      UsageError: a word is not in the vocabulary.
    """
    index = {word: n for n, word in enumerate(vocab.words) if n >= len(SPECIALS)}
    if unknown := [word for word in words if word not in index]:
        raise cli.UsageError(
            f"--word must be a word of the vocabulary. Received: {unknown[0]!r}. vocab.txt lists "
            "the words, in small letters."
        )
    rows = table.astype(np.float64)
    found = []
    for word in words:
        distances = np.linalg.norm(rows - rows[index[word]], axis=1)
        distances[: len(SPECIALS)] = np.inf
        distances[index[word]] = np.inf
        order = np.argsort(distances, kind="stable")[: min(top, len(index) - 1)]
        found.append([(vocab.words[n], float(distances[n])) for n in order])
    return found


def show_words(run: runs.Run, words: Sequence[str], top: int) -> None:
    """Prints the words with the nearest embeddings, a line for each word.

    Args:
      run: the run with the embeddings.
      words: the words.
      top: number of words to find for each.

    Raises:
      UsageError: as `nearest_words`, or the run is an ensemble.
    """
    weights = run.model.on_features().checkpoint_items["weights"]
    if TABLE not in weights:
        raise cli.UsageError(
            "--word needs one run, because an ensemble has several tables of words. Name one "
            "--model_dir."
        )
    found = nearest_words(weights[TABLE].numpy(), run.vocab, words, top)
    for word, near in zip(words, found, strict=True):
        print(f"{word}: " + ", ".join(f"{other} {distance:.2f}" for other, distance in near))
