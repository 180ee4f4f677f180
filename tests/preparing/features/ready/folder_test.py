"""Ready features: one npz or npy file per image."""

import io
import zipfile

import numpy as np
import pytest
from helpers import features
from PIL import Image

from tfcap.preparing.features.ready import folder
from tfcap.preparing.features.ready.folder import Folder, read_file
from tfcap.preparing.features.ready.regions import checked


def _npz(tmp_path, **arrays):
    path = tmp_path / "7.npz"
    np.savez(path, **arrays)
    return path


GOOD = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("key", ["feat", "features", "z", "x", "image", "boxes"])
def test_reads_the_array_under_any_of_its_names(tmp_path, key):
    found = read_file(_npz(tmp_path, **{key: GOOD}))
    np.testing.assert_array_equal(found.features, GOOD)
    assert found.boxes is None and found.image is None


def test_boxes_size_and_vector_stand_beside_the_features(tmp_path):
    more = {"boxes": GOOD[:, :4], "image_w": 640, "image_h": 480, "image": GOOD[0]}
    found = read_file(_npz(tmp_path, features=GOOD, cls_prob=GOOD, **more))
    np.testing.assert_array_equal(found.boxes, GOOD[:, :4])
    np.testing.assert_array_equal(found.image, GOOD[0])
    assert found.size == (640, 480)
    assert read_file(_npz(tmp_path, features=GOOD, image_w=640)).size is None


def test_the_arrays_of_milvlg_are_read_without_their_padding(tmp_path):
    boxes = np.float32([[1, 1, 50, 40], [2, 3, 60, 44], [0, 0, 0, 0]])
    info = {"image_id": 7, "objects_id": np.arange(2)}  # pickled, and never read
    path = _npz(tmp_path, x=GOOD, bbox=boxes, num_bbox=2, image_h=48, image_w=64, info=info)
    found = checked(read_file(path))
    np.testing.assert_array_equal(found.features, GOOD[:2])
    np.testing.assert_allclose(found.boxes, boxes[:2] / [64, 48, 64, 48], atol=1e-6)


def test_the_arrays_of_mcan_have_their_regions_last(tmp_path):
    x = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    boxes = np.tile(np.float32([1, 1, 50, 40]), (6, 1))
    path = _npz(tmp_path, x=x, bbox=boxes, num_bbox=6, image_h=48, image_w=64)
    np.testing.assert_array_equal(checked(read_file(path)).features, x.T)
    with pytest.raises(ValueError, match=r"Received: -1 for features \[32, 6\]"):
        checked(read_file(_npz(tmp_path, x=x, num_bbox=-1)))


def test_float16_becomes_float32(tmp_path):
    found = checked(read_file(_npz(tmp_path, x=(GOOD / 3).astype(np.float16))))
    assert found.features.dtype == np.float32
    np.testing.assert_array_equal(found.features, (GOOD / 3).astype(np.float16))


def test_pixels_of_the_picture_are_no_vector(tmp_path):
    for pixels in (np.zeros([4, 4, 3], np.uint8), np.zeros([4, 4, 3], np.float32)):
        assert read_file(_npz(tmp_path, features=GOOD, image=pixels)).image is None


@pytest.mark.parametrize(
    "arrays, message",
    [
        (
            {"a": GOOD, "b": GOOD},
            "named feat, features, x, z, or only one array. Received: a, b. Rename",
        ),
        ({}, "must have an array"),
    ],
)
def test_files_without_features_are_refused(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=f"7.npz.*{message}"):
        read_file(_npz(tmp_path, **arrays))


class _Harmful:
    def __reduce__(self):
        return exec, ("raise SystemExit('code from a feature file was run')",)


def test_pickled_content_is_never_run(tmp_path):
    path = tmp_path / "7.npz"
    np.savez(path, feat=np.array([_Harmful()], object))
    with pytest.raises(ValueError, match="7.npz.*pickle"):
        read_file(path)
    np.save(tmp_path / "7.npy", np.array([_Harmful()], object))
    with pytest.raises(ValueError, match="7.npy.*pickle"):
        read_file(tmp_path / "7.npy")


def test_claimed_sizes_are_checked_before_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "MAX_ARRAY_BYTES", 1_000_000)
    bomb = tmp_path / "bomb.npz"
    header = io.BytesIO()
    claimed = {"descr": "<f4", "fortran_order": False, "shape": (100_000, 2048)}
    np.lib.format.write_array_header_1_0(header, claimed)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("feat.npy", header.getvalue() + bytes(1_000_000))
    assert bomb.stat().st_size < 10_000
    with pytest.raises(ValueError, match="claims .* bytes"):
        read_file(bomb)
    with zipfile.ZipFile(bomb, "w") as archive:
        archive.writestr("feat.npy", header.getvalue() + bytes(100))
    with pytest.raises(ValueError, match="bomb.npz cannot be read"):
        read_file(bomb)


def test_files_that_are_no_npz(tmp_path):
    path = _npz(tmp_path, feat=GOOD)
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a readable npz"):
            read_file(path)
    damaged = bytearray(whole)
    damaged[150] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="7.npz"):
        read_file(path)
    with pytest.raises(ValueError, match="No such file"):
        read_file(tmp_path / "8.npz")


def test_npy_files_are_read_and_damaged_ones_refused(tmp_path):
    path = tmp_path / "7.npy"
    np.save(path, GOOD)
    np.testing.assert_array_equal(read_file(path).features, GOOD)
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[:-1], whole.replace(b"(3, 4)", b"(9**9,)")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="7.npy"):
            read_file(path)


def test_the_folders_of_ruotianluo_are_read_together(tmp_path):
    images = {number: features.image(number) for number in (3, 5)}
    root = features.ruotianluo(tmp_path / "data", images)
    (regions,) = Folder.recognises(root)
    assert regions.name == "cocobu_att" and Folder.recognises(regions) == [regions]
    layout = Folder([regions], None)
    found = layout.read("5")
    np.testing.assert_array_equal(found.features, images[5].features)
    np.testing.assert_array_equal(found.boxes, images[5].boxes)
    np.testing.assert_array_equal(found.image, images[5].vector)
    assert layout.has("3") and not layout.has("4") and "cocobu_fc" in layout.about()
    (root / "cocobu_fc" / "3.npy").unlink()
    with pytest.raises(ValueError, match="cocobu_fc/3.npy: No such file.* Each image must have"):
        layout.read("3")


def test_each_of_several_folders_is_read_with_those_beside_it(tmp_path):
    images = {number: features.image(number) for number in (3, 5)}
    for name, number in (("train", 3), ("val", 5)):
        features.ruotianluo(tmp_path / name, {number: images[number]})
    layout = Folder([tmp_path / name / "cocobu_att" for name in ("train", "val")], None)
    for number, image in images.items():
        found = layout.read(str(number))
        np.testing.assert_array_equal(found.features, image.features)
        np.testing.assert_array_equal(found.boxes, image.boxes)
        np.testing.assert_array_equal(found.image, image.vector)
    assert all(f"{name}/cocobu_box" in layout.about() for name in ("train", "val"))


def test_folders_inside_a_folder_keep_the_paths_of_the_images(tmp_path):
    (tmp_path / "train2014").mkdir()
    np.savez(tmp_path / "train2014" / "a.npz", feat=GOOD)
    layout = Folder(Folder.recognises(tmp_path), None)
    assert layout.has("train2014/a") and not layout.has("a")


def test_other_folders_and_files_are_not_recognised(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    assert Folder.recognises(tmp_path) == [] == Folder.recognises(tmp_path / "a.png")
