"""Static and dynamic expansion, the blocks of ExpansionNet in place of self-attention.

Letters: B images, N rows of words, R regions, T positions, S positions that are read, E expansion
vectors, D model width.

A sequence is expanded to another length by E learned vectors and gathered back to its own. Both
directions share the scores Z; their positive part makes one class of vectors and their negative
part another, and a gate chooses between the two. Weights are parts of a sum, not a softmax:

    Phi(X)_ij = X_ij / (sum_j X_ij + 1e-9)

The equations are those of the released code of ExpansionNet (Hu et al., "ExpansionNet: exploring
the sequence length bottleneck in the Transformer for Image Captioning", 2022; docs/systems.md 5.1
to 5.3). Two things differ from it without changing the result: queries of the dynamic block are
never formed, since (c + q) K = c K + q K, and each Phi is float32 at any precision, since 1e-9 is 0
in float16. Dropout is where the released code has it.

Phi jumps where the scores of a row all have one sign but for one near zero, as happens at the
first word: half precision may give that one the other sign, and the row another class of vectors.
There `step`, which adds in another order, may from the second layer on choose otherwise.
"""

import keras
from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.recording import record

EPSILON = 1e-9
# Where the released code drops, both blocks alike; the static one drops its biases as well.
_SITES = ("score", "expanded_a", "expanded_b", "gathered_a", "gathered_b")


def glorot(layer: layers.Layer) -> layers.Layer:
    """Has `layer`, or the affine maps directly inside it, start from Glorot-uniform kernels.

    The released code starts everything with two dimensions that way; biases are left as they are.
    """
    for part in (layer, *vars(layer).values()):
        if isinstance(part, layers.Dense):
            part.kernel_initializer = keras.initializers.GlorotUniform()
    return layer


def linear(inputs: int, units: int, name: str, **kwargs) -> layers.Dense:
    """An affine map with a Glorot-uniform kernel and a bias from U(+-1/sqrt(inputs))."""
    return glorot(common.linear(inputs, units, name, **kwargs))


def _phi(x, axis):
    """Parts of the sum over `axis` of what is not negative; zero where all of it is zero."""
    return x / (ops.sum(x, axis=axis, keepdims=True) + EPSILON)


class _Expansion(layers.Layer):
    """What both blocks have: E vectors as queries and E as biases, affine maps, five dropouts.

    Args:
      width: D.
      vectors: E.
      dropout: at each of the five sites.
      over: what is expanded, `regions` or `words`; for `recording` only.
    """

    def __init__(
        self, width: int, vectors: int, dropout: float = 0.0, over: str = "regions", **kwargs
    ):
        super().__init__(**kwargs)
        self.width, self.vectors, self.over = width, vectors, over
        for name in ("key_embed", "class_a_embed", "class_b_embed", "selector_embed"):
            setattr(self, name, linear(width, width, name))
        for name in ("query_exp_vectors", "bias_exp_vectors"):
            table = self.add_weight((vectors, width), initializer="glorot_uniform", name=name)
            setattr(self, name, table)
        for site in _SITES:
            setattr(self, f"{site}_dropout", layers.Dropout(dropout, name=f"{site}_dropout"))

    def _tables(self):
        """Queries and biases [E, D]; cast here, since `step` runs outside of Keras' autocast."""
        tables = self.query_exp_vectors, self.bias_exp_vectors
        return [ops.cast(ops.convert_to_tensor(table), self.compute_dtype) for table in tables]

    def _halves(self, scores):
        """ReLU(Z) and ReLU(-Z), float32, of scores Z in the compute dtype."""
        scores = ops.cast(scores, "float32")
        return ops.relu(scores), ops.relu(-scores)

    def _select(self, x, a, b):
        """s a + (1 - s) b with the gate s = sigmoid(selector(x)), all [N, T, D]."""
        gate = ops.sigmoid(self.selector_embed(x))
        return gate * a + (1 - gate) * b


