"""tf.data pipelines over a prepared directory: batches for training and batches for decoding.

Letters: B images of one replica, S captions per image, R regions, F feature width, T max_length,
T' <= T length of the longest chosen caption of the batch, C largest number of captions of an image,
U length of the longest of all captions of the batch, n images of the split. Lengths are in words,
the end mark included.

The content of a batch depends only on the seed and the number of the batch. So a run that restarts
at batch k computes the batches from there on, instead of restoring the state of an iterator. And a
global batch has the same images on one replica and on many.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap.data.prepared import PreparedData
from tfcap.data.record import check
from tfcap.ids import BOS, EOS, PAD

References = Callable[[tf.Tensor], Any]  # maps all captions of the images to tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """What the batches of `training_batches` and `decoding_batches` hold, and for which replicas.

    Attributes:
      split: name of the split whose images are read.
      batch_size: number of images in a batch of one replica, B.
      captions_per_image: number of captions of each image in a batch, S.
      max_length: largest number of words of a caption, the end mark included, T.
      max_regions: largest number of regions of an image; further regions are cut off. None keeps
        all regions.
      pad_to_max: whether every batch is padded to the largest shape that the data can need. Then
        all shapes are static; otherwise a batch is only as large as its own images and captions
        need.
      references: a graph function that computes what a reward needs from the references. It gets
        *all* captions of each image, int32 [B, C, U] for up to C captions of up to U words: w1 ...
        wL EOS PAD ... without BOS. If an image has fewer than C captions, its last rows are PAD. A
        batch holds the result under the name `references`. None leaves this entry out.
      reference_length: largest number of words of a caption that `references` gets, the end mark
        included. A longer caption loses its last words and EOS. None means T.
      replicas: number of replicas, the devices that train together. A global batch consists of one
        batch for each replica; the batches of a global batch follow one another in the dataset.
      input_context: the context that `tf.distribute` gives to an input function. Its number of
        replicas replaces `replicas`, and the dataset has only the batches of the replicas that this
        process feeds. None: the dataset has the batches of all replicas.
    """

    split: str = "train"
    batch_size: int
    captions_per_image: int
    max_length: int
    max_regions: int | None = None
    pad_to_max: bool = False
    references: References | None = None
    reference_length: int | None = None
    replicas: int = 1
    input_context: tf.distribute.InputContext | None = None


def _batches_per_epoch(data: PreparedData, split: str, batch_size: int, replicas: int = 1) -> int:
    """Returns the number of global training batches of an epoch, n // (B · replicas).

    Args:
      data: the prepared data.
      split: name of the split, which has n images.
      batch_size: number of images in a batch of one replica, B.
      replicas: number of replicas that share a global batch.
    """
    images = data.split(split)["images"]
    if images < batch_size * replicas:
        raise ValueError(
            f"Split {split} has {images} images, which do not fill a batch of {batch_size} on each "
            f"of {replicas} replicas. Take a smaller batch, or a split with more images."
        )
    return images // (batch_size * replicas)


def training_batches(
    data: PreparedData, options: BatchOptions, *, seed: int, start_batch: int = 0
) -> tf.data.Dataset:
    """Returns endless shuffled batches of images, each with S captions.

    In each epoch the images have another order, which follows from `seed` and the number of the
    epoch. The images that remain after the last full global batch of an epoch are left out of this
    epoch. S is `options.captions_per_image`, and S captions of each image are drawn without
    replacement. If an image has fewer captions, all are used and some are drawn again, as in the
    released code of X-LAN and X-Transformer.

    Args:
      data: the prepared data.
      options: what the batches hold.
      seed: random seed of the order and of the drawn captions.
      start_batch: number of *global* batches to skip. A run that resumes gives its step; skipping
        takes less than a second.

    Returns:
      A dataset of dicts. A batch of B images has these entries:

      * `features` float32 [B, R, F], the features of R regions, vectors of width F;
      * `mask` bool [B, R], False for padding;
      * `tokens` int32 [B, S, T'+1], the captions with BOS first. T' is the number of words of the
        longest of them, the end mark included; with `options.pad_to_max` it is
        `options.max_length`;
      * `id` int64 [B], the ids of the images;
      * `image` float32 [B, F2], the vectors of the whole images, of width F2, if the data has them;
      * `boxes` float32 [B, R, 4], the boxes of regions, if `PreparedData.has_boxes`;
      * `references`, if `options.references` is given.

      Data with a backbone has `pictures` float32 [B, H, W, 3], of height H and width W, in place of
      `features`.

    Raises:
      ValueError: the split has fewer images than a global batch, or the replicas cannot be spread
        evenly over the workers.
      tf.errors.InvalidArgumentError: an image has no captions, or a caption has no word. This error
        comes when the dataset reads the image.
    """
    size = options.batch_size
    replicas, first, last = _local_replicas(options)
    per_epoch = _batches_per_epoch(data, options.split, size, replicas)
    images = data.split(options.split)["images"]
    first_epoch, offset = divmod(start_batch, per_epoch)

    @tf.autograph.experimental.do_not_convert
    def epoch_batches(epoch: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(
            tf.range(images, dtype=tf.int64), seed=tf.stack([tf.constant(seed, tf.int64), epoch])
        )
        global_size = replicas * size
        rows = tf.reshape(order[: per_epoch * global_size], [per_epoch, global_size])
        rows = rows[:, first * size : last * size]
        rows = tf.reshape(rows, [-1, size])  # -> one row per local batch
        return tf.data.Dataset.from_tensor_slices((tf.fill([rows.shape[0]], epoch), rows))

    def choose(counts: tf.Tensor, ids: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        return draw_captions(counts, options.captions_per_image, ids, seed, epoch)

    keys = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_batches)
    keys = keys.skip(offset * (last - first))
    return _Assembler(data, options, choose, trains=True).dataset(keys)


def decoding_batches(
    data: PreparedData, options: BatchOptions, *, limit: int | None = None
) -> tf.data.Dataset:
    """Returns every image of a split once, in the order of the data, in full batches.

    The last global batch is filled up with images that were read before, so that every replica gets
    a batch. Each image has its first S captions, where S is `options.captions_per_image`. If it has
    fewer, they repeat in order. An image without captions has the tokens BOS PAD PAD ..., so that a
    loss counts no word of it.

    Args:
      data: the prepared data.
      options: what the batches hold.
      limit: number of images to read from the start of the split; None reads all images.

    Returns:
      A finite dataset of dicts with the entries that `training_batches` describes, and `real` bool
      [B] for B images, which is False for the images that fill up the last global batch.
    """
    size = options.batch_size
    replicas, first, last = _local_replicas(options)
    images = data.split(options.split)["images"]
    images = images if limit is None else min(images, limit)
    global_size = replicas * size
    total = -(-images // global_size) * global_size
    rows = tf.reshape(tf.range(total, dtype=tf.int64), [-1, replicas, size])
    rows = tf.reshape(rows[:, first:last], [-1, size])  # -> one row per local batch
    keys = tf.data.Dataset.from_tensor_slices((rows < images, rows % images))

    def choose(counts: tf.Tensor, ids: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
        del ids, real
        positions = tf.range(options.captions_per_image, dtype=tf.int64)
        return positions % tf.expand_dims(tf.maximum(counts, 1), 1)

    return _Assembler(data, options, choose).dataset(keys, key_name="real")


def _local_replicas(options: BatchOptions) -> tuple[int, int, int]:
    """Returns the number of all replicas, and the range of replicas that this pipeline feeds."""
    context = options.input_context
    if context is None:
        return options.replicas, 0, options.replicas
    replicas = context.num_replicas_in_sync
    pipelines = context.num_input_pipelines
    if replicas % pipelines:
        raise ValueError(
            f"{replicas} replicas cannot be spread evenly over {pipelines} workers. Give every "
            "worker the same number of devices."
        )
    local = replicas // pipelines
    first = context.input_pipeline_id * local
    return replicas, first, first + local


class _Assembler:
    """Makes batches from positions in the index.

    Args:
      data: the prepared data set.
      options: what the batches hold.
      choose: chooses the captions. It gets the number of captions of each image int64 [B], the ids
        of the images int64 [B] and the key of the batch, and returns positions among the captions
        of each image, int64 [B, S].
      trains: whether the batches train a model. They come again and again, and an image without
        captions is an error.
    """

    def __init__(
        self,
        data: PreparedData,
        options: BatchOptions,
        choose: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
        trains: bool = False,
    ):
        self.data = data
        self.options = options
        self.choose = choose
        self.trains = trains
        self.max_regions = data.most_regions(options.max_regions)
        self.reference_length = options.reference_length or options.max_length
        self.ids = tf.constant(data.index(options.split).id)
        self.most_captions = None  # C of the whole split
        if options.pad_to_max and options.references is not None:
            captions = data.references(options.split).values()
            self.most_captions = max(1, max(map(len, captions), default=0))

    def dataset(self, keys: tf.data.Dataset, key_name: str | None = None) -> tf.data.Dataset:
        """Makes the batches.

        Args:
          keys: a dataset of pairs: the key of a batch, and positions in the index int64 [B].
          key_name: the name under which a batch holds its key; None leaves the key out.
        """
        # The positions are computed twice, once to read and once to describe the batch: cheaper
        # than carrying them through the parallel reads.
        rows_alone = tf.autograph.experimental.do_not_convert(lambda _, rows: rows)
        positions = keys.map(rows_alone).unbatch()
        serialized = self.data.examples(self.options.split, positions, again=self.trains)
        serialized = serialized.batch(self.options.batch_size, True)

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
        size = serialized.shape[0]
        pad = self.options.pad_to_max
        most = self.max_regions if pad else None
        parsed = self.data.parse(serialized, self.max_regions, most)
        ids = parsed["id"]
        right = check(ids == tf.gather(self.ids, rows), ids, "index points to wrong image")
        with tf.control_dependencies([right]):
            ids = tf.identity(ids)
        words, references = self._captions(parsed["captions"], ids, key)
        length = self.options.max_length + 1 if pad else None
        shapes = {"features": [size, most, self.data.feature_dim]}
        if self.data.backbone is not None:
            shapes = {"pictures": [size, *self.data.backbone.decoded_shape]}
        result = {
            **{key: tf.ensure_shape(parsed[key], shape) for key, shape in shapes.items()},
            "mask": tf.ensure_shape(parsed["mask"], [size, most]),
            "tokens": tf.ensure_shape(words, [size, self.options.captions_per_image, length]),
            "id": tf.ensure_shape(ids, [size]),
        }
        if "image" in parsed:
            result["image"] = tf.ensure_shape(parsed["image"], [size, self.data.image_dim])
        if self.data.has_boxes:
            result["boxes"] = tf.ensure_shape(parsed["boxes"], [size, most, 4])
        if self.options.references is not None:
            length = self.reference_length if pad else None
            shape = [size, self.most_captions, length]
            result["references"] = self.options.references(tf.ensure_shape(references, shape))
        return result

    def _captions(
        self, captions: tf.RaggedTensor, ids: tf.Tensor, key: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns ids int32 [B, S, T'+1] of S drawn captions, and, if needed, [B, C, U] of all."""
        starts = captions.row_splits[:-1]
        counts = captions.row_splits[1:] - starts
        described = counts > 0
        checks = [check(described, ids, "no captions for image")] if self.trains else []
        with tf.control_dependencies(checks):
            positions = self.choose(tf.identity(counts), ids, key)
        positions += tf.expand_dims(starts, 1)
        # An image without captions may get the position of the next image, or that of this "".
        texts = tf.concat([captions.values, [""]], 0)
        length = self.options.max_length
        if self.options.references is None:
            references = None
            words = self.data.vocab.encode(tf.gather(texts, positions), length)
        else:
            encoded = self.data.vocab.encode(texts, max(length, self.reference_length))
            all_words = encoded[:-1, 1 : self.reference_length + 1]
            references = self._all_captions(all_words, captions.row_splits, counts)
            words = tf.gather(encoded, positions)[:, :, : length + 1]
        nothing = [BOS] + [PAD] * length
        words = tf.where(tf.reshape(described, [-1, 1, 1]), words, nothing)
        filled = tf.reduce_all(words[:, :, 1] != EOS, axis=1)
        with tf.control_dependencies([check(filled, ids, "caption without a word for image")]):
            words = tf.identity(words)
        return words if self.options.pad_to_max else _cut(words, 2), references

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
        return words if self.options.pad_to_max else _cut(words, 1)


def _cut(words: tf.Tensor, least: int) -> tf.Tensor:
    """Cuts padding after the longest caption of ids [B, n, T]; at least `least` ids remain."""
    longest = tf.reduce_max(tf.math.count_nonzero(words, axis=-1, dtype=tf.int32))
    # As `words[:, :, :length]`, which builds three times as many operations.
    return tf.slice(words, [0, 0, 0], tf.stack([-1, -1, tf.maximum(longest, least)]))


def draw_captions(
    lengths: tf.Tensor, samples: int, ids: tf.Tensor, seed: int, epoch: tf.Tensor
) -> tf.Tensor:
    """Draws S captions of each image; captions repeat only if the image has fewer than S.

    The captions that are drawn for an image depend only on the seed, the epoch and the id of the
    image, not on the other images of the batch.

    Args:
      lengths: number of captions of each of the B images, at least 1, int64 [B].
      samples: number of captions to draw of each image, S.
      ids: the ids of the images, int64 [B].
      seed: random seed.
      epoch: number of the epoch, int64 [].

    Returns:
      Positions among the captions of each image, from 0, int64 [B, S]. If an image has fewer than S
      captions, all of them are used and some are drawn again.
    """
    key = tf.random.stateless_uniform(
        [], tf.stack([tf.constant(seed, tf.int64), epoch]), None, None, tf.uint64
    )
    image = tf.expand_dims(_mix(key ^ tf.bitcast(ids, tf.uint64)), 1)
    lengths = tf.expand_dims(lengths, 1)
    positions = tf.range(tf.maximum(tf.reduce_max(lengths), samples))
    # Without replacement: the captions in random order, positions without a caption last. `invert`
    # turns the order round, because `top_k` gives the largest first and has few operations.
    order = _positive(_mix(image + tf.cast(positions + 1, tf.uint64)))
    order = tf.bitwise.invert(tf.where(positions < lengths, order, tf.int64.max))
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
