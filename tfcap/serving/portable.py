"""The portable export: a directory whose captioner runs without TensorFlow.

One file holds the whole way from a picture to captions: backbone, encoder and search. LiteRT or
ONNX Runtime runs it. The script `caption.py` beside it does what the file cannot: it reads and
resizes pictures, and looks up the words.

Letters: B pictures, K captions of a picture, R regions, F feature width, T `max_length`, H and W
height and width of a resized picture.
"""

import copy
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema

from tfcap import files, segmentation
from tfcap.backbones.backbone import Backbone
from tfcap.backbones.side_by_side import Backbones
from tfcap.backbones.views import Views
from tfcap.layers.trees import portable_graphs
from tfcap.models.captioner import Captioner
from tfcap.runs.run import Run
from tfcap.serving import card
from tfcap.serving.saved_model import CaptionServer
from tfcap.serving.standalone import caption

WORDS = "words.txt"
_SAME = 1e-3  # largest difference of scores, float32, between the file and the run
_MOST_ONNX = 700e6  # bytes of weights; 0.9 GB of them need more than 20 GB of memory
_SMALL = 1024  # bytes of a constant that stays float32, because it may be an exact number
_BATCH = 16  # pictures that are compared at once


class Function(NamedTuple):
    """A traced function, with what owns its variables.

    Attributes:
      traced: the function. Its inputs are `images` float32 [B, H, W, 3] in 0..255, RGB, or
        [B, P, H, W, 3] for images of up to P pictures, -1 where one is missing; or, for a model of
        ready-made features, `features` float32 [B, R, F] and `num_regions` int32 [B]. If
        captions are sampled, there is the further input `draws` float32 [B, K, T], uniform in
        [0, 1). It returns a dict with `tokens` int32 [B, K, T], best caption first, PAD after EOS;
        `scores` float32 [B, K]; `log_probs` float32 [B, K, T], log P(token | tokens before it,
        picture), natural logarithm, 0 at PAD; and, of a calibrated run, `confidences` float32
        [B, K].
      inputs: the type and shape of each input, by name.
      owner: the module whose variables the function reads. They live as long as it does.
    """

    traced: tf.types.experimental.ConcreteFunction
    inputs: dict[str, tf.TensorSpec]
    owner: tf.Module


def trace(served: CaptionServer, batch: int | None, regions: int | None) -> Function:
    """Traces the way from pictures, or from features, to captions, with portable operators only.

    Args:
      served: the functions of the captioner.
      batch: number of pictures, B; None leaves it open.
      regions: for a model of ready-made features the number of regions, R; None leaves it open.
    """
    model, search = served.model, served.search

    def from_features(
        features: tf.Tensor,
        mask: tf.Tensor,
        draws: tf.Tensor | None,
        **boxes: tf.Tensor,
    ):
        context = model.encode({"features": features, "mask": mask, **boxes})
        found = search.from_draws(model, context, draws)
        results = {
            "tokens": found.tokens,
            "scores": found.scores,
            "log_probs": found.word_log_probs,
        }
        if served.confidence is not None:
            results["confidences"] = served.confidence(features, mask, found)
        return results

    def from_images(images: tf.Tensor, draws: tf.Tensor | None = None):
        features = served.require_backbone().extract(images)[:, : served.max_regions]
        return from_features(features, served.mask(features), draws)

    def from_padded(features: tf.Tensor, num_regions: tf.Tensor, draws: tf.Tensor | None = None):
        mask = tf.range(tf.shape(features)[1]) < num_regions[:, None]
        features = tf.where(mask[..., None], features, 0.0)
        boxes = {}
        if model.reads_boxes:
            features, boxes["boxes"] = tf.split(features, [model.feature_dim, 4], axis=-1)
        return from_features(features, mask, draws, **boxes)

    specs = {}
    if search.samples:
        shape = [batch, search.options.samples, search.max_length]
        specs["draws"] = tf.TensorSpec(shape, tf.float32, "draws")
    if served.backbone is None:
        function: Callable[..., Any] = from_padded
        shape = [batch, regions, _width(model)]
        specs["features"] = tf.TensorSpec(shape, tf.float32, "features")
        specs["num_regions"] = tf.TensorSpec([batch], tf.int32, "num_regions")
    else:
        function = from_images
        shape = [batch, *served.backbone.decoded_shape]
        specs["images"] = tf.TensorSpec(shape, tf.float32, "images")
    owner = tf.Module()
    with portable_graphs():
        traced = tf.function(function, autograph=False).get_concrete_function(**specs)
    owner.read = list(traced.variables)
    return Function(traced, specs, owner)


