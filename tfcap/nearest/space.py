"""Computes the vector that represents an image when similar images are searched.

Letters: B images, R regions, F feature width, D width of a vector.
"""

import copy
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap.files import arrays_sha256
from tfcap.layers.common import masked_mean

SPACES = ("original", "refined")


class Space:
    """Computes the vector that represents an image in the search.

    * `original`: the mean of the prepared features over the image's regions. With a single region,
      such as the ten-crop vectors of the m-RNN paper, it is the feature itself.
    * `refined`: the output g2(V_I I) of a trained m-RNN, without bias (Mao et al., ICLR 2015,
      section 8: features refined by the captions that the model was trained with).

    Args:
      name: one of `SPACES`.
      model: the captioner, for `refined`.
      weights_of: what errors call the weights of the model, such as the path of a checkpoint.

    Raises:
      ValueError: the space is unknown, or the model has no refined features.
    """

    def __init__(self, name: str, model: Any = None, weights_of: str | None = None):
        if name not in SPACES:
            raise ValueError(f"space must be one of {', '.join(SPACES)}. Received: {name!r}")
        self.name = name
        self.weights_sha256: str | None = None
        self.weights_of = weights_of
        self._mean: np.ndarray | None = None
        refine: Any = getattr(model, "refined_features", None)
        if name == "refined":
            if refine is None:
                raise ValueError(
                    "The space 'refined' needs an m-RNN (models mrnn and mrnn_shared). Received: "
                    f"{getattr(model, 'name', model)!r}. Choose the space 'original'."
                )
            self.weights_sha256 = arrays_sha256(model.checkpoint_items["weights"])

        # Autograph would hide the model's own errors inside its messages.
        @tf.function(autograph=False, reduce_retracing=True)
        def vectors(inputs):
            if name == "refined":
                return refine(inputs)
            return masked_mean(inputs["features"], inputs["mask"])

        self._vectors = vectors

    def vectors(
        self,
        features: tf.Tensor,
        mask: tf.Tensor | None = None,
        image: tf.Tensor | None = None,
    ) -> np.ndarray:
        """Computes the vectors float32 [B, D] of B images.

        Args:
          features: float32 [B, R, F].
          mask: bool [B, R], False for padding; None if all regions are real.
          image: vectors of the whole images float32 [B, F2], which `refined` reads; or None.
        """
        if mask is None:
            mask = tf.ones(tf.shape(features)[:2], tf.bool)
        inputs = {"features": tf.convert_to_tensor(features, tf.float32), "mask": mask}
        if image is not None:
            inputs["image"] = image
        return self.centre(self._vectors(inputs).numpy())

    def centred(self, mean: np.ndarray) -> "Space":
        """Returns a space that subtracts a mean from each vector and scales the vector to length 1.

        The distance between two such vectors grows as their cosine similarity falls.

        Args:
          mean: [D], the mean vector of some images.
        """
        other = copy.copy(self)
        other.name = f"{self.name}-centred"
        other._mean = mean.astype(np.float32)
        before = (self.weights_sha256 or "").encode()
        other.weights_sha256 = arrays_sha256({"mean": other._mean}, before)
        return other

    def centre(self, vectors: np.ndarray) -> np.ndarray:
        """Subtracts the mean of the space, if any, from float32 [B, D] and scales to length 1."""
        if self._mean is None:
            return vectors
        vectors = vectors - self._mean
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, np.float32(1e-12))
