"""Exports a captioner with all that TF Serving needs: warm-up requests, batch sizes and files.

Letters: B pictures of a batch, R regions, F feature width.
"""

import importlib.resources
import io
import logging
import math
import os
import pathlib
import shutil
import string
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from PIL import Image
from tensorflow_serving.apis import prediction_log_pb2

from tfcap.files import replacing, sizes
from tfcap.images import SERVED_PIXELS
from tfcap.runs import Run
from tfcap.serving import card
from tfcap.serving.saved_model import OK, CaptionServer, Signature, export

_log = logging.getLogger(__name__)

WARM_UP = os.path.join("assets.extra", "tf_serving_warmup_requests")  # TF Serving looks there
_CLIENT = pathlib.Path(__file__).parent / "client"  # copied as it is
_BATCHES = (1, 2, 4, 8, 16, 32)
_STEADY = 1.5  # the slowest of three calls takes less than so many times the fastest
_SLOW = 5.0  # seconds of a batch after which no larger one is measured
_PICTURES = 12  # of warm-up requests; more are repeated
_REGIONS = 36  # of an image whose features do not come from a backbone


def write_bundle(served: CaptionServer, run: Run, export_dir: str) -> str:
    """Writes the next version of a SavedModel of a run, and what a server needs beside it.

    A version holds the SavedModel, a model card, and requests with which TF Serving warms it up.
    It appears only when it is complete. Beside the versions stand compose.yaml, kserve.yaml and
    batching.config, which configure the server for the measured speed of the model, and the
    directory `client` with a Python client. Configuration files that exist are kept, because they
    may have been edited; the client is replaced.

    Args:
      served: the functions to export.
      run: the run, which the model card describes.
      export_dir: the directory of all versions.

    Returns:
      The path of the version, `export_dir/<number>`.

    Raises:
      ValueError: `export_dir` is not a local path, or the model gives a test picture no caption.
    """
    pictures = [_draw(number, served.max_pixels) for number in range(_PICTURES)]
    limits = [served.max_regions, served.backbone.num_regions if served.backbone else None]
    regions = min((limit for limit in limits if limit), default=_REGIONS)
    texts: dict[str, str] = {}

    def complete(version: str, signatures: dict[str, Signature]) -> None:
        """Measures the loaded SavedModel, and writes its warm-up requests and its card."""
        function = signatures["serving_default"]
        seconds = measure(lambda size: _call(function, _inputs(function, size, pictures, regions)))
        largest = largest_batch(seconds)
        batches = [size for size in seconds if size <= largest]
        _warm_up(version, signatures, batches, pictures, regions)
        texts.update(_texts(seconds, sum(sizes(version)), served.max_pixels))
        text = card.text(run, served.max_pixels, seconds, largest)
        pathlib.Path(version, card.CARD).write_text(text, encoding="utf-8")

    path = export(served, export_dir, complete)
    for name, text in texts.items():
        target = os.path.join(export_dir, name)
        if os.path.exists(target):
            _log.info(f"note: {target} stays as it is; delete it to get a new one")
            continue
        with replacing(target) as temporary:
            pathlib.Path(temporary).write_text(text, encoding="utf-8")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_CLIENT, os.path.join(export_dir, "client"), ignore=ignored, dirs_exist_ok=True)
    return path


