"""Gives each row of a served batch a status, so that a bad row does not fail the other rows.

A server puts requests of several clients into one batch. An error would be the answer to all of
these requests.

Letters: B rows, R regions, F feature width.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfcap.data.pictures import claimed_pixels, refusals

OK = "ok"
_LEAST_INFINITE = 65520.0  # the smallest number that becomes infinite in half precision
_PARALLEL = 4  # files decoded at once: 50 million pixels that are turned upright take 0.5 GB


def decode(
    contents: tf.Tensor,
    decoder: Callable[..., tf.Tensor],
    shape: Sequence[int],
    most_pixels: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes picture files; a bad one becomes a picture of zeros.

    Only `tf.data` can go on after an operation has failed, so the files are a data set whose errors
    are ignored.

    Args:
      contents: string [B], whole files.
      decoder: of `Backbone` or `Clips`.
      shape: of a decoded picture.
      most_pixels: how many pixels a file may claim.

    Returns:
      float32 [B, *shape]; the status of each file, string [B].

    Raises:
      tf.errors.InvalidArgumentError: no file.
    """
    with tf.device("/CPU:0"):
        size = tf.size(contents, tf.int64)
        some = tf.debugging.assert_positive(size, "a request must hold at least one image")
        with tf.control_dependencies([some] if some is not None else []):
            contents = tf.identity(contents)

        def read(number, content):
            pixels = claimed_pixels(content)
            fits = (pixels >= 0) & (pixels <= most_pixels)
            image = tf.cond(fits, lambda: decoder(content, None), lambda: tf.zeros(shape))
            return number, pixels, tf.ensure_shape(image, shape)

        files = tf.data.Dataset.from_tensor_slices((tf.range(size), contents))
        files = files.map(read, num_parallel_calls=_PARALLEL, deterministic=False).ignore_errors()
        # A further row, so that the batch is not empty if all files are bad.
        last = tf.data.Dataset.from_tensors((size, tf.constant(0, tf.int64), tf.zeros(shape)))
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        rows = files.concatenate(last).batch(size + 1).with_options(options)
        numbers, pixels, images = rows.get_single_element()
        whole = tf.concat([[size + 1], tf.constant(shape, tf.int64)], 0)
        images = tf.scatter_nd(numbers[:, None], images, whole)[:-1]
        # A file that failed has no pixels: UNKNOWN is -1.
        claimed = tf.scatter_nd(numbers[:, None], pixels + 1, [size + 1])[:-1] - 1
        too_many = tf.strings.join(
            ["too many pixels: ", tf.strings.as_string(claimed), f", at most {most_pixels}"]
        )
        status = tf.where(
            claimed > most_pixels, too_many, tf.where(claimed < 0, refusals(contents), OK)
        )
        return tf.ensure_shape(images, [None, *shape]), status


def check_features(
    features: tf.Tensor, num_regions: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Checks the features of images; a bad image becomes one region of zeros.

    Args:
      features: float32 [B, R, F], padded with any values to the most regions of an image.
      num_regions: int32 [B], real regions of each image.

    Returns:
      The features with zeros as padding, the counts, and the status of each image, string [B].

    Raises:
      tf.errors.InvalidArgumentError: no image, no region, or another number of counts than of
        images.
    """
    shape, num_regions = tf.shape(features), tf.convert_to_tensor(num_regions)
    checks = [
        tf.debugging.assert_positive(shape[0], "a request must hold at least one image"),
        tf.debugging.assert_positive(shape[1], "features must hold at least one region"),
        tf.debugging.assert_equal(
            tf.shape(num_regions)[0], shape[0], "num_regions must have one count per image"
        ),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        mask = tf.sequence_mask(num_regions, shape[1])
    features = tf.where(mask[..., None], features, 0.0)
    # `prepare` stores half precision, so a model has seen no larger number. NaN is never smaller.
    finite = tf.reduce_all(tf.abs(features) < _LEAST_INFINITE, [1, 2])
    count = tf.strings.as_string(num_regions)
    status = tf.where(finite, OK, "features must be finite, and at most 65504 in size")
    status = tf.where(
        num_regions > shape[1],
        tf.strings.join(["num_regions must be at most the regions given. Received: ", count]),
        status,
    )
    status = tf.where(
        num_regions < 1,
        tf.strings.join(["num_regions must be at least 1. Received: ", count]),
        status,
    )
    good = status == OK
    features = tf.where(good[:, None, None], features, 0.0)
    return features, tf.where(good, num_regions, 1), status


def blank(results: dict[str, tf.Tensor], status: tf.Tensor) -> dict[str, tf.Tensor]:
    """Adds `status` string [B] to the results [B, ...], in which bad rows become empty or 0."""
    good = status == OK
    blanked: dict[str, tf.Tensor] = {"status": status}
    for name, value in results.items():
        own = tf.reshape(good, [-1, *[1] * (value.shape.rank - 1)])
        blanked[name] = tf.where(own, value, tf.zeros([], value.dtype))
    return blanked
