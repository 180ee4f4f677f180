"""A matrix of all images with a list of their ids."""

import numpy as np
import pytest
from helpers.features import image, matrix

from tfcap.preparing.features.ready.matrix import Matrix

IMAGES = {key: image(key, regions=3) for key in (391895, 9, 30)}


def opened(path):
    return Matrix(Matrix.recognises(path), None)


def test_rows_are_read_by_their_ids_from_a_mapped_file(tmp_path):
    layout = opened(matrix(tmp_path / "scan", IMAGES))
    assert isinstance(layout.matrices[0], np.memmap)
    for key, one in IMAGES.items():
        found = layout.read(str(key)).features
        np.testing.assert_array_equal(found, one.features)
        assert not isinstance(found, np.memmap)
    assert layout.has("9") and not layout.has("10")
    with pytest.raises(ValueError, match="no id 10 in .*train_ids.txt"):
        layout.read("10")


def test_several_matrices_of_one_folder_are_read_together(tmp_path):
    folder = matrix(tmp_path / "scan", {9: IMAGES[9]})
    np.save(folder / "dev_ims.npy", IMAGES[30].features[None])
    (folder / "dev_ids.txt").write_text("30")
    (folder / "lengths.npy").write_bytes(b"")
    layout = opened(folder)
    np.testing.assert_array_equal(layout.read("30").features, IMAGES[30].features)
    np.testing.assert_array_equal(layout.read("9").features, IMAGES[9].features)


def test_a_matrix_with_one_vector_per_image_and_any_name(tmp_path):
    np.save(tmp_path / "fc7.npy", np.eye(3, 5, dtype=np.float32))
    (tmp_path / "fc7.txt").write_text("a\nb\nc\n")
    layout = opened(tmp_path / "fc7.npy")
    np.testing.assert_array_equal(layout.read("b").features, np.eye(3, 5)[1])


@pytest.mark.parametrize("rows", [1, 5])
def test_a_line_per_caption_is_accepted(tmp_path, rows):
    """SCAN's lists may have a line for each caption, and the matrix a row for each."""
    folder = matrix(tmp_path / "scan", IMAGES)
    (folder / "train_ids.txt").write_text("".join(f"{key}\n" * 5 for key in IMAGES))
    features = np.stack([one.features for one in IMAGES.values()])
    np.save(folder / "train_ims.npy", np.repeat(features, rows, 0))
    layout = opened(folder)
    for key, one in IMAGES.items():
        np.testing.assert_array_equal(layout.read(str(key)).features, one.features)
    assert ("12 repeated ids" in layout.about()) == (rows == 5)


def test_ids_that_are_repeated_in_another_order_are_refused(tmp_path):
    folder = matrix(tmp_path / "scan", IMAGES)
    (folder / "train_ids.txt").write_text("".join(f"{key}\n" for _ in range(5) for key in IMAGES))
    with pytest.raises(ValueError, match="one id for each of the 3 rows of .* Received: 15"):
        opened(folder)


def test_matrices_and_lists_that_do_not_fit_are_refused(tmp_path):
    folder = matrix(tmp_path / "scan", IMAGES)
    ids, ims = folder / "train_ids.txt", folder / "train_ims.npy"
    whole = ims.read_bytes()
    ids.write_text("9\n30\n")
    with pytest.raises(ValueError, match="train_ids.txt must have one id for each of the 3 rows"):
        opened(folder)
    ids.write_bytes(b"9\n\xff\n30\n")
    with pytest.raises(ValueError, match="train_ids.txt is not UTF-8 text at byte 2.*as UTF-8"):
        opened(folder)
    ids.write_text("9\n30\n391895\n")
    for content in (whole[:-4], whole[:40]):
        ims.write_bytes(content)
        with pytest.raises(ValueError, match="train_ims.npy cannot be read"):
            opened(folder)
    for array in (np.zeros([3, 2, 4], int), np.zeros([3], "f4"), np.zeros([3, 1, 1, 2], "f4")):
        np.save(ims, array)
        with pytest.raises(ValueError, match=r"train_ims.npy must be floating point \[images"):
            opened(folder)
    np.save(ims, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="not a usable npy file"):
        opened(folder)
    ids.unlink()
    assert Matrix.recognises(folder) == []