def _width(model: Captioner) -> int:
    """The numbers of a ready-made region: its features, then its box if the model reads boxes."""
    return model.feature_dim + 4 * model.reads_boxes


# ---- the directory -------------------------------------------------------------------------------


class Difference(NamedTuple):
    """What a file changes, measured on pictures.

    Attributes:
      pictures: number of pictures that were compared.
      unread: number of pictures that could not be read.
      equal: number of the compared pictures whose best caption is that of the run.
      score: largest difference between the scores of two equal captions.
      confidence: largest difference between the confidences in two equal captions; None if the run
        is not calibrated.
    """

    pictures: int
    unread: int
    equal: int
    score: float
    confidence: float | None = None


def write(
    run: Run,
    served: CaptionServer,
    directory: str,
    format: str,
    weights: str = "float16",
    pictures: Sequence[str] = (),
) -> Difference | None:
    """Writes a directory whose captioner runs without TensorFlow.

    It appears only when it is whole, and when the file in it has captioned test inputs as the run
    does.

    Args:
      run: the run.
      served: the functions of the run's captioner, see `saved_model.server`.
      directory: directory to write; it must be new or empty.
      format: `litert`, `onnx`, or `web`, which is `litert` with a page for browsers.
      weights: how the weights are stored: `float32`, `float16` or, not for `onnx`, `int8`.
      pictures: paths of pictures on which the captions of the file are compared with those of the
        run. The card tells the result.

    Returns:
      What the file changes; None without `pictures`.

    Raises:
      ValueError: the run cannot be exported in this way, `directory` is not empty or not local, or
        the file does not caption the test inputs as the run does.
    """
    check_directory(directory)
    _check(run, served, format)
    if pictures and (served.backbone is None or served.search.samples):
        reason = "reads ready-made features" if served.backbone is None else "draws samples"
        raise ValueError(f"The model {reason}, so `pictures` cannot be used. Leave it out.")
    existed = os.path.isdir(directory)
    target = os.path.realpath(directory)  # a link, or the working directory
    beside = target if existed else os.path.dirname(target)
    os.makedirs(beside, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=beside) as temporary:
        folder = os.path.join(temporary, "export")  # the other one is for its owner alone
        os.mkdir(folder)
        entries, function = _write_model(run, served, folder, format, weights)
        pathlib.Path(folder, WORDS).write_text("\n".join(run.vocab.words) + "\n", encoding="utf-8")
        files.write_json(os.path.join(folder, caption.CARD), entries)
        shutil.copy(caption.__file__, folder)
        captioner = caption.Captioner(folder)
        _check_captions(captioner, function, weights)
        difference = None
        if pictures:
            difference = _compare(captioner, served, pictures)
            entries["measured"] = difference._asdict()
            files.write_json(os.path.join(folder, caption.CARD), entries)
        pathlib.Path(folder, "README.md").write_text(
            card.portable_text(
                run,
                entries,
                os.path.getsize(os.path.join(folder, entries["file"])),
                format == "web",
            ),
            encoding="utf-8",
        )
        if format == "web":
            from tfcap.serving import web

            web.write(folder)
        if not existed:
            os.rename(folder, target)
        else:  # perhaps a mounted one; the card comes last, because readers look for it
            for name in sorted(os.listdir(folder), key=lambda name: name == caption.CARD):
                os.rename(os.path.join(folder, name), os.path.join(target, name))
    return difference


def check_directory(directory: str) -> None:
    """Raises ValueError if an export cannot be written to `directory`.

    Args:
      directory: the directory of `write`; it must be local, and new or empty.
    """
    if files.is_remote(directory):
        raise ValueError(f"{directory} is not a local path. Export to a local one and copy it.")
    if os.path.isdir(directory) and os.listdir(directory):
        raise ValueError(f"{directory} is not empty. Name a new directory.")


def _check(run: Run, served: CaptionServer, format: str) -> None:
    """Raises ValueError if a run cannot become a portable file."""
    reason = ""
    backbone = _of_one_picture(served)
    if backbone is None and format == "web":
        reason = "its page reads pictures, but the model reads ready-made features"
    elif served.views > 1 and format == "web":
        reason = "its page reads one picture of an image, but the model reads several"
    elif backbone is not None and not isinstance(backbone, Backbone | Backbones):
        if served.frames is not None:
            reason = "it reads clips, whose frames the script beside the file cannot choose"
        else:
            reason = (
                "its detector finds a different number of regions in each picture, for which "
                "LiteRT and ONNX have no operator"
            )
    elif served.search.consensus is not None:
        reason = "order=consensus looks up n-grams in a table, for which they have no operator"
    elif backbone is not None:
        reason = _cannot_resize(backbone, format)
    if reason:
        raise ValueError(
            f"{run.directory} cannot be exported with `format={format}`: {reason}. Use "
            "`format=saved_model`."
        )


