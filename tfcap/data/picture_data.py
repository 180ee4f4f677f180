"""Prepared data whose features a trained backbone computes from the kept pictures.

Letters: B images, H and W pixels of a picture, R regions, F feature width.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfcap.data.prepared import PreparedData
from tfcap.data.record import parse_pictures


@dataclass(frozen=True)
class PictureData(PreparedData):
    """Prepared data whose features a backbone computes from the pictures; see `picture_data`.

    The pipelines give `pictures` in place of `features`: training reads them as they are. `read`
    and the function `with_features` compute the features.

    Attributes:
      backbone: a `preparing.features.backbone.Backbone`.
    """

    backbone: Any = None

    def parse(
        self, serialized: tf.Tensor, max_regions: int | None = None, pad_regions: int | None = None
    ) -> dict[str, tf.Tensor]:
        """See base class; `pictures` float32 [B, H, W, 3] stand in place of `features`.

        All images have the same regions, so that `pad_regions` has no effect.
        """
        del pad_regions
        parsed = parse_pictures(serialized, self.max_regions, max_regions)
        spec = tf.TensorSpec(self.backbone.decoded_shape, tf.float32)
        files = parsed.pop("picture")
        return parsed | {
            "pictures": tf.map_fn(self.backbone.decode, files, fn_output_signature=spec)
        }

    def read(
        self, split: str, ids: Sequence[int], max_regions: int | None = None
    ) -> dict[str, tf.Tensor]:
        """See base class."""
        return with_features(self, super().read(split, ids, max_regions))

    @functools.cached_property
    def extract(self) -> tf.types.experimental.PolymorphicFunction:
        """The compiled `extract` of the backbone, which reads its weights at every call."""
        shape = [None, *self.backbone.decoded_shape]
        return tf.function(
            self.backbone.extract, input_signature=[tf.TensorSpec(shape)], autograph=False
        )


def picture_data(data: PreparedData, backbone: Any, weights_sha256: str = "") -> PictureData:
    """Returns prepared data with the features that a trained backbone computes.

    Args:
      data: the data; its features were made by a backbone of the same sizes.
      backbone: the `preparing.features.backbone.Backbone`.
      weights_sha256: digest of its weights. It becomes a part of the fingerprint, so that vectors
        and scores that are kept in files are not taken for those of other weights.

    Raises:
      ValueError: the records hold no pictures.
    """
    require_pictures(data)
    features = data.fingerprint["features"] | {"dim": backbone.feature_dim}
    changes = {"features": features, "trained_backbone": weights_sha256}
    return PictureData(data.folder, data.fingerprint | changes, data.vocab, backbone)


def with_features(data: PreparedData, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Replaces the pictures of a batch of `PictureData` by their features float32 [B, R, F].

    This runs outside of the input pipeline, so that a GPU computes the features. A batch of other
    data is returned as it is.
    """
    if not isinstance(data, PictureData):
        return batch
    replaced = dict(batch)
    features = data.extract(replaced.pop("pictures"))
    return replaced | {"features": features[:, : replaced["mask"].shape[1]]}


def has_pictures(data: PreparedData) -> bool:
    """Returns whether the records also hold the pictures (`prepare --keep_pictures`)."""
    return "pictures" in data.fingerprint


def require_pictures(data: PreparedData) -> None:
    """Raises ValueError if the records of prepared data hold no pictures."""
    if not has_pictures(data):
        raise ValueError(
            f"A backbone that is trained reads pictures. Received: {data.folder}, whose records "
            "have none. Prepare the data again with --keep_pictures."
        )
