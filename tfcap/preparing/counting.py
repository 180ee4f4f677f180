"""Counts the n-grams of the training captions shard by shard, and adds the tables.

The description of a shard has the captions of the shard, so a worker needs only the name of the
shard and the vocabulary.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tfcap import files
from tfcap.data.document_frequency import (
    DocumentFrequencies,
    count_ngrams,
    ends,
    load_document_frequencies,
    merged,
    write_document_frequencies,
)
from tfcap.data.tokens import Vocab
from tfcap.preparing import sidecars

TABLE = ".ngrams.npz"  # ending of the table of a shard


class CountTask(NamedTuple):
    """One shard whose n-grams are counted; `name` is its file name."""

    name: str


@dataclasses.dataclass(frozen=True)
class NgramWorker:
    """Counts the n-grams of a shard and writes the table beside its description.

    Attributes:
      out: the prepared directory.
      digest: SHA-256 of the settings, which the descriptions of shards also hold.
      words: the vocabulary.
    """

    out: str
    digest: str
    words: tuple[str, ...]

    @functools.cached_property
    def vocab(self) -> Vocab:
        """The vocabulary with its index."""
        return Vocab(self.words)

    def __call__(self, task: CountTask) -> None:
        """Counts one shard.

        Raises:
          ValueError: the shard has no description, or one without captions.
        """
        known = sidecars.read(self.out, self.digest, task.name)
        if known is None or "captions" not in known:
            raise ValueError(
                f"{sidecars.path_of(self.out, task.name)} must have the captions of the shard. "
                "Received: none. Run prepare again."
            )
        path = sidecars.path_of(self.out, task.name, TABLE)
        folder, name = os.path.split(path)
        write_document_frequencies(folder, table_of(known, self.vocab), name)


def table_of(known: dict[str, Any], vocab: Vocab) -> DocumentFrequencies:
    """Returns the document frequencies of one shard, given its description."""
    ids = np.array(vocab.ids(known["words"]), np.int32)
    captions = [caption for image in known["captions"] for caption in image]
    places = np.array([place for caption in captions for place in caption], np.int64)
    images = ends([len(image) for image in known["captions"]])
    return count_ngrams(ids[places], ends([len(caption) for caption in captions]), images)


def count(
    run: Callable[[NgramWorker, Iterable[CountTask]], Iterable[str]],
    worker: NgramWorker,
    names: Iterable[str],
) -> DocumentFrequencies:
    """Counts the n-grams of shards on an engine, and adds their tables.

    Args:
      run: `map` of the engine.
      worker: counts one shard.
      names: file names of the shards with at least one record.

    Raises:
      ValueError: no shard.
    """

    def tables() -> Iterator[DocumentFrequencies]:
        for name in run(worker, map(CountTask, names)):
            path = sidecars.path_of(worker.out, name, TABLE)
            yield load_document_frequencies(*os.path.split(path))
            files.remove(path)

    return merged(tables())
