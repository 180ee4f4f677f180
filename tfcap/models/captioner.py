"""The interface of all captioning systems (encode, decode, init_cache, step), and a registry.

Letters: B images, S captions or samples per image, N rows being decoded (B, B S or B K), K beams, R
regions, F feature width, T `max_length`, T' tokens of a batch, V vocabulary, W width of the
embedded words, D width of a recurrence.

The rows of an image stand together: row n belongs to image n // (N / B). Decoding, training,
evaluation and export use only this interface. A new system is one file that implements it, with a
class that `register` decorates. Its options in configurations are the arguments of the constructor.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import keras
import tensorflow as tf

from tfcap.layers import common, precision
from tfcap.layers.dropout import Dropout
from tfcap.layers.loops import loop
from tfcap.layers.positions import RegionPositions
from tfcap.layers.standardize import Standardize
from tfcap.layers.trees import Tree, build_when_called, is_seed, named_variables, repeat

REGION_POSITIONS = ("none", "frames")
MODELS: dict[str, type["Captioner"]] = {}  # by the name in configurations
SMALL: dict[str, dict[str, Any]] = {}  # options of a model that trains in minutes
_NO_OPTIONS = ("self", "vocab_size", "max_length", "feature_dim")  # the data has these sizes

Class = TypeVar("Class", bound=type["Captioner"])


class _Network(Protocol):
    """What a captioner uses of a `tfcap.backbones.network.Network`."""

    @property
    def stochastic(self) -> bool:
        """Whether training draws random numbers in the network."""


class Backbone(Protocol):
    """What a captioner and its training use of a `tfcap.backbones.backbone.Backbone`.

    Letters: H and W pixels of a picture.
    """

    model: keras.Model  # the Keras network, with trainable variables
    rounds: bool  # whether `extract` rounds its result
    feature_dim: int  # F

    @property
    def network(self) -> _Network:
        """The network with its scaling."""

    @property
    def decoded_shape(self) -> list[int]:
        """Shape of a decoded picture, [H, W, 3]."""

    def decode(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Decodes and resizes a picture file string []."""

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the features float32 [B, R, F] of decoded pictures."""

    def features(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Computes the features of `extract` without rounding, so that they have gradients."""


