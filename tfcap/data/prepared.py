"""Reads a prepared directory: sharded TFRecord files with an index, read in any order.

`dataset.json`, the fingerprint, lists the splits with their shards and describes the features.
`<split>.index.npz` has the position of every record, and `references_<split>.json` the captions as
COCO annotations. `record` reads and writes the records.

Letters: n images of a split, B images of a batch, R regions, F feature width.
"""

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tfcap import files
from tfcap.data import tokens
from tfcap.data.document_frequency import DocumentFrequencies, load_document_frequencies
from tfcap.data.record import FAULT, parse, parse_pictures
from tfcap.errors import did_you_mean

FINGERPRINT = "dataset.json"
VOCABULARY = "vocab.txt"
FORMAT = 1
DEFAULT_DIRECTORY = os.path.join("data", "shapes")  # the built-in shapes, made on first use
CLIPS_DIRECTORY = os.path.join("data", "moving_shapes")  # the built-in clips, made on first use
_BATCH = 256


class PictureBackbone(Protocol):
    """A network that turns pictures into features, as `backbones.backbone.Backbone`.

    Attributes:
      feature_dim: width of the features, F.
      decoded_shape: shape of a picture that `decode` returns.
    """

    feature_dim: int

    @property
    def decoded_shape(self) -> list[int]: ...

    def decode(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Decodes a picture file, string [], for `extract`: float32 [H, W, 3]."""

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Computes the features float32 [B, R, F] of decoded pictures."""


class SplitIndex(NamedTuple):
    """The positions of the n records of a split, in file order."""

    shard: np.ndarray  # int32 [n], position in the list of shards
    offset: np.ndarray  # int64 [n], byte where the record starts
    id: np.ndarray  # int64 [n], image id


@dataclass(frozen=True)
class PreparedData:
    """A prepared directory, see `load`.

    Attributes:
      folder: path of the directory.
      fingerprint: the content of dataset.json.
      vocab: the vocabulary.
      backbone: the network that computes the features from the stored pictures, see
        `with_backbone`; None if the features of the records are used. With a backbone the pipelines
        give `pictures` in place of `features`. Training reads the pictures; for other uses
        `with_features` replaces them.
    """

    folder: str
    fingerprint: dict[str, Any]
    vocab: tokens.Vocab
    backbone: PictureBackbone | None = None

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "PreparedData":
        """Opens a prepared directory, local or remote (such as gs://bucket/data)."""
        is_remote = files.is_remote(folder)
        folder = files.absolute(folder) if is_remote else os.path.expanduser(folder)
        fingerprint = read_fingerprint(folder)
        return cls(folder, fingerprint, load_vocabulary(folder, fingerprint))

    def check_split(self, split: str) -> None:
        """Raises ValueError if a shard has another size than prepare wrote.

        TensorFlow reads a cut file without an error.
        """
        remedy = "Run prepare again, which writes only this shard."
        for shard in self.split(split)["shards"]:
            path = os.path.join(self.folder, shard["file"])
            try:
                size = files.size(path)
            except OSError as error:
                raise ValueError(f"Cannot read shard {path}: {error.strerror}. {remedy}") from None
            if size != shard["bytes"]:
                raise ValueError(
                    f"Shard {path} has {size} of {shard['bytes']} bytes: it was cut or changed. "
                    f"Delete it. {remedy}"
                )

    @property
    def feature_dim(self) -> int:
        """F, the width of a region's features."""
        return self.fingerprint["features"]["dim"]

    @property
    def image_dim(self) -> int | None:
        """Width of the vectors of whole images, or None if the records have regions only."""
        return self.fingerprint["features"].get("image_dim")

    @property
    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """The `tf.TensorSpec`s of the inputs of a captioner, see `record.inputs_of`."""
        specs = {
            "features": tf.TensorSpec([None, None, self.feature_dim]),
            "mask": tf.TensorSpec([None, None], tf.bool),
        }
        if self.image_dim is not None:
            specs["image"] = tf.TensorSpec([None, self.image_dim])
        return specs

    @property
    def max_regions(self) -> int:
        """The largest number of regions of any image."""
        return self.fingerprint["features"]["max_regions"]

    def most_regions(self, limit: int | None) -> int:
        """Returns the largest number of regions of an image, at most `limit`."""
        return self.max_regions if limit is None else min(self.max_regions, limit)

    @property
    def frames(self) -> int | None:
        """N, the frames of each clip; None if the data has pictures."""
        return self.fingerprint.get("frames")

    @property
    def images(self) -> str | None:
        """The directory of the image files; None if the data was prepared from features."""
        return self.fingerprint.get("images")

    def split(self, split: str) -> dict[str, Any]:
        """Returns the entry of a split in the fingerprint: its shards and counts."""
        splits = self.fingerprint["splits"]
        if split not in splits:
            raise ValueError(
                f"{self.folder} has no split {split!r}. It has {', '.join(splits)}."
                f"{did_you_mean(split, splits)}"
            )
        return splits[split]

    def index(self, split: str) -> SplitIndex:
        """Returns the positions of the records of a split."""
        path = os.path.join(self.folder, f"{split}.index.npz")
        records = sum(shard["records"] for shard in self.split(split)["shards"])
        index = SplitIndex(**files.load_npz(path, SplitIndex._fields, "Run prepare again."))
        if len(index.id) != records:
            raise ValueError(f"{path} has {len(index.id)} of {records} records. Run prepare again.")
        return index

    def references(self, split: str) -> dict[int, list[str]]:
        """Returns raw captions per image id; an empty list for an image without captions."""
        return self._references(split)[1]

    def file_names(self, split: str) -> dict[int, str]:
        """Returns the image file name per image id."""
        return self._references(split)[0]

    def _references(self, split: str) -> tuple[dict[int, str], dict[int, list[str]]]:
        """Reads the file names and the captions by image id."""
        path = references_path(self.folder, split)
        digest = self.split(split).get("references_sha256")
        if digest is not None and files.exists(path) and files.file_sha256(path) != digest:
            raise ValueError(
                f"{path} was changed after prepare. Change the input of prepare instead, and run "
                "it again."
            )
        value = files.read_json(path, "Run prepare again.")
        names = {image["id"]: image["file_name"] for image in value["images"]}
        captions: dict[int, list[str]] = {image_id: [] for image_id in names}
        for annotation in value["annotations"]:
            captions[annotation["image_id"]].append(annotation["caption"])
        return names, captions

    def picture_paths(self, split: str, images: str | os.PathLike | None = None) -> dict[int, str]:
        """Returns the path of each image file that exists, by image id.

        The path of a clip may be a directory of frames.

        Args:
          split: name of the split.
          images: directory of the files; None takes the directory that the data names, if any.
        """
        paths: dict[int, str] = {}
        directory = os.path.expanduser(images) if images else self.images
        if not directory:
            return paths
        for image, name in self.file_names(split).items():
            path = os.path.join(directory, name)
            is_inside = not os.path.isabs(name) and ".." not in name.split("/")
            if is_inside and (os.path.isfile(path) or (self.frames and os.path.isdir(path))):
                paths[image] = path
        return paths

    @property
    def has_document_frequencies(self) -> bool:
        """True if the data has document frequencies; without a train split it may not."""
        return self.fingerprint.get("document_frequency", "train") is not None

    def document_frequencies(self) -> DocumentFrequencies:
        """Reads the document frequencies; raises ValueError if the data has none."""
        if not self.has_document_frequencies:
            raise ValueError(
                f"{self.folder} has no document frequencies, which CIDEr-D needs: it was prepared "
                "without a train split. Prepare it with `document_frequency=FILE` of "
                "tfcap.prepare, or use data with a train split."
            )
        return load_document_frequencies(self.folder)

    def shard_paths(self, split: str) -> list[str]:
        """Returns the paths of the shards, in the order of the index."""
        return [os.path.join(self.folder, s["file"]) for s in self.split(split)["shards"]]

    def examples(self, split: str, indices: tf.data.Dataset) -> tf.data.Dataset:
        """Reads records of a split.

        Args:
          split: name of the split.
          indices: positions int64 [] in the index of the split; the records come in this order.

        Returns:
          A dataset of serialized examples, string [].
        """
        self.check_split(split)
        index = self.index(split)
        paths = tf.constant(self.shard_paths(split), tf.string)
        shards = tf.constant(index.shard)
        offsets = tf.constant(index.offset)

        @tf.autograph.experimental.do_not_convert
        def read(position: tf.Tensor) -> tf.data.Dataset:
            # The public TFRecordDataset cannot start inside a file, the operation under it can.
            # No buffer, because only one record is read.
            variant = tf.raw_ops.TFRecordDatasetV2(
                filenames=tf.gather(paths, tf.gather(shards, [position])),
                compression_type="",
                buffer_size=0,
                byte_offsets=tf.gather(offsets, [position]),
            )
            spec = tf.TensorSpec([], tf.string)
            return tf.data.experimental.from_variant(variant, spec).take(1)

        records = indices.interleave(
            read, cycle_length=8, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return without_tuning(records)

    def parse(
        self, serialized: tf.Tensor, max_regions: int | None = None, pad_regions: int | None = None
    ) -> dict[str, tf.Tensor]:
        """Reads a batch of serialized records as `record.parse` does, with the data's widths.

        With a backbone the result has `pictures` float32 [B, H, W, 3] in place of `features`. Then
        all images have the same number of regions, and `pad_regions` has no effect.
        """
        if self.backbone is None:
            return parse(serialized, self.feature_dim, max_regions, pad_regions, self.image_dim)
        parsed = parse_pictures(serialized, self.max_regions, max_regions)
        spec = tf.TensorSpec(self.backbone.decoded_shape, tf.float32)
        contents = parsed.pop("picture")
        pictures = tf.map_fn(self.backbone.decode, contents, fn_output_signature=spec)
        return parsed | {"pictures": pictures}

    def read(
        self, split: str, ids: Sequence[int], max_regions: int | None = None
    ) -> dict[str, tf.Tensor]:
        """Reads some images as one batch, with the result of `record.parse`.

        Args:
          split: name of the split.
          ids: ids of the images, B.
          max_regions: largest number of regions of an image; further regions are cut off.
        """
        positions = {int(image): position for position, image in enumerate(self.index(split).id)}
        if missing := [image for image in ids if int(image) not in positions]:
            raise ValueError(
                f"Split {split} of {self.folder} has no image {missing[0]}. Give ids of this split."
            )
        rows = np.array([positions[int(image)] for image in ids], np.int64)
        indices = tf.data.Dataset.from_tensor_slices(rows)
        with self.readable_errors():
            (serialized,) = self.examples(split, indices).batch(len(rows))
            return self.with_features(self.parse(serialized, max_regions))

    @property
    def has_pictures(self) -> bool:
        """Whether the records also hold the pictures (`keep_pictures` of prepare)."""
        return "pictures" in self.fingerprint

    def require_pictures(self) -> None:
        """Raises ValueError unless the records hold the pictures."""
        if not self.has_pictures:
            raise ValueError(
                f"A backbone that is trained reads pictures, and the records of {self.folder} have "
                "none. Prepare the data again with `keep_pictures` of tfcap.prepare."
            )

    def with_backbone(self, backbone: PictureBackbone, weights_sha256: str = "") -> "PreparedData":
        """Returns the data with the features that a trained backbone computes.

        Args:
          backbone: the backbone, of the same sizes as the backbone that made the features.
          weights_sha256: digest of its weights. It becomes a part of the fingerprint, so that files
            with vectors or scores of other weights are not used.
        """
        self.require_pictures()
        features = self.fingerprint["features"] | {"dim": backbone.feature_dim}
        changes = {"features": features, "trained_backbone": weights_sha256}
        return dataclasses.replace(self, fingerprint=self.fingerprint | changes, backbone=backbone)

    def with_features(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Replaces the pictures of a batch by their features float32 [B, R, F], if it has any.

        This runs outside of the input pipeline, so that a GPU computes the features.
        """
        if self.backbone is None:
            return batch
        replaced = dict(batch)
        features = self._extract(replaced.pop("pictures"))
        return replaced | {"features": features[:, : replaced["mask"].shape[1]]}

    @functools.cached_property
    def _extract(self) -> tf.types.experimental.PolymorphicFunction:
        """The compiled `extract` of the backbone; later changes of the weights take effect."""
        assert self.backbone is not None
        shape = [None, *self.backbone.decoded_shape]
        return tf.function(
            self.backbone.extract, input_signature=[tf.TensorSpec(shape)], autograph=False
        )

    @contextlib.contextmanager
    def readable_errors(self) -> Iterator[None]:
        """Turns TensorFlow's errors about bad records inside the block into ValueErrors.

        Other errors are not changed, because the data does not cause them.
        """
        try:
            yield
        except tf.errors.OpError as error:
            message = str(error)
            # In a graph `[bad record: ...] [12]`, outside of one `b'bad record: ...' 12`.
            fault = re.search(re.escape(FAULT) + r"([^\]']*)[\]']\s*\[?([-\d ]+)", message)
            if fault:
                remedy = "Run prepare again, which refuses such images."
                if "no captions" in fault[1]:
                    remedy = "Train on a split whose images all have captions."
                text = f"Bad record: {fault[1]} {fault[2].strip()}. {remedy}"
            elif isinstance(error, tf.errors.DataLossError):
                text = f"A record of {self.folder} is damaged. Prepare the data again."
            elif isinstance(error, tf.errors.NotFoundError) and ".tfrecord" in message:
                text = f"A shard is missing: {message.splitlines()[0]}. Run prepare again."
            else:
                raise
            raise ValueError(text) from error


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without the thread that tunes buffers.

    The thread sleeps for up to a minute, and freeing the iterator waits for the thread: TensorFlow
    wakes it before the iterator is marked as cancelled. Datasets made from the result have no such
    thread, either.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def write_fingerprint(folder: str | os.PathLike, fingerprint: Mapping[str, Any]) -> None:
    """Writes dataset.json. Write it last: it says that all other files are complete."""
    files.write_json(os.path.join(folder, FINGERPRINT), {"format": FORMAT, **fingerprint})


def read_fingerprint(folder: str | os.PathLike) -> dict[str, Any]:
    """Reads dataset.json of a prepared directory; another format is an error."""
    path = os.path.join(folder, FINGERPRINT)
    if not files.exists(path):
        raise ValueError(
            f"{folder} has no {FINGERPRINT}: it is not a prepared directory, or prepare was "
            "interrupted. Run prepare, which continues where it stopped."
        )
    value = files.read_json(path, "Run prepare again.")
    for key, expected in (("format", FORMAT), ("tokenizer", tokens.TOKENIZER)):
        if value.get(key) != expected:
            raise ValueError(
                f"{path} has {key} {value.get(key)!r}, and this version reads {expected!r}. Run "
                "prepare into a new directory."
            )
    return value


def load_vocabulary(
    folder: str | os.PathLike,
    fingerprint: dict[str, Any],
    remedy: str = "Restore it or run prepare again.",
) -> tokens.Vocab:
    """Reads vocab.txt of a prepared directory or a run, and compares it with its dataset.json.

    Args:
      folder: the directory.
      fingerprint: the content of its dataset.json.
      remedy: the sentence that ends the error if the two do not belong together.
    """
    path = os.path.join(folder, VOCABULARY)
    vocab = tokens.Vocab.load(path)
    if vocab.sha256 != fingerprint["vocab_sha256"]:
        raise ValueError(f"{path} is not the vocabulary of its {FINGERPRINT}. {remedy}")
    return vocab


def references_path(folder: str | os.PathLike, split: str) -> str:
    """Returns the path of the references of a split."""
    return os.path.join(folder, f"references_{split}.json")


def write_references(
    folder: str | os.PathLike, split: str, items: Iterable[tuple[int, str, Sequence[str]]]
) -> int:
    """Writes references_<split>.json; returns the number of captions.

    Args:
      folder: the prepared directory.
      split: name of the split.
      items: id, file name and raw captions of each image.
    """
    images: list[dict] = []
    annotations: list[dict] = []
    for image_id, file_name, captions in items:
        images.append({"id": int(image_id), "file_name": file_name})
        for caption in captions:
            annotations.append(
                {"id": len(annotations) + 1, "image_id": int(image_id), "caption": caption}
            )
    value = {"info": {"description": f"references, split {split}"}, "licenses": []}
    files.write_json(
        references_path(folder, split), {**value, "images": images, "annotations": annotations}
    )
    return len(annotations)


def stored_captions(data: PreparedData, split: str) -> dict[int, list[str]]:
    """Returns the captions of the records by image id, in the order of the references.

    Use these as training captions: a model learns from them. They differ from the references if the
    data was prepared with `tokens=given`. Then the records have the words of the caption file. The
    references, by which captions are scored, are the raw captions.
    """
    if data.fingerprint.get("tokens") != "given":
        return data.references(split)
    positions = np.arange(len(data.index(split).id))
    records = data.examples(split, tf.data.Dataset.from_tensor_slices(positions))
    spec = {
        "image/id": tf.io.FixedLenFeature([], tf.int64),
        "captions": tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64),
    }
    captions: dict[int, list[str]] = {}
    with data.readable_errors():
        for serialized in records.batch(_BATCH):
            example = tf.io.parse_example(serialized, spec)
            texts = example["captions"].to_list()
            for image, row in zip(example["image/id"].numpy().tolist(), texts, strict=True):
                captions[image] = [text.decode("utf-8", "replace") for text in row]
    return captions
