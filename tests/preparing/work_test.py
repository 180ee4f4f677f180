"""A shard is a function of the settings and of its images."""

import pathlib
import pickle

import pytest
from helpers.photos import make_features, write_captions

from tfcap.preparing import sidecars
from tfcap.preparing.captions import tokenized
from tfcap.preparing.inputs import read
from tfcap.preparing.settings import Settings
from tfcap.preparing.work import Job, ShardWorker, absolute, described_words, open_reader, task_of

photos = pytest.fixture(make_features)


def job_of(photos, limit=9):
    """A job of the first six images, and its task."""
    folder, entries, settings = photos
    entries[2]["sentences"] = []
    (folder / "features" / "1.npz").unlink()
    inputs = read(Settings(captions=write_captions(folder, entries), **settings))
    (folder / "out").mkdir()
    job = Job(absolute(inputs.settings), "digest", tuple(inputs.entries), None, limit, 12, 0)
    images = {image.id: image for image in tokenized(inputs.entries)}
    return job, task_of("train-00000-of-00002.tfrecord", inputs.entries[:6], images, 0)


def test_a_worker_that_was_pickled_writes_the_same_bytes(photos):
    job, task = job_of(photos)
    worker = ShardWorker(job, open_reader(job.settings, job.probes))
    known = worker(task)
    path = pathlib.Path(job.out) / task.name
    content = path.read_bytes()
    path.unlink()
    copy, again = pickle.loads(pickle.dumps((worker, task)))
    assert again == task and copy(again) == known and path.read_bytes() == content
    assert [item["id"] for item in known["skipped"]] == [12, 11]
    assert (known["records"], known["ids"], known["bytes"]) == (4, [10, 13, 14, 15], len(content))
    assert known["sums"]["regions"] == 12 and known["sums"]["most_regions"] == 3


def test_a_task_has_no_captions_twice_and_a_job_has_no_relative_path(photos, monkeypatch):
    folder, _, settings = photos
    monkeypatch.chdir(folder)
    settings |= {"out": "out", "features": "features"}
    job, task = job_of(photos)
    assert all(entry.captions == () for entry in task.entries)
    assert task.images[0].captions == ["A dog runs.", "The dog!"]
    assert job.settings.out == str(folder / "out")
    assert job.settings.features == [str(folder / "features")] and job.settings.images is None


def test_a_finished_shard_is_not_made_again(photos):
    job, task = job_of(photos)
    known = ShardWorker(job)(task)
    before = (pathlib.Path(job.out) / task.name).stat()
    for path in (photos[0] / "features").iterdir():
        path.unlink()
    assert ShardWorker(job)(task) == {**known, "settings": "digest"}
    assert (pathlib.Path(job.out) / task.name).stat() == before


def test_images_that_other_shards_skip_count_for_the_limit(photos, capsys):
    job, task = job_of(photos, limit=3)
    with pytest.raises(ValueError, match="4 of 12 images cannot be used, --max_skipped allows 3"):
        ShardWorker(job)(task._replace(skipped=2))
    assert capsys.readouterr().err.count("skipped image ") == 2
    assert not (pathlib.Path(job.out) / task.name).exists() and not sidecars.exist(job.out)
    assert ShardWorker(job)(task._replace(skipped=1))["records"] == 4


def test_the_words_of_a_shard_are_counted_and_those_of_train_are_kept_in_order(photos):
    _, task = job_of(photos)
    assert described_words(task.images[:2]) == {
        "words": {"a": 2, "dog": 4, "runs": 2, "the": 2},
        "captions": [[[0, 1, 2], [3, 1]], [[0, 1, 2], [3, 1]]],
    }
    others = [task.images[0]._replace(split="val")]
    assert described_words(others) == {"words": {"a": 1, "dog": 2, "runs": 1, "the": 1}}
    assert described_words([]) == {"words": {}}
