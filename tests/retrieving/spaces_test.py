"""Neighbours are compared between the original and the refined space of an m-RNN."""

import numpy as np
import pytest
from PIL import Image

from tfcap import models
from tfcap.data.prepared import PreparedData
from tfcap.nearest.index import load
from tfcap.nearest.space import Space
from tfcap.retrieving import spaces
from tfcap.retrieving.spaces import Nearest


def test_the_shared_share_is_a_mean_over_images():
    first = Nearest("a", np.array([[1, 2], [3, 4]]), np.zeros([2, 2]))
    second = Nearest("b", np.array([[2, 1], [3, 9]]), np.zeros([2, 2]))
    assert spaces.shared(first, second) == 75
    assert spaces.shared(first, first) == 100


@pytest.mark.slow
def test_both_spaces_are_printed_and_drawn(shapes, tmp_path, capsys):
    data = PreparedData.load(shapes)
    mrnn = models.build(
        "mrnn", len(data.vocab), 12, data.feature_dim, embed_width=6, width=8, multimodal_width=10
    )
    both = Space("original"), Space("refined", mrnn)
    folder, sheet = str(tmp_path / "index"), tmp_path / "near.png"
    found = [spaces.nearest_images(data, "val", space, folder, 2, 3) for space in both]
    for space, near in zip(both, found, strict=True):
        train, val = load(data, space, splits=("train",)), load(data, space, splits=("val",))
        differences = train.vectors[None] - val.vectors[:2, None].astype(np.float64)
        wanted = np.argsort((differences**2).sum(-1), 1)[:, :3]
        np.testing.assert_array_equal(near.ids, train.ids[wanted])
    own = spaces.nearest_images(data, "train", both[0], folder, 2, 3)
    for image, others in zip(data.index("train").id[:2], own.ids, strict=True):
        assert len(others) == 3 and image not in others  # an image is no neighbour of itself
    spaces.show(data, "val", found, str(sheet))
    lines = capsys.readouterr().out.splitlines()
    names = data.file_names("train")
    assert lines[0] == next(iter(data.file_names("val").values()))
    for line, near in zip(lines[1:3], found, strict=True):
        pairs = zip(near.ids[0].tolist(), near.distances[0], strict=True)
        listed = ", ".join(f"{names[image]} {distance:.3g}" for image, distance in pairs)
        assert line == f"  {near.name}: {listed}"
    share = f"{spaces.shared(*found):.1f} % of the 3 nearest images by original features"
    assert lines[6].startswith(share) and lines[6].endswith("(2 images)")
    with Image.open(sheet) as opened:  # four rows: two images in two spaces; the image and three
        assert opened.size[1] > 4 * 240 and opened.size[0] > 4 * 240
