"""Reads a prepared directory: sharded TFRecord files with an index, read in any order.

`dataset.json`, the fingerprint, lists the splits with their shards, the files of records, and
describes the features. `<split>.index.npz` has the position of every record.
`references_<split>.json` has the captions in COCO's format of annotations. The module `record`
reads and writes single records.

Letters: n images of a split, B images of a batch, R regions, F feature width.
"""

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tfcap import files, segmentation
from tfcap.data import tokens
from tfcap.data.document_frequency import DocumentFrequencies, load_document_frequencies
from tfcap.data.record import FAULT, inputs_of, parse, parse_pictures
from tfcap.errors import did_you_mean

FINGERPRINT = "dataset.json"
VOCABULARY = "vocab.txt"
FORMAT = 1
DEFAULT_DIRECTORY = os.path.join("data", "shapes")  # the built-in shapes, made on first use
CLIPS_DIRECTORY = os.path.join("data", "moving_shapes")  # the built-in clips, made on first use
IN_MEMORY = 1 << 26  # bytes of the largest split that training keeps in memory
_BATCH = 256


class PictureBackbone(Protocol):
    """Protocol of a network that turns pictures into features, for `PreparedData.with_backbone`.

    `backbones.backbone.Backbone` has these attributes and methods.

    Attributes:
      feature_dim: width of the feature vector of a region, F.
      decoded_shape: shape [H, W, 3] of a picture that `decode` returns, for height H and width W.
    """

    feature_dim: int

    @property
    def decoded_shape(self) -> list[int]: ...

    def decode(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Decodes a picture file for `extract`, as a graph function.

        Args:
          image_bytes: the bytes of the file, string [].

        Returns:
          The picture, float32 [H, W, 3] for height H and width W.
        """

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Computes the features of pictures.

        Args:
          images: B pictures of height H and width W that `decode` returned, float32 [B, H, W, 3].

        Returns:
          The features of R regions of each picture, vectors of width F, float32 [B, R, F].
        """


class SplitIndex(NamedTuple):
    """Where the n records of a split are stored, in the order of the data.

    Attributes:
      shard: for each record the position of its file in `PreparedData.shard_paths`, int32 [n].
      offset: for each record the byte in this file at which it starts, int64 [n].
      id: for each record the id of its image, int64 [n].
    """

    shard: np.ndarray
    offset: np.ndarray
    id: np.ndarray


@dataclass(frozen=True)
class PreparedData:
    """A directory that the command `prepare` wrote; `load` opens it.

    Attributes:
      folder: path of the directory.
      fingerprint: the content of dataset.json, which describes the data.
      vocab: the vocabulary.
      backbone: the network that computes the features from the stored pictures, see
        `with_backbone`. With a backbone, batches have `pictures` in place of `features`, and
        `with_features` computes the features of a batch. None: batches have the features that
        `prepare` stored.
    """

    folder: str
    fingerprint: dict[str, Any]
    vocab: tokens.Vocab
    backbone: PictureBackbone | None = None

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "PreparedData":
        """Opens a prepared directory.

        Args:
          folder: path of the directory, local or remote (such as gs://bucket/data).

        Raises:
          ValueError: the directory is not prepared, not complete, or of another version of the
            format.
        """
        is_remote = files.is_remote(folder)
        folder = files.absolute(folder) if is_remote else os.path.expanduser(folder)
        fingerprint = read_fingerprint(folder)
        return cls(folder, fingerprint, load_vocabulary(folder, fingerprint))

    def check_split(self, split: str) -> None:
        """Raises ValueError if a file of records is missing or has changed its size.

        TensorFlow itself raises no error when it reads a file that was cut.

        Args:
          split: name of the split whose files are checked.
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
                    f"Delete the file. {remedy}"
                )

    @property
    def feature_dim(self) -> int:
        """The width of the feature vector of a region, F."""
        return self.fingerprint["features"]["dim"]

    @property
    def image_dim(self) -> int | None:
        """The width of the vectors of whole images; None if only regions have vectors."""
        return self.fingerprint["features"].get("image_dim")

    @property
    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """The shape and dtype of each input of a captioner, as `tf.TensorSpec` by name.

        The inputs are `features` float32 [B, R, F], `mask` bool [B, R] and, if the data has them,
        the vectors of whole images, `image` float32 [B, F2], and the boxes of regions, `boxes`
        float32 [B, R, 4], for B images of R regions. F is `feature_dim` and F2 is `image_dim`; B
        and R are open (None).
        """
        specs = {
            "features": tf.TensorSpec([None, None, self.feature_dim]),
            "mask": tf.TensorSpec([None, None], tf.bool),
        }
        if self.image_dim is not None:
            specs["image"] = tf.TensorSpec([None, self.image_dim])
        if self.has_boxes:
            specs["boxes"] = tf.TensorSpec([None, None, 4])
        return specs

    @property
    def has_boxes(self) -> bool:
        """Whether a captioner may read the boxes of regions, `boxes` of a batch.

        They are those of a detector, or of ready-made features. A grid has the same boxes in every
        picture, and the boxes of images with several pictures are places on a sheet.
        """
        made_by = self.fingerprint.get("backbone") or {}
        return self.views == 1 and made_by.get("grid") is None

    @property
    def max_regions(self) -> int:
        """The largest number of regions that an image of the data has."""
        return self.fingerprint["features"]["max_regions"]

    def most_regions(self, limit: int | None) -> int:
        """Returns the largest number of regions of an image, after regions beyond a limit are cut.

        Args:
          limit: largest number of regions that is read of an image; None sets no limit.
        """
        return self.max_regions if limit is None else min(self.max_regions, limit)

    @property
    def frames(self) -> int | None:
        """The number of frames of each clip; None if the images of the data are still pictures."""
        return self.fingerprint.get("frames")

    @property
    def views(self) -> int:
        """The largest number of pictures of an image whose regions the data has, usually 1."""
        return self.fingerprint.get("views", 1)

    @property
    def images(self) -> str | None:
        """The directory of the picture files; None if the data was prepared from features."""
        return self.fingerprint.get("images")

    def split(self, split: str) -> dict[str, Any]:
        """Returns the entry of a split in dataset.json.

        The entry has `images` and `captions`, the numbers of images and of captions in the split,
        and `shards`, a list of the files of records. The entry of a shard has its name `file`, its
        size in `bytes` and its number of `records`.

        Args:
          split: name of the split.

        Raises:
          ValueError: the data has no split of this name.
        """
        splits = self.fingerprint["splits"]
        if split not in splits:
            raise ValueError(
                f"{self.folder} has no split {split!r}. It has {', '.join(splits)}."
                f"{did_you_mean(split, splits)}"
            )
        return splits[split]

    def index(self, split: str) -> SplitIndex:
        """Reads where the records of a split are stored.

        Args:
          split: name of the split.

        Raises:
          ValueError: the index is missing, damaged or incomplete.
        """
        path = os.path.join(self.folder, f"{split}.index.npz")
        records = sum(shard["records"] for shard in self.split(split)["shards"])
        index = SplitIndex(**files.load_npz(path, SplitIndex._fields, "Run prepare again."))
        if len(index.id) != records:
            raise ValueError(f"{path} has {len(index.id)} of {records} records. Run prepare again.")
        return index

    def references(self, split: str) -> dict[int, list[str]]:
        """Returns the references of a split, the captions as people wrote them, by image id.

        An image without captions has an empty list.

        Args:
          split: name of the split.

        Raises:
          ValueError: the file of the references is missing, or was changed after `prepare`.
        """
        value = self._references(split)
        captions: dict[int, list[str]] = {image["id"]: [] for image in value["images"]}
        for annotation in value["annotations"]:
            captions[annotation["image_id"]].append(annotation["caption"])
        return captions

    def file_names(self, split: str) -> dict[int, str]:
        """Returns the name of each picture file of a split, by image id.

        Of an image with several pictures it is the name of the first.

        Args:
          split: name of the split.
        """
        return {image["id"]: image["file_name"] for image in self._references(split)["images"]}

    def picture_names(self, split: str) -> dict[int, list[str]]:
        """Returns the names of all pictures of each image of a split, by image id.

        Args:
          split: name of the split.
        """
        images = self._references(split)["images"]
        return {image["id"]: image.get("pictures", [image["file_name"]]) for image in images}

    def mirrored(self, split: str) -> set[int]:
        """Returns the ids of the images of a split that are mirrored copies of other images.

        Such an image has the file name of the other. No picture file shows it.

        Args:
          split: name of the split.
        """
        if not self.fingerprint.get("flip"):
            return set()
        return {image["id"] for image in self._references(split)["images"] if "mirrored" in image}

    def domains(self, split: str) -> dict[int, str]:
        """Returns the domain of each image of a split that has one, by image id.

        A domain is a group of images with scores of its own, such as "out-domain" of nocaps.

        Args:
          split: name of the split.
        """
        images = self._references(split)["images"]
        return {image["id"]: image["domain"] for image in images if "domain" in image}

    def _references(self, split: str) -> dict[str, Any]:
        """Reads the file of the references, in COCO's format of annotations."""
        path = references_path(self.folder, split)
        digest = self.split(split).get("references_sha256")
        if digest is not None and files.exists(path) and files.file_sha256(path) != digest:
            raise ValueError(
                f"{path} was changed after prepare. Change the input of prepare instead, and run "
                "it again."
            )
        return files.read_json(path, "Run prepare again.")

    def picture_paths(self, split: str, images: str | os.PathLike | None = None) -> dict[int, str]:
        """Returns the paths of the picture files of a split, by image id.

        Files that do not exist are left out. The path of a clip may be a directory of frames. Of an
        image with several pictures it is the path of the first, see `view_paths`.

        Args:
          split: name of the split.
          images: directory of the picture files. None takes the directory that the data was
            prepared from; the result is empty if it was prepared from features.
        """
        return {image: paths[0] for image, paths in self.view_paths(split, images).items()}

    def view_paths(
        self, split: str, images: str | os.PathLike | None = None
    ) -> dict[int, list[str]]:
        """Returns the paths of all pictures of each image of a split, by image id.

        An image that lacks a picture is left out, and so is a mirrored copy of an image.

        Args:
          split: name of the split.
          images: directory of the picture files, as in `picture_paths`.
        """
        directory = os.path.expanduser(images) if images else self.images
        if not directory:
            return {}

        def exists(name: str) -> bool:
            path = os.path.join(directory, name)
            is_inside = not os.path.isabs(name) and ".." not in name.split("/")
            return is_inside and (
                os.path.isfile(path) or (self.frames is not None and os.path.isdir(path))
            )

        mirrored = self.mirrored(split)
        return {
            image: [os.path.join(directory, name) for name in names]
            for image, names in self.picture_names(split).items()
            if image not in mirrored and all(map(exists, names))
        }

    @property
    def has_document_frequencies(self) -> bool:
        """Whether `document_frequencies` can be read.

        Data that was prepared without a train split may have none.
        """
        return self.fingerprint.get("document_frequency", "train") is not None

    def document_frequencies(self) -> DocumentFrequencies:
        """Reads the document frequencies, which CIDEr-D needs.

        Raises:
          ValueError: the data has no document frequencies.
        """
        if not self.has_document_frequencies:
            raise ValueError(
                f"{self.folder} has no document frequencies, which CIDEr-D needs: it was prepared "
                "without a train split. Prepare it again with two files of prepared data that has "
                "a train split: `document_frequency=DATA/document_frequency.npz` of tfcap.prepare "
                "and `vocab=DATA/vocab.txt` of tfcap.prepare. Or use that data."
            )
        return load_document_frequencies(self.folder)

    def shard_paths(self, split: str) -> list[str]:
        """Returns the paths of the shards of a split, its files of records.

        `SplitIndex.shard` counts the shards in this order.

        Args:
          split: name of the split.
        """
        return [os.path.join(self.folder, s["file"]) for s in self.split(split)["shards"]]

    def examples(
        self, split: str, indices: tf.data.Dataset, again: bool = False
    ) -> tf.data.Dataset:
        """Reads records of a split.

        Args:
          split: name of the split.
          indices: a dataset of positions int64 [] in the index of the split. The records come in
            this order.
          again: whether the records are read many times. A split of at most `IN_MEMORY` bytes then
            stays in memory: to open a file for each record takes longer.

        Returns:
          A dataset of records, each a serialized `tf.train.Example`, string [].

        Raises:
          ValueError: a file of records is missing or has changed its size.
        """
        self.check_split(split)
        index = self.index(split)
        if again and sum(map(files.size, self.shard_paths(split))) <= IN_MEMORY:

            @tf.autograph.experimental.do_not_convert
            def choose(records: tf.Tensor) -> tf.data.Dataset:
                return indices.map(lambda position: tf.gather(records, position))

            everything = self.all_examples(split).batch(max(1, len(index.id)))
            return without_tuning(everything.flat_map(choose))
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

    def all_examples(self, split: str) -> tf.data.Dataset:
        """Reads all records of a split in the order of the index, file by file.

        It is many times as fast as `examples`, which opens a file for each record.

        Args:
          split: name of the split.

        Returns:
          A dataset of records, each a serialized `tf.train.Example`, string [].

        Raises:
          ValueError: a file of records is missing or has changed its size.
        """
        self.check_split(split)
        return without_tuning(tf.data.TFRecordDataset(self.shard_paths(split)))

    def parse(
        self, serialized: tf.Tensor, max_regions: int | None = None, pad_regions: int | None = None
    ) -> dict[str, tf.Tensor]:
        """Parses a batch of serialized records, as a graph function.

        Args:
          serialized: B records, string [B].
          max_regions: largest number of regions of an image; further regions are cut off. None
            keeps all.
          pad_regions: number of regions of the result, R. Images with more regions are cut, images
            with fewer are padded. None takes the largest number in the batch, after `max_regions`.
            `pad_regions` has no effect with a backbone, which gives the same number of regions for
            all pictures.

        Returns:
          A dict of `features` float32 [B, R, F], with vectors of width F, `mask` bool [B, R],
          `captions`, `id` and further entries, see `record.parse`. With a backbone it has
          `pictures` float32 [B, H, W, 3], of height H and width W, in place of `features`.
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
        """Reads some images as one batch.

        Args:
          split: name of the split.
          ids: ids of the B images, in the order of the result.
          max_regions: largest number of regions of an image; further regions are cut off. None
            keeps all.

        Returns:
          A dict of `features` float32 [B, R, F], for up to R regions with vectors of width F,
          `mask` bool [B, R], `captions`, `id` and further entries, see `record.parse`. If the data
          has a backbone, the backbone computes the features.

        Raises:
          ValueError: an id is not that of an image of the split, or a record is damaged.
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
        """Whether the records hold picture files.

        The command `prepare` stores them if its option `keep_pictures` is set.
        """
        return "pictures" in self.fingerprint

    def require_pictures(self) -> None:
        """Raises ValueError if the records hold no picture files.

        The command `prepare` stores them if its option `keep_pictures` is set.
        """
        if not self.has_pictures:
            raise ValueError(
                f"To train a backbone, the records must hold the pictures, but those of "
                f"{self.folder} hold none. Prepare the data again with `keep_pictures` of "
                "tfcap.prepare."
            )

    def with_backbone(self, backbone: PictureBackbone, weights_sha256: str = "") -> "PreparedData":
        """Returns a copy of the data whose features a trained backbone computes.

        Args:
          backbone: the backbone. It must give as many regions for each picture as the backbone with
            which the data was prepared.
          weights_sha256: SHA-256 of the weights of the backbone. It becomes a part of the
            fingerprint of the copy, so that copies with different weights have different
            fingerprints. With "" the fingerprint does not tell the weights apart.

        Raises:
          ValueError: the records hold no picture files.
        """
        self.require_pictures()
        features = self.fingerprint["features"] | {"dim": backbone.feature_dim}
        changes = {"features": features, "trained_backbone": weights_sha256}
        return dataclasses.replace(self, fingerprint=self.fingerprint | changes, backbone=backbone)

    def with_features(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Replaces the pictures of a batch by the features that the backbone computes from them.

        Call it outside of the input pipeline, so that a GPU computes the features.

        Args:
          batch: a batch of the pipelines, by name.

        Returns:
          A batch with `features` float32 [B, R, F] in place of `pictures`, for B images of R
          regions with vectors of width F. If the data has no backbone, the result is `batch`
          itself, which already has features.
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

    def inputs_of(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the entries of a batch that a captioner reads, see `record.inputs_of`.

        Args:
          batch: name of the entry -> tensor, as `parse` or the pipelines make batches.
        """
        inputs = inputs_of(batch)
        if not self.has_boxes:
            inputs.pop("boxes", None)
        return inputs

    @contextlib.contextmanager
    def readable_errors(self) -> Iterator[None]:
        """Context manager that turns TensorFlow's errors about bad records into ValueErrors.

        The ValueErrors name the record or the file, and say what to do. Errors that have other
        causes than the data pass unchanged.
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
    """Returns the same dataset without TensorFlow's background thread that tunes buffer sizes.

    Freeing an iterator waits for this thread, which may sleep for up to a minute. Datasets that are
    made from the result have no such thread, either.

    Args:
      dataset: any dataset.
    """
    # It sleeps on because TensorFlow wakes it before it marks the iterator as cancelled.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def write_fingerprint(folder: str | os.PathLike, fingerprint: Mapping[str, Any]) -> None:
    """Writes dataset.json, the description of prepared data, called its fingerprint.

    Write it last: its existence says that all other files of the directory are complete.

    Args:
      folder: the prepared directory.
      fingerprint: the content of the file, without the version of the format, which is added.
    """
    files.write_json(os.path.join(folder, FINGERPRINT), {"format": FORMAT, **fingerprint})


def read_fingerprint(folder: str | os.PathLike) -> dict[str, Any]:
    """Returns the content of dataset.json, the description of prepared data.

    Args:
      folder: the prepared directory.

    Raises:
      ValueError: the file is missing, or another version of the format wrote it.
    """
    path = os.path.join(folder, FINGERPRINT)
    if not files.exists(path):
        raise ValueError(
            f"{folder} has no {FINGERPRINT}: it is not a prepared directory, or prepare was "
            "interrupted. Give a prepared directory, or run prepare again: it continues."
        )
    value = files.read_json(path, "Run prepare again.")
    for key, expected in (("format", FORMAT), ("tokenizer", tokens.TOKENIZER)):
        if value.get(key) != expected:
            raise ValueError(
                f"{path} has {key} {value.get(key)!r}, but this version of tfcap reads "
                f"{expected!r}. Run prepare into a new directory."
            )
    return value


def load_vocabulary(
    folder: str | os.PathLike,
    fingerprint: dict[str, Any],
    remedy: str = "Restore it or run prepare again.",
) -> tokens.Vocab:
    """Reads the vocabulary of a prepared directory or of a training run, and checks it.

    Args:
      folder: the directory, which has vocab.txt.
      fingerprint: the content of its dataset.json, with the SHA-256 of the vocabulary.
      remedy: the last sentence of the error, which says what to do.

    Raises:
      ValueError: the vocabulary is not the one that `fingerprint` belongs to.
    """
    path = os.path.join(folder, VOCABULARY)
    vocab = tokens.Vocab.load(path, fingerprint.get("tokens", segmentation.RAW))
    if vocab.sha256 != fingerprint["vocab_sha256"]:
        raise ValueError(f"{path} is not the vocabulary of the {FINGERPRINT} beside it. {remedy}")
    return vocab


def references_path(folder: str | os.PathLike, split: str) -> str:
    """Returns the path of the file with the references (captions) of a split.

    Args:
      folder: the prepared directory.
      split: name of the split.
    """
    return os.path.join(folder, f"references_{split}.json")


def write_references(
    folder: str | os.PathLike,
    split: str,
    items: Iterable[tuple[int, str, Sequence[str]]],
    domains: Mapping[int, str] | None = None,
    pictures: Mapping[int, Sequence[str]] | None = None,
    mirrored: Container[int] = (),
) -> int:
    """Writes the file with the references of a split; returns the number of captions.

    Args:
      folder: the prepared directory.
      split: name of the split.
      items: id, file name and raw captions of each image.
      domains: image id -> domain of the image; images without a domain are left out. None: no image
        has one.
      pictures: image id -> names of all its pictures, for images with several. None: no image has
        several.
      mirrored: ids of the images that are mirrored copies of other images.
    """
    images: list[dict] = []
    annotations: list[dict] = []
    for image_id, file_name, captions in items:
        domain = {"domain": domains[image_id]} if domains and image_id in domains else {}
        several = {"pictures": [*pictures[image_id]]} if pictures and image_id in pictures else {}
        copy = {"mirrored": True} if image_id in mirrored else {}
        images.append({"id": int(image_id), "file_name": file_name, **domain, **several, **copy})
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
    """Returns the captions from which a model learns, by image id, in the order of the references.

    They are the captions in the records. Most data has the same captions as references, the raw
    captions by which a model is scored. Only data that was prepared with another `tokens` of
    tfcap.prepare than `raw` differs: its records have the words with spaces between them.

    Args:
      data: the prepared data.
      split: name of the split.
    """
    if data.vocab.tokens == segmentation.RAW:
        return data.references(split)
    spec = {
        "image/id": tf.io.FixedLenFeature([], tf.int64),
        "captions": tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64),
    }
    captions: dict[int, list[str]] = {}
    with data.readable_errors():
        for serialized in data.all_examples(split).batch(_BATCH):
            example = tf.io.parse_example(serialized, spec)
            texts = example["captions"].to_list()
            for image, row in zip(example["image/id"].numpy().tolist(), texts, strict=True):
                captions[image] = [text.decode("utf-8", "replace") for text in row]
    return captions
