"""Converts a released PyTorch checkpoint to a run directory."""

import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tfcap import configs, runs, torch_file
from tfcap.backbones import detector, swin
from tfcap.backbones.backbone import Backbone
from tfcap.backbones.detector import Detector
from tfcap.data import tokens
from tfcap.data.tokens import Vocab
from tfcap.files import file_sha256
from tfcap.importers import systems, weights
from tfcap.importers.systems import Checkpoint
from tfcap.importers.words import read_words, released_options
from tfcap.layers.loops import unset_weights
from tfcap.models.captioner import Captioner

# How the released code decodes: the largest number of words, and the options of the search.
# X-LAN's authors computed the numbers of the paper with an older search, which is a comment in
# their code; the options `finished: retire, suppress_unk: true` give that search.
# The test scripts of both ExpansionNets decode up to 73 words, their training 20.
_DECODING: dict[str, tuple[int, dict[str, Any]]] = {
    "xlan": (17, {"beam": 3}),
    "xtransformer": (17, {"beam": 2}),
    "updown": (17, {"beam": 3}),
    "expansionnet": (20, {"beam": 5, "length_power": 1.0}),
    "expansionnet_v2": (20, {"beam": 5, "length_power": 1.0}),
    "xmodaler": (20, {"beam": 3}),
    "self_critical": (20, {"beam": 5, "finished": "retire", "suppress_unk": True}),
    "ort": (16, {"beam": 2, "finished": "retire", "suppress_unk": True}),
    "m2": (20, {"beam": 5}),
    "aoanet": (20, {"beam": 2, "finished": "retire", "suppress_unk": True}),
    "xmodaler transformer": (20, {"beam": 2}),
}
CARD = "MODEL_CARD.md"
# Source, licence and training data that the card of a converted run names.
_SOURCES = {
    "expansionnet_v2": (
        "jchenghu/ExpansionNet_v2 (Hu et al., arXiv 2208.06551)",
        "MIT, as its repository says; the Swin inside is MIT, of microsoft/Swin-Transformer",
        "COCO captions, Karpathy's train and restval; the Swin first on ImageNet-22k",
    )
}
_V2_VECTORS = 992  # a first ExpansionNet has 64
# For further training with cross-entropy (our reading: no schedule is published).
_FURTHER = {"name": "constant", "learning_rate": 1.0e-5}


def convert(
    family: str,
    path: str,
    vocab_file: str,
    model_dir: str,
    max_length: int | None = None,
    params_override: str = "",
    regions: str | None = None,
) -> str:
    """Writes a run directory with the weights of a captioner that its authors released.

    Args:
      family: the code that wrote the checkpoint, one of `importers.FAMILIES`.
      path: the checkpoint, a file of `torch.save`.
      vocab_file: the file of words that was released with it, see `words.read_words`.
      model_dir: directory to write; it must be new or empty.
      max_length: largest number of words of a caption; None takes the value of the released code.
      params_override: changes of the configuration as text, see `configs.resolve`. The shapes of
        the weights do not show some options, such as activations and the heads of a Transformer.
        Set such an option here if its default is wrong.
      regions: directory of the detector whose features the captioner was trained on. The run gets a
        copy of the detector, and can then caption pictures. With None, the run can caption features
        only, unless the checkpoint holds a backbone. If the checkpoint holds a backbone, `regions`
        must be None.

    Returns:
      One line that describes the captioner.

    Raises:
      ValueError: a file cannot be used; or checkpoint, words and detector do not fit together; or
        `regions` is given although the checkpoint holds a backbone.
    """
    path, vocab_file, model_dir = map(os.path.expanduser, (path, vocab_file, model_dir))
    vocab, ids = read_words(family, vocab_file)
    with ThreadPoolExecutor(1) as pool:
        sha256 = pool.submit(file_sha256, path)  # half a second for the largest
        state = torch_file.read_tensors(path)
    try:
        checkpoint = systems.recognize(family, state)
        checkpoint.options |= released_options(family, vocab_file)
        _check_rows(checkpoint, ids, vocab_file)
        params = _resolve(family, checkpoint, max_length, params_override)
        _check_groups(params.task.model.get().as_dict(), checkpoint)
        with unset_weights():
            model = runs.build_model(params.task, len(vocab), {"dim": checkpoint.feature_dim})
        weights.assign(model, checkpoint.tensors, ids, checkpoint.names)
        network = swin.name_of(checkpoint.backbone) if checkpoint.backbone else ""
        if network and regions:
            raise ValueError("the checkpoint holds a backbone of its own. Leave out `regions`.")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    fingerprint = _fingerprint(family, path, sha256.result(), vocab, checkpoint)
    line = _description(model, len(vocab), checkpoint, params)
    feature_dim = checkpoint.feature_dim
    tensors = checkpoint.backbone
    del state, checkpoint  # the file is large, and `_backbone` frees what it has taken
    backbone = _backbone(network, path, tensors, regions, feature_dim)
    with tempfile.TemporaryDirectory() as directory:
        copied: list[str] = []
        if family in _SOURCES:
            card = os.path.join(directory, CARD)
            with open(card, "w", encoding="utf-8") as file:
                file.write(_card(family, fingerprint, params, vocab_file, network))
            copied.append(card)
        system = params.task.model.type
        runs.create(model_dir, system, params, vocab, fingerprint, model, copied, backbone=backbone)
    return f"{network} and {line}" if network else line


