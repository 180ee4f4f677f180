"""Exports a trained captioner for TF Serving.

    python -m export.savedmodel --model_dir runs/xtransformer --export_dir served/xtransformer

writes `served/xtransformer/1/`, the next time `2/`, and so on.
"""

import errno
import os
import shutil
import uuid

import tensorflow as tf
from absl import flags

from tfcap import console
from tfcap.serving import CaptionServer
from tfcap.tasks import runs

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Directory of a training run.")
_EXPORT_DIR = flags.DEFINE_string("export_dir", None, "Base path of the model in TF Serving.")
_CHECKPOINT = flags.DEFINE_string("checkpoint", "best", "best, latest, or a checkpoint's path.")
_BEAM = flags.DEFINE_integer("beam", 0, "Beam width; 0 takes that of the run.", lower_bound=0)


def export(served: CaptionServer, export_dir: str) -> str:
    """Writes the next version of a SavedModel; a server never sees an incomplete one.

    TF Serving loads any directory with an integer name as soon as it appears. So the SavedModel is
    written beside under another name, loaded and tried, and then renamed.

    Returns:
      The path `export_dir/<version>`.

    Raises:
      ValueError: if the saved model does not give finite scores.
    """
    os.makedirs(export_dir, exist_ok=True)
    temporary = os.path.join(export_dir, f".tmp-{uuid.uuid4().hex}")
    try:
        tf.saved_model.save(served, temporary, signatures=served.signatures())
        _try(temporary, served.model.feature_dim)
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


def _last_version(export_dir: str) -> int:
    return max([0, *(int(name) for name in os.listdir(export_dir) if name.isdecimal())])


def _try(path: str, feature_dim: int) -> None:
    """Loads what was saved and runs one image of zeros through it."""
    loaded = tf.saved_model.load(path)
    result = loaded.signatures["features"](
        features=tf.zeros([1, 2, feature_dim]), num_regions=tf.constant([2])
    )
    if not bool(tf.reduce_all(tf.math.is_finite(result["scores"]))):
        raise ValueError(f"the exported model gives scores {result['scores'].numpy()}: not kept")


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def main() -> None:
    """The command."""
    if not _MODEL_DIR.value or not _EXPORT_DIR.value:
        raise console.UsageError("give --model_dir and --export_dir")
    run = runs.load(_MODEL_DIR.value, _CHECKPOINT.value)
    path = export(runs.server(run, _BEAM.value), _EXPORT_DIR.value)
    print(f"{run.checkpoint} is exported to {path}")
    print(f"look:  saved_model_cli show --dir {path} --all")
    base = os.path.abspath(_EXPORT_DIR.value)
    print(f"serve: tensorflow_model_server --model_name=captions --model_base_path={base}")


if __name__ == "__main__":
    console.run(main)
