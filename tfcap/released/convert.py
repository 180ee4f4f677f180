"""Converts a released PyTorch checkpoint to a run directory."""

import os
from typing import Any

from tfcap import configs, runs
from tfcap.data import tokens
from tfcap.files import file_sha256
from tfcap.released import systems, torch_file, weights, words

# How the released code decodes: the largest number of words, and the options of the search.
# X-LAN's authors computed the numbers of the paper with an older search, which is a comment in
# their code; the options `finished: retire, suppress_unk: true` give that search.
# The test script of ExpansionNet decodes up to 73 words, its training 20.
_DECODING: dict[str, tuple[int, dict[str, Any]]] = {
    "xlan": (17, {"beam": 3}),
    "xtransformer": (17, {"beam": 2}),
    "updown": (17, {"beam": 3}),
    "expansionnet": (20, {"beam": 5, "length_power": 1.0}),
    "xmodaler": (20, {"beam": 3}),
    "self_critical": (20, {"beam": 5, "finished": "retire", "suppress_unk": True}),
    "aoanet": (20, {"beam": 2, "finished": "retire", "suppress_unk": True}),
    "xmodaler transformer": (20, {"beam": 2}),
}
# [GUESS] No schedule is published for training these weights further with cross-entropy.
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
      family: one of `released.FAMILIES`.
      path: a file of `torch.save`.
      vocab_file: the released words, see `words.read`.
      model_dir: the directory to write; it must be empty or not exist.
      max_length: T, the longest caption in words; None takes the value of the released code.
      override: changes of the configuration, see `configs.resolve`. Use it where tensor shapes do
        not show an option (activations, heads of a Transformer) and its default is wrong.

    Returns:
      One line that describes the model.

    Raises:
      ValueError: the file is refused or damaged; the vocabulary has another number of words;
        tensors are missing, not used or of another shape (the error lists all of them); or
        `model_dir` is not empty.
    """
    path, vocab_file, model_dir = map(os.path.expanduser, (path, vocab_file, model_dir))
    vocab, ids = words.read(family, vocab_file)
    state = torch_file.load(path)
    try:
        checkpoint = systems.recognize(family, state)
        if ids.max() + 1 != checkpoint.rows:
            raise ValueError(
                f"{vocab_file} must have a word for each of the {checkpoint.rows} ids of the "
                f"checkpoint. Received: words for {ids.max() + 1} ids"
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
    """Returns the configuration; keeps the position codes of the file if they are not sinusoids."""
    changes = _changes(family, checkpoint, max_length)
    params = configs.resolve(checkpoint.system, (), override, changes)
    if not checkpoint.has_sinusoids(params.task.max_length):
        checkpoint.store_positions(params.task.max_length)
        changes = _changes(family, checkpoint, max_length)
        params = configs.resolve(checkpoint.system, (), override, changes)
    return params


def _changes(family, checkpoint, max_length):
    """Returns how the configuration differs from the experiment of the same name."""
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
    """Returns a text with the options that tensor shapes do not show, for the user to check."""
    keys = ("activation", "embed_activation")
    system = getattr(configs.Model(type=checkpoint.system), checkpoint.system).as_dict()
    options = system | checkpoint.options
    assumed = [f"{key} {options[key]}" for key in keys if key in options]
    if "heads" in options and "heads" not in checkpoint.options:
        assumed.append(f"heads {options['heads']}")
    why = "assumed, because tensor shapes do not show it (see --params_override)"
    text = f"{why}: {', '.join(assumed)}" if assumed else "tensor shapes show all of its options"
    if checkpoint.options.get("stored_positions"):
        text += "; position codes of the file, which are not sinusoids"
    return text