class StaticExpansion(_Expansion):
    """Expansion of regions to E vectors, the same for every image (docs/systems.md 5.2).

        Z = Drop(E_q K^T / sqrt(D)),  K = key(x)
        A = Drop(Phi(ReLU(Z) p) class_a(x) + E_b),  a = Drop(Phi(ReLU(Z^T)) A)
        B = Drop(Phi(ReLU(-Z) p) class_b(x) + E_b),  b = Drop(Phi(ReLU(-Z^T)) B)
        out = s a + (1 - s) b,  s = sigmoid(selector(x))

    p hides padded regions; what comes out at their own places is not used by anything.
    """

    def call(self, x, visible, training=False):
        """Expands and gathers.

        Args:
          x: [B, R, D].
          visible: bool [B, 1, R], True for real regions.
          training: switches dropout on.

        Returns:
          [B, R, D] in the compute dtype; not added to `x`.
        """
        query, bias = self._tables()
        query = query * self.width**-0.5
        scores = ops.matmul(query, ops.swapaxes(self.key_embed(x), -1, -2))  # [B, E, R]
        halves = self._halves(self.score_dropout(scores, training=training))
        out = []
        for name, half, values, expanded_dropout, gathered_dropout in zip(
            "ab",
            halves,
            (self.class_a_embed(x), self.class_b_embed(x)),
            (self.expanded_a_dropout, self.expanded_b_dropout),
            (self.gathered_a_dropout, self.gathered_b_dropout),
            strict=True,
        ):
            forward, backward = _phi(ops.where(visible, half, 0.0), -1), _phi(half, -2)  # [B, E, R]
            record(self, f"forward_{name}", "regions", lambda x=forward: x)
            record(self, f"backward_{name}", "vectors", lambda x=backward: ops.swapaxes(x, 1, 2))
            forward = ops.cast(forward, self.compute_dtype)
            expanded = expanded_dropout(ops.matmul(forward, values) + bias, training=training)
            backward = ops.cast(backward, self.compute_dtype)
            gathered = ops.einsum("ber,bed->brd", backward, expanded)
            out.append(gathered_dropout(gathered, training=training))
        return self._select(x, *out)