def _of_one_picture(served: CaptionServer) -> Any:
    """Returns the network that reads one picture of an image; None for ready-made features."""
    return served.backbone.backbone if isinstance(served.backbone, Views) else served.backbone


def _cannot_resize(backbone: Backbone | Backbones, format: str) -> str:
    """Says why the script or the page cannot resize pictures for a backbone; "" if it can."""
    resizing = backbone.resizing
    if resizing["resize"] == "nearest":
        return "the script beside the file cannot resize to the nearest pixels"
    plain = resizing["resize"] in ("bilinear", "pillow") and resizing.get("antialias", True)
    if format == "web" and not (plain and resizing.keys() <= {"image_size", "resize", "antialias"}):
        return "its page can only resize pictures bilinearly with antialiasing, without a crop"
    return ""


def _regions(run: Run, served: CaptionServer) -> int | None:
    """The largest number of regions that the model reads; None if a backbone makes them."""
    limits = (run.fingerprint["features"].get("max_regions"), served.max_regions)
    known = min((limit for limit in limits if limit), default=None)
    if known is None and served.backbone is None:
        raise ValueError(
            "A portable export needs the largest number of regions of an image, and this converted "
            "run does not state it. Use `format=saved_model`."
        )
    return known


def _write_model(
    run: Run, served: CaptionServer, folder: str, format: str, weights: str
) -> tuple[dict[str, Any], Function]:
    """Writes the file with the model into `folder`.

    Returns the entries of the card, and the function for one image that the file was made from.
    """
    function = trace(served, 1, _regions(run, served))
    options = run.params.task.decoding.as_dict()
    if format == "onnx":
        from tfcap.serving import onnx_file

        name = "captioner.onnx"
        of_any = trace(served, None, None)
        size = sum(variable.shape.num_elements() for variable in of_any.owner.read) * 4
        if size > _MOST_ONNX:
            raise ValueError(
                f"`format=onnx` cannot convert {size / 1e6:.0f} MB of weights: tf2onnx needs 25 "
                f"times as much memory, so {_MOST_ONNX / 1e6:.0f} MB is the limit. Use "
                "`format=litert`."
            )
        path = os.path.join(folder, name)
        metadata = {"model": run.model.name, "words": "\n".join(run.vocab.words)}
        onnx_file.convert(of_any.traced, path, metadata=metadata, weights=weights)
    else:
        name = "captioner.tflite"
        content = litert(function, weights)
        pathlib.Path(folder, name).write_bytes(content)
    entries: dict[str, Any] = {
        "format": 1,
        "words": WORDS,
        "title": f"{run.model.name}, trained on {run.fingerprint.get('name', 'own data')}",
        "model": run.model.name,
        "made_from": os.path.basename(os.path.abspath(run.directory)),
        "licence": card.licences(run),
        "file": name,
        "sha256": files.file_sha256(os.path.join(folder, name)),
        "weights": weights,
        "length": served.search.max_length,
        "samples": options["samples"] if served.search.samples else None,
        "decoding": options,
    }
    if served.confidence is not None:
        fitted = served.confidence.calibration
        entries["confidence"] = {key: fitted[key] for key in ("usable", "level", "data", "split")}
    if run.vocab.joins:
        entries["joining"] = list(segmentation.JOINING)
    if served.backbone is None:
        entries |= {"regions": _regions(run, served), "width": _width(run.model)}
    else:
        entries |= _of_one_picture(served).resizing
    if served.views > 1:
        entries["views"] = served.views
    return entries, function


def litert(function: Function, weights: str) -> bytes:
    """Converts a function to a LiteRT file with built-in operators only.

    Args:
      function: the function, traced for a fixed number of pictures.
      weights: how the weights are stored: `float32`, `float16` or `int8`. With `int8` the products
        are computed with inputs that are rounded to 8 bits, too.

    Raises:
      ValueError: an operation of the function has no operator in LiteRT.
    """
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.traced], function.owner)
    if weights == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    try:
        content = converter.convert()
    except Exception as error:  # TensorFlow raises a private type
        reason = next((line for line in str(error).splitlines() if "op" in line), str(error))
        raise ValueError(
            f"The model cannot be converted to LiteRT: {reason[:300]}. Use `format=saved_model`."
        ) from error
    return _halved(content) if weights == "float16" else content


