"""Presets of keras-hub as networks: by their name, from Hugging Face, or from a directory.

The shape of the output is found by a call on zeros, because the shape that Keras infers is not
always right. The output is used as follows:

* The map [B, n, n, F] of a convolutional network is the grid.
* Of tokens [B, N, F] the last n * n are the grid. Class and register tokens come before these in
  ViT, DeiT, DINO and CLIP; Swin has no such tokens.
* If one vector is wanted, it is the embedding of a model of pictures and texts (CLIP, SigLIP). For
  other models it is the class token, or without a class token the mean of the grid.

The `ImageConverter` of keras-hub resizes and scales pictures, but does not work inside a SavedModel
on every device. So this module resizes and scales pictures itself, with the settings of the
converter, and compares the results on one picture. keras-hub has no converter that resizes and then
crops. If the processor of Hugging Face does so, this module cuts out the middle as the processor
does.

Letters: B images, H and W pixels of an image, n cells along a side of the grid, N tokens, F width.
"""

import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfcap import files
from tfcap.backbones.network import Call, Network, one_line, steady_names
from tfcap.layers import precision

_PREPROCESSOR = "preprocessor_config.json"  # of Hugging Face
_RESAMPLE = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}  # numbers of Pillow
_KERNELS = {"lanczos3": "lanczos3", "bilinear": "triangle", "bicubic": "keyscubic"}
# Processors for which a number as `size` is the shorter side, and those that resize bicubically, if
# their files do not say otherwise.
_SHORTER = ("Bit", "CLIP", "ConvNext")
_BICUBIC = ("Bit", "CLIP", "DeiT", "Blip", "Siglip")
_MOST_CROPPED = 384  # ConvNeXt resizes to this size and more without a crop
_UNCROPPED = "uncropped.json"  # beside a saved preset: the size of pictures before the crop