class Captioner(keras.Model):
    """A model of the probability of a caption, given an image.

    Args:
      vocab_size: number of words, V, with the special ids of `tfcap.ids` (0 PAD, 1 BOS, 2 EOS, 3
        UNK).
      max_length: length of the longest caption in words, T, EOS included.
      feature_dim: feature width, F.
      region_positions: `none`; or `frames` if the regions are the frames of a clip, in order: then
        a learned code of the position is added to each frame.
      standardize: whether each channel of the features gets mean 0 and standard deviation 1.
        Training measures both on the training data before its first step. No released system does
        this.

    Attributes:
      defaults: the options that a class shares with its base class, with their defaults in this
        class. Its constructor passes them on: `super().__init__(*sizes, **(self.defaults |
        options))`.
      reads_order: whether the system can use the order of regions. If it is True, `encode` reads
        the features through `self.regions(inputs)`.
      reads_image: whether `encode` reads the vectors of whole images, `image`, if the data has
        them; then it reads no regions.
      backbone: the network that computes the features of pictures inside `encode`; None for a
        captioner that reads features.
    """

    defaults: ClassVar[dict[str, Any]] = {}
    reads_order = False
    reads_image = False
    backbone: Backbone | None = None

    def __new__(cls, *sizes, **options):
        """Keeps the arguments of the constructor for `get_config`."""
        model = super().__new__(cls, *sizes, **options)
        model._options = options
        return model

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        feature_dim: int,
        *,
        region_positions: str = "none",
        standardize: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        common.check_choice("region_positions", region_positions, REGION_POSITIONS)
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.feature_dim = feature_dim
        self.region_positions = region_positions
        self.region_codes: RegionPositions | None = None
        if region_positions == "frames":
            self.region_codes = RegionPositions(feature_dim, name="region_codes")
        self.standardize: Standardize | None = None
        if standardize:
            # In half precision a mean that is far above the deviation would cost digits.
            self.standardize = Standardize(feature_dim, name="standardize", dtype="float32")

    def regions(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the features [B, R, F] after `standardize` and `region_positions`."""
        features = inputs["features"]
        if self.standardize is not None:
            features = self.standardize(features)
        return features if self.region_codes is None else self.region_codes(features)

    def encode(self, inputs: dict[str, tf.Tensor], training: bool = False) -> Tree:
        """Computes everything that depends on the image alone.

        Args:
          inputs: `features` [B, R, F] float; `mask` [B, R] bool, False for padding; and the vectors
            of whole images `image` [B, F] if the data has them.
          training: whether dropout is on.

        Returns:
          The context: any nest of tensors, all of them [B, ...].
        """
        raise NotImplementedError

    def decode(self, context: Tree, tokens: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Computes the logits of every word of captions (teacher forcing).

        Args:
          context: the result of `encode`, for B images.
          tokens: int32 [N, T'], BOS first; N is a multiple of B.
          training: whether dropout is on.

        Returns:
          Logits [N, T', V], float32; `logits[:, t]` predicts `tokens[:, t + 1]`.
        """
        raise NotImplementedError

    def init_cache(self, context: Tree, max_length: int) -> Tree:
        """Makes the cache before the first word, for one row per image.

        Args:
          context: the result of `encode`, for B images.
          max_length: number of words for which the cache has room.

        Returns:
          The cache: any nest of tensors, all of them [B, ...]. `step` must return a cache with the
          same dtypes and the same shapes.
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
        """Computes the logits of the next word; they equal those of `decode` at this position.

        Args:
          context: the result of `encode`, for B images; searches never change or gather it.
          cache: the result of `init_cache`, or the cache that the step before returned; all tensors
            are [N, ...], N a multiple of B.
          tokens: int32 [N], the last word of each row; BOS in the first step.
          index: int32 scalar, the number of this step, from 0, the same for all rows.
          training: whether dropout is on.

        Returns:
          Logits [N, V], float32, and the new cache.
        """
        raise NotImplementedError

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """Computes the logits float32 [B, S, T', V] of captions.

        Args:
          inputs: those of `encode`, and the captions `tokens` int32 [B, S, T'].
          training: whether dropout is on.
        """
        return self.decode_captions(self.encode(inputs, training), inputs["tokens"], training)

    def decode_captions(
        self, context: Tree, tokens: tf.Tensor, training: bool = False
    ) -> tf.Tensor:
        """Computes the logits float32 [B, S, T', V] of S captions of each image.

        Args:
          context: the result of `encode`, for B images.
          tokens: int32 [B, S, T'], BOS first.
          training: whether dropout is on.
        """
        shape = tf.shape(tokens)
        rows = tf.reshape(tokens, (shape[0] * shape[1], shape[2]))  # [B, S, T'] -> [N, T']
        logits = self.decode(context, rows, training)
        return tf.reshape(logits, (shape[0], shape[1], shape[2], self.vocab_size))

    def build(self, inputs_shape=None) -> None:
        """Creates all variables by one forward pass on zeros."""
        build_when_called(self)
        self.built = True
        self.call(
            {
                "features": tf.zeros((1, 2, self.feature_dim)),
                "mask": tf.ones((1, 2), tf.bool),
                "tokens": tf.ones((1, 1, 2), tf.int32),
            }
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, so that Keras can save the model as a file.

        `model.save("x.keras")` writes it and `keras.saving.load_model("x.keras")` reads it, once
        `tfcap.models` is imported.
        """
        sizes = {n: getattr(self, n) for n in ("vocab_size", "max_length", "feature_dim")}
        return {**self._options, **super().get_config(), **sizes}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None) -> "Captioner":
        """Makes a model in the precision of `config`, not in the global precision."""
        with precision.using(keras.dtype_policies.get(config["dtype"])):
            return cls(**config)

    def get_build_config(self) -> dict[str, Any]:
        return {"input_shape": None}  # Keras calls `build` only if there is an entry

    def on_features(self) -> "Captioner":
        """Returns the captioner without its backbone: it reads features.

        This is a method and not a property, because Keras reads all properties of a model when it
        saves and loads.
        """
        return self

    @property
    def vocabulary_axes(self) -> dict[str, int]:
        """The axis of words of each weight that has one, by the name of the weight."""
        return {"embed_tokens/embeddings": 0, "head/kernel": 1, "head/bias": 0}

    @property
    def checkpoint_items(self) -> dict[str, dict[str, tf.Variable]]:
        """The variables of a checkpoint by name: `weights`, and `seeds`, the states of dropout.

        Everything that saves or restores uses this property, because `tf.train.Checkpoint(model=)`
        silently leaves out layers in Python lists and the states of random generators. Variables
        are found by name, not by order: a model with other dropout rates has other random
        generators, but restores the same weights.
        """
        names = named_variables(self)
        return {
            "weights": {name: v.value for name, v in names.items() if not is_seed(v)},
            "seeds": {name: v.value for name, v in names.items() if is_seed(v)},
        }


class RecurrentCaptioner(Captioner):
    """Base of captioners with a recurrent state; it implements `decode` and `step` with `recur`.

    `decode` embeds all words at once and computes all logits at once. Only `recur` runs word by
    word, in a `loop`. A system implements `encode`, `init_cache`, `embed` and `recur`, and
    `predict` or the layers `head` and `head_dropout`. It sets `output_width`, the width D of the
    output of `recur`.
    """

    head: keras.layers.Layer
    head_dropout: keras.layers.Layer
    output_width: int

    def embed(self, tokens: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the embedded words [N, T', W] of `tokens` int32 [N, T']."""
        raise NotImplementedError

    def recur(
        self, context: Tree, cache: Tree, words: tf.Tensor, training: bool = False
    ) -> tuple[tf.Tensor, Tree]:
        """Computes one position.

        Args:
          context: the result of `encode`, for B images.
          cache: as in `step`.
          words: embedded words of this position [N, W].
          training: whether dropout is on.

        Returns:
          The output [N, D], and the new cache.
        """
        raise NotImplementedError

    def predict(
        self, context: Tree, words: tf.Tensor, outputs: tf.Tensor, training: bool = False
    ) -> tf.Tensor:
        """Computes logits float32 [N, T', V].

        Here they are the layer `head` of `outputs` after `head_dropout`.

        Args:
          context: the result of `encode`.
          words: embedded words [N, T', W].
          outputs: outputs of `recur` [N, T', D].
          training: whether dropout is on.
        """
        return self.head(self.head_dropout(outputs, training=training))

    def decode(self, context, tokens, training=False):
        words = self.embed(tokens, training)
        rows = tf.shape(tokens)[0]
        length = tf.shape(tokens)[1]
        cache = self.init_cache(context, self.max_length)
        cache = repeat(cache, rows // tf.shape(tf.nest.flatten(cache)[0])[0])
        by_time = tf.TensorArray(
            words.dtype, length, element_shape=(tokens.shape[0], words.shape[-1])
        )
        by_time = by_time.unstack(tf.transpose(words, (1, 0, 2)))  # [N, T', W] -> T' of [N, W]

        def body(index, cache, outputs):
            output, cache = self.recur(context, cache, by_time.read(index), training)
            return index + 1, cache, outputs.write(index, output)

        outputs = tf.TensorArray(
            words.dtype, length, element_shape=(tokens.shape[0], self.output_width)
        )
        *_, outputs = loop(
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
        words = self.embed(tokens[:, None], training)
        output, cache = self.recur(context, cache, words[:, 0], training)
        return self.predict(context, words, output[:, None], training)[:, 0], cache


def add_embeddings(
    model: Captioner,
    width: int,
    word_dropout: float,
    region_dropout: float,
    regions: bool = True,
    region_width: int | None = None,
) -> None:
    """Gives a captioner the layers that embed regions and words, with their dropouts.

    The attributes are `region_embed`, `region_dropout`, `embed_tokens` and `word_dropout`.
    Checkpoints store weights by these names, and optimizer slots in this order: change neither.

    Args:
      model: the captioner.
      width: width of embedded words and regions.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded regions.
      regions: whether regions are embedded; if not, `region_embed` is None.
      region_width: width of the regions before embedding; None means F.
    """
    model.region_embed = None
    if regions:
        inputs = region_width or model.feature_dim
        model.region_embed = common.linear(inputs, width, "region_embed")
        model.region_dropout = Dropout(region_dropout, name="region_dropout")
    model.embed_tokens = common.embedding(model.vocab_size, width, "embed_tokens")
    model.word_dropout = Dropout(word_dropout, name="word_dropout")


def register(name: str, small: Mapping[str, Any] | None = None) -> Callable[[Class], Class]:
    """Returns a decorator that registers a captioner class under a name for configurations.

    After that, the key `task.model.NAME` has the options of the constructor, the experiments `NAME`
    and `NAME_scst` train the class on the built-in shapes, and `keras.saving.load_model` can load
    it.

    Args:
      name: name of the system in configurations.
      small: options of those two experiments, if they differ from the defaults.
    """

    def decorate(cls: Class) -> Class:
        MODELS[name] = cls
        SMALL[name] = dict(small or {})
        return keras.saving.register_keras_serializable("tfcap", name)(cls)

    return decorate


class Option(NamedTuple):
    """An option of a captioner: its name, type and default value."""

    name: str
    type: Any  # as in an annotation
    default: Any


def options_of(cls: type[Captioner]) -> list[Option]:
    """Returns the options of a captioner: arguments of its constructor, then those in `defaults`.

    The options of `Captioner` itself come last; only systems that read the order of regions have
    them. Raises TypeError if an option has no type or no default, or if the base class has no
    option of a name in `defaults`.
    """
    options = _arguments(cls)
    if cls.defaults:
        shared = {option.name: option for base in cls.__bases__ for option in options_of(base)}
        for name, value in cls.defaults.items():
            if name not in shared:
                raise TypeError(f"{cls.__qualname__}: its base class has no option `{name}`.")
            options.append(shared[name]._replace(default=value))
    return options + (_arguments(Captioner) if cls.reads_order else [])


def _arguments(cls: type[Captioner]) -> list[Option]:
    """Returns the options in the signature of the constructor of a class, in order."""
    types = typing.get_type_hints(cls.__init__)
    options = []
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name in _NO_OPTIONS or variable:
            continue
        if name not in types or parameter.default is parameter.empty:
            raise TypeError(f"{cls.__qualname__}: `{name}` needs a type and a default.")
        options.append(Option(name, types[name], parameter.default))
    return options


def build(name: str, vocab_size: int, max_length: int, feature_dim: int, **options) -> Captioner:
    """Makes a captioner with all its variables.

    Args:
      name: name of the system, a key of `MODELS`.
      vocab_size: as in `Captioner`.
      max_length: as in `Captioner`.
      feature_dim: as in `Captioner`.
      **options: further arguments of the constructor of the system.
    """
    common.check_choice("name", name, MODELS)
    model = MODELS[name](vocab_size, max_length, feature_dim, name=name, **options)
    model.build()
    return model
