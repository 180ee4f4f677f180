"""The one interface of every captioning system: encode, decode, init_cache, step.

Letters: B images, S captions or samples per image, N rows being decoded (B, B S or B K),
K beams, R regions, F feature width, T `max_length`, V vocabulary.

Rows are image-major: row n belongs to image n // (N / B). Decoding, training, evaluation and
export are written once over this interface; a new system is one file that fills it in.
"""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfcap.layers.loops import loop

Tree = Any  # a nest of tensors


class Captioner(keras.Model):
    """A distribution over sentences given an image.

    Args:
      vocab_size: V, with the special ids of `tfcap.data.tokens` (0 pad, 1 bos, 2 eos, 3 unk).
      max_length: T, the longest sentence in words, its end included.
      feature_dim: F.
    """

    def __init__(self, vocab_size: int, max_length: int, feature_dim: int, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.feature_dim = feature_dim

    def encode(self, inputs: dict[str, tf.Tensor], training: bool = False) -> Tree:
        """Everything that depends on the image alone.

        Args:
          inputs: `features` [B, R, F] float and `mask` [B, R] bool.
          training: switches dropout on.

        Returns:
          The context: any nest, every leaf [B, ...].
        """
        raise NotImplementedError

    def decode(self, context: Tree, tokens: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Teacher forcing.

        Args:
          context: of `encode`, B images.
          tokens: int32 [N, T'], BOS first, N a multiple of B.
          training: switches dropout on.

        Returns:
          Logits [N, T', V], float32; `logits[:, t]` predicts `tokens[:, t + 1]`.
        """
        raise NotImplementedError

    def init_cache(self, context: Tree, max_length: int) -> Tree:
        """The empty cache for one row per image: any nest, every leaf [B, ...].

        `step` changes neither dtypes nor shapes; time axes are allocated at `max_length`.
        """
        raise NotImplementedError

    def step(
        self,
        context: Tree,
        cache: Tree,
        tokens: tf.Tensor,
        index: tf.Tensor,
        training: bool = False,
    ) -> tuple[tf.Tensor, Tree]:
        """One word: `decode` column by column.

        Args:
          context: of `encode`, B images; constant during decoding and never gathered.
          cache: every leaf [N, ...], N a multiple of B.
          tokens: int32 [N], the words just emitted, BOS first.
          index: int32 scalar, their position, the same for all rows.
          training: switches dropout on.

        Returns:
          Logits [N, V], float32, and the new cache.
        """
        raise NotImplementedError

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """Logits [B, S, T', V] for `inputs["tokens"]` [B, S, T'] int32; the rest as in `encode`."""
        tokens = inputs["tokens"]
        shape = tf.shape(tokens)
        rows = tf.reshape(tokens, (shape[0] * shape[1], shape[2]))  # [B, S, T'] -> [N, T']
        logits = self.decode(self.encode(inputs, training), rows, training)
        return tf.reshape(logits, (shape[0], shape[1], shape[2], self.vocab_size))

    def build(self, inputs_shape=None) -> None:
        """Creates every variable, by one forward pass on zeros."""
        self.built = True
        self.call(
            {
                "features": tf.zeros((1, 2, self.feature_dim)),
                "mask": tf.ones((1, 2), tf.bool),
                "tokens": tf.ones((1, 1, 2), tf.int32),
            }
        )

    @property
    def vocabulary_axes(self) -> dict[str, int]:
        """The weights with an entry for every word, by name, and the axis that counts the words."""
        return {"embed_tokens/embeddings": 0, "head/kernel": 1, "head/bias": 0}

    @property
    def checkpoint_items(self) -> dict[str, dict[str, tf.Variable]]:
        """What a checkpoint holds, by name: `weights`, and `seeds`, the states of the dropout.

        `tf.train.Checkpoint(model=...)` misses layers in Python lists and the states of random
        generators, without a word, so that everything that saves or restores goes through here.
        Names, and not an order, identify the variables: a model built with other dropout rates
        has other generators but restores the same weights.
        """
        names = named_variables(self)
        return {
            "weights": {name: v.value for name, v in names.items() if not is_seed(v)},
            "seeds": {name: v.value for name, v in names.items() if is_seed(v)},
        }


class RecurrentCaptioner(Captioner):
    """A captioner whose history is a recurrent state: `decode` and `step` are one recurrence.

    Words are embedded and logits are made for all positions at once; only `recur` runs word by
    word, in a `loop`. A system fills in `encode`, `init_cache` and the three below.
    """

    def embed(self, tokens: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Embedded words [N, T', W] of `tokens` int32 [N, T']."""
        raise NotImplementedError

    def recur(
        self, context: Tree, cache: Tree, words: tf.Tensor, training: bool = False
    ) -> tuple[tf.Tensor, Tree]:
        """One position: `words` [N, W] -> the output [N, D] of this position and the new cache."""
        raise NotImplementedError

    def predict(
        self, context: Tree, words: tf.Tensor, outputs: tf.Tensor, training: bool = False
    ) -> tf.Tensor:
        """Logits [N, T', V] float32 of embedded `words` [N, T', W] and `outputs` [N, T', D]."""
        raise NotImplementedError

    def decode(self, context, tokens, training=False):
        """See base class."""
        words = self.embed(tokens, training)
        rows, length = tf.shape(tokens)[0], tf.shape(tokens)[1]
        cache = self.init_cache(context, self.max_length)
        group = rows // tf.shape(tf.nest.flatten(cache)[0])[0]
        cache = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, group, axis=0), cache)
        by_time = tf.TensorArray(words.dtype, length, element_shape=(None, words.shape[-1]))
        by_time = by_time.unstack(tf.transpose(words, (1, 0, 2)))  # [N, T', W] -> T' of [N, W]

        def body(index, cache, outputs):
            output, cache = self.recur(context, cache, by_time.read(index), training)
            return index + 1, cache, outputs.write(index, output)

        outputs = tf.TensorArray(words.dtype, length, element_shape=(None, self.output_width))
        *_, outputs = loop(
            self,
            lambda index, *_: index < length,
            body,
            (tf.constant(0), cache, outputs),
            gradient=training,
            maximum_iterations=length,
        )
        outputs = tf.transpose(outputs.stack(), (1, 0, 2))
        outputs.set_shape((tokens.shape[0], tokens.shape[1], self.output_width))
        return self.predict(context, words, outputs, training)

    def step(self, context, cache, tokens, index, training=False):
        """See base class; the recurrence knows no positions, so that `index` is not read."""
        del index
        words = self.embed(tokens[:, None], training)
        output, cache = self.recur(context, cache, words[:, 0], training)
        return self.predict(context, words, output[:, None], training)[:, 0], cache


def named_variables(layer: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Every variable below `layer` by the chain of attributes that leads to it.

    For example `decoder/0/word_attn/in_proj_q/linear/kernel`. Keras' own `path` depends on which
    layer happened to be called first and is not unique.
    """
    names, known = {}, set()
    for path, part in named_layers(layer):
        for variable in part.variables:
            if id(variable) not in known:
                known.add(id(variable))
                names[path + variable.name] = variable
    if len(names) != len(layer.variables):
        raise ValueError(
            f"{len(layer.variables)} variables have {len(names)} names: a layer keeps its "
            "sub-layers in public attributes, lists or dictionaries, and names its weights apart"
        )
    return names


def named_layers(
    layer: keras.layers.Layer, path: str = ""
) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yields every layer below `layer`, inner ones first, then itself, each after its path.

    For example `decoder/0/word_attn/`; the path of `layer` itself is `path`.
    """
    for key, child in _children(vars(layer), ""):
        yield from named_layers(child, f"{path}{key}/")
    yield path, layer


def _children(value, key):
    """The layers directly inside an attribute: itself, or in lists, tuples and dictionaries."""
    if isinstance(value, keras.layers.Layer):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            if not str(name).startswith("_"):
                yield from _children(item, f"{key}/{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _children(item, f"{key}/{index}")


def is_seed(variable: keras.Variable) -> bool:
    """Whether a variable is the state of a random generator, and not a weight."""
    return variable.name == "seed_generator_state"


def repeat(tree: Tree, times: int) -> Tree:
    """Repeats every leaf [N, ...] along its first axis: [N * times, ...], copies side by side."""
    if times == 1:
        return tree
    return tf.nest.map_structure(lambda leaf: tf.repeat(leaf, times, axis=0), tree)


def take(tree: Tree, rows: tf.Tensor) -> Tree:
    """Gathers `rows` [M] int32 of every leaf [N, ...]: [M, ...]."""
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), tree)


def put(buffer: tf.Tensor, row: tf.Tensor, index: tf.Tensor, axis: int) -> tf.Tensor:
    """Writes `row` (length 1 on `axis`) at position `index` of `buffer`'s `axis`.

    Inside a loop this operation writes into the buffer itself, where a select or a scatter copies
    it. `keras.ops.slice_update` has no gradient on TensorFlow.
    """
    before, whole = [0] * axis, (1 << axis) - 1  # all of the axes before
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=buffer,
        begin=tf.stack([*before, index]),
        end=tf.stack([*before, index + 1]),
        strides=[1] * (axis + 1),
        value=tf.cast(row, buffer.dtype),
        begin_mask=whole,
        end_mask=whole,
    )
