"""Prepared data that tests change."""

import json
import os
import shutil

from tfcap.data.tokens import Vocab


def with_other_vocabulary(source: str | os.PathLike, target: str | os.PathLike) -> str:
    """Copies a prepared directory and leaves the last word out of its vocabulary."""
    folder = shutil.copytree(source, target)
    words = Vocab.load(folder / "vocab.txt").words
    vocab = Vocab(words[:-1])
    vocab.save(folder / "vocab.txt")
    fingerprint = json.loads((folder / "dataset.json").read_text())
    fingerprint |= {"vocab_size": len(vocab), "vocab_sha256": vocab.sha256}
    (folder / "dataset.json").write_text(json.dumps(fingerprint))
    return str(folder)