class Hub(Network):
    """A preset of keras-hub as the network of a `Backbone`.

    Args:
      preset: the name of a preset, `hf://owner/name` for a model of Hugging Face, or a directory.
      saved: a directory into which `save` has written the preset, and which is read in place of
        `preset`; None reads `preset`.
      image_size: pixels along a side of the pictures that the network reads; None takes the size of
        the preset.
      vector: whether a picture becomes one vector: its embedding or the class token. A preset that
        has neither still gives a grid, which `Backbone` averages.

    Raises:
      ValueError: keras-hub is not installed, or the preset cannot be loaded or used.
    """

    is_preset = True

    def __init__(
        self,
        preset: str,
        saved: str | os.PathLike | None = None,
        image_size: int | None = None,
        vector: bool = False,
    ):
        with precision.using("float32"):
            path = os.fspath(saved) if saved else preset
            hub = library()
            backbone = _load(hub.models.Backbone, preset, path, dtype="float32")
            _, _, fixed = _input(preset, backbone)
            converter = _load(hub.layers.ImageConverter, preset, path)
            uncropped = _saved_uncropped(path)
            if converter is None:
                converter, uncropped = _preprocessor(preset, path, image_size)
            usual = _side(f"hub:{preset}", converter.image_size or ())
            side = image_size or usual or fixed
            if not side:
                raise ValueError(
                    f"hub:{preset} does not say which size of pictures it reads. Give "
                    "`image_size`, the number of pixels along a side."
                )
            if fixed not in (None, side):
                backbone = _of_size(preset, backbone, fixed, side)
            # What is resized and then cropped keeps this proportion.
            self._uncropped = round(side * uncropped / usual) if uncropped and usual else side
            converter.image_size = (side, side)
            encoder, key, _ = _input(preset, backbone)
            model, shape = _built(preset, backbone, encoder, key, side, vector)
        self._backbone = backbone
        self._converter = converter
        self._scale, self._offset = _scaling(converter)
        cells, self._prefix = _cells(encoder, shape, side)
        self._of_tokens = len(shape) == 3
        is_vector = cells == 0 or (vector and self._prefix > 0)
        if is_vector and not vector:
            raise ValueError(
                f"hub:{preset} gives one vector and no grid of features. Choose `vector`."
            )
        super().__init__(
            model,
            width=shape[-1],
            cells=1 if is_vector else cells,
            image_size=side,
            is_vector=is_vector,
            scale=lambda images: images * self._scale + self._offset,
        )
        if self._uncropped == side:
            self._check_copy(preset)
        if os.path.isdir(preset):  # its parents say nothing about the network
            self.name = f"hub:{os.path.basename(os.path.abspath(preset))}"

    def _check_copy(self, preset: str) -> None:
        """Compares `resize` and `scale` with the converter on a picture of 37 x 53 pixels."""
        picture = np.random.default_rng(1).uniform(0, 255, (37, 53, 3)).astype(np.float32)
        expected = keras.ops.convert_to_numpy(self._converter(picture[None]))[0]
        result = self.scale(self.resize(tf.constant(picture)))
        same_shape = result.shape == expected.shape
        if not same_shape or not np.allclose(result, expected, rtol=1e-3, atol=2e-3):
            raise ValueError(
                f"{type(self._converter).__name__} of hub:{preset} does more than resize and scale "
                "pictures, and tfcap can do only these two steps. Compute the features with "
                "keras-hub, and give them with `features`."
            )

    def grid(self, images: tf.Tensor, call: Call) -> tf.Tensor:
        """Computes the features of B pictures.

        Args:
          images: B pictures as `resize` returns them, of H x W pixels, float32 [B, H, W, 3] in
            0..255.
          call: the function that runs the Keras model on scaled pictures.

        Returns:
          The grids, float32 [B, n, n, F]: n x n vectors of F numbers for each picture. If
          `is_vector` is True, one vector for each picture, float32 [B, F].
        """
        output = call(self.scale(images))
        if self.is_vector:
            if self._of_tokens and self._prefix:
                output = output[:, 0]
            return tf.reshape(output, [-1, self.width])
        if self._of_tokens:
            output = output[:, -self.cells * self.cells :]
        return tf.reshape(output, [-1, self.cells, self.cells, self.width])

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes a picture as the image converter of the preset does.

        Args:
          image: an upright picture, uint8 [height, width, 3] of any size, RGB.

        Returns:
          float32 [H, W, 3] in 0..255, where H = W = `image_size`.
        """
        image = tf.cast(image, tf.float32)
        if self._uncropped > self.image_size:
            return self._resized_and_cropped(image)
        if self._converter.crop_to_aspect_ratio:
            height, width = tf.unstack(tf.shape(image)[:2])
            short = tf.minimum(height, width)
            top = (height - short) // 2
            left = (width - short) // 2
            image = image[top : top + short, left : left + short]
        resized = tf.image.resize(
            image,
            [self.image_size, self.image_size],
            method=str(self._converter.interpolation),
            antialias=bool(getattr(self._converter, "antialias", False)),
        )
        return tf.cast(resized, tf.float32)

    @property
    def resizing(self) -> dict[str, Any]:
        described: dict[str, Any] = {"resize": str(self._converter.interpolation)}
        if self._converter.crop_to_aspect_ratio:
            described["square"] = True
        if self._uncropped > self.image_size:
            return described | {"uncropped": self._uncropped}
        return described | {"antialias": bool(getattr(self._converter, "antialias", False))}

    def _resized_and_cropped(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes [H', W', 3] to the size before the crop and cuts the middle out, as Pillow does.

        One operation computes the middle alone: the rest of a long picture could fill the memory.
        """
        sides = tf.shape(image)[:2]
        resized = tf.fill([2], self._uncropped)
        if self._converter.crop_to_aspect_ratio:  # the shorter side gets this size
            resized = self._uncropped * sides // tf.reduce_min(sides)
        corner = (resized - self.image_size) // 2
        cropped = tf.raw_ops.ScaleAndTranslate(
            images=image[None],
            size=[self.image_size, self.image_size],
            scale=tf.cast(resized, tf.float32) / tf.cast(sides, tf.float32),
            translation=-tf.cast(corner, tf.float32),
            kernel_type=_KERNELS[self._converter.interpolation],
            antialias=True,
        )
        return tf.clip_by_value(tf.round(cropped[0]), 0, 255)

    def shown(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Returns the part of a picture that the network sees: the whole picture, or the crop.

        Args:
          height: height of the picture in pixels.
          width: width of the picture in pixels.

        Returns:
          The corners x1, y1, x2, y2 of the part, as fractions (0..1) of the picture.
        """
        sides = np.array([width, height])
        resized = np.full(2, min(height, width)) if self._converter.crop_to_aspect_ratio else sides
        corner = (sides - resized) // 2 / sides
        size = resized / sides
        cut = (1 - self.image_size / self._uncropped) / 2  # on each side of what is resized
        x1, y1 = (corner + cut * size).tolist()
        x2, y2 = (corner + (1 - cut) * size).tolist()
        return x1, y1, x2, y2

    def save(self, path: str | os.PathLike) -> None:
        """Writes the preset and its image converter into the directory `path`."""
        with steady_names(self._backbone):
            self._backbone.save_to_preset(os.fspath(path))
        self._converter.save_to_preset(os.fspath(path))
        if self._uncropped > self.image_size:
            files.write_json(os.path.join(path, _UNCROPPED), {"size": self._uncropped})
        metadata = os.path.join(path, "metadata.json")  # it has the date and is not needed
        if os.path.exists(metadata):
            os.remove(metadata)


def _scaling(converter: keras.layers.Layer) -> tuple[np.ndarray, np.ndarray]:
    """Returns what a converter multiplies pictures of 0 to 255 by, and what it adds, float32 [3].

    The converters of DINOv2 and others then subtract a mean and divide.
    """

    def numbers(name: str, default: float) -> np.ndarray:
        value = getattr(converter, name, None)
        return np.asarray(default if value is None else value, np.float64)

    std = numbers("norm_std", 1.0)
    scale = np.broadcast_to(numbers("scale", 1.0) / std, [3])
    offset = np.broadcast_to((numbers("offset", 0.0) - numbers("norm_mean", 0.0)) / std, [3])
    return scale.astype(np.float32), offset.astype(np.float32)


def _built(
    preset: str,
    backbone: keras.Model,
    encoder: keras.Model,
    key: str | None,
    side: int,
    vector: bool,
) -> tuple[keras.Model, tuple[int, ...]]:
    """Builds the model from scaled pictures to tokens, a map or an embedding.

    Args:
      preset: name of the preset, for errors.
      backbone: the network of the preset.
      encoder, key: what `_input` returns.
      side: pixels along a side of the pictures.
      vector: whether a picture becomes one vector.

    Returns:
      The model, and the shape of its output for one picture.
    """
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
            return model, tuple(model(tf.zeros([1, side, side, 3]), training=False).shape)
        except Exception as error:
            raise ValueError(
                f"hub:{preset} cannot read pictures of {side} x {side} ({one_line(str(error))}). "
                "Give another `image_size`, or choose another preset."
            ) from error


def _cells(encoder: keras.Model, shape: tuple[int, ...], side: int) -> tuple[int, int]:
    """Returns n and the number of tokens before the grid; n is 0 for a vector."""
    if len(shape) == 2 or (len(shape) == 3 and shape[1] == 1):
        return 0, 0
    if len(shape) == 4:
        return shape[1], 0
    patch = getattr(encoder, "patch_size", None)
    patch = patch[0] if isinstance(patch, list | tuple) else patch
    n = math.isqrt(shape[1])
    # Swin merges its patches from stage to stage, so that its grid is smaller.
    if patch and (side // patch) ** 2 <= shape[1]:
        n = side // patch
    return n, shape[1] - n * n


def _load(cls: Any, preset: str, path: str, **options: str) -> Any:
    """Loads a class of keras-hub from a preset; the name `preset` is for errors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong is found when the network runs
            return cls.from_preset(path, **options)
    except Exception as error:  # of Keras, h5py, Kaggle, Hugging Face and urllib
        raise _not_loaded(f"{cls.__name__} of hub:{preset}", error) from error


def _preprocessor(
    preset: str, path: str, image_size: int | None = None
) -> tuple[keras.layers.Layer, int]:
    """Makes an image converter from preprocessor_config.json of Hugging Face.

    keras-hub has no converter for most models of Hugging Face.

    Args:
      preset: name of the preset, for errors.
      path: the directory of the preset, or `hf://owner/name`.
      image_size: pixels along a side of the pictures, if the user chose them.

    Returns:
      The converter, and the size to which it would resize a picture before it crops the middle. If
      both sizes are equal, this converter crops the middle square and then resizes it.
    """
    try:
        file_path = os.path.join(path, _PREPROCESSOR)
        if path.startswith("hf://"):
            from huggingface_hub import hf_hub_download

            file_path = hf_hub_download(path.removeprefix("hf://"), _PREPROCESSOR)
        with open(file_path, encoding="utf-8") as file:
            config = json.load(file)
        mean = np.zeros(3)
        std = np.ones(3)
        if config.get("do_normalize", True):
            mean = np.array(config["image_mean"], float)
            std = np.array(config["image_std"], float)
        factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
        default = 3 if _kind(config).startswith(_BICUBIC) else 2
        interpolation = _RESAMPLE[config.get("resample", default)]
    except Exception as error:  # of Hugging Face, its HTTP library, JSON and missing keys
        raise _not_loaded(f"{_PREPROCESSOR} of hub:{preset}", error) from error
    cropped, uncropped, keeps_ratio = _sizes(f"{_PREPROCESSOR} of hub:{preset}", config)
    if not config.get("do_resize", True) and image_size is None:
        raise ValueError(
            f"{_PREPROCESSOR} of hub:{preset} does not resize pictures (do_resize is false), but "
            f"they must be squares of one size: give `image_size`, for example {cropped}."
        )
    if interpolation not in _KERNELS and cropped < uncropped:
        raise ValueError(
            f"{_PREPROCESSOR} of hub:{preset} resizes with {interpolation} and then crops, which "
            "tfcap cannot do. Compute the features with transformers, and give them with "
            "`features`."
        )
    converter = library().layers.ImageConverter(
        image_size=(cropped, cropped),
        scale=(factor / std).tolist(),
        offset=(-mean / std).tolist(),
        crop_to_aspect_ratio=keeps_ratio,
        interpolation=interpolation,
        antialias=True,
    )
    return converter, uncropped


def _kind(config: Mapping[str, Any]) -> str:
    """Returns the class of the processor in transformers, or ""."""
    return config.get("image_processor_type") or config.get("feature_extractor_type") or ""


def _sizes(name: str, config: Mapping[str, Any]) -> tuple[int, int, bool]:
    """Returns the size after the crop and before, and whether the aspect ratio is kept.

    In older files `size` is a number, which is the shorter side for some processors, and both sides
    for the others.
    """
    size = config.get("size")
    keeps_ratio = _kind(config).startswith(_SHORTER)
    if isinstance(size, dict):
        keeps_ratio = "shortest_edge" in size
    uncropped = cropped = _number(name, size)
    if config.get("do_center_crop"):
        cropped = _number(name, config.get("crop_size"))
    elif share := config.get("crop_pct"):  # of ConvNeXt, which crops small pictures only
        keeps_ratio = uncropped < _MOST_CROPPED
        uncropped = int(uncropped / share) if keeps_ratio else uncropped
    if uncropped < cropped:
        raise ValueError(
            f"{name} crops {cropped} pixels out of only {uncropped}, which tfcap cannot do. "
            "Compute the features with transformers, and give them with `features`."
        )
    return cropped, uncropped, keeps_ratio


def _number(name: str, size: Any) -> int:
    """Returns the side of a square, as preprocessor_config.json writes it in several ways."""
    sides = size
    if isinstance(size, dict):
        sides = [size[key] for key in ("height", "width", "shortest_edge") if size.get(key)]
    side = _side(name, sides if isinstance(sides, list) else [sides])
    if not side:
        raise ValueError(
            f"{name} must have a size with height and width or shortest_edge, not {size}. Choose "
            "another preset."
        )
    return side


def _side(name: str, sides: Sequence[Any]) -> int | None:
    """Returns the one number of pixels of `sides`; None without any."""
    numbers = {int(side) for side in sides if side}
    if len(numbers) > 1:
        raise ValueError(
            f"{name} must read squares, but its sides are {sorted(numbers)} pixels. Choose another "
            "preset."
        )
    return numbers.pop() if numbers else None


def _saved_uncropped(directory: str) -> int | None:
    """Returns the size before the crop that `Hub.save` has written, or None."""
    path = os.path.join(directory, _UNCROPPED)
    return files.read_json(path, "Prepare again.")["size"] if os.path.exists(path) else None


def _input(preset: str, backbone: keras.Model) -> tuple[keras.Model, str | None, int | None]:
    """Returns the part that reads pictures, the key of its input, and H = W, None for any."""
    encoder = getattr(backbone, "vision_encoder", None) or backbone
    inputs = encoder.input if isinstance(encoder.input, dict) else {None: encoder.input}
    key, first = next(iter(inputs.items()))
    shape = list(getattr(first, "shape", []))
    if len(inputs) != 1 or len(shape) != 4 or shape[3] != 3:
        raise ValueError(
            f"hub:{preset} is a {type(encoder).__name__}, whose input is not just a picture. "
            "Choose a preset such as hub:resnet_50_imagenet."
        )
    return encoder, key, _side(f"hub:{preset}", shape[1:3])


def _of_size(preset: str, backbone: keras.Model, fixed: int, side: int) -> keras.Model:
    """Rebuilds a backbone for pictures of another size.

    The position embeddings of DINOv2 are interpolated as by Hugging Face, with its cubic kernel
    (a = -0.75); that of keras-hub is another (a = -0.5). Other networks must have none, or those of
    a function, because Hugging Face does not resize them either.

    Args:
      preset: name of the preset, for errors.
      backbone: the backbone.
      fixed: pixels along a side of the pictures that it reads.
      side: those that it shall read.
    """
    config = backbone.get_config()
    if "image_shape" not in config:
        raise _only(preset, fixed, side)
    interpolates = "position_embedding_shape" in config
    config |= {"image_shape": (side, side, 3)}
    if interpolates:
        config |= {"position_embedding_shape": (side, side)}
    other = type(backbone).from_config(config)
    originals = [w for w in backbone.weights if w.path.endswith("/position_embeddings")]
    for old, new in zip(backbone.weights, other.weights, strict=True):
        # DINOv2 has the original embeddings beside those that fit its size.
        old = originals[0] if old.path.endswith("/interpolated_position_embeddings") else old
        if old.shape == new.shape:
            new.assign(old)
        elif interpolates:
            smooth = bool(config.get("antialias_in_interpolation"))
            new.assign(_interpolated(old.numpy(), new.shape[1], smooth))
        else:
            raise _only(preset, fixed, side)
    return other


def _only(preset: str, fixed: int, side: int) -> ValueError:
    return ValueError(
        f"hub:{preset} must read pictures of {fixed} x {fixed} pixels, because its position "
        f"embeddings cannot be resized for {side} x {side}: give `image_size={fixed}`."
    )


def _interpolated(embeddings: np.ndarray, tokens: int, smooth: bool) -> np.ndarray:
    """Resizes position embeddings as torch.nn.functional.interpolate does with mode="bicubic".

    Args:
      embeddings: [1, N, F], that of the class token first.
      tokens: the new N.
      smooth: whether to use the option antialias.
    """
    old = math.isqrt(embeddings.shape[1])
    new = math.isqrt(tokens)
    first = embeddings.shape[1] - old * old  # of the class token
    grid = embeddings[:, first:].reshape(1, old, old, -1)
    if smooth:
        grid = tf.image.resize(grid, [new, new], "bicubic", antialias=True).numpy()
    else:
        import cv2  # its cubic kernel is that of PyTorch

        matrix = cv2.resize(np.eye(old), (old, new), interpolation=cv2.INTER_CUBIC)
        grid = np.einsum("ij,kl,bjlf->bikf", matrix, matrix, grid)
    return np.concatenate([embeddings[:, :first], grid.reshape(1, new * new, -1)], 1)


def _not_loaded(what: str, error: Exception) -> ValueError:
    return ValueError(
        f"{what} could not be loaded ({type(error).__name__}: {one_line(str(error))}): check the "
        "name and the internet connection, or give a directory that save_to_preset of keras-hub "
        "has written."
    )


def library() -> Any:
    """Imports keras-hub and returns the module.

    Raises:
      ValueError: keras-hub is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import keras_hub
    except ImportError as error:
        raise ValueError(
            f"A backbone hub:PRESET needs keras-hub ({error}). With Python 3.11 or newer, run: pip "
            "install 'tfcap[hub]'"
        ) from None
    return keras_hub
