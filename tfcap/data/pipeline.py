"""tf.data pipelines over a prepared directory: batches for training and batches for decoding.

Letters: B images of one replica, S captions per image, R regions, F feature width, T max_length,
T' <= T length of the longest chosen caption of the batch, C largest number of captions of an image,
U length of the longest of all captions of the batch, n images of the split. Lengths are in words,
the end mark included.

The content of a batch is a pure function of (seed, number of the batch): a run that restarts at
batch k computes the rest of its stream instead of restoring the state of an iterator, and a global
batch has the same images on one replica and on many.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap.data.prepared import PreparedData
from tfcap.data.record import check
from tfcap.ids import BOS, EOS, PAD

References = Callable[[tf.Tensor], Any]  # maps all captions of the images to tensors


def batches_per_epoch(data: PreparedData, split: str, batch_size: int, replicas: int = 1) -> int:
    """Returns the global training batches of an epoch, n // (B · replicas)."""
    images = data.split(split)["images"]
    if images < batch_size * replicas:
        raise ValueError(
            f"Split {split} has {images} images, which do not fill a batch of {batch_size} on each "
            f"of {replicas} replicas. Lower batch_size."
        )
    return images // (batch_size * replicas)


def training_batches(
    data: PreparedData,
    *,
    split: str = "train",
    batch_size: int,
    captions_per_image: int,
    max_length: int,
    seed: int,
    start_batch: int = 0,
    replicas: int = 1,
    input_context: tf.distribute.InputContext | None = None,
    max_regions: int | None = None,
    pad_to_max: bool = False,
    references: References | None = None,
    reference_length: int | None = None,
) -> tf.data.Dataset:
    """Returns endless shuffled batches with S captions per image.

    Epoch e takes the images in the order of a stateless shuffle seeded (seed, e). S captions are
    drawn without replacement; if an image has fewer, all its captions are used and some are drawn
    again, as in the released JDAI loader.

    Args:
      data, split: the prepared directory, and the split.
      batch_size: B, images per replica.
      captions_per_image: S.
      max_length: T.
      seed: random seed of the order and of the drawn captions.
      start_batch: number of *global* batches to skip. A run that resumes gives its step; skipping
        takes less than a second.
      replicas: local batches per global batch; they are consecutive in the stream.
      input_context: context of a distributed input function; overrides ``replicas``, and this
        pipeline yields only the local batches of the replicas that it feeds.
      max_regions: largest number of regions of an image; further regions are cut off.
      pad_to_max: pad to T and to the largest R, C and U of the data, so that all shapes are static.
      references: a graph function that a reward needs. It gets *all* captions of each image, int32
        [B, C, U]: w1 ... wL EOS PAD ... without BOS. If an image has fewer than C captions, its
        last rows are PAD.
      reference_length: longest caption that ``references`` gets, in words with the end mark; a
        longer caption loses its end and EOS. None takes T.

    Returns:
      dataset of ``features`` float32 [B, R, F], ``mask`` bool [B, R], ``tokens`` int32
      [B, S, T'+1] (BOS first), ``id`` int64 [B]; ``image`` float32 [B, F2] if the data has vectors
      of whole images; with ``references``, its result under that name. Data with a ``backbone``
      gives ``pictures`` float32 [B, H, W, 3] in place of ``features``. An image without captions is
      an error when it is read.
    """
    replicas, first, last = _local_replicas(replicas, input_context)
    per_epoch = batches_per_epoch(data, split, batch_size, replicas)
    images, global_size = data.split(split)["images"], replicas * batch_size
    first_epoch, offset = divmod(start_batch, per_epoch)

    @tf.autograph.experimental.do_not_convert
    def epoch_batches(epoch: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(
            tf.range(images, dtype=tf.int64), seed=tf.stack([tf.constant(seed, tf.int64), epoch])
        )
        rows = tf.reshape(order[: per_epoch * global_size], [per_epoch, global_size])
        rows = rows[:, first * batch_size : last * batch_size]
        rows = tf.reshape(rows, [-1, batch_size])  # -> one row per local batch
        return tf.data.Dataset.from_tensor_slices((tf.fill([rows.shape[0]], epoch), rows))

    def choose(counts: tf.Tensor, ids: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        return draw_captions(counts, captions_per_image, ids, seed, epoch)

    keys = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_batches)
    keys = keys.skip(offset * (last - first))
    batch = _Assembler(data, split, captions_per_image, max_length, max_regions, pad_to_max, choose)
    batch.captions_needed = True
    batch.add_references(references, reference_length)
    return batch.dataset(keys, batch_size)


def decoding_batches(
    data: PreparedData,
    *,
    split: str,
    batch_size: int,
    captions_per_image: int,
    max_length: int,
    replicas: int = 1,
    limit: int | None = None,
    input_context: tf.distribute.InputContext | None = None,
    max_regions: int | None = None,
    pad_to_max: bool = False,
    references: References | None = None,
    reference_length: int | None = None,
) -> tf.data.Dataset:
    """Returns every image of a split once, in file order, in full batches.

    The last global batch is filled with repeats, which ``real`` marks, so that no replica waits.
    Each image gives its first S captions; if it has fewer, they repeat in order. An image without
    captions has the tokens BOS PAD PAD ..., so that a loss counts no word of it.

    `limit` is the number of images to read from the start of the split; None reads all. Other
    arguments are those of `training_batches`. The dataset is finite, and its batches are those of
    `training_batches` with ``real`` bool [B], False for repeats.
    """
    replicas, first, last = _local_replicas(replicas, input_context)
    images = data.split(split)["images"]
    images = images if limit is None else min(images, limit)
    together = replicas * batch_size
    total = -(-images // together) * together
    places = tf.reshape(tf.range(total, dtype=tf.int64), [-1, replicas, batch_size])
    places = tf.reshape(places[:, first:last], [-1, batch_size])  # -> one row per local batch
    keys = tf.data.Dataset.from_tensor_slices((places < images, places % images))

    def choose(counts: tf.Tensor, ids: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
        del ids, real
        places = tf.range(captions_per_image, dtype=tf.int64)
        return places % tf.expand_dims(tf.maximum(counts, 1), 1)

    batch = _Assembler(data, split, captions_per_image, max_length, max_regions, pad_to_max, choose)
    batch.add_references(references, reference_length)
    return batch.dataset(keys, batch_size, key_name="real")


def _local_replicas(
    replicas: int, context: tf.distribute.InputContext | None
) -> tuple[int, int, int]:
    """Returns the number of all replicas, and the range of replicas that this pipeline feeds."""
    if context is None:
        return replicas, 0, replicas
    replicas, pipelines = context.num_replicas_in_sync, context.num_input_pipelines
    if replicas % pipelines:
        raise ValueError(f"{replicas} replicas cannot be spread evenly over {pipelines} workers.")
    here = replicas // pipelines
    first = context.input_pipeline_id * here
    return replicas, first, first + here


class _Assembler:
    """Makes batches from positions in the index."""

    def __init__(self, data, split, captions_per_image, max_length, max_regions, pad, choose):
        self.data, self.split, self.pad, self.choose = data, split, pad, choose
        self.captions_per_image, self.max_length = captions_per_image, max_length
        self.max_regions = data.most_regions(max_regions)
        self.ids = tf.constant(data.index(split).id)
        self.references: References | None = None
        self.captions_needed = False  # whether an image without captions is an error

    def add_references(self, references: References | None, length: int | None) -> None:
        """Adds the result of ``references`` for all captions of the images to the batches."""
        self.references, self.reference_length = references, length or self.max_length
        self.most_captions = None
        if self.pad and references is not None:
            captions = self.data.references(self.split).values()
            self.most_captions = max(1, max(map(len, captions), default=0))

    def dataset(
        self, keys: tf.data.Dataset, batch_size: int, key_name: str | None = None
    ) -> tf.data.Dataset:
        """Returns batches for ``keys``, a dataset of (key of the batch, positions int64 [B])."""
        # The positions are computed twice, once to read and once to describe the batch: cheaper
        # than carrying them through the parallel reads.
        rows_alone = tf.autograph.experimental.do_not_convert(lambda _, rows: rows)
        positions = keys.map(rows_alone).unbatch()
        serialized = self.data.examples(self.split, positions).batch(batch_size, True)

        @tf.autograph.experimental.do_not_convert  # nothing in it needs AutoGraph, which is slow
        def assemble(batch, row):
            key, rows = row
            result = self._batch(batch, key, rows)
            return result if key_name is None else {**result, key_name: key}

        options = tf.data.Options()
        options.deterministic = True
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.OFF  # `keys` holds only the rows of this pipeline
        )
        batches = tf.data.Dataset.zip((serialized, keys)).map(
            assemble, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return batches.prefetch(tf.data.AUTOTUNE).with_options(options)

    def _batch(self, serialized: tf.Tensor, key: tf.Tensor, rows: tf.Tensor) -> dict:
        """Makes a batch from serialized records [B] and their index positions `rows` [B]."""
        size, dim = serialized.shape[0], self.data.feature_dim
        most = self.max_regions if self.pad else None
        parsed = self.data.parse(serialized, self.max_regions, most)
        ids = parsed["id"]
        right = check(ids == tf.gather(self.ids, rows), ids, "index points to wrong image")
        with tf.control_dependencies([right]):
            ids = tf.identity(ids)
        words, references = self._captions(parsed["captions"], ids, key)
        length = self.max_length + 1 if self.pad else None
        shapes = {"features": [size, most, dim]}
        if self.data.backbone is not None:
            shapes = {"pictures": [size, *self.data.backbone.decoded_shape]}
        result = {
            **{key: tf.ensure_shape(parsed[key], shape) for key, shape in shapes.items()},
            "mask": tf.ensure_shape(parsed["mask"], [size, most]),
            "tokens": tf.ensure_shape(words, [size, self.captions_per_image, length]),
            "id": tf.ensure_shape(ids, [size]),
        }
        if "image" in parsed:
            result["image"] = tf.ensure_shape(parsed["image"], [size, self.data.image_dim])
        if self.references is not None:
            length = self.reference_length if self.pad else None
            shape = [size, self.most_captions, length]
            result["references"] = self.references(tf.ensure_shape(references, shape))
        return result

    def _captions(
        self, captions: tf.RaggedTensor, ids: tf.Tensor, key: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns ids int32 [B, S, T'+1] of S drawn captions, and, if needed, [B, C, U] of all."""
        starts, ends = captions.row_splits[:-1], captions.row_splits[1:]
        counts = ends - starts
        described = counts > 0
        checks = [check(described, ids, "no captions for image")] if self.captions_needed else []
        with tf.control_dependencies(checks):
            places = self.choose(tf.identity(counts), ids, key)
        places += tf.expand_dims(starts, 1)
        # The place of an image without captions may be that of the next image, or of this "".
        texts = tf.concat([captions.values, [""]], 0)
        if self.references is None:
            references = None
            words = self.data.vocab.encode(tf.gather(texts, places), self.max_length)
        else:
            longest = max(self.max_length, self.reference_length)
            every = self.data.vocab.encode(texts, longest)
            all_words = every[:-1, 1 : self.reference_length + 1]
            references = self._all_captions(all_words, captions.row_splits, counts)
            words = tf.gather(every, places)[:, :, : self.max_length + 1]
        nothing = [BOS] + [PAD] * self.max_length
        words = tf.where(tf.reshape(described, [-1, 1, 1]), words, nothing)
        filled = tf.reduce_all(words[:, :, 1] != EOS, axis=1)
        with tf.control_dependencies([check(filled, ids, "caption without a word for image")]):
            words = tf.identity(words)
        return words if self.pad else _cut(words, 2), references

    def _all_captions(self, words: tf.Tensor, splits: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Returns ids [B, C, U] by image from the ids [captions, T] of all captions."""
        captions = self.most_captions
        if captions is None:
            captions = tf.maximum(tf.reduce_max(counts), 1)
        words = tf.raw_ops.RaggedTensorToTensor(
            shape=tf.stack([-1, captions, self.reference_length]),
            values=words,
            default_value=PAD,
            row_partition_tensors=[splits],
            row_partition_types=["ROW_SPLITS"],
        )
        return words if self.pad else _cut(words, 1)


def _cut(words: tf.Tensor, least: int) -> tf.Tensor:
    """Cuts padding after the longest caption of ids [B, n, T]; at least `least` ids remain."""
    longest = tf.reduce_max(tf.math.count_nonzero(words, axis=-1, dtype=tf.int32))
    # As `words[:, :, :length]`, which builds three times as many operations.
    return tf.slice(words, [0, 0, 0], tf.stack([-1, -1, tf.maximum(longest, least)]))


def draw_captions(
    lengths: tf.Tensor, samples: int, ids: tf.Tensor, seed: int, epoch: tf.Tensor
) -> tf.Tensor:
    """Draws S captions of each image; captions repeat only if the image has fewer than S.

    A draw depends only on the seed, the epoch, the image id and its number among the S draws, not
    on the other images of the batch. `lengths` int64 [B] are the numbers of captions, at least 1,
    and `ids` int64 [B] the images.

    Returns int64 [B, S], positions among the captions of each image. If an image has fewer than S
    captions, all of them are used and some are drawn again.
    """
    key = tf.random.stateless_uniform(
        [], tf.stack([tf.constant(seed, tf.int64), epoch]), None, None, tf.uint64
    )
    image = tf.expand_dims(_mix(key ^ tf.bitcast(ids, tf.uint64)), 1)
    lengths = tf.expand_dims(lengths, 1)
    places = tf.range(tf.maximum(tf.reduce_max(lengths), samples))
    # Without replacement: the captions in random order, places without a caption last. `invert`
    # turns the order round, because `top_k` gives the largest first and has few operations.
    order = _positive(_mix(image + tf.cast(places + 1, tf.uint64)))
    order = tf.bitwise.invert(tf.where(places < lengths, order, tf.int64.max))
    order = tf.math.top_k(order, samples, index_type=tf.int64).indices
    draws = np.arange(samples)
    again = _positive(_mix(image - (draws + 1).astype(np.uint64))) % lengths
    return tf.where(draws < lengths, order, again)


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Scrambles uint64 [...], the output function of SplitMix64 (Steele, Lea and Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64))
        x *= tf.constant(factor, tf.uint64)
    return x ^ tf.bitwise.right_shift(x, tf.constant(31, tf.uint64))


def _positive(x: tf.Tensor) -> tf.Tensor:
    """Returns uint64 as int64 >= 0, for operations that do not support uint64."""
    return tf.cast(tf.bitwise.right_shift(x, tf.constant(1, tf.uint64)), tf.int64)
