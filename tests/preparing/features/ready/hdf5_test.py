"""Features in HDF5 files."""

import h5py
import numpy as np
import pytest
from helpers.features import hdf5, image

from tfcap.preparing.features.ready import hdf5 as module
from tfcap.preparing.features.ready.hdf5 import Hdf5
from tfcap.preparing.features.ready.regions import checked

IMAGES = {391895: image(1), 9: image(2)}


def opened(path):
    return Hdf5(Hdf5.recognises(path), None)


@pytest.mark.parametrize("boxes", [True, False])
def test_both_ways_to_name_data_sets_are_read(tmp_path, boxes):
    hdf5(tmp_path / "a.hdf5", {9: IMAGES[9]}, boxes)
    hdf5(tmp_path / "b.h5", {391895: IMAGES[391895]}, boxes)
    (tmp_path / "c.h5").write_bytes(b"not HDF5")
    layout = opened(tmp_path)
    for key, one in IMAGES.items():
        found = layout.read(str(key))
        np.testing.assert_array_equal(found.features, one.features)
        if boxes:
            np.testing.assert_array_equal(found.boxes, one.boxes)
        else:
            assert found.boxes is None
    assert layout.has("9") and not layout.has("30")
    with pytest.raises(ValueError, match="no data set 30 or 30_features in HDF5, .*a.hdf5"):
        layout.read("30")


def test_float16_grids_and_vectors_of_images_are_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["7"] = np.ones([2, 3, 4], np.float16)
        file["8_features"] = np.ones([2, 4], np.float16)
        file["8_image"] = np.arange(5, dtype=np.float32)
    layout = opened(tmp_path / "a.h5")
    assert layout.read("7").features.shape == (2, 3, 4)
    np.testing.assert_array_equal(layout.read("8").image, np.arange(5))


@pytest.mark.parametrize("names", [("features", "boxes"), ("x", "bbox"), ("feat", "boxes")])
def test_a_group_of_an_image_has_the_arrays_of_an_npz(tmp_path, names):
    one = IMAGES[9]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        arrays = dict(zip(names, (one.features, one.boxes), strict=True))
        for name, array in {**arrays, "image_w": one.size[0], "image_h": one.size[1]}.items():
            file[f"9/{name}"] = array
    found = opened(tmp_path / "a.h5").read("9")
    np.testing.assert_array_equal(found.features, one.features)
    np.testing.assert_allclose(checked(found).boxes, one.unit, atol=1e-6)


@pytest.mark.parametrize("key", [".", "..", "/", "", "group", "9_features/x", "a\0b", "missing"])
def test_names_that_are_no_data_set_have_no_features(tmp_path, key):
    path = hdf5(tmp_path / "a.h5", IMAGES)
    with h5py.File(path, "a") as file:
        file.create_group("group")
    assert not opened(path).has(key)


def test_values_in_other_files_and_links_are_refused(tmp_path):
    """Without the refusal, a file of features could bring any other file into the records."""
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    (tmp_path / "raw").write_bytes(values.tobytes())
    with h5py.File(tmp_path / "other", "w") as file:
        file["group/1"] = values
    virtual = h5py.VirtualLayout((2, 4), "f4")
    virtual[:] = h5py.VirtualSource(tmp_path / "other", "group/1", (2, 4))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["1"] = h5py.ExternalLink(tmp_path / "other", "group/1")
        file["2"] = h5py.SoftLink("/6")
        file["group"] = h5py.ExternalLink(tmp_path / "other", "group")
        file.create_dataset("3", (2, 4), "f4", external=[(tmp_path / "raw", 0, 32)])
        file.create_virtual_dataset("4", virtual)
        file["5_features"] = file["6"] = values
        file["5_boxes"] = h5py.SoftLink("/6")
    layout = opened(tmp_path / "a.h5")
    for key, kind in {
        "1": "1 must be .*ExternalLink",
        "2": "2 must be .*SoftLink",
        "group/1": "group/1_features must be .*ExternalLink",
        "3": "3 must be .*external storage",
        "4": "4 must be .*virtual",
        "5": "5_boxes must be .*SoftLink",
    }.items():
        assert layout.has(key)
        with pytest.raises(ValueError, match=f"{kind}. Copy the values into this file.$"):
            layout.read(key)
    np.testing.assert_array_equal(layout.read("6").features, values)


def test_claimed_sizes_are_checked_before_reading(tmp_path, monkeypatch):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("1", (10**6, 10**6), "f4", chunks=(64, 64))
        file.create_dataset("2", data=np.zeros([2, 4], "f4"), chunks=(2000, 4), maxshape=(None, 4))
        file.create_dataset("3", data=["text"])
        file["4"] = h5py.Empty("f4")
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(module, "MAX_ARRAY_BYTES", 10_000)
    layout = opened(path)
    for key in "123":
        with pytest.raises(ValueError, match=f"a.h5, {key}: {key} must be numbers of at most"):
            layout.read(key)


def test_damaged_files_are_refused(tmp_path):
    path = hdf5(tmp_path / "a.h5", IMAGES)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="a.h5 must be an HDF5 file .*truncated"):
        opened(path)
