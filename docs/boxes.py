"""Writes region features of the built-in drawings as a bottom-up tsv, as a detector would.

python docs/boxes.py data/shapes boxes.tsv

The regions of a drawing are its objects with boxes around them, pairs of neighbouring objects, some
shifted boxes, and the whole picture: 10 to 20 boxes. The features of a region are the pixels of its
box, resized to 12 x 12. The figure docs/images/attention_boxes.png comes from two models that were
trained on this file; the commands are in docs/evaluate.md.
"""

import argparse
import base64
import json
import pathlib

import numpy as np
from PIL import Image

SIDE = 12  # pixels along a side of what the features are made of
PLACES = 3  # rows and columns of places for objects in a drawing
LEAST, MOST = 10, 20  # boxes of a drawing


def boxes_of(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns boxes [R, 4] in pixels of a drawing [H, W, 3]; the first ones have one object."""
    size = len(pixels)
    background = np.median(pixels.reshape(-1, 3), 0)
    inked = (np.abs(pixels.astype(int) - background) > 40).any(-1)
    step = size // PLACES
    objects = []
    for top in range(0, size, step):
        for left in range(0, size, step):
            rows, columns = np.nonzero(inked[top : top + step, left : left + step])
            if len(rows) > 8:
                x1, y1 = left + columns.min(), top + rows.min()
                objects.append([x1, y1, left + columns.max() + 1, top + rows.max() + 1])
    found = [np.array(box, float) for box in objects]
    for one, other in zip(objects, objects[1:], strict=False):
        both = np.array([one, other])
        found.append(np.concatenate([both[:, :2].min(0), both[:, 2:].max(0)]).astype(float))
    found.append(np.array([0, 0, size, size], float))
    while len(found) < LEAST:
        box = found[rng.integers(len(objects))] + rng.normal(0, 6, 4)
        box = np.concatenate([np.sort(box[::2]), np.sort(box[1::2])])[[0, 2, 1, 3]].clip(0, size)
        if (box[2:] - box[:2] > 6).all():
            found.append(box)
    return np.array(found[:MOST], np.float32)


def features_of(picture: Image.Image, boxes: np.ndarray) -> np.ndarray:
    """Returns features float32 [R, F] of the boxes: pixels in -1..1, and the box in 0..1."""
    rows = []
    for box in boxes:
        small = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=tuple(map(float, box)))
        pixels = np.asarray(small, np.float32).reshape(-1) / 127.5 - 1
        rows.append(np.concatenate([pixels, 2 * box / picture.width - 1]))
    return np.array(rows, np.float32)


def main() -> None:
    """Writes a line for each drawing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", type=pathlib.Path, help="data of --source=shapes")
    parser.add_argument("out", type=pathlib.Path, help="the tsv to write")
    given = parser.parse_args()
    images = json.loads((given.shapes / "dataset_shapes.json").read_text("utf-8"))["images"]
    with open(given.out, "wb") as file:
        for image in images:
            picture = Image.open(given.shapes / "images" / image["filename"]).convert("RGB")
            boxes = boxes_of(np.asarray(picture), np.random.default_rng(image["imgid"]))
            arrays = [base64.b64encode(a.tobytes()) for a in (boxes, features_of(picture, boxes))]
            numbers = [str(n).encode() for n in (image["imgid"], *picture.size, len(boxes))]
            file.write(b"\t".join([*numbers, *arrays]) + b"\r\n")


if __name__ == "__main__":
    main()
