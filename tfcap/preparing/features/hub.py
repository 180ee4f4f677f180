"""Networks of keras-hub: presets by name, from Hugging Face, or from a directory.

The shape of the output is found by a call on zeros, because the shape that Keras infers is not
always right. Maps [B, n, n, F] of convolutional networks are the grid. Of tokens [B, N, F] the last
n * n are the grid; class and register tokens come before them (ViT, DeiT, DINO, CLIP), or there are
none (Swin). A vector is the embedding of a model of pictures and texts (CLIP, SigLIP), else the
class token, else the mean of the grid.

The `ImageConverter` of keras-hub resizes and scales pictures, but does not work inside a SavedModel
on every device. So this module does the same with its settings, and compares the results on one
picture.

Letters: B images, H and W pixels of an image, n cells along a side of the grid, N tokens, F width.
"""

import json
import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfcap.preparing.features.networks import Network, float32, one_line, steady_names

_PREPROCESSOR = "preprocessor_config.json"  # of Hugging Face
_RESAMPLE = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}  # numbers of Pillow


class Hub(Network):
    """A preset of keras-hub: a name, `hf://owner/name`, or a directory.

    If `saved` is set, the preset is read from this directory, where prepare saved it.
    """

    is_preset = True

    def __init__(
        self,
        preset: str,
        saved: str | os.PathLike | None = None,
        image_size: int | None = None,
        vector: bool = False,
    ):
        with float32():
            place = os.fspath(saved) if saved else preset
            hub = library()
            self._backbone = _load(hub.models.Backbone, preset, place, dtype="float32")
            encoder = getattr(self._backbone, "vision_encoder", None) or self._backbone
            inputs = encoder.input if isinstance(encoder.input, dict) else {None: encoder.input}
            key, first = next(iter(inputs.items()))
            shape = list(getattr(first, "shape", []))
            if len(inputs) != 1 or len(shape) != 4 or shape[3] != 3:
                raise ValueError(
                    f"hub:{preset} is {type(encoder).__name__}, which does not read pictures only. "
                    "Choose a preset such as hub:resnet_50_imagenet."
                )
            converter = _load(hub.layers.ImageConverter, preset, place)
            converter = converter or preprocessor(preset, place)
            sides = {n for n in (*(converter.image_size or ()), *shape[1:3]) if n}
            if len(sides) != 1 or image_size not in (None, *sides):
                raise ValueError(
                    f"hub:{preset} must read squares of one size. It names {sorted(sides)} pixels, "
                    f"and --image_size {image_size}."
                )
            side = int(sides.pop())
            converter.image_size = (side, side)
            model, probe = _built(preset, self._backbone, encoder, key, side, vector)
        self._converter = converter

        def numbers(name: str, default: float) -> np.ndarray:
            value = getattr(converter, name, None)
            return np.asarray(default if value is None else value, np.float64)

        # Pictures of 0 to 255 are multiplied, then shifted. The converters of DINOv2 and others
        # then subtract a mean and divide.
        std = numbers("norm_std", 1.0)
        scale = np.broadcast_to(numbers("scale", 1.0) / std, [3])
        offset = np.broadcast_to((numbers("offset", 0.0) - numbers("norm_mean", 0.0)) / std, [3])
        self._scale, self._offset = scale.astype(np.float32), offset.astype(np.float32)
        cells, self._prefix = _cells(encoder, np.shape(probe), side)
        self._of_tokens = len(np.shape(probe)) == 3
        is_vector = cells == 0 or (vector and self._prefix > 0)
        if is_vector and not vector:
            raise ValueError(
                f"hub:{preset} gives one vector and no grid of features: give --vector."
            )
        width, own = int(np.shape(probe)[-1]), 1 if is_vector else cells
        super().__init__(
            model, width, own, side, is_vector, lambda images: images * self._scale + self._offset
        )
        self._check_copy(preset)
        if os.path.isdir(preset):  # its place on this machine says nothing about the network
            self.name = f"hub:{os.path.basename(os.path.abspath(preset))}"

    def _check_copy(self, preset: str) -> None:
        """Compares `resize` and `scale` with the converter on a picture of 37 x 53 pixels."""
        picture = np.random.default_rng(1).uniform(0, 255, (37, 53, 3)).astype(np.float32)
        wanted = keras.ops.convert_to_numpy(self._converter(picture[None]))[0]
        result = self.scale(self.resize(tf.constant(picture)))
        if wanted.shape != result.shape or not np.allclose(result, wanted, rtol=1e-3, atol=2e-3):
            raise ValueError(
                f"{type(self._converter).__name__} of hub:{preset} does more than resize and scale "
                "pictures: extract the features with keras-hub and give them with --features."
            )

    def grid(self, images: tf.Tensor, call: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """See `Network.grid`."""
        output = call(self.scale(images))
        if self.is_vector:
            if self._of_tokens and self._prefix:
                output = output[:, 0]
            return tf.reshape(output, [-1, self.width])
        if self._of_tokens:
            output = output[:, -self.cells * self.cells :]
        return tf.reshape(output, [-1, self.cells, self.cells, self.width])

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes an upright picture uint8 [H', W', 3] as the converter of the preset does."""
        image = tf.cast(image, tf.float32)
        if self._converter.crop_to_aspect_ratio:
            height, width = tf.unstack(tf.shape(image)[:2])
            short = tf.minimum(height, width)
            top, left = (height - short) // 2, (width - short) // 2
            image = image[top : top + short, left : left + short]
        resized = tf.image.resize(
            image,
            [self.image_size, self.image_size],
            method=str(self._converter.interpolation),
            antialias=bool(getattr(self._converter, "antialias", False)),
        )
        return tf.cast(resized, tf.float32)

    def shown(self, height: int, width: int) -> tuple[float, float, float, float]:
        """See `Network.shown`."""
        if not self._converter.crop_to_aspect_ratio:
            return 0.0, 0.0, 1.0, 1.0
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        return left / width, top / height, (left + side) / width, (top + side) / height

    def save(self, path: str | os.PathLike) -> None:
        """Writes the preset into the directory `path`."""
        with steady_names(self._backbone):
            self._backbone.save_to_preset(os.fspath(path))
        self._converter.save_to_preset(os.fspath(path))
        metadata = os.path.join(path, "metadata.json")  # it has the date and is not needed
        if os.path.exists(metadata):
            os.remove(metadata)


def _built(
    preset: str, backbone: Any, encoder: Any, key: str | None, side: int, vector: bool
) -> tuple[keras.Model, tf.Tensor]:
    """Builds the model from scaled pictures to tokens, a map or an embedding; calls it on zeros."""
    pictures = keras.Input((side, side, 3))
    with warnings.catch_warnings():
        # Keras warns of a Swin whose windows do not fit the size, and leaves it half built.
        warnings.simplefilter("ignore")
        try:
            if vector and hasattr(backbone, "get_vision_embeddings"):
                output = backbone.get_vision_embeddings(pictures)
            elif not vector and hasattr(encoder, "head") and hasattr(encoder, "post_layer_norm"):
                # SigLIP's encoder ends with a head that pools the tokens.
                output = keras.Model(encoder.inputs, encoder.post_layer_norm.output)(pictures)
            else:
                output = encoder(pictures if key is None else {key: pictures})
            if isinstance(output, dict):
                output = output["sequence_output"]
            model = keras.Model(pictures, output)
            return model, model(tf.zeros([1, side, side, 3]), training=False)
        except Exception as error:
            raise ValueError(
                f"hub:{preset} cannot read pictures of {side} x {side} ({one_line(str(error))})."
            ) from error


def _cells(encoder: Any, shape: tuple[int, ...], side: int) -> tuple[int, int]:
    """Returns n and the number of tokens before the grid; n is 0 for a vector."""
    if len(shape) == 2 or (len(shape) == 3 and shape[1] == 1):
        return 0, 0
    if len(shape) == 4:
        return int(shape[1]), 0
    patch = getattr(encoder, "patch_size", None)
    patch = patch[0] if isinstance(patch, list | tuple) else patch
    n = math.isqrt(shape[1])
    # Swin merges its patches from stage to stage, so that its grid is smaller.
    if patch and (side // patch) ** 2 <= shape[1]:
        n = side // patch
    return n, int(shape[1]) - n * n


def _load(cls: Any, preset: str, place: str, **options: Any) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong is found when the network runs
            return cls.from_preset(place, **options)
    except Exception as error:  # of Keras, h5py, Kaggle, Hugging Face and urllib
        raise _not_loaded(f"{cls.__name__} of hub:{preset}", error) from error


def preprocessor(preset: str, place: str) -> Any:
    """Makes an image converter from preprocessor_config.json of Hugging Face.

    keras-hub has no converter for most models of Hugging Face. Where Hugging Face resizes the
    shorter side and then crops the middle, this converter crops the middle square and then resizes
    it.
    """
    try:
        path = os.path.join(place, _PREPROCESSOR)
        if place.startswith("hf://"):
            from huggingface_hub import hf_hub_download

            path = hf_hub_download(place.removeprefix("hf://"), _PREPROCESSOR)
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        cut = bool(config.get("do_center_crop")) or "shortest_edge" in config["size"]
        size = config["crop_size"] if config.get("do_center_crop") else config["size"]
        if isinstance(size, dict):
            size = size.get("height") or size["shortest_edge"]
        mean, std = (np.array(config[f"image_{name}"], float) for name in ("mean", "std"))
        return library().layers.ImageConverter(
            image_size=(int(size), int(size)),
            scale=(config.get("rescale_factor", 1 / 255) / std).tolist(),
            offset=(-mean / std).tolist(),
            crop_to_aspect_ratio=cut,
            interpolation=_RESAMPLE[config.get("resample", 2)],
            antialias=True,
        )
    except Exception as error:  # of Hugging Face, its HTTP library, JSON and missing keys
        raise _not_loaded(f"{_PREPROCESSOR} of hub:{preset}", error) from error


def _not_loaded(what: str, error: Exception) -> ValueError:
    return ValueError(
        f"{what} could not be loaded ({type(error).__name__}: {one_line(str(error))}): check the "
        "name and the network, or give a directory that save_to_preset of keras-hub has written."
    )


def library() -> Any:
    """Imports keras-hub; raises ValueError if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import keras_hub
    except ImportError as error:
        raise ValueError(
            f"--backbone=hub:PRESET needs keras-hub ({error}). Run: pip install 'tfcap[hub]' with "
            "Python 3.11 or newer."
        ) from None
    return keras_hub