def _check_rows(checkpoint: Checkpoint, ids: np.ndarray, vocab_file: str) -> None:
    """Raises ValueError unless the checkpoint has a row for each released id."""
    if ids.max() + 1 != checkpoint.rows:
        raise ValueError(
            f"{vocab_file} has words for {ids.max() + 1} ids, but the checkpoint has "
            f"{checkpoint.rows} ids. Give the file of words that was released with the checkpoint."
        )


def _check_groups(options: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Raises ValueError unless the groups of vectors add up to the vectors of the file.

    No shape shows the groups.
    """
    table = checkpoint.tensors.get("encoder/0/expansion/query_exp_vectors")
    groups = options.get("encoder_groups")
    if groups is None and table is not None and len(table) == _V2_VECTORS:
        raise ValueError("the checkpoint is an ExpansionNet v2. Use `family=expansionnet_v2`.")
    if groups is None or table is None or sum(map(int, groups.split())) == len(table):
        return
    raise ValueError(
        f"the checkpoint has {len(table)} static vectors, but the groups {groups} of the "
        "option encoder_groups add up to another number. Give the sizes of the groups with "
        "`params_override=task.model.expansionnet_v2.encoder_groups=...`, or use "
        "`family=expansionnet` if the checkpoint is a first ExpansionNet, not v2."
    )


def _backbone(
    network: str,
    path: str,
    tensors: dict[str, np.ndarray],
    regions: str | None,
    feature_dim: int,
) -> Backbone | Detector | None:
    """Returns what turns pictures into the features of the model; None if it reads features.

    Args:
      network: name of the backbone in the file; "" if it has none.
      path: the file.
      tensors: the weights of this backbone; those that it takes are removed.
      regions: directory of a detector, or None.
      feature_dim: width of the features that the model reads, F.
    """
    if network:
        backbone = Backbone(network, weights=path, tensors=tensors)
        backbone.rounds = False  # as released
        return backbone
    if not regions:
        return None
    result = detector.load(os.path.expanduser(regions))
    if result.feature_dim != feature_dim:
        raise ValueError(
            f"The captioner in {path} reads features {feature_dim} wide, but those of {regions} "
            f"are {result.feature_dim} wide. Give as `regions` the detector whose features the "
            "captioner was trained on."
        )
    return result


# ---- the configuration ---------------------------------------------------------------------------


def _resolve(
    family: str, checkpoint: Checkpoint, max_length: int | None, override: str
) -> configs.Experiment:
    """Returns the configuration; keeps the position codes of the file if they are not sinusoids."""
    changes = _changes(family, checkpoint, max_length)
    params = configs.resolve(checkpoint.system, (), override, changes)
    if not checkpoint.has_sinusoids(params.task.max_length):
        checkpoint.store_positions(params.task.max_length)
        changes = _changes(family, checkpoint, max_length)
        params = configs.resolve(checkpoint.system, (), override, changes)
    return params


def _changes(family: str, checkpoint: Checkpoint, max_length: int | None) -> dict[str, Any]:
    """Returns how the configuration differs from the experiment of the same name."""
    system = checkpoint.system
    length, decoding = _DECODING.get(f"{family} {system}") or _DECODING[family]
    options = getattr(configs.Model(type=system), system).as_dict() | checkpoint.options
    # The code that fills an image up to a number of regions ignores further ones.
    regions = {"max_regions": options.get("filled_regions", 0)}
    return {
        "task": {
            "model": {"type": system, system: options},
            "max_length": max_length or length,
            "decoding": {"finished": "hold", "suppress_unk": False, **decoding},
            "train_data": {"global_batch_size": 10, "captions_per_image": 5, **regions},
            "validation_data": regions,
        },
        "trainer": {"optimizer_config": {"schedule": _FURTHER}},
    }


# ---- what is written beside the weights ----------------------------------------------------------


def _fingerprint(
    family: str, path: str, sha256: str, vocab: Vocab, checkpoint: Checkpoint
) -> dict[str, Any]:
    """Returns the content of dataset.json, without the backbone."""
    return {
        "name": os.path.basename(path),
        "tokenizer": tokens.TOKENIZER,
        "vocab_size": len(vocab),
        "vocab_sha256": vocab.sha256,
        "features": {"dim": checkpoint.feature_dim},
        "backbone": None,
        "converted": {"from": family, "sha256": sha256},
    }


def _description(
    model: Captioner, words: int, checkpoint: Checkpoint, params: configs.Experiment
) -> str:
    """Returns the line that describes the model; `words` is the size of its vocabulary."""
    return (
        f"{checkpoint.system}, {runs.count_parameters(model):,} parameters, {words} words, "
        f"features {checkpoint.feature_dim} wide, at most {params.task.max_length} words, beam "
        f"{params.task.decoding.beam}; {_assumed(checkpoint, params)}"
    )


def _assumed(checkpoint: Checkpoint, params: configs.Experiment) -> str:
    """Lists the options that tensor shapes do not show, for the user to check."""
    keys = ("activation", "embed_activation", "filled_regions")
    options = params.task.model.get().as_dict()
    assumed = [f"{key} {options[key]}" for key in keys if key in options]
    if "encoder_groups" in options:
        assumed.append(f"encoder_groups {options['encoder_groups']}")
    for key in ("heads", "extra_skip"):
        if key in options and key not in checkpoint.options:
            assumed.append(f"{key} {options[key]}")
    why = "assumed, because tensor shapes do not show it (see `params_override`)"
    text = f"{why}: {', '.join(assumed)}" if assumed else "tensor shapes show all of its options"
    if checkpoint.options.get("stored_positions"):
        text += "; position codes of the file, which are not sinusoids"
    return text


def _card(
    family: str,
    fingerprint: Mapping[str, Any],
    params: configs.Experiment,
    vocab_file: str,
    network: str,
) -> str:
    """Returns a text in Markdown: where the weights come from, and under which licence."""
    source, licence, trained_on = _SOURCES[family]
    return f"""# {fingerprint["name"]}

| | |
|---|---|
| source | {source} |
| licence of the weights | {licence} |
| trained on | {trained_on} |
| file | {fingerprint["name"]}, SHA-256 {fingerprint["converted"]["sha256"]} |
| words | {os.path.basename(vocab_file)}, SHA-256 {file_sha256(vocab_file)} |
| features | {network or "ready-made"} |
| decoding | beam {params.task.decoding.beam}, at most {params.task.max_length} words |

`tfcap.convert --from {family}` wrote this directory.
"""
