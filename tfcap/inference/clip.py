"""The CLIP network for CLIPScore, from keras-hub; the user provides the weights.

Letters: n pictures or texts, D width of CLIP's space.
"""

import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfcap import progress
from tfcap.data import pictures

_BATCH = 32


class KerasHubClip:
    """Computes the vectors of pictures and of texts with CLIP, for the score CLIPScore.

    The weights come from a preset of keras-hub. Vectors are kept in memory, because several sets of
    captions are often scored on the same pictures.

    Args:
      preset: the directory of a preset of keras-hub, or the name of one that keras-hub downloads.

    Raises:
      ValueError: keras-hub is not installed, or `preset` is not a complete CLIP preset.
    """

    def __init__(self, preset: str):
        try:
            import keras_hub
        except ImportError:
            raise ValueError(
                "`clip` needs the package keras-hub, which needs Python 3.11 or newer. Run: pip "
                "install 'tfcap[hub]'"
            ) from None
        try:
            self._model = keras_hub.models.CLIPBackbone.from_preset(preset)
            self._tokenizer = keras_hub.models.CLIPTokenizer.from_preset(preset)
            self._convert = keras_hub.layers.CLIPImageConverter.from_preset(preset)
        except (ValueError, OSError, KeyError, AttributeError) as error:
            raise ValueError(
                f"`clip={preset}` is not a CLIP preset of keras-hub with its tokenizer and its "
                f"image converter ({' '.join(str(error).split())[:300]}). Give the name of a CLIP "
                "preset, such as clip_vit_base_patch32, or the directory of one."
            ) from None
        self._cache: dict[str, np.ndarray] = {}

    def pictures(self, paths: Sequence[str]) -> np.ndarray:
        """Computes the vector of each picture file.

        Args:
          paths: the paths of n picture files.

        Returns:
          The vectors, float32 [n, D], where D is their width. They are not scaled to length 1.

        Raises:
          ValueError: a file cannot be read as a picture.
        """
        return self._vectors("pictures of CLIP", paths, self._encode_pictures)

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Computes the vector of each text. A text that is too long for CLIP is cut.

        Args:
          texts: n texts.

        Returns:
          The vectors, float32 [n, D], where D is their width. They are not scaled to length 1.
        """
        return self._vectors("texts of CLIP", texts, self._encode_texts)

    def _vectors(
        self, label: str, items: Sequence[str], encode: Callable[[list[str]], tf.Tensor]
    ) -> np.ndarray:
        """Returns a vector of each path or text, float32 [n, D]; `encode` computes a batch."""
        keys = {item: f"{label}: {item}" for item in items}
        new = [item for item, key in keys.items() if key not in self._cache]
        starts = range(0, len(new), _BATCH)
        for start in progress.progress(starts, len(starts), label):
            batch = new[start : start + _BATCH]
            for item, vector in zip(batch, np.asarray(encode(batch)), strict=True):
                self._cache[keys[item]] = vector
        return np.stack([self._cache[keys[item]] for item in items])

    def _encode_pictures(self, paths: list[str]) -> tf.Tensor:
        images = np.stack([np.asarray(self._convert(_read(path))) for path in paths])
        return self._model.get_vision_embeddings(tf.constant(images, tf.float32))

    def _encode_texts(self, texts: list[str]) -> tf.Tensor:
        tokenizer = self._tokenizer
        length = self._model.text_encoder.max_sequence_length
        ids = np.full([len(texts), length], tokenizer.pad_token_id, np.int32)
        for row, text in zip(ids, texts, strict=True):
            words = np.asarray(tokenizer(text.lower()))[: length - 2].tolist()
            words = [tokenizer.start_token_id, *words, tokenizer.end_token_id]
            row[: len(words)] = words
        return self._model.get_text_embeddings(tf.constant(ids))


def _read(path: str) -> tf.Tensor:
    """Reads a picture file, float32 [H, W, 3]."""
    try:
        return tf.cast(pictures.read(pathlib.Path(path).read_bytes()), tf.float32)
    except (OSError, ValueError) as error:
        strerror = getattr(error, "strerror", None)
        reason = f"{strerror}. Check the path." if strerror else error
        raise ValueError(f"CLIP cannot read the picture {path}: {reason}") from None
