"""Makes the search of a run from its configuration."""

import os
from collections.abc import Callable

from tfcap import configs, decoding, files
from tfcap.data.document_frequency import (
    DOCUMENT_FREQUENCY,
    DocumentFrequencies,
    load_document_frequencies,
)
from tfcap.data.prepared import VOCABULARY
from tfcap.data.tokens import FUNCTION_WORDS, Vocab, tokenize_all
from tfcap.ids import UNK
from tfcap.objectives import ngrams
from tfcap.runs.run import Run


def search(
    run: Run, changes: str = "", beam: int = 0, data_dir: str | None = None
) -> decoding.Search:
    """Makes the search of a run, with options changed as in `configs.decoding`.

    The arguments and errors are those of `configs.decoding` and `search_of`.
    """
    return search_of(run, configs.decoding(run.params.task, changes, beam), data_dir)


def search_of(run: Run, params: configs.Decoding, data_dir: str | None = None) -> decoding.Search:
    """Makes the search of a run that the keys `task.decoding` describe.

    The document frequencies for a consensus are read from `data_dir`, else from the run's
    directory, else from the data that the run was trained on.

    Raises:
      ValueError: as `build_search`.
    """

    def frequencies():
        places = (run.directory, run.data_dir)
        for place in (data_dir, *places) if data_dir else places:
            paths = [os.path.join(place, name) for name in (DOCUMENT_FREQUENCY, VOCABULARY)]
            if all(map(files.exists, paths)):
                # The table counts ids: with another vocabulary it would be silently wrong.
                if Vocab.load(paths[1]).sha256 == run.vocab.sha256:
                    return load_document_frequencies(place)
        raise ValueError(
            f"order=consensus needs a {DOCUMENT_FREQUENCY} of the run's vocabulary. Received: none "
            f"in {places[0]} and none in {places[1]}. Copy {DOCUMENT_FREQUENCY} from the prepared "
            f"data of the run into {places[0]}."
        )

    return build_search(params, run.params.task.max_length, run.vocab, frequencies)


def changed(run: Run, base: configs.Decoding, changes: str, beam: int = 0) -> configs.Decoding:
    """Returns the keys `task.decoding` of `base` after changes.

    `base` need not be the configuration of the run. The changes, the beam width and the errors are
    those of `configs.decoding`.
    """
    task = run.params.task.replace(decoding=base.as_dict())
    return configs.decoding(task, changes, beam)


def build_search(
    params: configs.Decoding,
    max_length: int,
    vocab: Vocab,
    frequencies: Callable[[], DocumentFrequencies],
) -> decoding.Search:
    """Makes the search that `configs.Decoding` describes.

    Args:
      params: the keys `task.decoding`.
      max_length: T.
      vocab: the vocabulary of the model.
      frequencies: returns the document frequencies; called only for `order: consensus`.

    Raises:
      ValueError: as `decoding_options`, or if the vocabulary is too large for CIDEr-D.
    """
    consensus = None
    if params.search == "sample" and params.order == "consensus":
        consensus = decoding.Consensus(ngrams.CiderD(frequencies(), len(vocab)))
    return decoding.Search(decoding_options(params, max_length, vocab), max_length, consensus)


def decoding_options(
    params: configs.Decoding, max_length: int, vocab: Vocab | None = None
) -> decoding.Options:
    """Makes the options of a search from a configuration: words become ids.

    Args:
      params: the keys `task.decoding`.
      max_length: T.
      vocab: maps words to ids; None if the keys hold no words.

    Raises:
      ValueError: a word is not in the vocabulary, an option holds words and there is no vocabulary,
        or the prefix leaves no room for other words.
    """

    def ids_of(name, text):
        if vocab is None:
            raise ValueError(f"task.decoding.{name} needs a vocabulary. Received: {text!r}.")
        if name == "bad_endings" and text == "default":
            return tuple(word_id for w in FUNCTION_WORDS if (word_id := vocab.ids([w])[0]) != UNK)
        words = tokenize_all([text])[0]
        if unknown := [word for word in words if vocab.ids([word]) == [UNK]]:
            raise ValueError(
                f"task.decoding.{name} must hold words of the vocabulary only. Received: "
                f"{', '.join(unknown)}. Leave them out."
            )
        return tuple(vocab.ids(words))

    options = decoding.Options(**params.as_dict()).with_ids(ids_of)
    longest = params.max_length or max_length
    if len(options.prefix) >= longest:
        name = "task.decoding.max_length" if params.max_length else "task.max_length"
        raise ValueError(
            f"task.decoding.prefix must be shorter than {name} ({longest}). "
            f"Received: {params.prefix!r}."
        )
    return options
