"""Weights of the authors' released PyTorch models, as weights of ours.

A state dict names its tensors by modules, ours by attributes (`named_variables`); affine maps are
stored the other way round. `NAMES` has, for each released code, the patterns that turn one name
into the other.
"""

import re
from collections.abc import Mapping

import numpy as np

from tfcap.models.captioner import Captioner

Names = tuple[tuple[str, str], ...]

_XLINEAR: Names = (
    (r"(in_proj_\w+)\.0", r"\1.linear"),
    (r"(in_proj_\w+)\.2", r"\1.norm"),
    (r"attn_net\.attention_basic\.0", "joint"),
    (r"attn_net\.attention_last2", "channel"),
    (r"attn_net\.attention_last", "spatial"),
)
_XTRANSFORMER: Names = (
    (r"^att_embed\.0", "region_embed"),
    (r"^att_embed\.2", "region_norm"),
    (r"^(encoder|decoder)\.layers\.(\d+)\.", r"\1.\2."),
    (r"bifeat_emb\.0", "bifeat_emb"),
    (r"^encoder\.proj_norm\.0", "encoder_proj"),
    (r"^encoder\.proj_norm\.1", "encoder_norm"),
    (r"^decoder\.proj_norm\.0", "decoder_proj"),
    (r"^decoder\.proj_norm\.2", "decoder_norm"),
    (r"^decoder\.embed_tokens", "embed_tokens"),
    (r"^decoder\.layer_norm_word", "word_norm"),
    (r"^decoder\.generator", "head"),
    (r"^decoder\.(wbil\d)\.0", r"\1"),
    (r"^decoder\.(wbil\d)\.2", r"\1_norm"),
    *_XLINEAR,
)
_XLAN: Names = (
    (r"^word_embed\.0", "embed_tokens"),
    (r"^att_embed\.0", "region_embed"),
    (r"^logit", "head"),
    (r"^encoder_layers\.layers\.(\d+)\.", r"encoder.\1."),
    (r"^encoder_layers\.bifeat_emb\.(\d+)\.0", r"encoder.\1.bifeat_emb"),
    (r"^encoder_layers\.layer_norms\.(\d+)", r"encoder.\1.layer_norm"),
    (r"^encoder_layers\.proj", "encoder_proj"),
    (r"^encoder_layers\.layer_norm", "encoder_norm"),
    (r"^att_lstm", "lstm"),
    (r"^attention\.layers\.(\d+)\.encoder_attn", r"attention.\1"),
    (r"^attention\.proj", "attention_proj"),
    (r"^attention\.layer_norm", "attention_norm"),
    (r"^att2ctx\.0", "att2ctx"),
    *_XLINEAR,
)
_UPDOWN: Names = (
    (r"^word_embed\.0", "embed_tokens"),
    (r"^att_embed\.0", "region_embed"),
    (r"^p_att_feats", "attention.key"),
    (r"^att\.Wah", "attention.query"),
    (r"^att\.alpha", "attention.alpha"),
    (r"^logit", "head"),
)
_EXPANSIONNET: Names = (
    (r"^encoders", "encoder"),
    (r"^decoders", "decoder"),
    (r"(stc_exp|dyn_exp)", "expansion"),
    (r"key_linear", "key_embed"),
    (r"linear_(\d)", r"fc\1"),
    (r"mha\.Wq", "mha.query"),
    (r"mha\.Wk", "mha.key"),
    (r"mha\.Wv", "mha.value"),
    (r"mha\.out_linear", "mha.output_map"),
    (r"^input_linear", "region_embed"),
    (r"^vocab_linear", "head"),
    (r"^out_embedder\.embed", "embed_tokens"),
    (r"^pos_encoder", "embed_positions"),
    (r"^(enc|dec)_reduce_group", r"\1oder_proj"),
    (r"^(enc|dec)_reduce_norm", r"\1oder_norm"),
)
NAMES: dict[str, Names] = {
    "xlan": _XLAN,
    "xtransformer": _XTRANSFORMER,
    "updown": _UPDOWN,
    "expansionnet": _EXPANSIONNET,
}
# Tensors of a table of vectors, which are not transposed.
_TABLES = ("embed_tokens", "embed_positions", "_exp_vectors")
_LSTM = {
    "weight_ih": "kernel",
    "weight_hh": "recurrent_kernel",
    "bias_ih": "bias",
    "bias_hh": "recurrent_bias",
}


def translate(state: Mapping[str, np.ndarray], names: Names) -> dict[str, np.ndarray]:
    """The tensors of a state dict by our names and in our layout."""
    found = {}
    for key, value in state.items():
        path, leaf = key.rsplit(".", 1)
        for pattern, ours in names:
            path = re.sub(pattern, ours, path)
        path = path.replace(".", "/")
        if leaf in _LSTM:
            leaf = _LSTM[leaf]
        elif path.endswith(_TABLES):
            leaf = "embeddings"
        elif leaf == "weight":
            leaf = "kernel" if value.ndim == 2 else "gamma"
        elif "norm" in path.split("/")[-1]:
            leaf = "beta"
        found[f"{path}/{leaf}"] = value.T if "kernel" in leaf else value
    return found


def assign(model: Captioner, tensors: Mapping[str, np.ndarray], released: np.ndarray) -> None:
    """Gives `model` every weight of a released one.

    PAD and BOS, which some released models do not have apart, can never be predicted.

    Args:
      model: the captioner.
      tensors: of `translate`.
      released: int [V], the released id of each of our words.

    Raises:
      ValueError: listing every tensor that is missing, not used or of another shape.
    """
    weights, axes = model.checkpoint_items["weights"], model.vocabulary_axes
    values, faults = {}, []
    for name, variable in weights.items():
        if name not in tensors:
            faults.append(f"{name} {variable.shape.as_list()} is missing")
            continue
        value = tensors[name]
        if name in axes:
            value = np.take(value, released, axis=axes[name])
        if name == "head/bias":
            value[:2] = -1e9
        if tuple(variable.shape) != value.shape:
            faults.append(f"{name} is {list(value.shape)} and should be {variable.shape.as_list()}")
        values[name] = value
    faults += [f"{name} is not used" for name in tensors if name not in weights]
    if faults:
        raise ValueError(f"the weights do not fit {model.name}: " + "; ".join(faults))
    for name, value in values.items():
        weights[name].assign(value)
