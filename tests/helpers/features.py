"""Writes ready-made features of a few images in every layout, as their authors' programs do."""

import base64
import io
import json
import pathlib
from typing import NamedTuple

import h5py
import numpy as np

WIDTH = 6


class Image(NamedTuple):
    """Features of an image: float32 [R, F], boxes in pixels [R, 4], width and height."""

    features: np.ndarray
    boxes: np.ndarray
    size: tuple[int, int]
    vector: np.ndarray

    @property
    def unit(self) -> np.ndarray:
        """The boxes in 0..1."""
        return self.boxes / np.array([*self.size, *self.size], np.float32)


def image(number: int, width: int = WIDTH, regions: int | None = None) -> Image:
    rng = np.random.default_rng(number)
    regions = regions or 2 + number % 3
    size = 60 + number % 9, 40 + number % 7
    corners = np.sort(rng.random((regions, 2, 2)), 1).reshape(regions, 4)
    boxes = (corners * [*size, *size]).astype(np.float32)
    vector = rng.normal(size=5).astype(np.float32)
    return Image(rng.normal(size=(regions, width)).astype(np.float32), boxes, size, vector)


def text(array: np.ndarray) -> bytes:
    return base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes())


def bottom_up_line(key, one: Image, end: bytes = b"\r\n") -> bytes:
    """A line as csv.DictWriter of Python 2 writes it."""
    numbers = [str(number).encode() for number in (key, *one.size, len(one.boxes))]
    return b"\t".join([*numbers, text(one.boxes), text(one.features)]) + end


def bottom_up(path: pathlib.Path, images: dict) -> pathlib.Path:
    path.write_bytes(b"".join(bottom_up_line(key, one) for key, one in images.items()))
    return path


def lxmert(path: pathlib.Path, images: dict) -> pathlib.Path:
    """Lines of ten fields; the height is before the width."""
    objects = [text(np.zeros(72)), text(np.ones(36))] * 2
    lines = []
    for key, one in images.items():
        fields = bottom_up_line(key, one, b"").split(b"\t")
        lines.append(b"\t".join([fields[0], fields[2], fields[1], *objects, *fields[3:]]))
    path.write_bytes(b"\n".join(lines))
    return path


def vinvl(path: pathlib.Path, images: dict) -> pathlib.Path:
    """The last six columns of the features are the box, as VinVL has them."""
    lines = []
    for key, one in images.items():
        content = {"num_boxes": len(one.features), "features": text(one.features).decode()}
        lines.append(f"{key}\t{json.dumps(content)}\n")
    path.write_text("".join(lines))
    return path


def vinvl_image(number: int) -> Image:
    """An image with 2,054 features per region, of which the last six are its box."""
    one = image(number, 2048)
    unit = one.unit
    return one._replace(features=np.concatenate([one.features, unit, unit[:, 2:] - unit[:, :2]], 1))


def milvlg(path: pathlib.Path, images: dict) -> pathlib.Path:
    """Files of bottom-up-attention.pytorch, with two rows of padding; `info` is a pickle."""
    path.mkdir()
    for key, one in images.items():
        rows = ((0, 2), (0, 0))
        np.savez(
            path / f"{key}.npz",
            x=np.pad(one.features, rows),
            bbox=np.pad(one.boxes, rows),
            num_bbox=len(one.boxes),
            image_h=one.size[1],
            image_w=one.size[0],
            info=np.array({"image_id": key}),
        )
    return path


def folder(path: pathlib.Path, images: dict) -> pathlib.Path:
    """Files of xmodaler."""
    path.mkdir()
    for key, one in images.items():
        np.savez(
            path / f"{key}.npz",
            features=one.features,
            boxes=one.boxes,
            image_w=one.size[0],
            image_h=one.size[1],
        )
    return path


def ruotianluo(path: pathlib.Path, images: dict) -> pathlib.Path:
    """Folders NAME_att, NAME_fc and NAME_box inside `path`."""
    folders = [path / f"cocobu_{kind}" for kind in ("att", "fc", "box")]
    for one in folders:
        one.mkdir(parents=True)
    for key, one in images.items():
        np.savez_compressed(folders[0] / f"{key}.npz", feat=one.features)
        np.save(folders[1] / f"{key}.npy", one.vector)
        np.save(folders[2] / f"{key}.npy", one.boxes)
    return path


def hdf5(path: pathlib.Path, images: dict, boxes: bool = True) -> pathlib.Path:
    """With boxes the names of M2, else those of ruotianluo."""
    with h5py.File(path, "w") as file:
        for key, one in images.items():
            file[f"{key}_features" if boxes else str(key)] = one.features
            if boxes:
                file[f"{key}_boxes"] = one.boxes
                file[f"{key}_cls_prob"] = np.zeros([len(one.boxes), 3], "f4")
    return path


def lmdb_store(path: pathlib.Path, images: dict) -> pathlib.Path:
    """A directory with data.mdb, with the keys whose values are pickles."""
    import lmdb

    with lmdb.open(str(path), map_size=1 << 24) as store, store.begin(write=True) as transaction:
        for key, one in images.items():
            content = io.BytesIO()
            np.savez(content, feat=one.features)
            transaction.put(str(key).encode(), content.getvalue())
        for name in ("__keys__", "__len__", "__names__", "__meta__"):
            transaction.put(name.encode(), b"\x80\x04csystem\nexit\n.")
    return path


def matrix(path: pathlib.Path, images: dict) -> pathlib.Path:
    """train_ims.npy and train_ids.txt of images with the same number of regions."""
    path.mkdir()
    np.save(path / "train_ims.npy", np.stack([one.features for one in images.values()]))
    (path / "train_ids.txt").write_text("".join(f"{key}\n" for key in images))
    return path
