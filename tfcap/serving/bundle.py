"""Exports a captioner with all that TF Serving needs: warm-up requests, batch sizes and files.

Letters: B pictures of a batch, R regions, F feature width.
"""

import importlib.resources
import io
import math
import os
import pathlib
import shutil
import string
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw
from tensorflow_serving.apis import prediction_log_pb2

from tfcap import cli
from tfcap.files import replacing, sizes
from tfcap.images import SERVED_PIXELS, is_picture_name
from tfcap.runs import CaptionServer, Run
from tfcap.runs.server import OK, export
from tfcap.serving import card

WARM_UP = os.path.join("assets.extra", "tf_serving_warmup_requests")  # TF Serving looks there
_CLIENT = pathlib.Path(__file__).parent / "client"  # copied as it is
_BATCHES = (1, 2, 4, 8, 16, 32)
_SLOW = 5.0  # seconds of a batch after which no larger one is measured
_PICTURES = 12  # of warm-up requests; more are repeated
_REGIONS = 36  # of an image whose features do not come from a backbone
# Of the pictures that are drawn.
_SIZES = ((640, 480), (480, 640), (500, 375), (1024, 768), (320, 240), (600, 600))


def write_bundle(
    served: CaptionServer,
    run: Run,
    export_dir: str,
    warmup_images: str | None = None,
    results: str | None = None,
    references: str | None = None,
    changed: bool = False,
) -> str:
    """Writes the next version of a SavedModel with warm-up requests, and the files beside it.

    The version appears when its warm-up requests have been replayed. Existing files compose.yaml,
    kserve.yaml and batching.config are not changed, because they may have been edited.

    Args:
      served: the functions to export.
      run: the run that is exported.
      export_dir: the directory of all versions and of the other files.
      warmup_images: a folder of pictures for the warm-up; None draws pictures.
      results: captions in COCO's result format, whose scores the card shows; None shows the scores
        of the validation.
      references: the reference captions of `results`.
      changed: whether the decoding options differ from those of the validations.

    Returns:
      The path `export_dir/<version>`.

    Raises:
      ValueError: a file cannot be read, or the SavedModel does not caption the pictures.
    """
    scored = card.intervals(results, references or "") if results else ({}, 0)
    pictures = _read(warmup_images) if warmup_images else [_draw(n) for n in range(_PICTURES)]
    counts = [served.backbone and served.backbone.num_regions, served.max_regions]
    regions = min(filter(None, counts), default=_REGIONS)
    texts: dict[str, str] = {}

    def complete(version: str, signatures: dict[str, Any]) -> None:
        """Measures the loaded SavedModel, replays its warm-up requests and writes its card."""
        function = signatures["serving_default"]
        seconds = measure(lambda size: _call(function, inputs(function, size, pictures, regions)))
        largest = largest_batch(seconds)
        allowed = [size for size in seconds if size <= largest]
        write_warmup(version, signatures, allowed, pictures, regions)
        replay(version, signatures)
        texts.update(_texts(seconds, sum(sizes(version)), served.max_pixels))
        text = card.text(run, served, seconds, largest, scored, changed)
        pathlib.Path(version, card.CARD).write_text(text, encoding="utf-8")

    path = export(served, export_dir, complete)
    for name, text in texts.items():
        target = os.path.join(export_dir, name)
        if os.path.exists(target):
            print(f"note: {target} stays as it is; delete it to get a new one")
            continue
        with replacing(target) as temporary:
            pathlib.Path(temporary).write_text(text, encoding="utf-8")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_CLIENT, os.path.join(export_dir, "client"), ignore=ignored, dirs_exist_ok=True)
    return path


def _read(folder: str) -> list[bytes]:
    """Reads the first picture files of a folder in the order of their names."""
    names = sorted(filter(is_picture_name, os.listdir(folder))) if os.path.isdir(folder) else []
    if not names:
        raise cli.UsageError(f"--warmup_images finds no picture in {folder}.")
    return [pathlib.Path(folder, name).read_bytes() for name in names[:_PICTURES]]


