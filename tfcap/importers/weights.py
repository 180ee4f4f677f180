"""Converts weights of the authors' released PyTorch models to weights of our models.

The name of a tensor in a state dict is a chain of PyTorch modules. The name of a weight in our
model is a chain of attributes (`named_variables`). `NAMES` has, for each released code, the regular
expressions that turn a released name into our name. The matrices of affine maps are transposed.

Letters: V size of our vocabulary.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from tfcap.ids import EOS
from tfcap.models.captioner import Captioner

Names = tuple[tuple[str, str], ...]

UNLIKELY = -30.0  # natural logarithm of a probability

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
# xmodaler, the later toolkit of X-LAN's authors.
_XMODALER: Names = (
    (r"^token_embed\.embeddings$", "embed_tokens"),
    (r"^token_embed\.embeddings_norm", "word_norm"),
    (r"^visual_embed\.embeddings$", "region_embed"),
    (r"^visual_embed\.embeddings_norm", "region_norm"),
    (r"^predictor\.logits", "head"),
)
_XMODALER_TRANSFORMER: Names = (
    *_XMODALER,
    (r"^encoder\.layers", "encoder"),
    (r"^decoder\.g_layers", "decoder"),
    (r"\.(attention|self_attn)\.", ".self_att."),
    (r"\.x_att\.", ".cross_att."),
    (r"_att\.self", "_att.attend"),
    (r"_att\.output\.dense", "_att.attend.output_map"),
    (r"_att\.output\.LayerNorm", "_att.norm"),
    (r"intermediate\.dense", "ff_layer.fc1"),
    (r"output\.dense", "ff_layer.fc2"),
    (r"output\.LayerNorm", "ff_layer.layer_norms"),
)
_XMODALER_LSTM: Names = (
    *_XMODALER,
    (r"^decoder\.p_att_feats", "attention.key"),
    (r"^decoder\.att\.w_h", "attention.query"),
    (r"^decoder\.att\.w_alpha", "attention.alpha"),
    (r"^decoder\.lstm", "lstm"),
)
_XMODALER_LSTM_A: Names = (
    *_XMODALER,
    (r"^decoder\.attribute_fc", "attribute_embed"),
    (r"^decoder\.vfeat_fc", "region_embed"),
    (r"^decoder\.lstm", "lstm"),
)
_XMODALER_GCN: Names = (
    *_XMODALER_LSTM,
    (r"^encoder\.gcn_", "graph."),
    (r"^encoder$", "graph"),
)
_XMODALER_XLAN: Names = (
    *_XMODALER,
    (r"^encoder\.", "encoder_layers."),
    (r"^decoder\.", ""),
    *_XLAN,
)
# husthuaan/AoANet, the code of the authors of AoANet.
_AOANET: Names = (
    (r"^embed\.0", "embed_tokens"),
    (r"^att_embed\.0", "region_embed"),
    (r"^logit", "head"),
    (r"^refiner\.layers\.(\d+)\.", r"refiner.\1."),
    (r"self_attn\.linears\.0", "self_att.query"),
    (r"self_attn\.linears\.1", "self_att.key"),
    (r"self_attn\.linears\.2", "self_att.value"),
    (r"self_attn\.aoa_layer\.0", "self_att.aoa"),
    (r"sublayer\.0\.norm", "norm"),
    (r"^refiner\.norm", "refiner_norm"),
    (r"^ctx2att\.(key|value)", r"attention.\1"),
    (r"^core\.attention\.norm", "query_norm"),
    (r"^core\.attention\.linears\.0", "attention.query"),
    (r"^core\.att_lstm", "lstm"),
    (r"^core\.att2ctx\.0", "att2ctx"),
)
# ruotianluo/self-critical.pytorch, before ImageCaptioning.pytorch.
_SELF_CRITICAL: Names = (
    (r"^embed(\.0)?$", "embed_tokens"),
    (r"^att_embed\.0", "region_embed"),
    (r"^(fc|img)_embed", "region_embed"),
    (r"^logit", "head"),
    (r"^ctx2att", "attention.key"),
    (r"^core\.attention\.h2att", "attention.query"),
    (r"^core\.attention\.alpha_net", "attention.alpha"),
    (r"^core\.a2[ch]", "attended"),
    (r"^_?core\.i2h", "lstm.input_map"),
    (r"^_?core\.h2h", "lstm.state_map"),
)
_SELF_CRITICAL_UPDOWN: Names = (
    (r"^fc_embed\.0", "mean_embed"),
    (r"^core\.att_lstm", "lstm1"),
    (r"^core\.lang_lstm", "lstm2"),
    *_SELF_CRITICAL,
)
# yahoo/object_relation_transformer, the code of the authors.
_ORT: Names = (
    (r"^model\.", ""),
    (r"^att_embed\.0", "region_embed"),
    (r"^tgt_embed\.0\.lut", "embed_tokens"),
    (r"^generator\.proj", "head"),
    (r"^(encoder|decoder)\.layers\.", r"\1."),
    (r"^(encoder|decoder)\.norm", r"\1_norm"),
    (r"^encoder\.(\d+)\.sublayer\.1\.norm", r"encoder.\1.ff_norm"),
    (r"sublayer\.0\.norm", "self_norm"),
    (r"sublayer\.1\.norm", "cross_norm"),
    (r"sublayer\.2\.norm", "ff_norm"),
    (r"^encoder\.(\d+)\.self_attn\.linears\.3", r"encoder.\1.output_map"),
    (r"self_attn\.WGs", "geometry.weigh"),
    (r"self_attn", "self_att"),
    (r"src_attn", "cross_att"),
    (r"linears\.0", "query"),
    (r"linears\.1", "key"),
    (r"linears\.2", "value"),
    (r"linears\.3", "output_map"),
    (r"feed_forward\.w_", "fc"),
)
# aimagelab/meshed-memory-transformer, the code of the authors.
_M2: Names = (
    (r"^encoder\.fc", "region_embed"),
    (r"^encoder\.layer_norm", "region_norm"),
    (r"^decoder\.word_emb", "embed_tokens"),
    (r"^decoder\.fc$", "head"),
    (r"^(encoder|decoder)\.layers\.", r"\1."),
    (r"mhatt", "self_att"),
    (r"enc_att", "cross_att"),
    (r"_att\.attention", "_att.attend"),
    (r"_att\.layer_norm", "_att.norm"),
    (r"fc_q", "query"),
    (r"fc_k", "key"),
    (r"fc_v", "value"),
    (r"fc_o", "output_map"),
    (r"pwff\.layer_norm", "ff_layer.layer_norms"),
    (r"pwff", "ff_layer"),
    (r"fc_alpha", "gates."),
)
NAMES: dict[str, Names] = {
    "aoanet": _AOANET,
    "ort": _ORT,
    "m2": _M2,
    "xlan": _XLAN,
    "xtransformer": _XTRANSFORMER,
    "updown": _UPDOWN,
    "expansionnet": _EXPANSIONNET,
    "expansionnet_v2": _EXPANSIONNET,
    "self_critical": _SELF_CRITICAL,
    "self_critical_fc": _SELF_CRITICAL,
    "self_critical_updown": _SELF_CRITICAL_UPDOWN,
    "xmodaler_transformer": _XMODALER_TRANSFORMER,
    "xmodaler_updown": _XMODALER_LSTM,
    "xmodaler_attention": _XMODALER_LSTM,
    "xmodaler_lstm_a": _XMODALER_LSTM_A,
    "xmodaler_gcn": _XMODALER_GCN,
    "xmodaler_xlan": _XMODALER_XLAN,
}
# Our layers and our weights that are tables of vectors; they are not transposed.
_TABLES = ("embed_tokens", "embed_positions")
_VECTORS = ("query_exp_vectors", "bias_exp_vectors")
LSTM = {
    "weight_ih": "kernel",
    "weight_hh": "recurrent_kernel",
    "bias_ih": "bias",
    "bias_hh": "recurrent_bias",
}
_MEMORY = {"m_k": "memory_keys", "m_v": "memory_values"}
_NORM = {"a_2": "gamma", "b_2": "beta"}  # of a normalisation that PyTorch does not have


def split(state: Mapping[str, np.ndarray], family: str) -> dict[str, np.ndarray]:
    """Splits tensors that hold two affine maps here, and joins those of maps that are one here.

    * `aoanet`: the first half of the rows of `ctx2att` becomes `ctx2att.value`, the map of
      attention values. The second half becomes `ctx2att.key`, the map of attention keys.
    * `ort`: the maps `WGs.0`, `WGs.1`, ... of the heads become one map, `WGs`.
    * `m2`: the memory slots `m_k` and `m_v` lose their first axis, of length 1, and the gates
      `fc_alpha1`, `fc_alpha2`, ... are counted from 0. The logits get a bias of zeros. What the
      code keeps of a search, `running_...`, is left out.

    Args:
      state: tensors by name.
      family: one of `importers.FAMILIES`. The tensors of other families do not change.

    Returns:
      The tensors by name, with the new names.
    """
    parts = dict(state)
    for leaf in ("weight", "bias"):
        joined = parts.get(f"ctx2att.{leaf}") if family == "aoanet" else None
        if joined is not None and joined.ndim and len(joined) % 2 == 0:
            del parts[f"ctx2att.{leaf}"]
            parts[f"ctx2att.value.{leaf}"], parts[f"ctx2att.key.{leaf}"] = np.split(joined, 2)
    if family == "m2":
        parts = dict(_parts_of_m2(parts))
    heads = {key for key in parts if family == "ort" and re.search(r"\.WGs\.\d+\.\w+$", key)}
    for key in sorted(heads):
        start, head, leaf = key.rsplit(".", 2)
        others = [f"{start}.{number}.{leaf}" for number in range(len(heads))]
        if head == "0":
            rows = [parts.pop(other) for other in others if other in heads]
            if len({row.shape[1:] for row in rows}) == 1:
                parts[f"{start}.{leaf}"] = np.concatenate(rows)
    return parts


def _parts_of_m2(state: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of the family `m2`, see `split`."""
    for key, value in state.items():
        start, _, leaf = key.rpartition(".")
        if leaf in _MEMORY and len(value) == 1:
            yield f"{start}.{_MEMORY[leaf]}", value[0]
        elif not leaf.startswith("running_"):
            gate = re.compile(r"(fc_alpha)(\d+)")
            yield gate.sub(lambda found: f"{found[1]}{int(found[2]) - 1}", key), value
            if key.endswith("decoder.fc.weight"):
                yield f"{start}.bias", np.zeros(value.shape[:1], np.float32)


