"""Writes what XLA gets from tfcap, for a machine that has a GPU and no TensorFlow.

python tools/gpu/export.py OUT
python tools/gpu/export.py OUT --works=xlan --small

For each work it writes OUT/NAME.mlirbc, a StableHLO module, and a line of OUT/works.jsonl, which
describes the inputs and variables of the module. `run.py` compiles and times them. Models have the
sizes of their papers and random weights; `--small` makes small ones, to try all this without a GPU.
A work is one of these, and self-critical steps are not among them: their reward runs outside XLA.

* `step`: a step of cross-entropy training with the optimizer in it, 5 captions for each image.
* `gradients`: the loss and its gradients, which is what XLA compiles in training.
* `beam`: features to captions, by beam search.
* `picture`: pictures to captions, by beam search.
* `detect`: a picture of 600 x 800 pixels to regions; the precision is that of res5.
"""

import argparse
import json
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import configs, decoding, runs
from tfcap.backbones import detector, swin
from tfcap.backbones.backbone import Backbone
from tfcap.decoding.search import Search
from tfcap.layers import precision
from tfcap.models.end_to_end import EndToEnd
from tfcap.training import optim
from tfcap.training.task import CaptionTask

REGIONS, FEATURES, VOCABULARY, CAPTIONS = 36, 2048, 9490, 5
BOTH = ("bfloat16", "float32")


class Work(NamedTuple):
    """A kind of work of a system, its precision, and the number of images."""

    system: str
    kind: str
    dtype: str
    images: int


WORKS = [  # `run.py` begins with the first
    Work("xtransformer", "step", "bfloat16", 10),
    Work("xtransformer", "gradients", "bfloat16", 10),
    *(Work("expansionnet_v2", "picture", dtype, n) for dtype in BOTH for n in (1, 16)),
    *(Work("detector", "detect", dtype, 1) for dtype in BOTH),
    *(Work("xlan", "step", dtype, n) for n in (10, 64) for dtype in BOTH),
    Work("xtransformer", "step", "float32", 10),
    *(Work("xlan", "beam", dtype, n) for n in (50, 1) for dtype in BOTH),
    *(Work("xtransformer", "step", dtype, 64) for dtype in BOTH),
]


class Gradients(CaptionTask):
    """Computes the loss and its gradients, and updates nothing."""

    def apply(self, objective, batch, model, optimizer, metrics):
        with tf.GradientTape() as tape:
            total, count, _ = objective(batch)
            loss = total / count
        return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])


class Program(NamedTuple):
    """A function, its inputs, and variables, among which are all that it reads."""

    function: Callable
    inputs: dict[str, tf.Tensor]
    variables: list[tf.Variable]


def captioning(work: Work, small: bool) -> Program:
    """Returns the program of a captioner's work."""
    precision.set_global(work.dtype, accelerated=True)
    task: dict[str, Any] = {"max_length": 17}
    params = configs.resolve(work.system)
    if work.system == "expansionnet_v2":
        task = {"max_length": 20, "decoding": {"beam": 5}}
    if not small:
        task["model"] = configs.Model(type=work.system).as_dict()
    params = params.replace(task=task)
    network = random_swin(small) if work.kind == "picture" else None
    width, regions = (network.feature_dim, network.num_regions) if network else (FEATURES, REGIONS)
    model = runs.build_model(params.task, VOCABULARY, {"dim": width})
    inputs = {"mask": tf.ones((work.images, regions), tf.bool)}
    if network:
        model = EndToEnd(model, network, trainable=False)
        shape = (work.images, *network.decoded_shape)
        inputs["pictures"] = tf.random.stateless_uniform(shape, (1, 2), 0, 255)
    else:
        shape = (work.images, regions, width)
        inputs["features"] = tf.random.stateless_normal(shape, (1, 2))
    if work.kind in ("beam", "picture"):
        options = configs.decoding(params.task, "search=beam", params.task.decoding.beam).as_dict()
        search = Search(decoding.Options(**options), params.task.max_length)
        variables = [variable.value for variable in model.variables]
        return Program(lambda inputs: search(model, model.encode(inputs))[0], inputs, variables)
    shape = (work.images, CAPTIONS, params.task.max_length + 1)
    inputs["tokens"] = tf.random.stateless_uniform(shape, (3, 4), 4, VOCABULARY, tf.int32)
    kind = CaptionTask if work.kind == "step" else Gradients
    training = kind(params.task, None, params.trainer.optimizer_config)
    optimizer = training.build_optimizer(model, optim.Plateau(0, 1.0, metric="CIDEr", higher=True))
    variables = [variable.value for variable in (*model.variables, *optimizer.variables)]
    return Program(lambda inputs: training.train_step(inputs, model, optimizer), inputs, variables)