def _draw(number: int) -> bytes:
    """Draws a JPEG file: shapes on a coloured ground, with noise as a camera has."""
    rng = np.random.default_rng(number)
    width, height = _SIZES[number % len(_SIZES)]
    top, bottom = rng.integers(40, 216, (2, 3))
    ground = np.linspace(top, bottom, height)[:, None]
    noise = rng.normal(0, 8, (height, width, 3))
    image = Image.fromarray(np.clip(ground + noise, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = rng.integers(0, (width, height)).tolist()
        size = int(rng.integers(20, height // 2))
        shape = draw.ellipse if rng.integers(2) else draw.rectangle
        shape((x, y, x + size, y + size), fill=tuple(rng.integers(0, 256, 3).tolist()))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=88)
    return stream.getvalue()


def inputs(
    function: Any, size: int, pictures: Sequence[bytes], regions: int
) -> dict[str, np.ndarray]:
    """Makes the inputs of a signature for a batch.

    Args:
      function: the concrete function of the signature.
      size: B.
      pictures: files; they are repeated if there are fewer than B.
      regions: R.

    Returns:
      `image_bytes` object [B], or `features` float32 [B, R, F] and `num_regions` int32 [B]; `seed`
      int64 [B] if the signature has it.
    """
    specs = function.structured_input_signature[1]
    made: dict[str, np.ndarray] = {}
    if "image_bytes" in specs:
        made["image_bytes"] = np.array([pictures[i % len(pictures)] for i in range(size)], object)
    else:
        shape = (size, regions, specs["features"].shape[-1])
        made["features"] = np.random.default_rng(size).normal(size=shape).astype(np.float32)
        made["num_regions"] = np.full(size, regions, np.int32)
    if "seed" in specs:
        made["seed"] = np.arange(size, dtype=np.int64)
    return made


def _call(function: Any, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    results = function(**{key: tf.constant(value) for key, value in values.items()})
    return {key: value.numpy() for key, value in results.items()}


def measure(call: Callable[[int], object]) -> dict[int, float]:
    """Measures batches of 1, 2, 4 ... 32 pictures, until one takes more than 5 seconds.

    Args:
      call: computes a batch of a size.

    Returns:
      Size -> seconds of the fastest of three calls, after a warm-up call. The fastest call is
      disturbed least by other work on the machine.
    """
    seconds: dict[int, float] = {}
    for size in _BATCHES:
        call(size)
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            call(size)
            times.append(time.perf_counter() - begin)
        seconds[size] = min(times)
        if seconds[size] > _SLOW:
            break
    return seconds


def largest_batch(seconds: Mapping[int, float]) -> int:
    """Returns the smallest batch with 90 % of the highest measured throughput.

    A larger batch would make each request wait longer for hardly more throughput.
    """
    best = max(size / taken for size, taken in seconds.items())
    return min(size for size, taken in seconds.items() if size / taken >= 0.9 * best)


def write_warmup(
    version: str,
    signatures: Mapping[str, Any],
    batches: Sequence[int],
    pictures: Sequence[bytes],
    regions: int,
) -> None:
    """Writes a request of every size for every signature, which TF Serving sends before it serves.

    The reason: the first calls take many times as long, because TensorFlow optimises graphs.

    Args:
      version: the directory of the SavedModel.
      signatures: name -> concrete function.
      batches: the batch sizes.
      pictures: contents of picture files.
      regions: R of `features`.
    """
    path = os.path.join(version, WARM_UP)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.io.TFRecordWriter(path) as file:
        for signature, function in signatures.items():
            for size in batches:
                log = prediction_log_pb2.PredictionLog()
                request = log.predict_log.request
                request.model_spec.name = "captions"
                request.model_spec.signature_name = signature
                for key, value in inputs(function, size, pictures, regions).items():
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
                file.write(log.SerializeToString())


def replay(version: str, signatures: Mapping[str, Any]) -> None:
    """Sends every warm-up request to the signatures, as TF Serving will do.

    Raises:
      ValueError: a picture has no caption.
    """
    for record in tf.data.TFRecordDataset(os.path.join(version, WARM_UP)).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        values = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        results = _call(signatures[request.model_spec.signature_name], values)
        refused = [text.decode() for text in results["status"] if text != OK.encode()]
        if refused:
            raise ValueError(
                f"A picture of the warm-up has no caption: {refused[0]}. Give other pictures with "
                "--warmup_images."
            )


def memory(model_bytes: int, cores: int, max_pixels: int) -> int:
    """Returns how many MiB of memory a server needs.

    While a version is replaced, two are loaded: three times the model. The server itself and its
    batches take 1 GiB. A picture of 50 million pixels takes half a GiB while it is decoded and
    turned; a batch decodes at most four pictures at once, and each core has a batch.

    Args:
      model_bytes: size of the SavedModel.
      cores: cores of the server.
      max_pixels: the largest picture that the export reads.
    """
    decoding = max(4, cores) * 512 * max_pixels / SERVED_PIXELS
    return 1024 + math.ceil(decoding) + 3 * model_bytes // 2**20


def _texts(seconds: Mapping[int, float], model_bytes: int, max_pixels: int) -> dict[str, str]:
    """Fills the templates: name of the file -> text."""
    cores, largest = os.cpu_count() or 1, largest_batch(seconds)
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
    folder = importlib.resources.files("tfcap.serving") / "templates"
    return {
        template.name: string.Template(template.read_text(encoding="utf-8")).substitute(values)
        for template in folder.iterdir()
    }