def translate(key: str, value: np.ndarray, names: Names) -> tuple[str, np.ndarray]:
    """Converts a released tensor to our model.

    The matrices of affine maps are transposed.

    Args:
      key: the released name, as `split` returns it.
      value: the tensor.
      names: a value of `NAMES`: pairs (regular expression, replacement), which are applied to the
        name one after the other.

    Returns:
      The name of the weight in our model, and the tensor with its shape there.
    """
    path, _, leaf = key.rpartition(".")
    for pattern, ours in names:
        path = re.sub(pattern, ours, path)
    path = path.replace(".", "/")
    if path.endswith(_VECTORS):
        return path, value
    if leaf in LSTM:
        leaf = LSTM[leaf]
    elif leaf in _NORM:
        leaf = _NORM[leaf]
    elif path.endswith(_TABLES):
        leaf = "embeddings"
    elif leaf == "weight":
        leaf = "kernel" if value.ndim == 2 else "gamma"
    elif "norm" in path.split("/")[-1]:
        leaf = "beta"
    return f"{path}/{leaf}", value.T if "kernel" in leaf else value


def assign(
    model: Captioner,
    tensors: Mapping[str, np.ndarray],
    released: np.ndarray,
    names: Mapping[str, str] | None = None,
) -> None:
    """Assigns the weights of a released captioner to our model.

    The released captioners have no logits for our marks PAD and BOS. So both get the weights of the
    logit of EOS, with a bias that is lower by 30. Decoding never gives PAD and BOS, so captions do
    not change. The bias is not minus infinity, because in training label smoothing sums the logits
    of all words.

    Args:
      model: our captioner, which gets the weights.
      tensors: the weights, by the names that they have in `model`, as `translate` returns them.
      released: the released id of each of our V words, int [V].
      names: the released name of each weight, by its name in `model`. An error message has these
        names; with None it has the names in `model`.

    Raises:
      ValueError: names or shapes differ from those of `model`, or a tensor holds NaN or infinity.
        The error message lists every tensor that does not fit.
    """
    weights = model.checkpoint_items["weights"]
    axes = model.vocabulary_axes
    values: dict[str, np.ndarray] = {}
    faults: list[str] = []
    for name, variable in weights.items():
        expected = variable.shape.as_list()
        if name in axes:
            expected[axes[name]] = int(released.max()) + 1
        called = (names or {}).get(name, name)
        if name not in tensors:
            faults.append(f"{called} {expected} is missing")
        elif list(tensors[name].shape) != expected:
            faults.append(f"{called} is {list(tensors[name].shape)} and should be {expected}")
        elif not np.isfinite(tensors[name]).all():
            faults.append(f"{called} holds NaN or infinity")
        else:
            values[name] = _reorder(tensors[name], name, axes, released)
    faults += [f"{(names or {}).get(n, n)} is not used" for n in tensors if n not in weights]
    if faults:
        raise ValueError(
            f"the weights do not fit {model.name}: {'; '.join(faults)}. Set the options that "
            "differ with `params_override`."
        )
    for name, value in values.items():
        weights[name].assign(value)


def _reorder(
    value: np.ndarray, name: str, axes: Mapping[str, int], released: np.ndarray
) -> np.ndarray:
    """Returns a weight in float32, in the order of our words; see `assign`."""
    value = np.asarray(value, np.float32)
    if name in axes:
        value = np.take(value, released, axis=axes[name])
    if name.startswith("head/"):
        value[..., :EOS] = value[..., EOS : EOS + 1]
    if name == "head/bias":
        value[:EOS] += UNLIKELY
    return value
