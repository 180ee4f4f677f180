"""Extracts image features with a network inside the graph.

Letters: B images, R regions, F feature width, H and W pixels of an image, G cells along one side of
the grid (R = G * G).
"""

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import files
from tfcap.backbones import DETECTOR, detector, is_hub
from tfcap.backbones.network import Call
from tfcap.backbones.networks import build
from tfcap.backbones.saved import Digest, checked_beside
from tfcap.data import pictures, record

_LONGEST = 16  # times the shorter side; a longer picture is shortened, or it would fill the memory
# A network with more weights runs with its variables: as constants they would fill the memory.
_MOST_CONSTANTS = 64_000_000


class Backbone(tf.Module):
    """Turns picture files into features: one vector per cell of a grid, or one per picture.

    It uses TensorFlow operations only, so it also runs in a SavedModel. The networks are

    * `mobilenet_v2`, the `resnet`s and `vgg16` of keras.applications without their classifier;
    * `efficientnet_lite2`, whose weights are in a Python package;
    * the `swin`s, Swin Transformers, see `backbones.swin`;
    * `small_cnn` and `alexnet`, see the functions of these names in `backbones.networks`;
    * `hub:PRESET`, a preset of keras-hub;
    * `pixels`, which has no weights. It averages each cell of 16 x 16 pixels to 8 x 8 x 3 numbers
      in [-1, 1]. Then come x and y of the middle of the cell, in [-1, 1]. This makes 194 numbers.

    A network has a grid of n x n cells. n is `image_size` / 16 for `pixels` and `small_cnn`; for
    `hub:PRESET` it depends on the preset; for the others it is `image_size` / 32, rounded up. If
    `grid` is a smaller number G, each of the G x G cells is a mean of cells of the network: row i
    is the mean of the rows floor(i*n/G) to ceil((i+1)*n/G), the last one excluded, and columns
    likewise. This is the rule of torch.nn.AdaptiveAvgPool2d, by which the released features of grid
    models were made.

    With `vector` a picture becomes one vector:

    * for `vgg16` and `alexnet` the 4096 numbers of the layer fc7 after its ReLU;
    * for `hub:PRESET` the embedding of the picture, or the class token, if the preset has either;
    * for `pixels` the 16 x 16 x 3 = 768 numbers of the picture averaged to 16 x 16 points;
    * otherwise the mean of the grid.

    `alexnet` always makes one vector.

    With ten crops the shorter side of a picture is resized to 256 / 224 of `image_size`. Five
    squares with sides of `image_size` are cut out, at the corners and in the middle. These squares
    and their mirror images are the ten crops. The picture becomes one vector, the mean of the
    vectors of the crops. The m-RNN papers (Mao et al., ICLR 2015) do the same; they do not say
    whether fc7 is read after its ReLU.

    In the shapes below B is the number of pictures, R = G * G the number of regions of a picture (1
    for one vector), and F the width of a feature vector.

    Args:
      name: one of `BACKBONES` except `bottom_up`, which is a `Detector`; or `hub:PRESET`.
      grid: number of cells along a side of the grid, G, at most n. None takes all n.
      weights: "imagenet" for the networks of keras.applications (Keras downloads them) and for
        `efficientnet_lite2`; or a file of weights; or the directory of a saved preset. With None,
        `hub:PRESET` loads the preset of that name, `small_cnn` gets random weights, and `pixels`
        needs none; the other networks raise ValueError.
      image_size: pixels along a side of the square to which a picture is resized. None takes the
        default of the network: 96 for `pixels` and `small_cnn`, 384 for the `swin`s with 384 in
        their name, the size of the preset for `hub:PRESET`, else 224.
      crops: 1 reads the whole picture; 10 reads ten crops of it and gives one vector.
      vector: whether a picture becomes one vector instead of a grid.
      scaling: only for `vgg16` with weights in a Keras file: "torch" if the weights come from
        torchvision, so that pictures are scaled as torchvision scales them; None scales pictures as
        keras.applications does. If `weights` is a state dict of PyTorch, pictures are always scaled
        as in torchvision.
      tensors: the state dict of PyTorch in the file `weights`, if it has been read already, see
        `networks.build`.

    Attributes:
      network: the `Network`, which scales pictures and computes their features.
      model: the Keras model in `network`, which can be trained; None for `pixels`.
      feature_dim: width of a feature vector, F.
      rounds: whether `extract` rounds its result to float16; True at first. Callers set it to False
        for a network that is trained with a captioner, and for converted runs, whose released code
        does not round.
      boxes: float32 [R, 4], the corners x1, y1, x2, y2 of the cells, as fractions (0..1) of the
        square that the network reads.

    Raises:
      ValueError: there is no such network, an argument cannot be used for it, or its weights cannot
        be loaded.

    Example:
      >>> import tensorflow as tf
      >>> from tfcap.backbones.backbone import Backbone
      >>> backbone = Backbone("pixels", grid=3)
      >>> pictures = tf.zeros([2, *backbone.decoded_shape])
      >>> tuple(backbone.extract(pictures).shape)
      (2, 9, 194)
    """

    def __init__(
        self,
        name: str,
        grid: int | None = None,
        weights: str | os.PathLike | None = None,
        image_size: int | None = None,
        crops: int = 1,
        vector: bool = False,
        scaling: str | None = None,
        tensors: dict[str, np.ndarray] | None = None,
    ):
        super().__init__(name="backbone")
        if crops not in (1, 10) or (crops > 1 and (name == "pixels" or is_hub(name))):
            raise ValueError(
                f"`crops` of {name} cannot be {crops}. It must be 1. For networks other than "
                "pixels and presets of keras-hub it can also be 10."
            )
        if (vector or crops > 1) and grid not in (None, 1):
            raise ValueError(
                "`grid` cannot be used with `vector` or `crops=10`, which give one vector. Leave "
                "out `grid`, or leave out `vector` and `crops`."
            )
        self.network = build(name, weights, image_size, vector or crops > 1, scaling, tensors)
        self.backbone_name = self.network.name or name
        self.crops = crops
        self.rounds = True
        self.image_size = self.network.image_size
        cells = self.network.cells
        self.grid = 1 if vector or crops > 1 else grid or cells
        if not 1 <= self.grid <= cells:
            raise ValueError(
                f"`grid` of {name} must be from 1 to {cells}, the number of cells along a side of "
                f"{self.image_size} pixels. It is {grid}."
            )
        # A vector that is the mean of the grid is the grid of one cell.
        self.vector = vector and self.network.is_vector and name != "alexnet"
        self.model = self.network.model
        self.feature_dim = self.network.width
        self._pooling, self.boxes = _adaptive_cells(cells, self.grid)

    @classmethod
    def from_fingerprint(
        cls, fingerprint: Mapping[str, Any], data_dir: str | os.PathLike
    ) -> "Backbone | detector.Detector":
        """Builds the network that made the features of a data set, with its saved weights.

        Args:
          fingerprint: the content of dataset.json of a prepared directory, or of the copy in a run.
          data_dir: the prepared directory or the run, which has the weights.

        Returns:
          A `Detector` if a detector made the features, else a `Backbone`. For data of clips, the
          `Backbone` reads single frames; `clips.from_fingerprint` returns the network of clips.

        Raises:
          ValueError: the features were not made by a network, or its weights are missing or
            changed.
        """
        entry = fingerprint["backbone"]
        if entry is None:
            raise ValueError(
                f"{data_dir} was prepared from ready-made features, so no backbone can turn a "
                "picture into the same features. Give features in place of pictures, or prepare "
                "again with a backbone."
            )
        with (
            checked_beside(entry, data_dir) as path,
            contextlib.nullcontext() if path is None else files.local_copy(path) as local,
        ):
            if entry["name"] == DETECTOR:
                return detector.load(local or "")
            backbone = cls(
                entry["name"],
                entry["grid"],
                local,
                entry["image_size"],
                entry.get("crops", 1),
                entry.get("vector", False),
                entry.get("scaling"),
            )
        backbone.rounds = entry.get("rounds", True)
        return backbone

    def made_by(self, weights: str | None, digest: Digest | None) -> dict[str, Any]:
        """Returns the entry `backbone` of dataset.json, which `from_fingerprint` reads.

        It always has `name`, `grid`, `image_size`, `weights` and `weights_sha256`. It has `crops`,
        `vector` and `rounds` only if they are not at their defaults, and `scaling` only for `vgg16`
        with weights of torchvision. For a preset it also has `files`, the SHA-256 of each file.

        Args:
          weights: name of the file or directory to which `saved.save` wrote the weights; None for a
            network without weights.
          digest: the digest that `saved.save` returned with it; None for a network without weights.
        """
        entry: dict[str, Any] = {
            "name": self.backbone_name,
            "grid": self.grid,
            "image_size": self.image_size,
            "weights": weights,
            "weights_sha256": digest and digest.sha256,
        }
        if self.crops > 1:
            entry["crops"] = self.crops
        if self.vector:
            entry["vector"] = True
        if not self.rounds:
            entry["rounds"] = False
        if digest and digest.files:
            entry["files"] = digest.files
        return entry | self.network.keys

    @property
    def decoded_shape(self) -> list[int]:
        """Shape of a picture as `decode` returns it: [H, W, 3], or [10, H, W, 3] for ten crops.

        H and W are pixels, both equal to `image_size`.
        """
        picture = [self.image_size, self.image_size, 3]
        return [self.crops, *picture] if self.crops > 1 else picture

    @property
    def num_regions(self) -> int:
        """Number of regions of a picture, that is, of cells of the grid."""
        return self.grid * self.grid

    def boxes_in(self, height: int, width: int) -> np.ndarray:
        """Returns where the cells of the grid are in a picture.

        If the network crops the picture, the cells cover only a part of it.

        Args:
          height: height of the picture in pixels.
          width: width of the picture in pixels.

        Returns:
          float32 [R, 4], the corners x1, y1, x2, y2 of the R cells, as fractions (0..1) of the
          whole picture.
        """
        left, top, right, bottom = self.network.shown(height, width)
        size = [right - left, bottom - top] * 2
        return (self.boxes * size + [left, top] * 2).astype(np.float32)

    def decode(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Decodes a picture file and resizes the picture for `extract`.

        Args:
          image_bytes: the bytes of the file, string [].

        Returns:
          The picture, RGB in 0..255, float32 of the shape `decoded_shape`.

        Raises:
          tf.errors.InvalidArgumentError: the file is damaged.
        """
        return self.resize(pictures.decode(image_bytes))

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes a picture for `extract`.

        The resizing is bilinear and antialiased, and the aspect ratio is lost. A preset of
        keras-hub may resize in another way, and may cut out the middle square. With ten crops the
        aspect ratio is kept, but a side of more than 16 times the other is shortened to 16 times.

        Args:
          image: an upright picture, uint8 [height, width, 3] of any size, RGB.

        Returns:
          The picture, RGB in 0..255, float32 of the shape `decoded_shape`.
        """
        if self.crops > 1:
            short = self.image_size * 256 // 224
            sides = tf.cast(tf.shape(image)[:2], tf.float32)
            sides = tf.cast(tf.round(sides * (short / tf.reduce_min(sides))), tf.int32)
            sides = tf.clip_by_value(sides, short, _LONGEST * short)
            resized = tf.image.resize(image, sides, method="bilinear", antialias=True)
            resized = _ten_crops(tf.cast(resized, tf.float32), self.image_size)
        else:
            resized = self.network.resize(image)
        return tf.ensure_shape(resized, self.decoded_shape)

    @property
    def resizing(self) -> dict[str, Any]:
        """Describes `resize`, as the card of a portable export does.

        The keys are those that `serving.standalone.caption.resized` reads.
        """
        crops = {"crops": self.crops} if self.crops > 1 else {}
        return {"image_size": self.image_size, **self.network.resizing, **crops}

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Computes the features of resized pictures.

        Unless the attribute `rounds` is False, the features are rounded to float16 and back, as the
        records store them, so that a picture gives the same numbers in serving as in training.

        Args:
          images: B pictures as `decode` returns them, float32 [B, *decoded_shape].

        Returns:
          float32 [B, R, F]: for each of R cells, row by row, a vector of F numbers.
        """
        features = self.features(images)
        return record.rounded(features) if self.rounds else features

    def features(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Computes the features as `extract` does, but unrounded, so that they have gradients.

        Args:
          images: B pictures as `decode` returns them, float32 [B, *decoded_shape].
          training: whether layers such as dropout behave as in training.

        Returns:
          float32 [B, R, F]: for each of R cells, row by row, a vector of F numbers.
        """

        def call(scaled: tf.Tensor) -> tf.Tensor:
            assert self.model is not None  # `pixels` does not call it
            # A network that is trained may compute in half precision.
            return tf.cast(self.model(scaled, training=training), tf.float32)

        return self._features(images, call)

    def bulk_extractor(self) -> tf.types.experimental.PolymorphicFunction:
        """Returns a compiled function that does what `extract` does, for many pictures.

        The weights become constants of its graph, which TensorFlow prepares once instead of at
        every call. On a CPU the function is about 1.7 times as fast as `extract`. Its numbers are
        those of `extract` in a `tf.function`, but for rounding. It ignores later changes of the
        weights.

        In two cases the weights stay variables:

        * with ten crops, because the network then reads ten pictures in each call;
        * in networks of more than 64 million weights, such as `swin_large_384`, because so many
          constants would fill the memory.
        """
        signature = [tf.TensorSpec([None, *self.decoded_shape], tf.float32)]
        model = self.model
        if model is None or self.crops > 1 or model.count_params() > _MOST_CONSTANTS:
            return tf.function(self.extract, input_signature=signature, autograph=False)
        trainable = [v.numpy() for v in model.trainable_variables]
        other = [v.numpy() for v in model.non_trainable_variables]

        def call(scaled: tf.Tensor) -> tf.Tensor:
            outputs, _ = model.stateless_call(
                [tf.constant(v) for v in trainable],
                [tf.constant(v) for v in other],
                scaled,
                training=False,
            )
            return outputs

        @tf.function(input_signature=signature, autograph=False)
        def extract(images: tf.Tensor) -> tf.Tensor:
            features = self._features(images, call)
            return record.rounded(features) if self.rounds else features

        return extract

    def _features(self, images: tf.Tensor, call: Call) -> tf.Tensor:
        """Computes the features [B, R, F]; `call` runs the model on scaled pictures."""
        if self.crops > 1:

            def average(crops: tf.Tensor) -> tf.Tensor:  # [10, H, W, 3] of a picture
                grid = self.network.grid(crops, call)
                return tf.reduce_mean(tf.reshape(grid, [-1, self.feature_dim]), 0)

            # One picture at a time, because a batch of ten crops each needs much memory.
            spec = tf.TensorSpec([self.feature_dim], tf.float32)
            vectors = tf.map_fn(average, images, parallel_iterations=1, fn_output_signature=spec)
            return vectors[:, tf.newaxis]
        grid = self.network.grid(images, call)
        if self._pooling.shape[0] != self._pooling.shape[1]:
            pooling = tf.constant(self._pooling)
            grid = tf.einsum("gh,kw,bhwf->bgkf", pooling, pooling, grid)
        return tf.reshape(grid, [-1, self.num_regions, self.feature_dim])


def _ten_crops(image: tf.Tensor, size: int) -> tf.Tensor:
    """Crops corners and middle of [H, W, 3], and mirrors them: [10, size, size, 3]."""
    bottom, right = tf.unstack(tf.shape(image)[:2] - size)
    corners = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    crops = tf.stack([image[y : y + size, x : x + size] for y, x in corners])
    return tf.concat([crops, tf.reverse(crops, [2])], 0)


def _adaptive_cells(cells: int, grid: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the matrix [grid, cells] that averages an axis, and the boxes [R, 4] in 0..1."""
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
