"""Writes a run directory with the weights of a released PyTorch checkpoint."""

import os
from typing import Any

from tfcap import configs, runs
from tfcap.data import tokens
from tfcap.files import file_sha256
from tfcap.released import systems, torch_files, weights, words

# How the released code decodes: words at most, and the search. X-LAN's authors kept the older
# search behind the paper's numbers as a comment; `finished: retire, suppress_unk: true` is that.
# ExpansionNet's test script goes up to 73 words, its training decodes 20.
_DECODING: dict[str, tuple[int, dict[str, Any]]] = {
    "xlan": (17, {"beam": 3}),
    "xtransformer": (17, {"beam": 2}),
    "updown": (17, {"beam": 3}),
    "expansionnet": (20, {"beam": 5, "length_power": 1.0}),
    "xmodaler": (20, {"beam": 3}),
    "xmodaler transformer": (20, {"beam": 2}),
}
# [GUESS] nobody has published how to train these weights further with cross-entropy.
_FURTHER = {"name": "constant", "learning_rate": 1.0e-5}


def convert(
    family: str,
    path: str,
    vocab_file: str,
    model_dir: str,
    max_length: int | None = None,
    override: str = "",
) -> str:
    """Writes a run directory with the weights of a released checkpoint.

    Args:
      family: one of `systems.FAMILIES`.
      path: a file of `torch.save`.
      vocab_file: as for `words.read`.
      model_dir: to be written; must not exist, or be empty.
      max_length: T; None takes what the released code decodes.
      override: changes of the configuration, as of `configs.resolve`, where the defaults for what
        no shape tells (activations, heads of a Transformer) are not those of these weights.

    Returns:
      One line on what was found.

    Raises:
      ValueError: the file is refused or damaged; the vocabulary has another length; a tensor is
        missing, not used or wrongly shaped, all of which are listed; `model_dir` is not empty.
    """
    vocab, ids = words.read(family, vocab_file)
    content = torch_files.load(path, systems.WRAPPERS)
    try:
        checkpoint = systems.recognize(family, content)
        if ids.max() + 1 != checkpoint.rows:
            raise ValueError(
                f"it has {checkpoint.rows} ids, and {vocab_file} makes {ids.max() + 1} of its words"
            )
        params = _resolve(family, checkpoint, max_length, override)
        model = runs.build_model(params.task, len(vocab), checkpoint.feature_dim)
        weights.assign(
            model,
            checkpoint.tensors,
            ids,
            lambda ours: checkpoint.names.get(ours) or systems.expected_name(ours, checkpoint),
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    fingerprint = {
        "name": os.path.basename(path),
        "tokenizer": tokens.TOKENIZER,
        "vocab_size": len(vocab),
        "vocab_sha256": vocab.sha256,
        "features": {"dim": checkpoint.feature_dim},
        "backbone": None,
        "converted": {"from": family, "sha256": file_sha256(path)},
    }
    runs.create(model_dir, checkpoint.system, params, vocab, fingerprint, model)
    return (
        f"{checkpoint.system}, {runs.count_parameters(model):,} parameters, {len(vocab)} words, "
        f"features {checkpoint.feature_dim} wide, at most {params.task.max_length} words, beam "
        f"{params.task.decoding.beam}; {_assumed(checkpoint)}"
    )


def _resolve(family, checkpoint, max_length, override):
    """Returns the configuration; the position codes of the file are kept if they differ."""
    changes = _changes(family, checkpoint, max_length)
    params = configs.resolve(checkpoint.system, (), override, changes)
    if not checkpoint.has_sinusoids(params.task.max_length):
        checkpoint.store_positions(params.task.max_length)
        changes = _changes(family, checkpoint, max_length)
        params = configs.resolve(checkpoint.system, (), override, changes)
    return params


def _changes(family, checkpoint, max_length):
    """The configuration of a released model, as a difference over its small experiment."""
    system = checkpoint.system
    length, decoding = _DECODING.get(f"{family} {system}") or _DECODING[family]
    options = getattr(configs.Model(type=system), system).as_dict() | checkpoint.options
    return {
        "task": {
            "model": {"type": system, system: options},
            "max_length": max_length or length,
            "decoding": {"finished": "hold", "suppress_unk": False, **decoding},
            "train_data": {"global_batch_size": 10, "captions_per_image": 5},
        },
        "trainer": {"optimizer_config": {"schedule": _FURTHER}},
    }


def _assumed(checkpoint):
    """Returns what the tensors do not show, so that the user can check it."""
    keys = ("activation", "embed_activation")
    system = getattr(configs.Model(type=checkpoint.system), checkpoint.system).as_dict()
    options = system | checkpoint.options
    open_ = [f"{key} {options[key]}" for key in keys if key in options]
    if "heads" in options and "heads" not in checkpoint.options:
        open_.append(f"heads {options['heads']}")
    found = f"assumed, because tensor shapes do not show it: {', '.join(open_)}"
    if checkpoint.options.get("stored_positions"):
        found += "; position codes of the file, which are not sinusoids"
    return found
