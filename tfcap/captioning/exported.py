"""Captions pictures with an exported SavedModel, by TensorFlow alone.

Letters: B pictures, K captions of a picture, H and W height and width of a picture.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tfcap.captioning.captions import Found
from tfcap.captioning.inputs import FrameFolder
from tfcap.images import MOST_PIXELS, refusal


class ExportedModel:
    """The SavedModel that `tfcap.export` wrote.

    Args:
      path: the directory of one version.

    Raises:
      ValueError: it cannot be read, or it takes no pictures.
    """

    exported = True

    def __init__(self, path: str):
        self.path = path
        try:
            self._loaded: Any = tf.saved_model.load(path)
        except Exception as error:  # a damaged graph raises errors of all kinds
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"{path} is no SavedModel that can be loaded: {reason}. Export the run again."
            ) from error
        self._function = self._loaded.signatures.get("serving_default")
        inputs = self._function.structured_input_signature[1] if self._function else {}
        if "image_bytes" not in inputs:
            raise ValueError(
                f"{path} must have a signature serving_default with the input image_bytes. "
                f"Received: the inputs {', '.join(inputs) or 'none'}. Export a run that was "
                "trained on pictures."
            )
        self.samples = "seed" in inputs
        self.reads_clips = hasattr(self._loaded, "frames")  # see `runs.server.CaptionServer`
        self._most_pixels = int(getattr(self._loaded, "limit", MOST_PIXELS))

    def __str__(self) -> str:
        return f"the SavedModel {self.path}"

    def prepare(self, content: bytes | np.ndarray | FrameFolder) -> bytes:
        """Returns the bytes of a picture file; pixels uint8 [H, W, 3] become a PNG.

        Raises:
          ValueError: a folder of frames, which is not one file.
        """
        if isinstance(content, FrameFolder):
            raise ValueError(
                "an exported SavedModel reads files. Received: a folder of frames. Save the frames "
                "as a GIF file, or load the run directory."
            )
        if isinstance(content, bytes):
            return content
        return tf.io.encode_png(content, compression=0).numpy()

    def find(self, prepared: Sequence[bytes], seeds: Sequence[int], words: bool) -> Found:
        """Finds the captions of B pictures; see `TrainedRuns.find`.

        A SavedModel gives no log-probabilities and no features.

        Raises:
          ValueError: a picture cannot be decoded, and the SavedModel is of an earlier version,
            which gives no status of each picture. The message is about the only picture if B is 1.
        """
        del words
        inputs = {"image_bytes": tf.constant(prepared)}
        if self.samples:
            inputs["seed"] = tf.constant(seeds, tf.int64)
        try:
            results = self._function(**inputs)
        except tf.errors.InvalidArgumentError:
            raise ValueError(refusal(prepared[0], self._most_pixels)) from None
        captions = [[text.decode() for text in row] for row in results["captions"].numpy()]
        refusals = [""] * len(captions)
        if "status" in results:
            statuses = [text.decode() for text in results["status"].numpy()]
            refusals = list(map(self._refusal, prepared, statuses))
        nothing = [[None] * len(row) for row in captions]
        return Found(captions, results["scores"].numpy(), nothing, None, refusals)

    def _refusal(self, content: bytes, status: str) -> str:
        """Returns why a picture has no captions and what to do; empty if it has."""
        if status == "ok":
            return ""
        if status.startswith("features"):
            return f"{status}. Check the run with python -m tfcap.doctor, and export it again."
        return refusal(content, self._most_pixels)

    decoding = None  # its options are not in the file

    def with_decoding(self, *_) -> NoReturn:
        """Raises ValueError, because the decoding of a SavedModel is fixed."""
        raise ValueError(
            f"An exported SavedModel has a fixed decoding. Received: other options for {self.path}."
            " Load the run directory, or export it with these options."
        )

    def attend(self, *_) -> NoReturn:
        """Raises ValueError, because a SavedModel gives no weights of regions."""
        self._refuse("return attention")

    def features(self, *_) -> NoReturn:
        """Raises ValueError, because a SavedModel gives no features."""
        self._refuse("return features of pictures")

    def score(self, *_) -> NoReturn:
        """Raises ValueError, because a SavedModel cannot score a given text."""
        self._refuse("score texts")

    def model(self) -> NoReturn:
        """Raises ValueError, because a SavedModel is no model of Keras."""
        self._refuse("give a Keras model")

    def export(self, *_) -> NoReturn:
        """Raises ValueError, because a SavedModel cannot be exported again."""
        self._refuse("be exported again")

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(
            f"An exported SavedModel only captions pictures. It cannot {what}. Received: "
            f"{self.path}. Load the run directory that it was exported from."
        )
