"""Writes and reads records: one ``tf.train.Example`` per image.

Letters: B images, R regions, F feature width, F2 width of the vector of a whole image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

FRAMING = 16  # bytes that a TFRecord file adds to a record: length 8, two checksums of 4
FAULT = "bad record: "  # begins messages of `check`; `PreparedData.readable_errors` looks for it


@dataclass(frozen=True)
class Record:
    """An image with its features and captions, as prepared data stores it.

    Attributes:
      image_id: number of the image.
      file_name: name of the picture file, relative to the directory of pictures.
      features: features of R regions, each a vector of width F, [R, F]. They are stored as float16,
        so each number must be finite as float16. R and F are at least 1.
      boxes: boxes of the regions, [R, 4]; None if they are not known. A box is x1, y1, x2, y2: the
        left, upper, right and lower edge, as fractions of the width and the height of the picture.
      captions: raw captions; may be empty for images that are not used in training.
      image: feature vector of the whole image, [F2] for the width F2, stored as float16, too. None
        if there is none.
      picture: bytes of the picture file, from which a backbone can be trained; None stores no
        picture.
      objects: further values to store: name in the `tf.train.Example` -> list of texts, of floats
        or of integers.

    Raises:
      ValueError: a number of `features` or `image` is not finite as float16.
    """

    image_id: int
    file_name: str
    features: np.ndarray
    boxes: np.ndarray | None
    captions: list[str]
    image: np.ndarray | None = None
    picture: bytes | None = None
    objects: Mapping[str, list] | None = None

    def __post_init__(self):
        object.__setattr__(self, "features", _halves(self.features, "every feature"))
        if self.boxes is not None:
            object.__setattr__(self, "boxes", np.asarray(self.boxes, "<f4"))
        if self.image is not None:
            object.__setattr__(
                self, "image", _halves(self.image, "every number of the image's vector")
            )


def _halves(values: np.ndarray, what: str) -> np.ndarray:
    """Converts to float16. Raises ValueError if a number is not finite in float16."""
    with np.errstate(over="ignore"):
        stored = values.astype("<f2")
    if not np.isfinite(stored).all():
        bad = values[~np.isfinite(stored)][0]
        raise ValueError(
            f"{what} must be finite as float16, at most 65504 in size, but one is {bad}. "
            "Correct or scale the features."
        )
    return stored


def rounded(features: tf.Tensor) -> tf.Tensor:
    """Rounds features to float16, as records store them, and returns them as float32.

    Args:
      features: float32 of any shape.
    """
    return tf.cast(tf.cast(features, tf.float16), tf.float32)


def serialize(record: Record) -> bytes:
    """Returns a record as the bytes of a `tf.train.Example`, with the features as float16.

    Args:
      record: the record.
    """

    def ints(values: Sequence[int]) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def texts(values: Sequence[bytes]) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    feature = {
        "image/id": ints([record.image_id]),
        "image/file_name": texts([record.file_name.encode("utf-8")]),
        "features/shape": ints(record.features.shape),
        "features/data": texts([record.features.tobytes()]),
        "boxes": texts([b"" if record.boxes is None else record.boxes.tobytes()]),
        "captions": texts([caption.encode("utf-8") for caption in record.captions]),
    }
    if record.image is not None:  # left out otherwise, so that such records stay as they were
        feature["image/vector"] = texts([record.image.tobytes()])
    if record.picture is not None:
        feature["picture"] = texts([record.picture])
    for name, values in (record.objects or {}).items():
        if isinstance(values[0], str):
            feature[name] = texts([value.encode("utf-8") for value in values])
        elif isinstance(values[0], float):
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            feature[name] = ints(values)
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(
        deterministic=True
    )


_FIELDS = {
    "image/id": tf.io.FixedLenFeature([], tf.int64),
    "image/file_name": tf.io.FixedLenFeature([], tf.string),
    "boxes": tf.io.FixedLenFeature([], tf.string),
    "captions": tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64),
}


def parse(
    serialized: tf.Tensor,
    feature_dim: int,
    max_regions: int | None = None,
    pad_regions: int | None = None,
    image_dim: int | None = None,
) -> dict[str, tf.Tensor]:
    """Parses a batch of serialized records, as a graph function.

    Args:
      serialized: B records that `serialize` wrote, string [B].
      feature_dim: width of the features of every record, F.
      max_regions: largest number of regions of an image; further regions are cut off. None keeps
        all.
      pad_regions: number of regions of the result, R. Images with more regions are cut, images
        with fewer are padded. None takes the largest number in the batch, after `max_regions`.
      image_dim: width of the vectors of whole images, F2; None reads no such vectors.

    Returns:
      A dict with these entries:

      * `id` int64 [B], the ids of the images;
      * `file_name` string [B], the names of the picture files;
      * `features` float32 [B, R, F], zeros where an image has fewer than R regions;
      * `boxes` float32 [B, R, 4], zeros where an image has fewer regions or no boxes;
      * `mask` bool [B, R], True for regions that the image has;
      * `captions` string [B, None], ragged, with empty rows for images without captions;
      * `image` float32 [B, F2], the vectors of the whole images, only if `image_dim` is given.
    """
    vector = {}
    if image_dim is not None:
        vector["image/vector"] = tf.io.FixedLenFeature([], tf.string, default_value="")
    example = tf.io.parse_example(
        serialized,
        {
            **_FIELDS,
            "features/shape": tf.io.FixedLenFeature([2], tf.int64),
            "features/data": tf.io.FixedLenFeature([], tf.string),
            **vector,
        },
    )
    ids = example["image/id"]
    data = example["features/data"]
    regions = tf.cast(example["features/shape"][:, 0], tf.int32)
    for limit in (max_regions, pad_regions):
        regions = regions if limit is None else tf.minimum(regions, limit)
    longest = tf.reduce_max(regions) if pad_regions is None else pad_regions
    # `decode_raw` pads with zeros and cuts, for all images of the batch in one operation.
    # It cannot pad float16, so it reads integers of the same bits.
    bits = tf.io.decode_raw(data, tf.int16, fixed_length=longest * feature_dim * 2)
    features = tf.bitcast(tf.reshape(bits, [-1, longest, feature_dim]), tf.float16)
    features = tf.cast(features, tf.float32)
    # A float32 sum of float16 numbers cannot overflow, so it is finite exactly if all of them are.
    finite = tf.math.is_finite(tf.reduce_sum(features, axis=[1, 2]))
    with tf.control_dependencies([check(finite, ids, "NaN or infinite features in image")]):
        features = tf.identity(features)
    boxes = tf.io.decode_raw(example["boxes"], tf.float32, fixed_length=longest * 16)
    vectors = {}
    if image_dim is not None:
        bits = tf.io.decode_raw(example["image/vector"], tf.int16, fixed_length=image_dim * 2)
        vectors["image"] = tf.cast(tf.bitcast(bits, tf.float16), tf.float32)
    return {
        "id": ids,
        "file_name": example["image/file_name"],
        "features": features,
        "mask": tf.sequence_mask(regions, longest),
        "boxes": tf.reshape(boxes, [-1, longest, 4]),
        "captions": example["captions"],
        **vectors,
    }


def parse_pictures(
    serialized: tf.Tensor, regions: int, max_regions: int | None = None
) -> dict[str, tf.Tensor]:
    """Parses a batch of records for a backbone that computes the features from the pictures.

    Args:
      serialized: B records that `serialize` wrote, string [B].
      regions: number of regions that the backbone gives for each picture. Each record must have as
        many boxes, or none.
      max_regions: largest number of regions of an image; further regions are cut off. None keeps
        all.

    Returns:
      The entries `id`, `file_name`, `mask`, `boxes` and `captions` of the result of `parse`, and
      `picture` string [B], the bytes of the picture files. All images have the same number of
      regions, so `mask` is True everywhere.
    """
    spec = {**_FIELDS, "picture": tf.io.FixedLenFeature([], tf.string, "")}
    example = tf.io.parse_example(serialized, spec)
    ids = example["image/id"]
    kept = regions if max_regions is None else min(regions, max_regions)
    boxes = tf.io.decode_raw(example["boxes"], tf.float32, fixed_length=kept * 16)
    return {
        "id": ids,
        "file_name": example["image/file_name"],
        "picture": example["picture"],
        "mask": tf.ones([tf.shape(ids)[0], kept], tf.bool),
        "boxes": tf.reshape(boxes, [-1, kept, 4]),
        "captions": example["captions"],
    }


def inputs_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a batch that a captioner reads.

    They are `features`, `pictures`, `mask`, `image` and `boxes`, as far as the batch has them.

    Args:
      batch: name of the entry -> tensor, as the functions of `data.pipeline` make batches.
    """
    names = ("features", "pictures", "mask", "image", "boxes")
    return {key: batch[key] for key in names if key in batch}


def check(good: tf.Tensor, ids: tf.Tensor, fault: str) -> tf.Operation:
    """Returns a graph operation that raises InvalidArgumentError if an image fails a check.

    The error names the first images that fail. Use the operation in `tf.control_dependencies`.

    Args:
      good: whether each of B images passes, bool [B].
      ids: ids of the images, int64 [B].
      fault: text of the error that says what is wrong with an image that does not pass.
    """
    wrong = tf.gather_nd(ids, tf.where(tf.logical_not(good)))
    # `tf.debugging.Assert` puts a conditional around this operation, which takes as long to trace
    # as ten others. A pipeline has many checks, and is traced at each start.
    return tf.raw_ops.Assert(
        condition=tf.raw_ops.All(input=good, axis=0),
        data=[tf.constant(FAULT + fault), wrong],
        summarize=3,
    )
