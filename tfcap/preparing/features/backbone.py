"""Extracts image features with a convolutional backbone inside the graph.

Letters: B images, R regions, F feature width, H and W pixels of an image, G cells along one side of
the grid (R = G * G).
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap.data import pictures
from tfcap.files import file_sha256
from tfcap.preparing.features import BACKBONES, NETWORKS, VECTORS
from tfcap.preparing.features.networks import network, preprocess

_PIXELS_PER_CELL = 16
_NETWORK_STRIDE = 32
CROPS = (1, 10)
_LONGEST = 16  # times the shorter side; a longer picture is shortened, or it would fill the memory


class Backbone(tf.Module):
    """Turns image files into a grid of features, with TensorFlow operations only.

    `mobilenet_v2`, the `resnet`s and `vgg16` are keras.applications without their top, preceded by
    their own `preprocess_input`; their grid has image_size / 32 cells along a side, and a smaller
    `grid` averages it adaptively (cell i covers rows floor(i*n/G) to ceil((i+1)*n/G), the rule of
    torch.nn.AdaptiveAvgPool2d, by which the released features of grid models were made).
    `pixels` has no weights: each cell of 16 x 16 pixels averaged to 8 x 8 x 3 numbers in [-1, 1],
    then the x and y of its middle in [-1, 1]; F = 194.

    With ten crops a picture becomes one vector, as in the m-RNN papers (Mao et al., ICLR 2015): its
    shorter side is resized to 256 (of `image_size` 224), squares of 224 are cut from the corners
    and the middle and mirrored, and the ten vectors are averaged. The vector of `vgg16` is the
    layer fc7, F = 4096, after its ReLU [GUESS: the papers do not say]; the vector of the others is
    the mean of the grid. `grid` is 1 then.

    Args:
      name: one of `BACKBONES`.
      grid: G, cells along a side; None takes the network's own (7, or 6 for `pixels`).
      weights: "imagenet" (downloaded by Keras), a file of Keras weights, or None (`pixels` only).
      image_size: side of the square an image is resized to, in pixels; None takes 224 (96).
      crops: 1, the whole picture, or 10.

    Raises:
      ValueError: an unknown name, a grid, size or number of crops that cannot be, weights missing
        or of another network.
    """

    def __init__(
        self,
        name: str,
        grid: int | None = None,
        weights: str | os.PathLike | None = None,
        image_size: int | None = None,
        crops: int = 1,
    ):
        super().__init__(name="backbone")
        if name not in BACKBONES:
            raise ValueError(
                f"backbone must be one of {', '.join(BACKBONES)}. Received: {name!r}. To use "
                "another network, write its features into npz files and give them with --features."
            )
        if crops not in CROPS or (crops > 1 and (name == "pixels" or grid not in (None, 1))):
            raise ValueError(
                f"crops must be 1, or 10 with one of {', '.join(NETWORKS)} and without a grid: ten"
                f" crops make one vector. Received: crops={crops!r}, {name}, grid={grid}."
            )
        stride = _PIXELS_PER_CELL if name == "pixels" else _NETWORK_STRIDE
        self.backbone_name = name
        self.crops = crops
        self.image_size = image_size or (96 if name == "pixels" else 224)
        cells = self.image_size // stride
        self.grid = 1 if crops > 1 else grid or cells
        if self.image_size % stride or not 1 <= self.grid <= cells:
            raise ValueError(
                f"image_size of {name} must be a multiple of {stride}, and grid must be at most"
                f" image_size / {stride}. Received: image_size={self.image_size}, grid={self.grid}."
            )
        if name == "pixels":
            if weights is not None:
                raise ValueError(
                    f"The backbone 'pixels' has no weights. Received: {weights}. Leave them out."
                )
            if self.grid != cells:
                raise ValueError(
                    f"grid of 'pixels' must be image_size / 16 = {cells}. Received: {self.grid}."
                )
            self.model: Any = None
            self.feature_dim = 8 * 8 * 3 + 2
        else:
            self.model = network(name, weights, self.image_size, crops > 1)
            vector = crops > 1 and name in VECTORS
            self.feature_dim = VECTORS[name][1] if vector else NETWORKS[name][2]
        self._pooling, self.boxes = _adaptive_cells(cells, self.grid)

    @classmethod
    def from_fingerprint(
        cls,
        fingerprint: Mapping[str, Any],
        data_dir: str | os.PathLike,
        other: str | os.PathLike | None = None,
    ) -> "Backbone":
        """Builds the backbone that made the features of a prepared directory.

        Args:
          fingerprint: the content of its dataset.json.
          data_dir: the directory.
          other: a directory that may have a copy of the weights, for the error.

        Raises:
          ValueError: the data came as ready features, or the weights file is missing or changed.
        """
        made_by = fingerprint["backbone"]
        if made_by is None:
            raise ValueError(
                f"{data_dir} was prepared from ready-made features, so no backbone can turn a"
                " picture into the same features. Give features, or prepare again from images."
            )
        path = checked_weights(made_by, data_dir, other)
        crops = made_by.get("crops", 1)  # dataset.json has no entry where it is 1
        return cls(made_by["name"], made_by["grid"], path, made_by["image_size"], crops)

    def made_by(self, weights: str | None, digest: str | None) -> dict[str, Any]:
        """Returns the entry `backbone` of dataset.json, which `from_fingerprint` reads.

        Args:
          weights: name of the file of weights, or None.
          digest: its SHA-256, or None.
        """
        return {
            "name": self.backbone_name,
            "grid": self.grid,
            "image_size": self.image_size,
            "weights": weights,
            "weights_sha256": digest,
            # Only with several crops, so that older directories still match.
            **({"crops": self.crops} if self.crops > 1 else {}),
        }

    @property
    def decoded_shape(self) -> list[int]:
        """Shape of a picture as `decode` returns it: [H, W, 3], or [10, H, W, 3] for ten crops."""
        size = self.image_size
        return [*([self.crops] if self.crops > 1 else []), size, size, 3]

    @property
    def num_regions(self) -> int:
        """R, the number of cells of the grid."""
        return self.grid * self.grid

    def decode(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Decodes a picture file, turns it upright by its EXIF orientation and resizes it.

        Args:
          image_bytes: string [], a whole file; `tfcap.data.pictures.decode` says of which kinds.

        Returns:
          float32 `decoded_shape` in 0..255, as `resize` returns it.

        Raises:
          tf.errors.InvalidArgumentError: not a picture, or a truncated one.
        """
        return self.resize(pictures.decode(image_bytes))

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes an upright picture for `extract` (bilinear, antialiased).

        The aspect ratio changes; with ten crops it is kept, unless it exceeds 16.

        Args:
          image: uint8 [H', W', 3] of any height and width, RGB.

        Returns:
          float32 `decoded_shape` in 0..255, H = W = image_size.
        """
        size = [self.image_size, self.image_size]
        if self.crops > 1:
            size = _keeping_aspect(tf.shape(image)[:2], self.image_size * 256 // 224)
        resized = tf.image.resize(image, size, method="bilinear", antialias=True)
        resized = tf.cast(resized, tf.float32)
        if self.crops > 1:
            resized = _ten_crops(resized, self.image_size)
        return tf.ensure_shape(resized, self.decoded_shape)

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Extracts the features of decoded pictures.

        Args:
          images: float32 [B, H, W, 3] or [B, 10, H, W, 3] in 0..255, as `decode` returns them.

        Returns:
          float32 [B, R, F], cells row by row; rounded through float16, the precision of the
          records, so that a picture gives the same numbers in serving as in training.
        """
        if self.model is None:
            return _through_half(self._pixel_cells(images))
        if self.crops > 1:
            # One picture at a time, because a batch of ten crops each needs much memory.
            spec = tf.TensorSpec([self.feature_dim], tf.float32)
            vectors = tf.map_fn(
                self._average, images, parallel_iterations=1, fn_output_signature=spec
            )
            return _through_half(vectors[:, tf.newaxis])
        return self._finish(self.model(self._preprocess(images), training=False))

    def bulk_extractor(self) -> tf.types.experimental.PolymorphicFunction:
        """Returns a compiled `extract` with the weights as constants of its graph, for many images.

        TensorFlow prepares constant kernels once instead of at every call, which makes it about
        1.7 times as fast on a CPU as `extract`; the numbers are the same. Later changes of the
        weights have no effect. With ten crops the plain `extract` is returned, because the crops
        share a call and the fc layers of `vgg16` are too large for constants.
        """
        signature = [tf.TensorSpec([None, *self.decoded_shape], tf.float32)]
        if self.model is None or self.crops > 1:
            return tf.function(self.extract, input_signature=signature, autograph=False)
        trainable = [v.numpy() for v in self.model.trainable_variables]
        other = [v.numpy() for v in self.model.non_trainable_variables]

        @tf.function(input_signature=signature, autograph=False)
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
        return preprocess(self.backbone_name, images)

    def _average(self, crops: tf.Tensor) -> tf.Tensor:
        """Returns the vector [F] of the crops [10, H, W, 3] of a picture."""
        found = self.model(self._preprocess(crops), training=False)
        return tf.reduce_mean(tf.reshape(found, [-1, self.feature_dim]), 0)

    def _finish(self, grid: tf.Tensor) -> tf.Tensor:
        """Pools the network's own grid [B, n, n, F] to [B, R, F]."""
        if self._pooling.shape[0] != self._pooling.shape[1]:
            pooling = tf.constant(self._pooling)
            grid = tf.einsum("gh,kw,bhwf->bgkf", pooling, pooling, grid)
        return _through_half(tf.reshape(grid, [-1, self.num_regions, self.feature_dim]))

    def _pixel_cells(self, images: tf.Tensor) -> tf.Tensor:
        small = tf.nn.avg_pool2d(images, 2, 2, "VALID")
        # Only the last operation rounds, so the numbers do not depend on the compiler.
        small = (small - 127.5) * (1 / 127.5)
        blocks = tf.nn.space_to_depth(small, _PIXELS_PER_CELL // 2)
        cells = tf.reshape(blocks, [-1, self.num_regions, self.feature_dim - 2])
        middles = (self.boxes[:, :2] + self.boxes[:, 2:]) - 1.0
        position = tf.tile(tf.constant(middles)[None], [tf.shape(cells)[0], 1, 1])
        return tf.concat([cells, position], axis=-1)


def checked_weights(
    made_by: Mapping[str, Any],
    folder: str | os.PathLike,
    other: str | os.PathLike | None = None,
) -> str | None:
    """Finds the backbone's weights in a prepared directory or a run, and compares their SHA-256.

    Args:
      made_by: the entry `backbone` of dataset.json.
      folder: the directory.
      other: a directory that may have a copy of the file, for the error.

    Returns:
      The path of the file; None for a backbone without weights.

    Raises:
      ValueError: the file is missing or changed.
    """
    if made_by["weights"] is None:
        return None
    name, digest = os.path.basename(made_by["weights"]), made_by["weights_sha256"]
    path = os.path.join(folder, name)
    found = file_sha256(path) if os.path.isfile(path) else None
    if found == digest:
        return path
    remedy = "Restore the file, or run prepare again."
    copy = os.path.join(other, name) if other else ""
    if os.path.isfile(copy) and file_sha256(copy) == digest:
        remedy = f"The prepared data has a copy: cp {copy} {path}"
    if found is None:
        raise ValueError(f"The weights {path} of the backbone are missing. {remedy}")
    raise ValueError(
        f"The weights {path} must be those that made the features. Received: another"
        f" SHA-256 than in dataset.json. {remedy}"
    )


def _keeping_aspect(shape: tf.Tensor, short: int) -> tf.Tensor:
    """Returns height and width int32 [2] with the shorter side resized to `short`."""
    sides = tf.cast(shape, tf.float32)
    sides = tf.cast(tf.round(sides * (short / tf.reduce_min(sides))), tf.int32)
    return tf.clip_by_value(sides, short, _LONGEST * short)


def _ten_crops(image: tf.Tensor, size: int) -> tf.Tensor:
    """Returns corners, middle and their mirror images [10, size, size, 3] of [H, W, 3]."""
    bottom, right = tf.unstack(tf.shape(image)[:2] - size)
    corners = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    crops = tf.stack([image[y : y + size, x : x + size] for y, x in corners])
    return tf.concat([crops, tf.reverse(crops, [2])], 0)


def _through_half(features: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(features, tf.float16), tf.float32)


def _adaptive_cells(cells: int, grid: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the averaging matrix [grid, cells] of one axis and the boxes [R, 4] in 0..1."""
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