def _draw(number: int, most_pixels: int) -> bytes:
    """Draws a JPEG file of at most 640 x 480 pixels: soft colours, with noise as a camera has."""
    rng = np.random.default_rng(number)
    unit = min(160, math.isqrt(most_pixels // 12))
    width, height = 4 * unit, 3 * unit
    colours = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize((width, height))
    pixels = np.asarray(colours) + rng.normal(0, 8, (height, width, 3))
    stream = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(stream, "JPEG", quality=88)
    return stream.getvalue()


def _inputs(
    function: Signature, size: int, pictures: Sequence[bytes], regions: int
) -> dict[str, np.ndarray]:
    """Makes the inputs of a signature.

    Args:
      function: the signature.
      size: number of pictures in the batch, B.
      pictures: picture files, which are repeated in turn.
      regions: number of regions of an image, R.

    Returns:
      `image_bytes` object [B], or [B, P] for images of up to P pictures; or `features` float32
      [B, R, F] and `num_regions` int32 [B]; and, if the signature has them, `boxes` float32
      [B, R, 4] and `seed` int64 [B].
    """
    specs = function.structured_input_signature[1]
    inputs: dict[str, np.ndarray] = {}
    if "image_bytes" in specs:
        shape: tuple[int, ...] = (size, *specs["image_bytes"].shape[1:])
        chosen = [pictures[i % len(pictures)] for i in range(math.prod(shape))]
        inputs["image_bytes"] = np.array(chosen, object).reshape(shape)
    else:
        shape = (size, regions, specs["features"].shape[-1])
        inputs["features"] = np.random.default_rng(size).normal(size=shape).astype(np.float32)
        inputs["num_regions"] = np.full(size, regions, np.int32)
    if "boxes" in specs:
        inputs["boxes"] = np.zeros((size, regions, 4), np.float32)
    if "seed" in specs:
        inputs["seed"] = np.arange(size, dtype=np.int64)
    return inputs


def _call(function: Signature, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    results = function(**{key: tf.constant(value) for key, value in values.items()})
    return {key: value.numpy() for key, value in results.items()}


def measure(call: Callable[[int], object]) -> dict[int, float]:
    """Measures how long batches of 1, 2, 4, 8, 16 and 32 pictures take.

    Each batch is captioned once to warm up and then three times. No larger batch is measured after
    one that takes more than 5 seconds. If calls with the same batch take very different times, a
    log message says that other work disturbs the measurement.

    Args:
      call: a function that captions as many pictures as its argument says.

    Returns:
      Number of pictures of the batch -> seconds of the fastest of the three calls.
    """
    seconds: dict[int, float] = {}
    disturbed: list[str] = []
    for size in _BATCHES:
        call(size)
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            call(size)
            times.append(time.perf_counter() - begin)
        seconds[size] = min(times)
        if max(times) > _STEADY * min(times):
            disturbed.append(f"{1000 * min(times):.0f} to {1000 * max(times):.0f} ms")
        if seconds[size] > _SLOW:
            break
    if len(disturbed) > 1:
        _log.info(
            f"note: equal batches took {' and '.join(disturbed)}, so that other work disturbs this "
            "machine, and the measured batch sizes may be wrong. Delete batching.config and export "
            "again on a quiet machine."
        )
    return seconds


def largest_batch(seconds: Mapping[int, float]) -> int:
    """Returns the largest batch that a server should make, as a number of pictures.

    It is the smallest batch with at least 90 % of the highest measured throughput. A larger one
    would make each request wait longer for hardly more throughput.

    Args:
      seconds: number of pictures of a batch -> seconds that it takes, as `measure` returns them.
    """
    best = max(size / taken for size, taken in seconds.items())
    return min(size for size, taken in seconds.items() if size / taken >= 0.9 * best)


def _warm_up(
    version: str,
    signatures: Mapping[str, Signature],
    batches: Sequence[int],
    pictures: Sequence[bytes],
    regions: int,
) -> None:
    """Calls every signature with a batch of every size, and writes these requests into the version.

    TF Serving sends them before it serves, because the first calls take many times as long:
    TensorFlow optimises graphs then.
    """
    path = os.path.join(version, WARM_UP)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.io.TFRecordWriter(path) as file:
        for signature, function in signatures.items():
            for size in batches:
                values = _inputs(function, size, pictures, regions)
                statuses = [text.decode() for text in _call(function, values)["status"]]
                if refused := [status for status in statuses if status != OK]:
                    raise ValueError(
                        f"The exported model gives a test picture no caption: {refused[0]}. "
                        "Check the run with tfcap.doctor."
                    )
                log = prediction_log_pb2.PredictionLog()
                request = log.predict_log.request
                request.model_spec.name = "captions"
                request.model_spec.signature_name = signature
                for key, value in values.items():
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
                file.write(log.SerializeToString())


def memory(model_bytes: int, cores: int, max_pixels: int) -> int:
    """Returns how much memory a server needs, in MiB.

    It is the sum of three parts:

    * three times `model_bytes`: two versions while one replaces the other, and some room;
    * 1 GiB for the server and its batches;
    * 0.5 GiB x max(4, cores) x max_pixels / 50 million: pictures decoded at the same time.

    Args:
      model_bytes: size of the files of the SavedModel, in bytes.
      cores: number of processor cores.
      max_pixels: largest number of pixels of a picture.
    """
    decoding = max(4, cores) * 512 * max_pixels / SERVED_PIXELS
    return 1024 + math.ceil(decoding) + 3 * model_bytes // 2**20


def _texts(seconds: Mapping[int, float], model_bytes: int, max_pixels: int) -> dict[str, str]:
    """Fills the templates of the files of a server; returns each text by the name of its file."""
    cores = os.cpu_count() or 1
    largest = largest_batch(seconds)
    values = {
        "cores": cores,
        "memory": memory(model_bytes, cores, max_pixels),
        "storage": max(1, 8 * model_bytes // 2**30),
        "largest": largest,
        "timeout": round(1e6 * min(max(seconds[1] / 10, 0.001), 0.02)),
        "queue": max(2 * cores, round(10 / seconds[largest])),  # 10 s of work
        "allowed": "\n".join(f"allowed_batch_sizes: {n}" for n in seconds if n <= largest),
        "measured": "\n".join(
            f"#   a batch of {size}: {1000 * taken:.0f} ms, {size / taken:.1f} pictures/s"
            for size, taken in seconds.items()
        ),
    }
    directory = importlib.resources.files("tfcap.serving") / "templates"
    return {
        template.name: string.Template(template.read_text(encoding="utf-8")).substitute(values)
        for template in directory.iterdir()
    }
