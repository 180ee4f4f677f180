"""Static and dynamic expansion: the blocks that replace self-attention in ExpansionNet.

Letters: B images, N rows of words, R regions, T positions, S positions that are read, E expansion
vectors, D model width.

A block expands a sequence to another length with E learned vectors, and then gathers the result
back to the original length. Both directions use the same scores Z. The positive part of Z gives the
vectors of class a, the negative part gives the vectors of class b, and a gate mixes both classes.
There is no softmax; weights are divided by their sum:

    Phi(X)_ij = X_ij / (sum_j X_ij + 1e-9)

The blocks follow the released code of ExpansionNet (Hu et al., "ExpansionNet: exploring the
sequence length bottleneck in the Transformer for Image Captioning", 2022; docs/systems.md 5.1 to
5.3), including the places of dropout. Groups of vectors follow the released code of ExpansionNet v2
(Hu et al., arXiv 2208.06551; docs/systems.md 5.9). Two things differ without changing the result:

* The queries of the dynamic block are sums c + q. They are never computed, because the products
  with keys K are (c + q) K = c K + q K.
* Each Phi is computed in float32, because 1e-9 is 0 in float16.

Phi is not continuous. If all scores of a row have the same sign, except one score near zero, then a
rounding error can change the sign of that score, and the row gets vectors of the other class. Such
rows occur at the first word. In half precision, `step` adds numbers in another order than `call`.
So the results of `step` and `call` may differ at the first word, from the second layer on.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import layers, ops

from tfcap.layers import common, precision
from tfcap.layers.dropout import Dropout
from tfcap.layers.trees import put

EPSILON = 1e-9
# The five dropouts of the released code, in both blocks. The static block drops its biases too.
_SITES = ("score", "expanded_a", "expanded_b", "gathered_a", "gathered_b")


def glorot(layer: layers.Layer) -> layers.Layer:
    """Sets the initialiser of the kernels of a layer to Glorot-uniform, and returns the layer.

    The released code initialises every two-dimensional weight that way. Biases keep their
    initialiser.

    Args:
      layer: an affine map, or a layer with affine maps as attributes. Its weights must not exist
        yet.
    """
    for part in (layer, *vars(layer).values()):
        if isinstance(part, layers.Dense):
            part.kernel_initializer = keras.initializers.GlorotUniform()
    return layer


def linear(inputs: int, units: int, name: str, **kwargs) -> layers.Dense:
    """Makes an affine map with a Glorot-uniform kernel.

    The bias starts from U(-1/sqrt(inputs), 1/sqrt(inputs)).

    Args:
      inputs: width of the input.
      units: width of the output.
      name: name of the layer.
      **kwargs: further arguments of `keras.layers.Dense`.

    Example:
      >>> layer = linear(inputs=16, units=8, name="project")
      >>> layer(ops.ones((2, 3, 16))).shape
      TensorShape([2, 3, 8])
    """
    return glorot(common.linear(inputs, units, name, **kwargs))


def _phi(x, axis):
    """Divides `x` >= 0 by its sum over `axis`; a sum of zero gives zeros."""
    return x / (ops.sum(x, axis=axis, keepdims=True) + EPSILON)


def _visible(mask):
    """Returns a mask with an axis for queries: [B, 1, S] for [B, S]; [1, 1, 1] for None."""
    return ops.ones((1, 1, 1), "bool") if mask is None else common.per_query(mask)


class _Expansion(common.Layer):
    """Base of both blocks: E query vectors, E bias vectors, affine maps and five dropouts.

    Args:
      width: model width, D.
      vectors: number of expansion vectors, E; or the sizes of the groups into which the E vectors
        are divided, in order.
      dropout: dropout rate, the same at all five places.
    """

    def __init__(self, width: int, vectors: int | Sequence[int], dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.groups = (vectors,) if isinstance(vectors, int) else tuple(vectors)
        self.width = width
        self.vectors = sum(self.groups)
        for name in ("key_embed", "class_a_embed", "class_b_embed", "selector_embed"):
            setattr(self, name, linear(width, width, name, dtype=self.dtype_policy))
        for name in ("query_exp_vectors", "bias_exp_vectors"):
            table = self.add_weight((self.vectors, width), initializer="glorot_uniform", name=name)
            setattr(self, name, table)
        for site in _SITES:
            part = Dropout(dropout, name=f"{site}_dropout", dtype=self.dtype_policy)
            setattr(self, f"{site}_dropout", part)

    def _tables(self):
        """Returns queries and biases [E, D] in the compute dtype; Keras does not cast in `step`."""
        tables = self.query_exp_vectors, self.bias_exp_vectors
        return [ops.cast(ops.convert_to_tensor(table), self.compute_dtype) for table in tables]

    def _halves(self, scores):
        """Returns ReLU(Z) and ReLU(-Z) in float32, for scores Z in the compute dtype."""
        scores = ops.cast(scores, "float32")
        return ops.relu(scores), ops.relu(-scores)

    def _select(self, x, a, b):
        """Mixes both classes: s a + (1 - s) b, with the gate s = sigmoid(selector(x)) [N, T, D]."""
        gate = ops.sigmoid(self.selector_embed(x))
        return gate * a + (1 - gate) * b


@keras.saving.register_keras_serializable("tfcap")
class StaticExpansion(_Expansion):
    """Lets E learned vectors read all regions, and lets the regions read the E results.

    The block replaces self-attention in the encoder of ExpansionNet (docs/systems.md 5.2). The E
    vectors are the same for every image:

        Z         = Drop(E_q K^T / sqrt(D)),  K = key(x)
        A         = Drop(Phi(ReLU(Z) p) class_a(x) + E_b),  a = Drop(Phi(ReLU(Z^T)) A)
        B         = Drop(Phi(ReLU(-Z) p) class_b(x) + E_b),  b = Drop(Phi(ReLU(-Z^T)) B)
        out       = s a + (1 - s) b,  s = sigmoid(selector(x))
        Phi(X)_ij = X_ij / (sum_j X_ij + 1e-9)

    x [R, D] are the R regions of an image. E_q and E_b [E, D] are learned; key, class_a, class_b
    and selector are affine maps. Phi divides by the sum over the last axis, and Drop is dropout. p
    is 0 for padded regions and 1 for real regions; products with p and s are elementwise. The
    outputs at padded regions are not used.

    With groups of vectors, each region reads each group separately, and a and b are the means over
    the groups.

    Args:
      width: model width, D.
      vectors: number of expansion vectors, E; or a sequence of group sizes, which add up to E.
      dropout: dropout rate, the same for the five Drop of the equations.

    Example:
      >>> block = StaticExpansion(width=8, vectors=16)
      >>> block(ops.ones((2, 5, 8))).shape
      TensorShape([2, 5, 8])
    """

    def call(self, x, visible=None, training=False, mask=None):
        """Computes the output of the block for all regions.

        Args:
          x: [B, R, D], R regions for each of B images.
          visible: bool [B, R] or [B, 1, R], True for real regions. None means `mask`; if both are
            None, all regions are real.
          training: whether dropout is on.
          mask: bool [B, R], the Keras mask that `x` carries, passed by Keras.

        Returns:
          [B, R, D] in the compute dtype. The residual `x` is not added.
        """
        visible = _visible(mask if visible is None else visible)
        query, bias = self._tables()
        query = query * self.width**-0.5
        scores = precision.matmul(self, query, ops.swapaxes(self.key_embed(x), -1, -2))  # [B, E, R]
        halves = self._halves(self.score_dropout(scores, training=training))
        out = []
        for half, values, expanded_dropout, gathered_dropout in zip(
            halves,
            (self.class_a_embed(x), self.class_b_embed(x)),
            (self.expanded_a_dropout, self.expanded_b_dropout),
            (self.gathered_a_dropout, self.gathered_b_dropout),
            strict=True,
        ):
            forward = _phi(ops.where(visible, half, 0.0), -1)  # [B, E, R]
            forward = ops.cast(forward, self.compute_dtype)
            expanded = expanded_dropout(
                precision.matmul(self, forward, values) + bias, training=training
            )
            backward = ops.cast(self._gathering(half), self.compute_dtype)
            gathered = precision.matmul(self, ops.swapaxes(backward, -1, -2), expanded)
            out.append(gathered_dropout(gathered, training=training))
        a, b = out
        return self._select(x, a, b)

    def _gathering(self, half):
        """Returns Phi over the vectors of each group, divided by the number of groups.

        `half` and the result are [B, E, R]: the positive or negative half of the scores, and the
        weights by which regions gather vectors.
        """
        if len(self.groups) == 1:
            return _phi(half, -2)
        parts = ops.split(half, np.cumsum(self.groups)[:-1].tolist(), axis=-2)
        return ops.concatenate([_phi(part, -2) for part in parts], axis=-2) / len(parts)


@keras.saving.register_keras_serializable("tfcap")
class DynamicExpansion(_Expansion):
    """Expands every position to E vectors that depend on that position, and gathers them again.

    The block replaces self-attention in the decoder of ExpansionNet (docs/systems.md 5.3):

        Q_tn      = c_t + q_n,  beta_tn = c_t + p_n,  c = cond(x)
        Z         = Drop(Q K^T / sqrt(D)),  K = key(x)
        A         = Drop(Phi(ReLU(Z) M1) class_a(x)),  a = Drop(Phi(ReLU(Z^T) M2) (A + beta))
        B         = Drop(Phi(ReLU(-Z) M1) class_b(x)),  b = Drop(Phi(ReLU(-Z^T) M2) (B + beta))
        out       = s a + (1 - s) b,  s = sigmoid(selector(x))
        Phi(X)_ij = X_ij / (sum_j X_ij + 1e-9)

    x [T, D] are the T positions of a row. tn is the index of vector n of position t, for n = 1 to
    E. q and p [E, D] are learned; cond, key, class_a, class_b and selector are affine maps. Phi
    divides by the sum over the last axis, and Drop is dropout.

    M1 and M2 are masks of zeros and ones, and products with them and with s are elementwise. Let
    M[t, j] be 1 if position t may read position j, else 0. Then M1[tn, j] = M[t, j] and
    M2[t', tn] = M[t', t]. With a causal M, the vectors of position t are computed from positions up
    to t, and position t' gathers the vectors of positions up to t'. So the vectors of a position do
    not depend on later positions, and `step` only adds one position to a cache. The released code
    computes all positions so far again at every step.

    Args:
      width: model width, D.
      vectors: number of expansion vectors of each position, E.
      dropout: dropout rate, the same for the five Drop of the equations.

    Example:
      >>> block = DynamicExpansion(width=8, vectors=4)
      >>> causal = np.tril(np.ones((1, 3, 3), bool))  # a word reads itself and earlier words
      >>> block(ops.ones((2, 3, 8)), visible=causal).shape
      TensorShape([2, 3, 8])
    """

    def __init__(self, width: int, vectors: int, dropout: float = 0.0, **kwargs):
        super().__init__(width, vectors, dropout, **kwargs)
        self.cond_embed = linear(width, width, "cond_embed", dtype=self.dtype_policy)

    def call(self, x, visible=None, training=False, mask=None):
        """Computes the output of the block for whole sequences.

        Args:
          x: [N, T, D], T positions of N rows, with the model width D.
          visible: bool [N, T, T] or [1, T, T], True where a position (axis 1) may read a position
            (axis 2); or bool [N, T], True for the positions that all may read. None means `mask`;
            if both are None, all positions may be read.
          training: whether dropout is on.
          mask: bool [N, T], the Keras mask that `x` carries, passed by Keras.

        Returns:
          [N, T, D] in the compute dtype. The residual `x` is not added.
        """
        visible = _visible(mask if visible is None else visible)
        new = self._project(x)
        scores = self.score_dropout(self._scores(new["cond"], new["key"]), training=training)
        expanded = self._weights(scores, visible, -1)
        gathered = self._weights(scores, ops.swapaxes(visible, -1, -2), -2)
        out = []
        for half, weights, back in zip("ab", expanded, gathered, strict=True):
            vectors = self._expand(half, weights, new, training)
            out.append(self._gather(half, back, vectors, training))
        a, b = out
        return self._select(x, a, b)

    def empty(self, rows: int, max_length: int) -> dict:
        """Makes the cache for the first call of `step`.

        Args:
          rows: number of rows (captions), N.
          max_length: number of positions for which the cache has room, T.

        Returns:
          A dictionary of zeros in the compute dtype, for E vectors of width D:

          * `key`, `class_a`, `class_b` and `cond` [N, T, D]: the maps of the input.
          * `query_scores` [N, E, T]: the products of learned queries and keys.
          * `expanded_a` and `expanded_b` [N, T, E, T]: the weights with which each vector of each
            position reads the positions.
        """
        flat = (rows, max_length, self.width)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("key", "class_a", "class_b", "cond"), flat
        )
        shapes["query_scores"] = (rows, self.vectors, max_length)
        deep = (rows, max_length, self.vectors, max_length)
        shapes |= {"expanded_a": deep, "expanded_b": deep}
        return {name: ops.zeros(shape, self.compute_dtype) for name, shape in shapes.items()}

    def step(self, x, cache, index, training=False):
        """Computes one position of `call`, where each position reads itself and all earlier ones.

        In training, each step draws new dropout masks for the expanded vectors of all positions.
        The other values of an earlier position keep the masks of the step that computed them. The
        released code draws all masks again at every step.

        Args:
          x: [N, 1, D], the vector of width D at this position, in each of N rows.
          cache: in the first step, the result of `empty`; later, the cache that the previous step
            returned.
          index: int32 scalar, the number of this position, counted from 0.
          training: whether dropout is on.

        Returns:
          A tuple: the output [N, 1, D] in the compute dtype, and the new cache.
        """
        past = ops.arange(cache["key"].shape[1]) <= index  # [T]
        new = self._project(x)
        query, bias = self._tables()
        key = ops.swapaxes(new["key"], -1, -2)  # [N, D, 1]
        cache = cache | {name: put(cache[name], row, index, 1) for name, row in new.items()}
        scores = precision.matmul_of_step(self, query, key)  # [N, E, 1], as `_scores`
        cache["query_scores"] = put(cache["query_scores"], scores, index, 2)
        # Row `index` of Z over all keys, and its column over all expanded vectors.
        # [N, 1, T]
        row = precision.matmul_of_step(self, new["cond"], cache["key"], transpose_b=True)
        row = (row + cache["query_scores"])[:, None]  # [N, 1, E, T]
        column = precision.matmul_of_step(self, cache["cond"], key)  # [N, T, 1]
        column = (column + ops.swapaxes(scores, -1, -2))[..., None]  # [N, T, E, 1]
        row = self.score_dropout(row, training=training)
        column = self.score_dropout(column, training=training)
        # Row and column share Z[index, :, index]: both must use the same dropout mask there.
        column = put(column, ops.take(row, ops.reshape(index, (1,)), axis=-1), index, 1)
        expanded = self._weights(row, past[None, None], -1)  # [N, E, T]
        gathered = self._weights(column, past[None, :, None], -2)  # [N, T E, 1]
        out = []
        for half, weights, back in zip("ab", expanded, gathered, strict=True):
            name = f"expanded_{half}"
            cache[name] = put(cache[name], weights[:, None], index, 1)
            weights = self._flat(cache[name])
            # The cache holds the T weights W of each expanded vector over the positions, not its D
            # numbers. With W' the weights of gathering, a step computes (W' W) class(x) instead of
            # W' (W class(x)). In training a dropout is between the two products.
            if training:
                vectors = self._expand(half, weights, cache, training)
                out.append(self._gather(half, back, vectors, training))
                continue
            total = precision.matmul_of_step(self, ops.swapaxes(back, -1, -2), weights)  # [N, 1, T]
            back = ops.reshape(back, ops.shape(column)[:-1])  # [N, T, E]
            conds = ops.sum(back, axis=2)[:, None]  # [N, 1, T]
            biases = ops.sum(back, axis=1)[:, None]  # [N, 1, E]
            out.append(
                precision.matmul_of_step(self, total, cache[f"class_{half}"])
                + precision.matmul_of_step(self, conds, cache["cond"])
                + precision.matmul_of_step(self, biases, bias)
            )
        a, b = out
        return self._select(x, a, b), cache

    def _project(self, x):
        """Applies the four affine maps to `x` [N, T, D]; `key` is divided by sqrt(D)."""
        return {
            "key": self.key_embed(x) * self.width**-0.5,
            "class_a": self.class_a_embed(x),
            "class_b": self.class_b_embed(x),
            "cond": self.cond_embed(x),
        }

    def _scores(self, cond, key):
        """Returns the scores Z [N, T, E, T] before dropout, from `cond` and `key` [N, T, D]."""
        query, _ = self._tables()
        key = ops.swapaxes(key, -1, -2)  # [N, D, T]
        return (
            precision.matmul(self, cond, key)[:, :, None]
            + precision.matmul(self, query, key)[:, None]
        )

    def _weights(self, scores, visible, axis):
        """Applies Phi to the positive and the negative half of the scores.

        Args:
          scores: Z [N, T, E, S].
          visible: bool [N or 1, T, S]; False hides a score.
          axis: the axis of [N, T E, S] that Phi sums over.

        Returns:
          Two tensors [N, T E, S] in the compute dtype.
        """
        out = []
        for half in self._halves(scores):
            weights = _phi(self._flat(ops.where(visible[:, :, None], half, 0.0)), axis)
            out.append(ops.cast(weights, self.compute_dtype))
        return out

    def _expand(self, half, weights, parts, training):
        """Returns A + beta or B + beta [N, T E, D], from `weights` [N, T E, T] over positions."""
        _, bias = self._tables()
        dropout = getattr(self, f"expanded_{half}_dropout")
        vectors = dropout(
            precision.matmul(self, weights, parts[f"class_{half}"]), training=training
        )
        return vectors + self._flat(parts["cond"][:, :, None] + bias)

    def _gather(self, half, weights, vectors, training):
        """Returns a or b [N, S, D]: `weights` [N, T E, S] times expanded `vectors` [N, T E, D]."""
        gathered = precision.matmul(self, ops.swapaxes(weights, -1, -2), vectors)
        return getattr(self, f"gathered_{half}_dropout")(gathered, training=training)

    def _flat(self, x):
        """Reshapes [N, T, E, Z] to [N, T E, Z]."""
        return ops.reshape(x, (-1, ops.shape(x)[1] * self.vectors, ops.shape(x)[-1]))
