"""The building blocks of every system in slow, literal NumPy float64: what ours is compared with.

One position, one row at a time where it can be; no batching tricks. Weights come from a model by
the names that its checkpoint uses.
"""

import numpy as np

from helpers import contract
from tfcap.layers.trees import is_seed, named_variables

EXPANSION_DROPOUTS = ("score", "expanded_a", "expanded_b", "gathered_a", "gathered_b")


class Weights:
    """The weights of a model or layer in float64, by name; knows which were never read.

    Parts of a layer that is alone have the name "".
    """

    def __init__(self, model):
        variables = {name: v for name, v in named_variables(model).items() if not is_seed(v)}
        self.values = {name: np.float64(v.numpy()) for name, v in variables.items()}
        self.unread = set(self.values)

    def __getitem__(self, name):
        self.unread.discard(name.lstrip("/"))
        return self.values[name.lstrip("/")]

    def __contains__(self, name):
        return name.lstrip("/") in self.values

    def linear(self, name, x):
        """x W + b of the affine map `name`; without bias where it has none."""
        y = np.asarray(x) @ self[f"{name}/kernel"]
        return y + self[f"{name}/bias"] if f"{name}/bias" in self else y

    def norm(self, name, x, epsilon=1e-5):
        """Layer normalisation of the last axis."""
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        return centred / scale * self[f"{name}/gamma"] + self[f"{name}/beta"]

    def lstm(self, name, x, h, c):
        """One step of an LSTM: the new h and c."""
        z = x @ self[f"{name}/kernel"] + self[f"{name}/bias"]
        z = z + h @ self[f"{name}/recurrent_kernel"] + self[f"{name}/recurrent_bias"]
        i, f, g, o = np.split(z, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c

    def additive(self, name, query, keys, values):
        """Additive attention of one query [D] over visible keys [S, K] and values [S, V]."""
        logits = np.tanh(self.linear(f"{name}/key", keys) + self.linear(f"{name}/query", query))
        return softmax(self.linear(f"{name}/alpha", logits)[:, 0]) @ values

    def xlinear(self, name, query, keys, values, heads, activation, noise=None, kept=None):
        """X-Linear attention of one query [D] over visible keys and values [S, D].

        `noise` [H, S, e] multiplies E where the released code drops. The list `kept` gets the
        spatial weights [S] of each head.
        """
        normalised = f"{name}/in_proj_q/norm/gamma" in self

        def project(which, x):
            y = activation(self.linear(f"{name}/in_proj_{which}/linear", x))
            y = y.reshape(*y.shape[:-1], heads, -1)  # [..., H, d]
            if normalised:
                y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
                flat = y.reshape(*y.shape[:-2], -1)
                path = f"{name}/in_proj_{which}/norm"
                y = (flat * self[f"{path}/gamma"] + self[f"{path}/beta"]).reshape(y.shape)
            return y

        q, v1 = project("q", query), project("v1", query)
        k, v2 = project("k", keys), project("v2", values)
        out = []
        for head in range(heads):
            joint = relu(self.linear(f"{name}/joint", q[head] * k[:, head]))
            joint = joint if noise is None else joint * noise[head]
            weights = softmax(self.linear(f"{name}/spatial", joint)[:, 0])
            gate = sigmoid(self.linear(f"{name}/channel", joint.mean(0)))
            out.append(v1[head] * (weights @ v2[:, head]) * gate)
            if kept is not None:
                kept.append(weights)
        return np.concatenate(out)

    def heads(self, name, query, keys, heads):
        """Scaled dot-product attention of one query [D] over visible keys [S, D]."""
        q, k, v = (
            self.linear(f"{name}/{which}", x).reshape(*x.shape[:-1], heads, -1)
            for which, x in (("query", query), ("key", keys), ("value", keys))
        )
        out = [softmax(k[:, h] @ q[h] / np.sqrt(q.shape[-1])) @ v[:, h] for h in range(q.shape[0])]
        return np.concatenate(out)

    def static(self, name, x, seen=1.0, noise=None, groups=()):
        """Static expansion of regions [R, D], where `seen` [R] is 1 for real ones.

        `noise` has factors for some of the five dropouts. `groups` are the sizes of the groups of
        vectors; without them there is one.
        """
        scores = self[f"{name}/query_exp_vectors"] @ self.linear(f"{name}/key_embed", x).T
        noise = dict.fromkeys(EXPANSION_DROPOUTS, 1.0) | (noise or {})
        scores, result = scores / x.shape[-1] ** 0.5 * noise["score"], []
        for letter, half in (("a", relu(scores)), ("b", relu(-scores))):
            forward = shares(half * seen)  # [E, R]
            parts = np.split(half.T, np.cumsum(groups[:-1], dtype=int), axis=1)
            backward = np.concatenate([shares(part) / len(parts) for part in parts], 1)  # [R, E]
            classes = self.linear(f"{name}/class_{letter}_embed", x)
            vectors = forward @ classes + self[f"{name}/bias_exp_vectors"]
            gathered = backward @ (vectors * noise[f"expanded_{letter}"])
            result.append(gathered * noise[f"gathered_{letter}"])
        gate = sigmoid(self.linear(f"{name}/selector_embed", x))
        return gate * result[0] + (1 - gate) * result[1]

    def dynamic(self, name, x, may, noise=None):
        """Dynamic expansion of positions [T, D], where `may` [T, T] says which reads which.

        Row t E + n of the scores is vector n of position t; the rest as in `static`.
        """
        queries, biases = self[f"{name}/query_exp_vectors"], self[f"{name}/bias_exp_vectors"]
        cond, keys = (self.linear(f"{name}/{which}_embed", x) for which in ("cond", "key"))
        noise = dict.fromkeys(EXPANSION_DROPOUTS, 1.0) | (noise or {})
        scores = np.concatenate([(c + queries) @ keys.T for c in cond]) / x.shape[-1] ** 0.5
        scores = scores * noise["score"]
        beta = np.concatenate([c + biases for c in cond])
        forward, backward = np.repeat(may, len(queries), 0), np.repeat(may, len(queries), 1)
        result = []
        for letter, half in (("a", relu(scores)), ("b", relu(-scores))):
            made, back = shares(half * forward), shares(half.T * backward)
            vectors = made @ self.linear(f"{name}/class_{letter}_embed", x)
            gathered = back @ (vectors * noise[f"expanded_{letter}"] + beta)
            result.append(gathered * noise[f"gathered_{letter}"])
        gate = sigmoid(self.linear(f"{name}/selector_embed", x))
        return gate * result[0] + (1 - gate) * result[1]


def shares(x):
    """Phi: each row of numbers that are not negative divided by its sum."""
    return x / (x.sum(-1, keepdims=True) + 1e-9)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


def celu(x, alpha=1.3):
    return np.maximum(x, 0) + np.minimum(0, alpha * (np.exp(x / alpha) - 1))


def glu(x):
    a, b = np.split(x, 2, axis=-1)
    return a * sigmoid(b)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def compare(model, batch, logits_of, tolerance=1e-5):
    """Logits of `model` against `logits_of(weights, regions, tokens)`, caption by caption.

    `regions` [visible, F] has no padding and `tokens` [L] neither, L being the length of the
    caption; `batch` may have both. Every weight must have been read. Steps must give the logits of
    the whole caption.
    """
    weights, result = Weights(model), np.asarray(model(batch))
    worst = 0.0
    for image, (features, mask, captions) in enumerate(
        zip(*(np.asarray(batch[k]) for k in ("features", "mask", "tokens")), strict=True)
    ):
        for caption, tokens in enumerate(captions):
            real = tokens[: np.flatnonzero(tokens)[-1] + 1]
            expected = logits_of(weights, np.float64(features[mask]), real)
            difference = np.abs(result[image, caption, : len(real)] - expected).max()
            worst = max(worst, difference)
    assert not weights.unread, f"never read: {sorted(weights.unread)}"
    assert worst < tolerance, worst
    contract.check_step_equals_decode(model, batch | {"tokens": batch["tokens"][..., :3]})
