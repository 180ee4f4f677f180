"""The interface of all captioning systems (encode, decode, init_cache, step), and a registry.

Letters: B images, S captions or samples of each image, K beams, N rows (captions) being decoded (B,
B * S or B * K), R regions, F feature width, T `max_length`, T' tokens of a batch, V vocabulary, W
width of the embedded words, D width of a recurrence.

The rows of an image stand together: row n belongs to image n // (N / B). Decoding, training,
evaluation and export use only this interface. A new system is a class that implements the interface
and that `register` decorates. The arguments of its constructor are its options in configurations.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import keras
import tensorflow as tf

from tfcap.ids import EOS, PAD
from tfcap.layers import common, precision
from tfcap.layers.dropout import Dropout
from tfcap.layers.loops import loop
from tfcap.layers.packing import Packing, on_words
from tfcap.layers.positions import RegionPositions
from tfcap.layers.standardize import Standardize
from tfcap.layers.trees import Tree, build_when_called, is_seed, named_variables, repeat
from tfcap.private_api import in_xla

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
    """The attributes and methods that captioners and their training use of a backbone.

    A backbone computes the features of pictures. `tfcap.backbones.backbone.Backbone` implements
    this protocol.

    Attributes:
      model: the Keras network, with trainable variables.
      rounds: whether `extract` rounds the features to float16.
      feature_dim: number of features of a region, F.
    """

    model: keras.Model
    rounds: bool
    feature_dim: int

    @property
    def network(self) -> _Network:
        """The network, whose attribute `stochastic` says whether training draws random numbers."""

    @property
    def decoded_shape(self) -> list[int]:
        """Shape of a picture that `decode` returns: height and width in pixels, and 3."""

    def decode(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Decodes a picture and resizes it for `extract`.

        Args:
          image_bytes: contents of a picture file, a string scalar.

        Returns:
          The picture, RGB in 0..255, float32 with the shape `decoded_shape`.
        """

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Computes the features of pictures.

        If the attribute `rounds` is True, the features are rounded to values of float16. Their
        dtype stays float32.

        Args:
          images: B pictures as `decode` returns them, float32 [B, height, width, 3].

        Returns:
          float32 [B, R, F]: F features of each of R regions.
        """

    def features(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Computes the features of pictures without rounding, because rounding has no gradient.

        Args:
          images: B pictures as `decode` returns them, float32 [B, height, width, 3].
          training: whether the network runs as in training, for example with dropout.

        Returns:
          float32 [B, R, F]: F features of each of R regions.
        """


