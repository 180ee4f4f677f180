"""The captions of COCO 2014, which pycocoevalcap's `spice-1.0.jar` contains, with made features.

`python tests/helpers/coco_2014.py FOLDER [EVERY]` writes them, or those of one image in EVERY.
"""

import json
import os
import pathlib
import sys
import zipfile

import numpy as np

SPLITS = ("train", "val")
_REGIONS = 2
_WIDTH = 32  # so that no two of 123,287 drawn vectors are nearly the same


def jar() -> pathlib.Path | None:
    """Returns the file that has the captions; None if this pycocoevalcap lacks it."""
    import pycocoevalcap

    path = pathlib.Path(pycocoevalcap.__path__[0]) / "spice/spice-1.0.jar"
    return path if path.is_file() else None


def write(folder: str | os.PathLike, every: int = 1) -> None:
    """Writes `captions_train2014.json` and `captions_val2014.json`, and features of the images.

    The features are drawn: 2 regions of the width 32, in `coco_ims.npy` with `coco_ids.txt`.

    Args:
      folder: the directory to write into.
      every: 10 writes every tenth image of each file, with all its captions.
    """
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    ids = []
    with zipfile.ZipFile(jar()) as archive:
        for split in SPLITS:
            name = f"captions_{split}2014.json"
            content = json.loads(archive.read(f"coco/annotations/{name}"))
            content["images"] = content["images"][::every]
            kept = {image["id"] for image in content["images"]}
            notes = content["annotations"]
            content["annotations"] = [note for note in notes if note["image_id"] in kept]
            (path / name).write_text(json.dumps(content), "utf-8")
            ids += [image["id"] for image in content["images"]]
    drawn = np.random.default_rng(0).normal(size=(len(ids), _REGIONS, _WIDTH))
    np.save(path / "coco_ims.npy", drawn.astype(np.float32))
    (path / "coco_ids.txt").write_text("".join(f"{number}\n" for number in ids), "utf-8")


if __name__ == "__main__":
    write(sys.argv[1], *map(int, sys.argv[2:]))