def _halved(content: bytes) -> bytes:
    """Stores the large float32 weights of a LiteRT file as float16, each with a DEQUANTIZE.

    The converter could do this, too, but also with small numbers such as the 1e-9 of a divisor and
    the -1e9 of a mask, which float16 lacks.
    """
    model = schema.ModelT.InitFromPackedBuf(content)
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.DEQUANTIZE
    model.operatorCodes.append(code)
    halves: dict[int, int] = {}  # the buffers, by those that they replace
    for graph in model.subgraphs:
        operators = []
        for index, tensor in enumerate(list(graph.tensors)):
            data = model.buffers[tensor.buffer].data
            if tensor.type != schema.TensorType.FLOAT32 or data is None or len(data) <= _SMALL:
                continue
            if tensor.buffer not in halves:
                values = np.frombuffer(data, np.float32)
                if np.abs(values).max() > np.finfo(np.float16).max:
                    continue
                half = schema.BufferT()
                half.data = np.frombuffer(values.astype(np.float16).tobytes(), np.uint8)
                halves[tensor.buffer] = len(model.buffers)
                model.buffers.append(half)
            stored = copy.copy(tensor)
            stored.name = tensor.name + b"_float16"
            stored.type = schema.TensorType.FLOAT16
            stored.buffer = halves[tensor.buffer]
            operator = schema.OperatorT()
            operator.opcodeIndex = len(model.operatorCodes) - 1
            operator.inputs, operator.outputs = [len(graph.tensors)], [index]
            graph.tensors.append(stored)
            tensor.buffer = 0  # the buffer of tensors without constant values
            operators.append(operator)
        graph.operators = operators + graph.operators
    used = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
    for replaced in halves.keys() - used:  # zeros of another type may have the same bytes
        model.buffers[replaced].data = None
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _check_captions(captioner: caption.Captioner, function: Function, weights: str) -> None:
    """Raises ValueError if the file does not caption test inputs as the run does."""
    results: dict[int, np.ndarray] = {}
    for seed in (1, 2, 1):  # the third call shows whether the file keeps anything of the others
        rng = np.random.default_rng(seed)
        inputs = {name: _test_input(name, spec, rng) for name, spec in function.inputs.items()}
        wanted = {name: value.numpy() for name, value in function.traced(**inputs).items()}
        result = captioner.run(**{name: value.numpy() for name, value in inputs.items()})
        numbers = wanted.keys() - {"tokens"}
        good = all(np.isfinite(result[name]).all() for name in numbers)
        good &= bool((results.setdefault(seed, result["tokens"]) == result["tokens"]).all())
        if weights == "float32":
            good &= bool((result["tokens"] == wanted["tokens"]).all())
            for name in numbers & {"scores", "confidences"}:
                good &= bool(np.abs(result[name] - wanted[name]).max() < _SAME)
        if not good:
            raise ValueError(
                f"The exported file gives other captions than the run: {result['tokens'].tolist()} "
                f"with the scores {result['scores'].tolist()} in place of "
                f"{wanted['tokens'].tolist()} with {wanted['scores'].tolist()}. Report it with the "
                "configuration of the run, and use `format=saved_model`."
            )


def _test_input(name: str, spec: tf.TensorSpec, rng: np.random.Generator) -> tf.Tensor:
    """Returns random values for an input of the function."""
    if name == "num_regions":
        return tf.fill(spec.shape, 2)
    values = rng.random(spec.shape) * (255 if name == "images" else 1)
    return tf.constant(values, tf.float32)


def _compare(
    captioner: caption.Captioner, served: CaptionServer, pictures: Sequence[str]
) -> Difference:
    """Compares the best captions of pictures with those of the run."""
    find = tf.function(served.from_bytes, autograph=False, reduce_retracing=True)
    compared = unread = equal = 0
    largest = dict.fromkeys(["scores"] + ["confidences"] * (served.confidence is not None), 0.0)
    for start in range(0, len(pictures), _BATCH):
        contents = [files.read_bytes(path) for path in pictures[start : start + _BATCH]]
        several = [[content, *[b""] * (served.views - 1)] for content in contents]
        results = find(tf.constant(several if served.views > 1 else contents))
        texts = results["captions"][:, 0].numpy().tolist()
        numbers = {name: results[name][:, 0].numpy().tolist() for name in largest}
        for row, (content, status) in enumerate(
            zip(contents, results["status"].numpy(), strict=True)
        ):
            if status != b"ok":
                unread += 1
                continue
            try:
                picture, _ = captioner.read(content)
            except ValueError:
                unread += 1
                continue
            [result] = captioner.caption(picture[None])
            compared += 1
            if result["captions"][0] == texts[row].decode():
                equal += 1
                for name, values in numbers.items():
                    largest[name] = max(largest[name], abs(result[name][0] - values[row]))
    if not compared:
        raise ValueError("No picture of `pictures` can be read. Give photographs.")
    return Difference(compared, unread, equal, largest["scores"], largest.get("confidences"))
