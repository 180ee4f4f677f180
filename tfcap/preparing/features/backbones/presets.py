"""Loads presets of keras-hub, which may need a download."""

import difflib
import os
import warnings
from typing import Any

from tfcap.files import read_json
from tfcap.preparing.features.backbones.network import one_line

_HUGGING_FACE = "hf://"
_REMOTE = (_HUGGING_FACE, "kaggle://", "modelscope://")
_PREPROCESSOR = "preprocessor_config.json"  # of Hugging Face
_RESAMPLE = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}  # numbers of Pillow
_CONFIGURATION = "config.json"
_WRITE = "save_to_preset of keras-hub"


def load_network(preset: str, saved: str | os.PathLike | None = None) -> Any:
    """Loads the network of a preset with its weights, in float32.

    Keras creates only classes of Keras and of keras-hub from a configuration, and never unpickles.

    Args:
      preset: a name of keras-hub, `hf://owner/name` or another address, or a directory.
      saved: a directory to read in place of `preset`.

    Returns:
      A `keras_hub.models.Backbone`.

    Raises:
      ValueError: keras-hub is not installed, or the preset does not exist, cannot be downloaded or
        is damaged.
    """
    hub = _library(preset)
    place = os.fspath(saved) if saved else preset
    _check_place(hub, place)
    return _from_preset(hub.models.Backbone, preset, place, dtype="float32")


def load_converter(preset: str, saved: str | os.PathLike | None = None) -> Any:
    """Loads the image converter of a preset, a `keras_hub.layers.ImageConverter`.

    Args and errors are those of `load_network`, which is called first.
    """
    hub = _library(preset)
    place = os.fspath(saved) if saved else preset
    converter = _from_preset(hub.layers.ImageConverter, preset, place)
    # For most models of Hugging Face keras-hub returns None.
    return converter if converter is not None else _preprocessor(hub, preset, place)


def _preprocessor(hub: Any, preset: str, place: str) -> Any:
    """Makes an image converter from preprocessor_config.json of Hugging Face.

    Pictures whose shorter side is resized and whose middle is cut there are cut to the middle
    square here, and then resized.

    Raises:
      ValueError: the preset is neither a directory nor of Hugging Face, or the file does not exist,
        cannot be downloaded or lacks a value.
    """
    remedy = "Write the preset with save_to_preset of keras-hub, with its image converter."
    path = _preprocessor_file(preset, place)
    config = read_json(path, remedy)
    try:
        cut = bool(config.get("do_center_crop")) or "shortest_edge" in config["size"]
        size = config["crop_size"] if config.get("do_center_crop") else config["size"]
        if isinstance(size, dict):
            size = size.get("height") or size["shortest_edge"]
        mean, std = config["image_mean"], config["image_std"]
        factor = config.get("rescale_factor", 1 / 255)
        return hub.layers.ImageConverter(
            image_size=(int(size), int(size)),
            scale=[factor / float(one) for one in std],
            offset=[-float(one) / float(other) for one, other in zip(mean, std, strict=True)],
            crop_to_aspect_ratio=cut,
            interpolation=_RESAMPLE[config.get("resample", 2)],
            antialias=True,
        )
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(
            f"{path} must have size, image_mean and image_std of the pictures of hub:{preset}. "
            f"Received: {type(error).__name__}: {error}. {remedy}"
        ) from None


def _preprocessor_file(preset: str, place: str) -> str:
    """Returns the path of preprocessor_config.json, which is downloaded for `hf://`."""
    if os.path.isdir(place):
        return os.path.join(place, _PREPROCESSOR)
    if not place.startswith(_HUGGING_FACE):
        raise ValueError(
            f"hub:{preset} must be a preset with an image converter. Received: a preset without "
            "one. Give another preset, or load this one in Python, write it with its image "
            f"converter ({_WRITE}), and give --backbone=hub:DIRECTORY."
        )
    try:
        from huggingface_hub import hf_hub_download

        return hf_hub_download(place.removeprefix(_HUGGING_FACE), _PREPROCESSOR)
    except Exception as error:  # of Hugging Face, its HTTP library and the disk
        raise _no_download(f"{_PREPROCESSOR} of hub:{preset}", "file", error) from error


def _no_download(what: str, kind: str, error: Exception) -> ValueError:
    """Returns the error for a preset, or a file of it, that could not be downloaded."""
    return ValueError(
        f"{what} could not be loaded ({one_line(str(error))}). Check that the {kind} exists, that "
        "the network works, and that you have access. Without a network, load the preset on "
        f"another machine, write it there with its image converter ({_WRITE}), copy the directory, "
        "and give --backbone=hub:DIRECTORY."
    )


def _library(preset: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import keras_hub
    except ImportError as error:
        raise ValueError(
            f"--backbone=hub:{preset} needs keras-hub. Received: it cannot be imported "
            f"({error}). Run: pip install 'tfcap[hub]' with Python 3.11 or newer."
        ) from None
    return keras_hub


def _is_remote(place: str) -> bool:
    return place.startswith(_REMOTE) or not os.path.isdir(place)


def _check_place(hub: Any, place: str) -> None:
    """Raises ValueError for a directory without a preset and for an unknown name."""
    if os.path.isdir(place):
        if not os.path.isfile(os.path.join(place, _CONFIGURATION)):
            raise ValueError(
                f"{place} must be a preset of keras-hub, or a model of Hugging Face. Received: a "
                f"directory without {_CONFIGURATION}. Write one with save_to_preset of keras-hub."
            )
        return
    if place.startswith(_REMOTE):
        return
    known = hub.models.Backbone.presets
    if place not in known:
        near = difflib.get_close_matches(place, known, 1)
        raise ValueError(
            "hub:PRESET must be a preset of keras-hub, hf://owner/name, or an existing directory. "
            f"Received: {place}." + (f" Did you mean hub:{near[0]}?" if near else "")
        )


def _from_preset(kind: Any, preset: str, place: str, **options: Any) -> Any:
    """Calls `from_preset` of a class; raises ValueError with one line for all that can fail."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong is found when the network runs
            return kind.from_preset(place, **options)
    except Exception as error:  # of Keras, h5py, Kaggle, Hugging Face and urllib
        if _is_remote(place):
            raise _no_download(f"The preset hub:{preset}", "preset", error) from error
        reason = one_line(str(error))
        raise ValueError(
            f"The preset in {place} could not be loaded as {kind.__name__} ({reason}). Write it "
            "again with save_to_preset of keras-hub, with its image converter."
        ) from error
