"""Image features: a convolutional backbone inside the graph.

B images, R regions, F feature width, H and W pixels of an image, G cells along one side of the
grid (R = G * G).
"""

import contextlib
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_PIXELS_PER_CELL = 16
_NETWORKS = {
    "mobilenet_v2": (keras.applications.MobileNetV2, keras.applications.mobilenet_v2, 1280),
    "resnet101": (keras.applications.ResNet101, keras.applications.resnet, 2048),
    "vgg16": (keras.applications.VGG16, keras.applications.vgg16, 512),
}
_NETWORK_STRIDE = 32
BACKBONES = (*_NETWORKS, "pixels")


class Backbone(tf.Module):
    """Turns image files into a grid of features, in TensorFlow operations only.

    `mobilenet_v2`, `resnet101` and `vgg16` are keras.applications without their top, preceded by
    their own `preprocess_input`; their grid has image_size / 32 cells along a side, and a smaller
    `grid` averages it adaptively (cell i covers rows floor(i*n/G) to ceil((i+1)*n/G), the rule of
    torch.nn.AdaptiveAvgPool2d, by which the released features of grid models were made).
    `pixels` has no weights: each cell of 16 x 16 pixels averaged to 8 x 8 x 3 numbers in [-1, 1],
    then the x and y of its middle in [-1, 1]; F = 194.

    Args:
      name: one of `BACKBONES`.
      grid: G, cells along a side; None takes the network's own (7, or 6 for `pixels`).
      weights: "imagenet" (downloaded by Keras), a file of Keras weights, or None (`pixels` only).
      image_size: side of the square an image is resized to, in pixels; None takes 224 (96).

    Raises:
      ValueError: an unknown name, a grid or size that cannot be, weights missing or of another
        network.
    """

    def __init__(
        self,
        name: str,
        grid: int | None = None,
        weights: str | os.PathLike | None = None,
        image_size: int | None = None,
    ):
        super().__init__(name="backbone")
        if name not in BACKBONES:
            raise ValueError(f"unknown backbone {name!r}; choose one of {', '.join(BACKBONES)}")
        stride = _PIXELS_PER_CELL if name == "pixels" else _NETWORK_STRIDE
        self.backbone_name = name
        self.image_size = image_size or (96 if name == "pixels" else 224)
        cells = self.image_size // stride
        self.grid = grid or cells
        if self.image_size % stride or not 1 <= self.grid <= cells:
            raise ValueError(
                f"{name} cannot make a grid of {self.grid} x {self.grid} from images of"
                f" {self.image_size} pixels: the size must be a multiple of {stride}, and the grid"
                f" at most size / {stride}"
            )
        if name == "pixels":
            if weights is not None:
                raise ValueError(
                    f"the backbone 'pixels' has no weights, got {weights}; leave it out"
                )
            if self.grid != cells:
                raise ValueError(f"the grid of 'pixels' is size / 16 = {cells}, got {self.grid}")
            self.model = None
            self.feature_dim = 8 * 8 * 3 + 2
        else:
            self.model = _network(name, weights, self.image_size)
            self.feature_dim = _NETWORKS[name][2]
        self._pooling, self.boxes = _adaptive_cells(cells, self.grid)

    @classmethod
    def from_fingerprint(
        cls, fingerprint: Mapping[str, Any], data_dir: str | os.PathLike
    ) -> "Backbone":
        """Builds the backbone that made the features of a prepared directory.

        Args:
          fingerprint: the content of its dataset.json.
          data_dir: the directory.

        Raises:
          ValueError: the data came as ready features, or the weights file is missing or changed.
        """
        made_by = fingerprint["backbone"]
        if made_by is None:
            raise ValueError(
                f"{data_dir} was prepared from ready features, so no backbone can turn a picture"
                " into the same features; give features, or prepare again from images"
            )
        path = None
        if made_by["weights"] is not None:
            path = os.path.join(data_dir, os.path.basename(made_by["weights"]))
            if not os.path.isfile(path):
                raise ValueError(
                    f"the backbone's weights {path} are missing; prepare the data again"
                )
            if file_sha256(path) != made_by["weights_sha256"]:
                raise ValueError(
                    f"the backbone's weights {path} are not those that made the features (their"
                    " SHA-256 differs from dataset.json); restore the file or prepare again"
                )
        return cls(made_by["name"], made_by["grid"], path, made_by["image_size"])

    @property
    def num_regions(self) -> int:
        """R, the number of cells of the grid."""
        return self.grid * self.grid

    def decode(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Decodes a picture and resizes it (bilinear, antialiased; the aspect ratio is not kept).

        Args:
          image_bytes: string [], a whole JPEG, PNG, GIF (first frame) or BMP file; grey becomes
            RGB, transparency is dropped.

        Returns:
          float32 [H, W, 3] in 0..255, H = W = image_size.

        Raises:
          tf.errors.InvalidArgumentError: not a picture, or a truncated one.
        """
        size = self.image_size
        image = tf.io.decode_image(image_bytes, channels=3, expand_animations=False)
        image = tf.ensure_shape(image, [None, None, 3])
        resized = tf.image.resize(image, [size, size], method="bilinear", antialias=True)
        return tf.ensure_shape(tf.cast(resized, tf.float32), [size, size, 3])

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Features of decoded pictures.

        Args:
          images: float32 [B, H, W, 3] in 0..255, as `decode` returns them.

        Returns:
          float32 [B, R, F], cells row by row; rounded through float16, the precision of the
          records, so that a picture gives the numbers in serving that it gave in training.
        """
        if self.model is None:
            return _through_half(self._pixel_cells(images))
        return self._finish(self.model(self._preprocess(images), training=False))

    def bulk_extractor(self) -> tf.types.experimental.PolymorphicFunction:
        """A compiled `extract` with the weights as constants of its graph, for many images.

        TensorFlow prepares constant kernels once instead of at every call, which makes it about
        1.7 times as fast on a CPU as `extract`; the numbers are the same. It does not follow later
        changes of the weights.
        """
        side = self.image_size
        signature = [tf.TensorSpec([None, side, side, 3], tf.float32)]
        if self.model is None:
            return tf.function(self.extract, input_signature=signature)
        trainable = [v.numpy() for v in self.model.trainable_variables]
        other = [v.numpy() for v in self.model.non_trainable_variables]

        @tf.function(input_signature=signature)
        def extract(images):
            grid, _ = self.model.stateless_call(
                [tf.constant(v) for v in trainable],
                [tf.constant(v) for v in other],
                self._preprocess(images),
                training=False,
            )
            return self._finish(grid)

        return extract

    def save_weights(self, path: str | os.PathLike) -> None:
        """Writes the network's weights; `path` ends in .weights.h5."""
        self.model.save_weights(path)

    def _preprocess(self, images: tf.Tensor) -> tf.Tensor:
        return _NETWORKS[self.backbone_name][1].preprocess_input(images)

    def _finish(self, grid: tf.Tensor) -> tf.Tensor:
        """Pools the network's own grid [B, n, n, F] to [B, R, F]."""
        if self._pooling.shape[0] != self._pooling.shape[1]:
            pooling = tf.constant(self._pooling)
            grid = tf.einsum("gh,kw,bhwf->bgkf", pooling, pooling, grid)
        return _through_half(tf.reshape(grid, [-1, self.num_regions, self.feature_dim]))

    def _pixel_cells(self, images: tf.Tensor) -> tf.Tensor:
        small = tf.nn.avg_pool2d(images, 2, 2, "VALID")
        # Only the last operation rounds, so every compiler makes the same numbers of it.
        small = (small - 127.5) * (1 / 127.5)
        blocks = tf.nn.space_to_depth(small, _PIXELS_PER_CELL // 2)
        cells = tf.reshape(blocks, [-1, self.num_regions, self.feature_dim - 2])
        middles = (self.boxes[:, :2] + self.boxes[:, 2:]) - 1.0
        position = tf.tile(tf.constant(middles)[None], [tf.shape(cells)[0], 1, 1])
        return tf.concat([cells, position], axis=-1)


def _through_half(features: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(features, tf.float16), tf.float32)


def _adaptive_cells(cells: int, grid: int) -> tuple[np.ndarray, np.ndarray]:
    """The averaging matrix [grid, cells] of one axis, and the cells' boxes [R, 4] in 0..1."""
    starts = [i * cells // grid for i in range(grid)]
    ends = [-(-(i + 1) * cells // grid) for i in range(grid)]
    pooling = np.zeros([grid, cells], np.float32)
    for row, start, end in zip(pooling, starts, ends, strict=True):
        row[start:end] = 1 / (end - start)
    boxes = [
        [starts[x] / cells, starts[y] / cells, ends[x] / cells, ends[y] / cells]
        for y in range(grid)
        for x in range(grid)
    ]
    return pooling, np.array(boxes, np.float32)


@contextlib.contextmanager
def _float32() -> Iterator[None]:
    """Features are made in float32 whatever precision the captioner trains in."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def _network(name: str, weights: str | os.PathLike | None, image_size: int) -> keras.Model:
    if weights is None:
        raise ValueError(f"the backbone {name!r} needs weights: 'imagenet' or a file of them")
    weights = os.fspath(weights)
    if weights != "imagenet" and not os.path.isfile(weights):
        raise ValueError(
            f"no file of weights {weights} for {name}; give an existing .h5 file, or 'imagenet' to"
            " download them"
        )
    arguments = {"include_top": False, "input_shape": (image_size, image_size, 3)}
    build = _NETWORKS[name][0]
    with _float32():
        try:
            if weights == "imagenet":
                model = build(weights="imagenet", **arguments)
            else:
                model = build(weights=None, **arguments)
                with warnings.catch_warnings():
                    # Keras warns of each layer that the file lacks, then raises for all of them.
                    warnings.simplefilter("ignore", UserWarning)
                    model.load_weights(weights)
        except Exception as error:
            # Keras, h5py and urllib raise a dozen types here, some with messages of many lines.
            reason = " ".join(str(error).split())[:300]
            if weights == "imagenet":
                raise ValueError(
                    f"the ImageNet weights of {name} could not be downloaded ({reason}); fetch the"
                    " 'notop' file of keras.applications elsewhere and give its path"
                ) from error
            raise ValueError(
                f"the weights in {weights} do not fit {name} without its top ({reason}); give the"
                " 'notop' file of that network, ending in .weights.h5 or .h5"
            ) from error
    model.trainable = False
    return model


def file_sha256(path: str | os.PathLike) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
