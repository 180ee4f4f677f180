"""Writes the SavedModel that TF Serving loads."""

import errno
import os
import shutil
import uuid

import tensorflow as tf

from tfcap.runs.server import CaptionServer


def export(served: CaptionServer, export_dir: str) -> str:
    """Writes the next version of a SavedModel, so that a server never loads an incomplete one.

    TF Serving loads any directory with an integer name as soon as it appears. Therefore the
    SavedModel is written under another name, loaded and tried, and then renamed.

    Args:
      served: the functions to export.
      export_dir: the directory of all versions.

    Returns:
      The path `export_dir/<version>`.

    Raises:
      ValueError: if the saved model gives scores that are not finite.
      OSError: if the SavedModel cannot be written.
    """
    os.makedirs(export_dir, exist_ok=True)
    temporary = os.path.join(export_dir, f".tmp-{uuid.uuid4().hex}")
    try:
        _save(served, temporary)
        _try(temporary, served)
        for folder, _, names in os.walk(temporary):
            for name in [*names, "."]:
                _sync(os.path.join(folder, name))
        while True:
            target = os.path.join(export_dir, str(_last_version(export_dir) + 1))
            try:
                os.rename(temporary, target)
            except OSError as error:  # another export has just taken this number
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                _sync(export_dir)
                return target
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save(served: CaptionServer, path: str) -> None:
    """Writes the SavedModel; a failed write raises OSError."""
    signatures = served.signatures()
    try:
        tf.saved_model.save(served, path, signatures=signatures)
    except tf.errors.OpError as error:  # TensorFlow raises several types for a full disk
        raise OSError(f"The export could not be written: {error.message}") from error


def _last_version(export_dir: str) -> int:
    """Finds the highest version in `export_dir`; 0 if there is none."""
    return max([0, *(int(name) for name in os.listdir(export_dir) if name.isdecimal())])


def _try(path: str, served: CaptionServer) -> None:
    """Loads the SavedModel at `path` and captions one image with each signature."""
    signatures = tf.saved_model.load(path).signatures
    features = tf.zeros([1, 2, served.model.feature_dim])
    seed = {"seed": tf.constant([1], tf.int64)} if served.search.samples else {}
    results = [signatures["features"](features=features, num_regions=tf.constant([2]), **seed)]
    if served.backbone is not None:
        picture = tf.io.encode_png(tf.fill([8, 8, 3], tf.constant(128, tf.uint8)))
        results.append(signatures["serving_default"](image_bytes=picture[None], **seed))
    for result in results:
        if not bool(tf.reduce_all(tf.math.is_finite(result["scores"]))):
            raise ValueError(
                "The scores of the exported model must be finite. Received: "
                f"{result['scores'].numpy()}. The export was removed."
            )


def _sync(path: str) -> None:
    """Makes the system write a file or a directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
