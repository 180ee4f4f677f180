"""Requests for the warm-up: drawn pictures, pictures of a folder, and inputs of signatures."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import picture_bytes

from tfcap.data import pictures
from tfcap.serving import samples


def test_drawn_pictures_are_different_jpeg_files_and_always_the_same():
    drawn = samples.drawn_pictures(7)
    assert drawn == samples.drawn_pictures(7) and len(set(drawn)) == 7
    assert {samples.tf.io.is_jpeg(content).numpy() for content in drawn} == {True}
    shapes = {tuple(pictures.decode(tf.constant(content)).shape) for content in drawn}
    assert len(shapes) == 6 and (480, 640, 3) in shapes
    assert min(map(len, drawn)) > 5_000


def test_pictures_of_a_folder_come_in_the_order_of_their_names(tmp_path):
    contents = {f"{n}.{form}": picture_bytes.file(form) for n, form in enumerate(("JPEG", "PNG"))}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "._0.JPEG").write_text("what macOS writes")
    assert samples.pictures_of(str(tmp_path), 12) == list(contents.values())
    assert samples.pictures_of(str(tmp_path), 1) == [contents["0.JPEG"]]
    (tmp_path / "0.JPEG").rename(tmp_path / "a")
    (tmp_path / "1.PNG").unlink()
    with pytest.raises(ValueError, match="--warmup_images must hold pictures"):
        samples.pictures_of(str(tmp_path), 12)
    with pytest.raises(ValueError, match="must be a folder of pictures. Received: .*no such"):
        samples.pictures_of(str(tmp_path / "no such"), 12)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match="folder.png must be a file of at most"):
        samples.pictures_of(str(tmp_path), 12)


def test_inputs_fit_the_signature():
    specs = {
        "features": tf.TensorSpec([None, None, 5]),
        "num_regions": tf.TensorSpec([None], tf.int32),
        "seed": tf.TensorSpec([None], tf.int64),
    }
    made = samples.inputs(specs, 3, [], 7)
    assert {key: (value.shape, value.dtype) for key, value in made.items()} == {
        "features": ((3, 7, 5), np.float32),
        "num_regions": ((3,), np.int32),
        "seed": ((3,), np.int64),
    }
    images = samples.inputs({"image_bytes": tf.TensorSpec([None], tf.string)}, 3, [b"a", b"b"], 7)
    assert images["image_bytes"].tolist() == [b"a", b"b", b"a"]
    assert samples.inputs(specs, 1, [], None)["num_regions"].tolist() == [36]
    with pytest.raises(ValueError, match="Received: question"):
        samples.inputs({"question": tf.TensorSpec([None], tf.string)}, 1, [], 7)
