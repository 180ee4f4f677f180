"""Every engine writes the same bytes, and what killed processes have not finished is done again."""

import hashlib
import importlib.util
import os

import pytest
from helpers.mortal import Mortal, Number
from helpers.photos import make_photos, run

from tfcap import errors
from tfcap.preparing import engine_choice

photos = pytest.fixture(make_photos)
with_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None, reason="Apache Beam is not installed"
)


def digests(out):
    """SHA-256 of every file that prepare has written, also of the descriptions of shards."""
    files = [*out.glob("[!.]*"), *out.glob(".shards/*")]
    return {
        path.relative_to(out): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.is_file()
    }


def damaged(photos):
    """The photographs with two that cannot be read, in different shards, and one without words."""
    folder, entries, _ = photos
    (folder / "images" / "1.jpg").write_bytes(b"no picture")
    (folder / "images" / "6.jpg").unlink()
    entries[8]["sentences"] = []
    return photos


@pytest.mark.slow
def test_several_processes_write_the_same_bytes_and_count_the_same_skips(photos, capfd):
    alone = run(damaged(photos), images_per_shard=2)
    out = photos[0] / "several"
    several = run(photos, images_per_shard=2, workers=2, out=str(out))
    assert digests(out) == digests(photos[0] / "out")
    assert several.fingerprint == alone.fingerprint
    assert [item["id"] for item in several.fingerprint["skipped"]] == [11, 16, 18]
    assert capfd.readouterr().err.count("skipped image 11 (1.jpg): a picture must be JPEG") == 2
    assert not list(out.rglob(".tmp-*"))
    # Skips of shards that were finished apart are added up.
    (photos[0] / "out" / "dataset.json").unlink()
    with pytest.raises(ValueError, match="Images that cannot be used: .*`max_skipped` allows"):
        run(photos, images_per_shard=2, max_skipped="2")
    again = run(photos, images_per_shard=2, max_skipped="3")
    assert len(again.fingerprint["skipped"]) == 3


@pytest.mark.slow
def test_errors_pass_through_and_a_killed_process_is_said(tmp_path):
    several = engine_choice.choose("local", 2, ())
    names = list(several(Mortal(tmp_path), map(Number, range(6))))
    assert sorted(names) == [str(number) for number in range(6)]
    pids = {int((tmp_path / name).read_text()) for name in names}
    assert os.getpid() not in pids
    with pytest.raises(ValueError, match="a bad number: -1"):
        list(several(Mortal(tmp_path), [Number(-1)]))
    with pytest.raises(ValueError, match="was killed.*lower `workers`"):
        list(several(Mortal(tmp_path), [Number(7)]))


@with_beam
@pytest.mark.slow
def test_beam_writes_the_same_bytes_and_counts_the_same_skips(photos):
    run(damaged(photos), images_per_shard=2)
    out = photos[0] / "beam"
    with pytest.raises(ValueError, match="^Images that cannot be used: .*`max_skipped` allows"):
        run(photos, images_per_shard=2, engine="beam", out=str(out), max_skipped="0")
    run(photos, images_per_shard=2, engine="beam", out=str(out))
    assert digests(out) == digests(photos[0] / "out")


@with_beam
def test_a_value_that_beam_cannot_read_is_refused(capfd):
    with pytest.raises(
        errors.UsageError, match="cannot read its options: .*direct_num_workers.*two"
    ):
        engine_choice.choose("beam", 1, ["--direct_num_workers=two"])
    assert capfd.readouterr().err == ""
    engine_choice.choose("beam", 1, ["--direct_num_workers=2", "--unknown=2"])
