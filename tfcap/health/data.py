"""Checks of a prepared directory: files, records, features, captions and document frequencies."""

import collections
import os
from collections.abc import Iterator

from tfcap.data.captions import cut_note, stored_captions, unlike_references
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY, check_ids
from tfcap.data.fingerprint import VOCABULARY, load_vocabulary, read_fingerprint
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import SPECIALS, Vocab, tokenize_all
from tfcap.health import features
from tfcap.health.features import FeatureStatistics
from tfcap.health.finding import PROBLEM, Finding, count, examine, ok, warning
from tfcap.health.records import Reader
from tfcap.ids import UNK
from tfcap.preparing.features.backbone import checked_weights
from tfcap.preparing.vocabulary import FEW_WORDS, HIGH_UNKNOWN, MAX_LENGTH

_CHUNK = 20_000  # captions tokenized at once


def findings(folder: str) -> Iterator[Finding]:
    """Checks a prepared directory; reads every record once.

    Args:
      folder: the directory.

    Yields:
      One finding per check.
    """
    results: dict = {}
    yield examine("data", "fingerprint", _fingerprint, folder, results)
    if "fingerprint" not in results:
        return  # nothing else says which files belong to the directory
    fingerprint = results["fingerprint"]
    yield examine("data", "vocabulary", _vocabulary, folder, results)
    vocab = results.get("vocab")
    # Records are read without the words.
    data = PreparedData(folder, fingerprint, vocab or Vocab(SPECIALS))
    statistics = FeatureStatistics(data.feature_dim)
    for split in fingerprint["splits"]:
        files = examine("data", f"files {split}", _files, data, split)
        yield files
        if files.status != PROBLEM:
            yield examine("data", f"records {split}", _records, data, split, statistics)
    recorded = fingerprint["features"]
    yield examine("data", "feature values", features.numbers, statistics, recorded)
    if statistics.images:
        yield examine("data", "feature columns", features.columns, statistics)
        yield examine("data", "feature images", features.images, statistics)
    for split in fingerprint["splits"] if vocab else ():
        yield examine("data", f"words {split}", _words, data, split)
    if vocab:
        yield examine("data", "frequencies", _frequencies, data)
    yield examine("data", "backbone", _backbone, data)
    yield examine("data", "pictures", _pictures, data)


def _fingerprint(folder: str, results: dict) -> Finding:
    results["fingerprint"] = value = read_fingerprint(folder)
    splits = ", ".join(f"{name} {split['images']}" for name, split in value["splits"].items())
    size = value["features"]
    return ok(
        f"{folder} has {splits} images; at most {size['max_regions']} regions of {size['dim']} "
        "features"
    )


def _vocabulary(folder: str, results: dict) -> Finding:
    results["vocab"] = load_vocabulary(folder, results["fingerprint"])
    return ok(f"{len(results['vocab'])} words, those of dataset.json")


def _files(data: PreparedData, split: str) -> Finding:
    data.check_split(split)
    shards = data.split(split)["shards"]
    size = sum(shard["bytes"] for shard in shards) / 1e6
    return ok(f"{count(len(shards), 'shard')} of {size:.1f} MB in all and the index fit")


def _records(data: PreparedData, split: str, statistics: FeatureStatistics) -> Finding:
    return Reader(data, split, statistics).read()


def _words(data: PreparedData, split: str) -> Finding:
    """Counts the words of captions, and those that the vocabulary lacks."""
    captions = [text for texts in stored_captions(data, split).values() for text in texts]
    if not captions:
        return ok("no captions")
    words = unknown = 0
    sizes: collections.Counter[int] = collections.Counter()
    for start in range(0, len(captions), _CHUNK):
        for tokens in tokenize_all(captions[start : start + _CHUNK]):
            words += len(tokens)
            sizes[len(tokens)] += 1
            unknown += data.vocab.ids(tokens).count(UNK)
    percent, length = 100 * unknown / max(words, 1), words / len(captions)
    text = (
        f"{len(captions)} captions of {length:.1f} words; {percent:.2f} % of the words are outside "
        "the vocabulary (<unk>)"
    )
    if length < FEW_WORDS:
        return warning(
            f"{text}. A caption has hardly more than one word.",
            "The tokenizer separates words at spaces. Put spaces between the words of languages "
            "that are written without spaces, and run prepare again.",
        )
    if percent > HIGH_UNKNOWN:
        return warning(f"{text}.", "Run prepare again with a lower --min_count or without --vocab.")
    if unlike := unlike_references(data, split):
        return warning(f"{text}.", unlike)
    lengths = [sizes[number] for number in range(max(sizes) + 1)] if split == "train" else []
    cut = cut_note(lengths, MAX_LENGTH)
    return warning(f"{text}.", cut) if cut else ok(text)


def _frequencies(data: PreparedData) -> Finding:
    if not data.has_document_frequencies:
        return ok("none: there is no train split; CIDEr-D rewards and order=consensus need them")
    table = data.document_frequencies()
    check_ids(table, len(data.vocab), os.path.join(data.folder, DOCUMENT_FREQUENCY), VOCABULARY)
    train = data.fingerprint["splits"].get("train")
    counted = data.fingerprint.get("document_frequency", "train") == "train"
    if train and counted and table.images != train["images"]:
        raise ValueError(
            f"{DOCUMENT_FREQUENCY} must be counted over the {train['images']} training images. "
            f"Received: {table.images}. Run prepare again."
        )
    return ok(f"{len(table.counts)} n-grams of {table.images} images")


def _backbone(data: PreparedData) -> Finding:
    made_by = data.fingerprint.get("backbone")
    if made_by is None:
        return ok("none: the features came ready-made, so no picture can be captioned")
    path = checked_weights(made_by, data.folder)
    return ok(f"{made_by['name']}, " + (f"weights {path} unchanged" if path else "without weights"))


def _pictures(data: PreparedData) -> Finding:
    if not data.images:
        return ok("no directory of pictures is recorded; reports and figures have no pictures")
    if not os.path.isdir(data.images):
        return warning(
            f"{data.images} does not exist: reports and figures leave the pictures out.",
            "Move the pictures back. Training and scores do not need them.",
        )
    lost = {
        split: missing
        for split, entry in data.fingerprint["splits"].items()
        if (missing := entry["images"] - len(data.picture_paths(split)))
    }
    if lost:
        text = ", ".join(f"{count} of {split}" for split, count in lost.items())
        return warning(
            f"Pictures are missing in {data.images}: {text}. Reports and figures leave them out.",
            "Move the pictures back. Training and scores do not need them.",
        )
    return ok(f"every picture is in {data.images}")
