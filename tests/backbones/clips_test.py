"""Features of clips: a region per frame, in order, the same in prepare and in serving."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.clips import FRAMES, gif, write_frames
from PIL import Image

from tfcap.backbones.backbone import Backbone
from tfcap.backbones.clips import Clips
from tfcap.data import clips
from tfcap.preparing.pictures import ClipFeatures
from tfcap.preparing.sources.entry import Entry


@pytest.fixture(scope="module")
def network():
    return Clips(Backbone("pixels", vector=True), 4)


def entry(number, name, **more):
    return Entry(number, name, "train", ("A clip.",), **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("clips")
    (place / "a.gif").write_bytes(gif(FRAMES))
    (place / "long.gif").write_bytes(gif(np.concatenate([FRAMES, FRAMES[::-1][1:]])))
    (place / "cut.gif").write_bytes(gif(FRAMES)[:40])
    (place / "movie.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(50))
    write_frames(place / "frames", 6)
    Image.fromarray(FRAMES[0]).save(place / "still.png")
    return place


def test_each_frame_is_the_vector_of_its_picture(network, folder):
    (result,) = ClipFeatures(folder, network.backbone, network.frames).read([entry(1, "a.gif")])
    assert result.reason is None and result.features.shape == (4, 768)
    pixels = clips.read_clip_bytes((folder / "a.gif").read_bytes(), 4)
    alone = [network.backbone.extract(network.backbone.resize(one)[None])[0, 0] for one in pixels]
    np.testing.assert_array_equal(result.features, alone)
    np.testing.assert_array_equal(result.boxes, clips.sheet_boxes(4))
    # The square goes to the right: so does the middle of what is bright.
    bright = (np.array(alone).reshape(4, 16, 16, 3).mean((1, 3)) + 1) @ np.arange(16)
    assert (np.diff(bright) > 0).all()


@pytest.mark.slow
def test_serving_computes_what_prepare_computed(network, folder):
    (result,) = ClipFeatures(folder, network.backbone, network.frames).read([entry(1, "a.gif")])
    serve = tf.function(lambda content: network.extract(network.decode(content)[None])[0])
    np.testing.assert_array_equal(serve((folder / "a.gif").read_bytes()), result.features)


def test_clips_come_in_order_and_bad_ones_have_a_reason(network, folder):
    names = ["a.gif", "cut.gif", "frames", "none.gif", "still.png", "movie.mp4", "long.gif"] * 5
    entries = [entry(number, name) for number, name in enumerate(names)]
    result = list(ClipFeatures(folder, network.backbone, network.frames).read(entries))
    assert [one.entry for one in result] == entries
    reasons = {one.entry.file_name: one.reason for one in result if one.features is None}
    assert set(reasons) == {"cut.gif", "none.gif", "movie.mp4"}
    assert "or it is damaged" in reasons["cut.gif"]
    assert "neither a file nor a directory of frames" in reasons["none.gif"]
    assert "ffmpeg" in reasons["movie.mp4"]
    for first, again in zip(result[:7], result[7:14], strict=True):
        if first.reason is None:
            np.testing.assert_array_equal(first.features, again.features)
    still = result[4].features
    assert (still == still[0]).all() and not (result[0].features == result[0].features[0]).all()


def test_a_folder_is_the_clip_of_its_frames(network, folder):
    (result,) = ClipFeatures(folder, network.backbone, network.frames).read([entry(1, "frames")])
    greys = (result.features.mean(1) + 1) * 127.5
    np.testing.assert_allclose(greys, [0, 10, 30, 40], atol=0.2)  # 0, 1, 3 and 4 of six