def random_swin(small: bool) -> Backbone:
    """Makes the Swin Transformer of ExpansionNet v2, with random weights."""
    name = "swin_tiny_224" if small else "swin_large_384"
    with precision.using("float32"), tempfile.TemporaryDirectory() as folder:
        model = swin.build(swin.SIZES[name], swin.SIZES[name].image_size)
        rng = np.random.default_rng(0)
        for weight in model.weights:
            if len(weight.shape) > 1:
                weight.assign(0.02 * rng.standard_normal(weight.shape, np.float32))
        model.save_weights(f"{folder}/swin.weights.h5")
        return Backbone(name, weights=f"{folder}/swin.weights.h5")


def detection(work: Work, small: bool) -> Program:
    """Returns the program of the detector, with random weights."""
    sizes: dict[str, Any] = {"dtype": work.dtype}
    if small:
        sizes |= {"widths": (32, 64, 128, 256), "blocks": (1,) * 4, "proposals": 20}
    rng = np.random.default_rng(0)
    arrays = {}
    for name, shape in detector.shapes(detector.Sizes(**sizes)).items():
        # These factors keep the numbers in range, and the boxes near their anchors.
        scale = 0.05 if "deltas" in name else 0.2 if "conv3" in name else 1.0
        scale *= np.prod(shape[:-1]) ** -0.5 if len(shape) > 1 else 0.0
        arrays[name] = scale * rng.standard_normal(shape, np.float32)
    model = detector.Detector(arrays, {"sizes": sizes})
    pixels = 60 * tf.random.stateless_normal((160, 224, 3) if small else (600, 800, 3), (1, 2))
    inputs = {"pixels": pixels, "scale": tf.constant(1.25)}
    return Program(lambda inputs: model.detect(**inputs), inputs, list(model.variables))


def described(array: np.ndarray) -> dict[str, Any]:
    """Describes an array, so that one like it can be drawn."""
    result = {"shape": array.shape, "dtype": array.dtype.name}
    if array.dtype.kind in "biu":  # truth values and integers
        return result | {"least": int(array.min()), "most": int(array.max())}
    array = array.astype(np.float64)
    return result | {"mean": array.mean(), "deviation": array.std()}


def export(work: Work, folder: pathlib.Path, small: bool) -> None:
    """Writes the module of a work, and adds its description to works.jsonl."""
    program = (detection if work.kind == "detect" else captioning)(work, small)
    function, inputs, _ = program
    compiled = tf.function(function, autograph=False, jit_compile=True)
    traced = compiled.get_concrete_function(inputs)
    module = compiled.experimental_get_compiler_ir(inputs)(stage="stablehlo_serialized")
    variables = {variable.handle.ref(): variable for variable in program.variables}
    captured = [variables.get(tensor.ref(), tensor) for tensor in traced.captured_inputs]
    arrays = [described(np.asarray(x)) for x in [*tf.nest.flatten(inputs), *captured]]
    name = "_".join(map(str, work))
    (folder / f"{name}.mlirbc").write_bytes(module)
    with open(folder / "works.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name, **work._asdict(), "arrays": arrays}) + "\n")
    print(f"{name}: {len(module):,} bytes, {len(arrays)} arrays", flush=True)


def main() -> None:
    """Exports the works."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=pathlib.Path, help="the directory to write")
    parser.add_argument("--works", default="", help="only works with this pattern in their names")
    parser.add_argument("--small", action="store_true", help="small models")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for work in WORKS:
        if re.search(args.works, "_".join(map(str, work))):
            export(work, args.out, args.small)


if __name__ == "__main__":
    main()
