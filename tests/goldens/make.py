"""Writes the goldens with the code as it is: `python tests/goldens/make.py systems`.

The parts are systems, sources, prepared and runs. A number that was wrong is the only reason to
write one again. `sources` draws the inputs of `prepared` and `runs`, which therefore come after it.
"""

import base64
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
from tfcap.prepare import prepare  # noqa: E402


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
            values = rng.normal(size=(regions, 6))
            columns = [image.get("imgid", number), 96, 96, regions]
            encoded = [base64.b64encode(x.astype("<f4").tobytes()) for x in (boxes, values)]
            file.write(b"\t".join([*(str(c).encode() for c in columns), *encoded]) + b"\r\n")


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


if __name__ == "__main__":
    for part in sys.argv[1:]:
        globals()[part]()
