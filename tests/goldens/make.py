"""Writes the goldens with the code as it is: `python tests/goldens/make.py systems`.

The parts are systems, sources, prepared and runs. A number that was wrong is the only reason to
write one again. `sources` draws the inputs of `prepared` and `runs`, which therefore come after it.
"""

import base64
import collections
import csv
import json
import os
import pathlib
import shutil
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import goldens_test  # noqa: E402
from helpers import parity, torch_writer  # noqa: E402

from tfcap.prepare import prepare  # noqa: E402
from tfcap.train import train  # noqa: E402


def write(name, value):
    """Writes a file with a line for each entry of a dictionary."""
    lines = (f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def systems():
    write("systems.json", {n: goldens_test.numbers_of_system(n) for n in goldens_test.SIZES})


def sources():
    """Draws shapes and clips, and writes captions as csv and features as bottom-up tsv."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(f"{folder}/shapes", source="shapes", train=16, val=4, test=2, min_count=1)
        prepare(f"{folder}/clips", source="moving_shapes", train=6, val=2, test=1, min_count=1)
        out = HERE / "sources"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(f"{folder}/shapes/images", out / "images")
        shutil.copytree(f"{folder}/clips/clips", out / "clips")
        images = {}
        for name, source in (("shapes", "shapes"), ("clips", "moving_shapes")):
            text = pathlib.Path(folder, name, f"dataset_{source}.json").read_text(encoding="utf-8")
            images[name] = json.loads(text)["images"]
            (out / f"{name}.json").write_text(
                json.dumps({"images": images[name]}), encoding="utf-8"
            )
    with open(out / "captions.csv", "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption"])
        for number, image in enumerate(images["shapes"]):
            for sentence in image["sentences"][:3]:
                text = sentence["raw"].capitalize() + ", and a Café." * (number % 3 == 0)
                table.writerow([image["filename"], text])
    with open(out / "regions.tsv", "wb") as file:
        for number, image in enumerate(images["shapes"]):
            rng, regions = np.random.default_rng(number), 2 + number % 3
            boxes = np.sort(rng.random((regions, 2, 2)), 1).reshape(regions, 4) * 96
            values = rng.normal(size=(regions, 10))
            columns = [image.get("imgid", number), 96, 96, regions]
            encoded = [base64.b64encode(x.astype("<f4").tobytes()) for x in (boxes, values)]
            file.write(b"\t".join([*(str(c).encode() for c in columns), *encoded]) + b"\r\n")

    released(images["shapes"], out)


def released(images, out):
    """Writes random weights as ruotianluo's toolkit writes them, with the words of the shapes."""
    tensors = {k[2:]: v for k, v in parity.read("att2in").items() if k.startswith("w/")}
    torch_writer.write(out / "att2in.pth", collections.OrderedDict(tensors), top="model")
    words = sorted({word for i in images for s in i["sentences"] for word in s["raw"].split()})
    count = len(tensors["logit.bias"]) - 2  # the end is 0, the unknown word is last
    (out / "att2in.txt").write_text("\n".join([*words[:count], "UNK"]) + "\n", encoding="utf-8")


def in_a_folder():
    """Goes to a temporary directory with a copy of the sources, as the test does."""
    folder = pathlib.Path(tempfile.mkdtemp()).resolve()
    shutil.copytree(HERE / "sources", folder / "sources")
    os.chdir(folder)
    return folder


def prepared():
    folder = in_a_folder()
    names = goldens_test.SOURCES
    write("prepared.json", {name: goldens_test.prepared(name, folder) for name in names})


TINY = {
    "task": {
        "max_length": 10,
        "train_data": {"global_batch_size": 4, "captions_per_image": 2},
        "validation_data": {"global_batch_size": 4, "captions_per_image": 2},
        "metrics": ["BLEU", "CIDEr"],
        "decoding": {"beam": 3},
    },
    "trainer": {
        "train_steps": 20,
        "steps_per_loop": 1,
        "summary_interval": 1,
        "checkpoint_interval": 20,
        "validation_interval": 20,
        "max_to_keep": 1,
        "shown_images": 0,
        "train_tf_while_loop": False,
        "train_tf_function": False,
        "eval_tf_function": False,
        "optimizer_config": {
            "name": "adam",
            "schedule": {"name": "constant", "learning_rate": 0.02, "decay_steps": 0},
        },
    },
}
# Adam's moments of the network, and of the codes of frames, would be 3 MB.
SGD = {"name": "sgd", "schedule": {"name": "constant", "learning_rate": 0.5, "decay_steps": 0}}
_SMALL = dict(width=8, attention_width=4)
TRAININGS = {  # data, experiment and further changes
    "features": ("karpathy", "attention_lstm", {"model": {"attention_lstm": _SMALL}}),
    "other": ("karpathy", "updown", {"model": {"updown": _SMALL}}),
    "ready": (
        "ready",
        "mrnn",
        {"model": {"mrnn": dict(embed_width=9, width=8, multimodal_width=12)}},
    ),
    "pixels": (
        "cnn",
        "attention_lstm",
        {"model": {"attention_lstm": _SMALL}, "backbone": {"trainable": True}},
    ),
    "clips": (
        "clips",
        "attention_lstm",
        {"model": {"attention_lstm": _SMALL | {"region_positions": "frames"}}},
    ),
}


def runs():
    """Trains a tiny run of each kind, converts one, and writes what the commands say of them."""
    folder = in_a_folder()
    for name, (data, experiment, changes) in TRAININGS.items():
        if not os.path.exists(f"data/{data}"):
            prepare(f"data/{data}", **(goldens_test.SOURCES | goldens_test.DATA)[data])
        override = json.loads(json.dumps(TINY))
        override["task"] |= {"data_dir": f"data/{data}", **changes}
        if name in ("pixels", "clips"):
            override["trainer"]["optimizer_config"] |= SGD
        train(experiment, f"runs/{name}", params_override=override)
        for curves in ("train", "validation"):
            shutil.rmtree(f"runs/{name}/{curves}", ignore_errors=True)
        if name != "features":  # the one that trains on; best_ckpt has the weights of the others
            for path in [*pathlib.Path("runs", name).glob("ckpt-20.*"), f"runs/{name}/checkpoint"]:
                os.remove(path)
    # A small run of float16 has a quarter of the size; the test copies the weights of the data.
    small = ["--model_dir=runs/pixels", "--format=run", "--export_dir=runs/small"]
    goldens_test.run_commands([["small.log", "tfcap.export", *small]])
    shutil.rmtree("runs/pixels")
    os.rename("runs/small", "runs/pixels")
    os.remove("runs/pixels/backbone.weights.h5")
    goldens_test.convert("runs/converted")
    for path in [p for p in pathlib.Path("runs").rglob("*") if p.suffix in (".json", ".yaml")]:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(f"{folder}/", ""), encoding="utf-8")
    shutil.rmtree(HERE / "runs", ignore_errors=True)
    shutil.copytree("runs", HERE / "runs", ignore=shutil.ignore_patterns("*.lock", "*.log"))
    say()


def say():
    """Writes what the commands say of the runs that are there."""
    folder = in_a_folder()
    shutil.copytree(HERE / "runs", folder / "runs")
    for kind in goldens_test.RUNS:
        goldens_test.data_of(kind)
        write(f"said_{kind}.json", goldens_test.said(kind))
    resumed()


def resumed():
    """Writes what two more steps make of the run on features."""
    folder = in_a_folder()
    shutil.copytree(HERE / "runs", folder / "runs")
    goldens_test.data_of("features")
    write("resumed.json", goldens_test.go_on())


if __name__ == "__main__":
    for part in sys.argv[1:]:
        globals()[part]()