class Captioner(keras.Model):
    """Base class of the captioning systems, which compute the probability of each next word.

    A subclass supplies `encode`, `decode`, `init_cache` and `step`. Decoding, training, evaluation
    and export need no other methods. The decorator `register` gives a subclass its name in
    configurations.

    Args:
      vocab_size: number of words, V. The first four words are special: 0 PAD (padding), 1 BOS
        (begin), 2 EOS (end) and 3 UNK (unknown).
      max_length: length of the longest caption in words, T, EOS included.
      feature_dim: number of features of a region, F.
      region_positions: `none`, or `frames` if the regions are the frames of a video clip, in order.
        With `frames`, a learned code of its position is added to each frame.
      standardize: whether each channel of the features is shifted and scaled to mean 0 and standard
        deviation 1. Training measures mean and deviation of the training data before its first
        step. No released system standardises its features.
      **kwargs: arguments of `keras.Model`, such as `name`.

    Attributes:
      defaults: for a subclass that has options of its base class: a dictionary from the names of
        these options to their defaults in the subclass. The constructor of the subclass passes the
        options on: `super().__init__(*sizes, **(self.defaults | options))`.
      reads_order: whether the system has the options `region_positions` and `standardize`. A system
        that has them must read the features in `encode` through `self.regions(inputs)`.
      reads_image: whether `encode` reads `image`, the vectors of whole images, instead of regions.
        If the data has no `image`, such a system reads the mean of the regions.
      attends_to_regions: whether the last attention in `decode`, if there is one, reads the regions
        of `features`. False if it reads something that is made of them.
      phase_weights: starts of the names of weights that only some phases of training have. A run
        that starts from a checkpoint of another phase keeps its own.
      reads_boxes: whether `encode` reads `boxes`, the boxes of regions, if the data has them.
      backbone: the `Backbone` that computes the features of pictures inside `encode`; None for a
        captioner that reads features.
    """

    defaults: ClassVar[dict[str, Any]] = {}
    phase_weights: ClassVar[tuple[str, ...]] = ()
    reads_order = False
    reads_image = False
    attends_to_regions: bool = True
    reads_boxes: bool = False
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
        """Applies the options `standardize` and `region_positions` to the features of regions.

        If neither option is set, the features are returned unchanged.

        Args:
          inputs: dictionary with `features` [B, R, F]: F features of each of R regions of B images.

        Returns:
          float [B, R, F].
        """
        features = inputs["features"]
        if self.standardize is not None:
            features = self.standardize(features)
        return features if self.region_codes is None else self.region_codes(features)

    def encode(self, inputs: dict[str, tf.Tensor], training: bool = False) -> Tree:
        """Computes everything that depends on the image alone.

        Args:
          inputs: dictionary with `features` float [B, R, F], F features of each of R regions of B
            images; `mask` bool [B, R], False for padded regions; and, if the data has them, `image`
            [B, F], the vectors of whole images, and `boxes` float32 [B, R, 4], the corners x1, y1,
            x2, y2 of the regions as fractions (0..1) of the picture. An image whose boxes are not
            known has zeros.
          training: whether dropout is on.

        Returns:
          The context: a tensor [B, ...], or lists, tuples and dictionaries of such tensors.
        """
        raise NotImplementedError

    def decode(self, context: Tree, tokens: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Computes the logits of every next word of given captions (teacher forcing).

        Letters: N captions of B images, T words of a caption, V words of the vocabulary.

        Args:
          context: the result of `encode`, for B images.
          tokens: word ids int32 [N, T], BOS first. Row n belongs to image n // (N / B).
          training: whether dropout is on.

        Returns:
          Logits float32 [N, T, V]; `logits[:, t]` predicts `tokens[:, t + 1]`. In training, those
          after the end of a caption mean nothing.
        """
        raise NotImplementedError

    def init_cache(self, context: Tree, max_length: int) -> Tree:
        """Makes the cache for the first call of `step`, with one row for each image.

        Args:
          context: the result of `encode`, for B images.
          max_length: number of words for which the cache has room.

        Returns:
          The cache: a tensor [B, ...], or lists, tuples and dictionaries of such tensors. `step`
          must return a cache with the structure, dtypes and shapes of the cache that it is given.
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
        """Computes the logits of the next word of each caption.

        The logits equal those that `decode` computes at this position.

        Letters: N captions of B images, V words of the vocabulary.

        Args:
          context: the result of `encode`, for B images. It is the same in all steps.
          cache: in the first step, the result of `init_cache`, with each row repeated N / B times;
            later, the cache that the previous step returned.
          tokens: word ids int32 [N], the last word of each caption; BOS in the first step. Row n
            belongs to image n // (N / B).
          index: int32 scalar, the number of this step, counted from 0; the same for all rows.
          training: whether dropout is on.

        Returns:
          A tuple: logits float32 [N, V], and the new cache.
        """
        raise NotImplementedError

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """Encodes images and computes the logits of given captions. Keras calls this method.

        Args:
          inputs: the dictionary for `encode`, with an additional item `tokens`: word ids int32
            [B, S, T], BOS first, T words of each of S captions of each of B images.
          training: whether dropout is on.

        Returns:
          Logits float32 [B, S, T, V] for V words of the vocabulary; `logits[:, :, t]` predicts
          `tokens[:, :, t + 1]`. In training, those after the end of a caption mean nothing.
        """
        return self.decode_captions(self.encode(inputs, training), inputs["tokens"], training)

    def decode_captions(
        self, context: Tree, tokens: tf.Tensor, training: bool = False
    ) -> tf.Tensor:
        """Computes logits as `decode` does, but for S captions of each image.

        Args:
          context: the result of `encode`, for B images.
          tokens: word ids int32 [B, S, T], BOS first, T words of each caption.
          training: whether dropout is on.

        Returns:
          Logits float32 [B, S, T, V] for V words of the vocabulary; `logits[:, :, t]` predicts
          `tokens[:, :, t + 1]`. In training, those after the end of a caption mean nothing.
        """
        shape = tf.shape(tokens)
        rows = tf.reshape(tokens, (shape[0] * shape[1], shape[2]))  # [B, S, T'] -> [N, T']
        logits = self.decode(context, rows, training)
        return tf.reshape(logits, (shape[0], shape[1], shape[2], self.vocab_size))

    def extra_loss(self, context: Tree, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Computes what the system adds to the loss of cross-entropy training: nothing, here.

        A system whose paper trains with a loss of its own overrides this method.

        Args:
          context: the result of `encode`, for B images.
          logits: logits float32 [B, S, T, V] of V words, at T positions of S captions of an image.
          targets: ids of the correct words, int32 [B, S, T]; positions with 0 (PAD) do not count,
            and their logits mean nothing.

        Returns:
          The loss, summed over all captions, a float32 scalar.
        """
        return tf.constant(0.0)

    def build(self, inputs_shape=None) -> None:
        """Creates all variables by one forward pass on features of zeros.

        Args:
          inputs_shape: not used.
        """
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
        """Returns the arguments of the constructor by name, for `model.save("x.keras")`.

        `keras.saving.load_model("x.keras")` reads the file, if `tfcap.models` has been imported.
        """
        sizes = {n: getattr(self, n) for n in ("vocab_size", "max_length", "feature_dim")}
        return {**self._options, **super().get_config(), **sizes}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None) -> "Captioner":
        """Makes a model from a result of `get_config`.

        The precision is the `dtype` of `config`, not the global policy of Keras.

        Args:
          config: the result of `get_config`.
          custom_objects: not used.
        """
        with precision.using(keras.dtype_policies.get(config["dtype"])):
            return cls(**config)

    def get_build_config(self) -> dict[str, Any]:
        return {"input_shape": None}  # Keras calls `build` only if there is an entry

    def on_features(self) -> "Captioner":
        """Returns the captioner without backbone: `self`, or the captioner inside an `EndToEnd`.

        The result reads features. This is a method and not a property, because Keras reads all
        properties of a model when it saves or loads the model.
        """
        return self

    @property
    def vocabulary_axes(self) -> dict[str, int]:
        """A dictionary from the names of the weights with an axis of V words to that axis.

        V is the size of the vocabulary. For example, `{"head/kernel": 1}` says that axis 1 of the
        weight `head/kernel` has an entry for each word. The names are those of `checkpoint_items`.
        """
        return {"embed_tokens/embeddings": 0, "head/kernel": 1, "head/bias": 0}

    @property
    def checkpoint_items(self) -> dict[str, dict[str, tf.Variable]]:
        """The variables of a checkpoint: two dictionaries, `weights` and `seeds`, by name.

        `seeds` are the states of the random generators of dropout. Everything that saves or
        restores a model uses this property. `tf.train.Checkpoint(model=model)` would leave out the
        seeds and all layers in Python lists, without a warning. Variables are restored by name, not
        by order, so a model with other dropout rates, which has other seeds, can restore the same
        weights.
        """
        names = named_variables(self)
        return {
            "weights": {name: v.value for name, v in names.items() if not is_seed(v)},
            "seeds": {name: v.value for name, v in names.items() if is_seed(v)},
        }


class RecurrentCaptioner(Captioner):
    """Base class of captioners whose decoder is a recurrence, such as an LSTM.

    This class supplies `decode` and `step`. `decode` embeds all words at once and computes all
    logits at once; only `recur` runs word by word. A subclass supplies:

    * the methods `encode`, `init_cache`, `embed` and `recur`;
    * the attribute `output_width`, the width of the output of `recur`;
    * the layers `head` and `head_dropout`, or a method `predict` that does without them.
    """

    head: keras.layers.Layer
    head_dropout: keras.layers.Layer
    output_width: int

    def embed(self, tokens: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the embedded words [N, T, W] of word ids `tokens` int32 [N, T].

        N is the number of captions, T the number of words of each, and W the width of an embedded
        word.
        """
        raise NotImplementedError

    def recur(
        self, context: Tree, cache: Tree, words: tf.Tensor, training: bool = False
    ) -> tuple[tf.Tensor, Tree]:
        """Computes one step of the recurrence for N captions of B images.

        Args:
          context: the result of `encode`, for B images.
          cache: in the first step, the result of `init_cache`, with each row repeated N / B times;
            later, the cache that the previous step returned.
          words: embedded words of this step [N, W], of width W.
          training: whether dropout is on.

        Returns:
          A tuple: the output [N, D], where D is `output_width`; and the new cache.
        """
        raise NotImplementedError

    def predict(
        self,
        context: Tree,
        words: tf.Tensor,
        outputs: tf.Tensor,
        training: bool = False,
        packing: Packing | None = None,
    ) -> tf.Tensor:
        """Computes the logits from the outputs of the recurrence: `head(head_dropout(outputs))`.

        A subclass may override this method to read `words` and `context`, too. In training it is
        called with `packing`.

        Args:
          context: the result of `encode`; not used here.
          words: embedded words [N, T, W], T words of width W in each of N captions; not used here.
          outputs: outputs of `recur` [N, T, D], of width D.
          training: whether dropout is on.
          packing: says which positions are words, in training. The logits of padding, which take
            no time then, do not depend on the image. None computes all logits.

        Returns:
          Logits float32 [N, T, V] for V words.
        """
        outputs = self.head_dropout(outputs, training=training)
        return on_words(self.head, outputs, packing)

    def decode(self, context, tokens, training=False):
        words = self.embed(tokens, training)
        rows = tf.shape(tokens)[0]
        length = tokens.shape[1] or tf.shape(tokens)[1]  # ONNX needs a number
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
        if not training or in_xla():  # XLA knows no shapes that depend on numbers
            return self.predict(context, words, outputs, training)
        packing = Packing(count_positions(tokens), length)
        return self.predict(context, words, outputs, training, packing)

    def step(self, context, cache, tokens, index, training=False):
        words = self.embed(tokens[:, None], training)
        output, cache = self.recur(context, cache, words[:, 0], training)
        return self.predict(context, words, output[:, None], training)[:, 0], cache


def count_positions(tokens: tf.Tensor) -> tf.Tensor:
    """Counts the positions of captions at which a word or the end mark is predicted.

    These are the start mark and the words.

    Args:
      tokens: captions int32 [N, T]: BOS and words, then EOS if there is room, then PAD.

    Returns:
      int32 [N].
    """
    is_word = (tokens != PAD) & (tokens != EOS)
    return tf.reduce_max(tf.where(is_word, tf.range(1, tf.shape(tokens)[1] + 1), 0), 1)


def add_embeddings(
    model: Captioner,
    width: int,
    word_dropout: float,
    region_dropout: float,
    regions: bool = True,
    region_width: int | None = None,
) -> None:
    """Gives a captioner the layers that embed regions and words, and the dropouts after them.

    The function sets the attributes `region_embed`, `region_dropout`, `embed_tokens` and
    `word_dropout` of the captioner. Keep these names and this order: checkpoints store the weights
    by name, and the variables of the optimizer by order.

    Args:
      model: the captioner.
      width: width of embedded words and regions.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded regions.
      regions: whether regions are embedded. False sets `region_embed` to None and does not set
        `region_dropout`.
      region_width: width of the regions before they are embedded; None means the `feature_dim` of
        the captioner.
    """
    model.region_embed = None
    if regions:
        inputs = region_width or model.feature_dim
        model.region_embed = common.linear(inputs, width, "region_embed")
        model.region_dropout = Dropout(region_dropout, name="region_dropout")
    model.embed_tokens = common.embedding(model.vocab_size, width, "embed_tokens")
    model.word_dropout = Dropout(word_dropout, name="word_dropout")


def register(name: str, small: Mapping[str, Any] | None = None) -> Callable[[Class], Class]:
    """Returns a decorator that registers a captioner class as a system with the name NAME.

    For a registered class:

    * The group `task.model.NAME` of a configuration has the options of the constructor as keys.
    * The experiments `NAME` and `NAME_scst` train a small model of the class on the built-in
      pictures of shapes.
    * `keras.saving.load_model` can load a saved model of the class.

    Args:
      name: name of the system, NAME.
      small: options of the small model that differ from the defaults of the class; None keeps all
        defaults.
    """

    def decorate(cls: Class) -> Class:
        MODELS[name] = cls
        SMALL[name] = dict(small or {})
        return keras.saving.register_keras_serializable("tfcap", name)(cls)

    return decorate


class Option(NamedTuple):
    """An option of a captioner class.

    Attributes:
      name: name of the argument of the constructor.
      type: type of the argument as in its annotation, for example `int | None`.
      default: default value.
    """

    name: str
    type: Any  # as in an annotation
    default: Any


def options_of(cls: type[Captioner]) -> list[Option]:
    """Returns the options of a captioner class.

    The options are, in this order: the arguments of the constructor; the options in the attribute
    `defaults` of the class; and, if its `reads_order` is True, `region_positions` and
    `standardize`. `vocab_size`, `max_length` and `feature_dim` are not options, because they follow
    from the data.

    Raises:
      TypeError: an argument of the constructor has no type annotation or no default; or a name in
        `defaults` is not an option of the base class.
    """
    options = _arguments(cls)
    if defaults := vars(cls).get("defaults"):  # a subclass of its own lists its own options
        bases = [base for base in cls.__bases__ if issubclass(base, Captioner)]
        shared = {option.name: option for base in bases for option in options_of(base)}
        for name, value in defaults.items():
            if name not in shared:
                raise TypeError(
                    f"{cls.__qualname__}: `defaults` has the option `{name}`, but "
                    "the base class has no such option. Correct the name, or add the option to the "
                    "base class."
                )
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
            raise TypeError(
                f"{cls.__qualname__}: the argument `{name}` of the constructor needs a "
                "type annotation and a default value, because it is an option in configurations."
            )
        options.append(Option(name, types[name], parameter.default))
    return options


def build(name: str, vocab_size: int, max_length: int, feature_dim: int, **options) -> Captioner:
    """Makes a captioner with all its variables.

    Args:
      name: name of the system, such as `xlan`, a key of `tfcap.models.MODELS`.
      vocab_size: number of words, including the special words PAD, BOS, EOS and UNK.
      max_length: length of the longest caption in words, EOS included.
      feature_dim: number of features of a region.
      **options: further arguments of the constructor of the system.

    Raises:
      ValueError: there is no system with this name.
    """
    common.check_choice("name", name, MODELS)
    model = MODELS[name](vocab_size, max_length, feature_dim, name=name, **options)
    model.build()
    return model
