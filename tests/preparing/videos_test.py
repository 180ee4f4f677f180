"""Preparing clips: the built-in ones, sources of videos, and what is refused."""

import json

import numpy as np

from tfcap import configs
from tfcap.data import clips
from tfcap.data.prepared import PreparedData
from tfcap.prepare import prepare
from tfcap.preparing import moving_shapes
from tfcap.training import start


def test_the_built_in_clips_have_a_region_per_frame(moving_shapes):
    data = PreparedData.load(moving_shapes)
    assert data.frames == 8 and data.fingerprint["name"] == "moving_shapes"
    assert {split: entry["images"] for split, entry in data.fingerprint["splits"].items()} == {
        "train": 24,
        "val": 4,
        "test": 3,
    }
    assert data.feature_dim == 768 and data.max_regions == 8
    batch = data.read("val", list(data.file_names("val")))
    assert batch["features"].shape == (4, 8, 768) and batch["mask"].numpy().all()
    np.testing.assert_array_equal(batch["boxes"][0], clips.sheet_boxes(8))


SETTINGS = {"backbone": "pixels", "min_count": 1}


def test_msr_vtt_is_prepared_from_ready_features(tmp_path):
    videos = [{"video_id": f"video{n}", "split": "train"} for n in range(4)]
    sentences = [{"video_id": f"video{n}", "caption": f"clip {n}"} for n in range(4)] * 3
    (tmp_path / "train.json").write_text(json.dumps({"videos": videos, "sentences": sentences}))
    test = [{"video_id": "video7010", "split": "test"}]
    (tmp_path / "test.json").write_text(json.dumps({"videos": test, "sentences": []}))
    (tmp_path / "features").mkdir()
    for number in (0, 1, 2, 3, 7010):
        frames = np.arange(3 + number % 7, dtype=np.float32)
        features = np.tile(frames[:, None], (1, 6))
        np.save(tmp_path / "features" / f"video{number}.npy", features)
    both = [tmp_path / "train.json", tmp_path / "test.json"]
    out = prepare(
        tmp_path / "out", both, features=str(tmp_path / "features"), frames=4, min_count=1
    )
    data = PreparedData.load(out)
    assert data.frames == 4 and data.fingerprint["splits"]["train"]["captions"] == 12
    (last,) = data.read("test", [7010])["features"][..., 0].numpy().tolist()
    assert last == [0, 1, 3, 4]  # of frames 0 to 5
    assert data.read("train", [0])["features"][0, :, 0].numpy().tolist() == [0, 1, 2, 2]


def test_training_makes_the_built_in_clips_on_first_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split, count in {"train": 6, "val": 2, "test": 0}.items():
        monkeypatch.setitem(moving_shapes.DATA.counts, split, count)
    configured = configs.resolve("xtransformer_video").task.data_dir
    folder = start.data_directory(configured)
    assert PreparedData.load(folder).frames == 8
    before = (tmp_path / folder / "dataset.json").stat().st_mtime_ns
    assert start.data_directory(configured) == folder
    assert (tmp_path / folder / "dataset.json").stat().st_mtime_ns == before
