"""The building blocks of every system in slow, literal NumPy float64: what ours is compared with.

One position, one row at a time where it can be; no batching tricks. Weights come from a model by
the names that its checkpoint uses.
"""

import numpy as np


class Weights:
    """The weights of a model in float64, by name; knows which were never read."""

    def __init__(self, model):
        items = model.checkpoint_items["weights"]
        self.values = {name: np.asarray(value, np.float64) for name, value in items.items()}
        self.unread = set(self.values)

    def __getitem__(self, name):
        self.unread.discard(name)
        return self.values[name]

    def __contains__(self, name):
        return name in self.values

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

    def xlinear(self, name, query, keys, values, heads, activation):
        """X-Linear attention of one query [D] over visible keys and values [S, D]."""
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
            weights = softmax(self.linear(f"{name}/spatial", joint)[:, 0])
            gate = sigmoid(self.linear(f"{name}/channel", joint.mean(0)))
            out.append(v1[head] * (weights @ v2[:, head]) * gate)
        return np.concatenate(out)

    def heads(self, name, query, keys, heads):
        """Scaled dot-product attention of one query [D] over visible keys [S, D]."""
        q, k, v = (
            self.linear(f"{name}/{which}", x).reshape(*x.shape[:-1], heads, -1)
            for which, x in (("query", query), ("key", keys), ("value", keys))
        )
        out = [softmax(k[:, h] @ q[h] / np.sqrt(q.shape[-1])) @ v[:, h] for h in range(q.shape[0])]
        return np.concatenate(out)


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
    caption; `batch` may have both. Every weight must have been read. Returns the difference.
    """
    weights, found = Weights(model), np.asarray(model(batch))
    worst = 0.0
    for image, (features, mask, captions) in enumerate(
        zip(*(np.asarray(batch[k]) for k in ("features", "mask", "tokens")), strict=True)
    ):
        for caption, tokens in enumerate(captions):
            real = tokens[: np.flatnonzero(tokens)[-1] + 1]
            expected = logits_of(weights, np.float64(features[mask]), real)
            difference = np.abs(found[image, caption, : len(real)] - expected).max()
            worst = max(worst, difference)
    assert not weights.unread, f"never read: {sorted(weights.unread)}"
    assert worst < tolerance, worst
    return worst
