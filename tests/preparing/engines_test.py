"""Every engine writes the same bytes, and what killed processes have not finished is done again."""

import hashlib
import importlib.util
import os
import time

import pytest
from helpers.mortal import Mortal, Number
from helpers.photos import make_photos, run

from tfcap import cli
from tfcap.preparing.engines import Local, engine

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
    with pytest.raises(ValueError, match="More images cannot be used than --max_skipped allows"):
        run(photos, images_per_shard=2, max_skipped="2")
    again = run(photos, images_per_shard=2, max_skipped="3")
    assert len(again.fingerprint["skipped"]) == 3


@pytest.mark.slow
def test_errors_pass_through_and_a_killed_process_is_said(tmp_path):
    with Local(2) as local:
        names = list(local.map(Mortal(tmp_path, {}), map(Number, range(6))))
        assert sorted(names) == [str(number) for number in range(6)]
        pids = {int((tmp_path / name).read_text()) for name in names}
        assert os.getpid() not in pids
        with pytest.raises(ValueError, match="a bad number: -1"):
            list(local.map(Mortal(tmp_path, {}), [Number(-1)]))
    with Local(1) as local, pytest.raises(ValueError, match="was killed.*fewer --workers"):
        list(local.map(Mortal(tmp_path, {7: 1}), [Number(7)]))


@pytest.mark.slow
def test_processes_end_with_the_main_process_that_started_them(tmp_path):
    local = Local(1)
    assert list(local.map(Mortal(tmp_path, {}), [Number(1)])) == ["1"]
    pid = int((tmp_path / "1").read_text())
    os.kill(pid, 0)
    local._alive.close()  # the operating system does it when a process ends in any way
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and not _is_zombie(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    local.__exit__()


def _is_zombie(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


@with_beam
@pytest.mark.slow
def test_beam_writes_the_same_bytes_and_counts_the_same_skips(photos):
    run(damaged(photos), images_per_shard=2)
    out = photos[0] / "beam"
    with pytest.raises(ValueError, match="^More images cannot be used than --max_skipped allows"):
        run(photos, images_per_shard=2, engine="beam", out=str(out), max_skipped="0")
    run(photos, images_per_shard=2, engine="beam", out=str(out))
    assert digests(out) == digests(photos[0] / "out")


@with_beam
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--direct_num_worker=2"], "--direct_num_worker. Did you mean 'direct_num_workers'?"),
        (["--runner=DirectRunner", "--qqq"], "Received: --qqq. Leave it out."),
        (["--runner", "direct", "streaming"], "must begin with --. Received: streaming."),
        (["--direct_num_workers=two"], "--direct_num_workers: invalid int value: 'two'"),
    ],
)
def test_options_that_beam_does_not_know_are_refused(options, message, capfd):
    with pytest.raises(cli.UsageError) as caught:
        engine("beam", 1, options)
    assert message in str(caught.value) and capfd.readouterr() == ("", "")
    engine("beam", 1, ["--direct_num_workers=2", "--runner=direct"])
    engine("beam", 1, ["--runner=FlinkRunner", "--of_its_job_server=2"])