class DynamicExpansion(_Expansion):
    """Expansion of every position to E vectors that depend on it (docs/systems.md 5.3).

        Q_tn = c_t + q_n,  beta_tn = c_t + b_n,  c = cond(x)
        Z = Drop(Q K^T / sqrt(D)),  K = key(x)
        A = Drop(Phi(ReLU(Z) M1) class_a(x)),  a = Drop(Phi(ReLU(Z^T) M2) (A + beta))
        B = Drop(Phi(ReLU(-Z) M1) class_b(x)),  b = Drop(Phi(ReLU(-Z^T) M2) (B + beta))
        out = s a + (1 - s) b,  s = sigmoid(selector(x))

    with M1[tn, j] = M[t, j] and M2[t', tn] = M[t', t], where M[t, j] says whether t may read j.
    A causal M makes it causal in both directions: the vectors of t are made of positions up to t,
    and t' gathers the vectors of positions up to t'. What was expanded never changes, so that
    `step` adds one position to a cache. Without dropout it computes nothing again, which the
    released code does.
    """

    def __init__(self, width: int, vectors: int, dropout: float = 0.0, **kwargs):
        super().__init__(width, vectors, dropout, **kwargs)
        self.cond_embed = linear(width, width, "cond_embed")

    def call(self, x, visible, training=False):
        """Expands and gathers whole sequences.

        Args:
          x: [N, T, D].
          visible: bool [N or 1, T, T], M.
          training: switches dropout on.

        Returns:
          [N, T, D] in the compute dtype; not added to `x`.
        """
        new = self._project(x)
        scores = self.score_dropout(self._scores(new["cond"], new["key"]), training=training)
        expanded = self._weights(scores, visible, -1)
        gathered = self._weights(scores, ops.swapaxes(visible, -1, -2), -2)
        out = []
        for half, weights, back in zip("ab", expanded, gathered, strict=True):
            vectors = self._expand(half, weights, new, training)
            out.append(self._gather(half, back, vectors, training))
        return self._select(x, *out)

    def empty(self, rows: int, max_length: int) -> dict:
        """The cache of no position: key, class a, class b and cond [N, T, D]; `asked` [N, T, E],
        the scores q K; and the weights of what was expanded, a and b [N, T, E, T]. All in the
        compute dtype."""
        flat = (rows, max_length, self.width)
        shapes = dict.fromkeys(("key", "class_a", "class_b", "cond"), flat)
        shapes["asked"] = (rows, max_length, self.vectors)
        deep = (rows, max_length, self.vectors, max_length)
        shapes |= {"expanded_a": deep, "expanded_b": deep}
        return {name: ops.zeros(shape, self.compute_dtype) for name, shape in shapes.items()}

    def step(self, x, cache, index, put, training=False):
        """One position of `call` with a causal M.

        What was expanded is kept as its weights over the positions, T numbers and not D for each
        vector: (W' W) class(x) is gathered instead of W' (W class(x)). Dropout comes between the
        two. In training the vectors are therefore made again at every step, with new masks, as
        the released code does in sampling.

        Args:
          x: [N, 1, D].
          cache: of `empty` or an earlier step.
          index: int32 scalar, the position.
          put: `put(buffer, row, index, axis)` writes a row of length 1 into a buffer.
          training: switches dropout on.

        Returns:
          [N, 1, D] in the compute dtype, and the new cache.
        """
        past = ops.arange(cache["key"].shape[1]) <= index  # [T]
        new = self._project(x)
        query, bias = self._tables()
        asked = ops.matmul(query, ops.swapaxes(new["key"], -1, -2))  # [N, E, 1], as `_scores`
        new["asked"] = ops.swapaxes(asked, -1, -2)
        cache = cache | {name: put(cache[name], row, index, 1) for name, row in new.items()}
        # Row `index` of Z over all keys, and its column over all expanded vectors.
        row = ops.matmul(new["cond"], ops.swapaxes(cache["key"], -1, -2))  # [N, 1, T]
        row = (row + ops.swapaxes(cache["asked"], -1, -2))[:, None]  # [N, 1, E, T]
        column = ops.matmul(cache["cond"], ops.swapaxes(new["key"], -1, -2))  # [N, T, 1]
        column = (column + new["asked"])[..., None]  # [N, T, E, 1]
        row = self.score_dropout(row, training=training)
        column = self.score_dropout(column, training=training)
        # They meet in Z[index, :, index], which is dropped once for both.
        column = put(column, ops.take(row, ops.reshape(index, (1,)), axis=-1), index, 1)
        expanded = self._weights(row, past[None, None], -1)  # [N, E, T]
        gathered = self._weights(column, past[None, :, None], -2)  # [N, T E, 1]
        out = []
        for half, weights, back in zip("ab", expanded, gathered, strict=True):
            name = f"expanded_{half}"
            cache[name] = put(cache[name], weights[:, None], index, 1)
            weights = self._flat(cache[name])
            if training:
                vectors = self._expand(half, weights, cache, training)
                out.append(self._gather(half, back, vectors, training))
                continue
            total = ops.matmul(ops.swapaxes(back, -1, -2), weights)  # [N, 1, T]
            back = ops.reshape(back, ops.shape(column)[:-1])  # [N, T, E]
            conds, biases = ops.sum(back, axis=2)[:, None], ops.sum(back, axis=1)[:, None]
            out.append(
                ops.matmul(total, cache[f"class_{half}"])
                + ops.matmul(conds, cache["cond"])
                + ops.matmul(biases, bias)
            )
        return self._select(x, *out), cache

    def _project(self, x):
        return {
            "key": self.key_embed(x) * self.width**-0.5,
            "class_a": self.class_a_embed(x),
            "class_b": self.class_b_embed(x),
            "cond": self.cond_embed(x),
        }

    def _scores(self, cond, key):
        """Z [N, T, E, T] before dropout, of `cond` and `key` [N, T, D]."""
        query, _ = self._tables()
        key = ops.swapaxes(key, -1, -2)  # [N, D, T]
        return ops.matmul(cond, key)[:, :, None] + ops.matmul(query, key)[:, None]

    def _weights(self, scores, visible, axis):
        """Phi over `axis` of both halves of `scores` [N, T, E, S], seen as [N, T E, S], where
        `visible` [., T, S] allows it; in the compute dtype."""
        out = []
        for name, half in zip("ab", self._halves(scores), strict=True):
            weights = _phi(self._flat(ops.where(visible[:, :, None], half, 0.0)), axis)
            self._record(axis, name, weights, scores.shape)
            out.append(ops.cast(weights, self.compute_dtype))
        return out

    def _record(self, axis, half, weights, shape):
        """Records Phi over `axis` of scores of `shape` [N, T, E, S]; backward [N, S, T, E]."""

        def moved():
            whole = ops.reshape(weights, shape)
            return whole if axis == -1 else ops.transpose(whole, (0, 3, 1, 2))

        kind, over = ("forward", self.over) if axis == -1 else ("backward", "vectors")
        record(self, f"{kind}_{half}", over, moved)

    def _expand(self, half, weights, parts, training):
        """A + beta or B + beta, [N, T E, D], by `weights` [N, T E, T] of the classes [N, T, D]."""
        _, bias = self._tables()
        dropout = getattr(self, f"expanded_{half}_dropout")
        vectors = dropout(ops.matmul(weights, parts[f"class_{half}"]), training=training)
        return vectors + self._flat(parts["cond"][:, :, None] + bias)

    def _gather(self, half, weights, vectors, training):
        """a or b, [N, S, D], by `weights` [N, T E, S] of the expanded `vectors` [N, T E, D]."""
        gathered = ops.einsum("nrs,nrd->nsd", weights, vectors)
        return getattr(self, f"gathered_{half}_dropout")(gathered, training=training)

    def _flat(self, x):
        """[N, T, E, Z] -> [N, T E, Z]."""
        return ops.reshape(x, (-1, ops.shape(x)[1] * self.vectors, ops.shape(x)[-1]))
