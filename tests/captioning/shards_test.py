"""Shards: each layout in and out, rows that fail, and commands that are killed and given again."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time

import pyarrow
import pyarrow.parquet
import pytest
from helpers import commands
from helpers.sources import add, jpeg, picture

import tfcap
from tfcap.captioning.caption_files import Wording
from tfcap.captioning.shards import reading
from tfcap.captioning.shards.work import Model, Work
from tfcap.errors import UsageError
from tfcap.files import lock
from tfcap.preparing.sources import READERS
from tfcap.preparing.sources.entry import Source

BAD = b"no picture"


def tar_shard(path, first, bad=()):
    """A tar file of img2dataset with three pictures; those of `bad` cannot be read."""
    with tarfile.open(path, "w") as tar:
        for number in range(first, first + 3):
            key = f"{number:09d}"
            add(tar, f"{key}.jpg", BAD if number in bad else jpeg(number))
            add(tar, f"{key}.txt", f"alt text {number}".encode())
            values = {"caption": f"alt text {number}", "url": "u", "key": key}
            add(tar, f"{key}.json", json.dumps(values).encode())


def tars(folder, bad=()):
    folder.mkdir()
    for shard in range(3):
        tar_shard(folder / f"{shard:05d}.tar", 3 * shard, bad)
    # img2dataset writes the table beside each shard, without pictures.
    pyarrow.parquet.write_table(pyarrow.table({"url": ["u"]}), folder / "00000.parquet")
    return folder


def parquets(folder):
    """As Hugging Face stores pictures, and as img2dataset does."""
    folder.mkdir()
    image = [{"bytes": jpeg(n), "path": f"dir/{n}.jpg"} for n in (0, 1)]
    table = pyarrow.table({"image": image, "text": [["one", "two"], None]})
    pyarrow.parquet.write_table(table, folder / "hub.parquet")
    table = pyarrow.table({"jpg": [jpeg(2), None], "key": ["k2", "k3"], "caption": ["three", None]})
    pyarrow.parquet.write_table(table, folder / "00000.parquet")
    return folder


def folders(folder):
    """img2dataset's layout of files: a folder for each shard."""
    for number in range(4):
        (folder / f"0000{number // 2}").mkdir(parents=True, exist_ok=True)
        picture(folder / f"0000{number // 2}" / f"{number}.jpg", number)
    (folder / "00000" / "0.txt").write_text("given\n")
    picture(folder / "00000" / "0.png", 9)  # the same name but for the ending
    return folder


def work(out, kind="jsonl", **changes):
    out.mkdir(exist_ok=True)
    made = Work(Model(None), kind, str(out), Wording(**changes), 16, 1)
    made.describe()
    return made


def run(source, out, kind="jsonl"):
    """Captions all shards in this process; returns the rows and the failures by shard."""
    captions = work(out, kind)
    shards = reading.shards_of([str(source)])
    for shard in captions.left(shards):
        captions(shard)
    found = {shard.name: captions.statistics(shard) for shard in shards}
    return {name: rows(out, name, kind) for name in found}, found


def rows(out, name, kind):
    if kind == "jsonl":
        return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
    if kind == "parquet":
        return pyarrow.parquet.read_table(out / f"{name}.parquet").to_pylist()
    with tarfile.open(out / f"{name}.tar") as tar:
        files = {info.name: tar.extractfile(info).read() for info in tar}
    return [json.loads(files[name]) for name in files if name.endswith(".json")]


def test_tar_shards_keep_keys_and_texts_and_list_what_fails(tmp_path):
    captions, found = run(tars(tmp_path / "in", bad=[4]), tmp_path / "out")
    assert list(captions) == ["00000", "00001", "00002"]
    assert [row["key"] for row in captions["00001"]] == ["000000003", "000000005"]
    assert captions["00000"][2]["given"] == ["alt text 2"]
    [failure] = found["00001"]["failed"]
    assert failure["key"] == "000000004" and "JPEG" in failure["reason"]
    assert (found["00001"]["pictures"], found["00001"]["captions"]) == (3, 2)
    expected = tfcap.load()(jpeg(0))
    row = captions["00000"][0]
    assert row["caption"] == row["captions"][0] == expected.text
    assert row["scores"][0] == pytest.approx(expected.score, abs=1e-5)
    assert row["confidences"][0] == pytest.approx(expected.confidence, abs=1e-5)
    assert len(row["captions"]) == len(row["scores"]) == 3


def test_parquet_has_a_key_from_a_column_or_the_name_of_the_picture(tmp_path):
    captions, found = run(parquets(tmp_path / "in"), tmp_path / "out", "parquet")
    assert [row["key"] for row in captions["hub"]] == ["0", "1"]
    assert [row["given"] for row in captions["hub"]] == [["one", "two"], []]
    assert [(row["key"], row["given"]) for row in captions["00000"]] == [("k2", ["three"])]
    assert found["00000"]["failed"] == [{"key": "k3", "reason": "the row has no picture"}]
    direct, _ = run(tmp_path / "in", tmp_path / "lines", "jsonl")
    for name, table in captions.items():
        assert [row["captions"] for row in table] == [row["captions"] for row in direct[name]]


def test_folders_have_a_shard_each(tmp_path, monkeypatch):
    captions, _ = run(folders(tmp_path / "in"), tmp_path / "out")
    keys = {name: [row["key"] for row in table] for name, table in captions.items()}
    assert keys == {"00000-00000": ["0.jpg", "0.png", "1"], "00001-00000": ["2", "3"]}
    assert captions["00000-00000"][0]["given"] == ["given"]
    monkeypatch.setattr(reading, "FOLDER_PICTURES", 2)
    names = [shard.name for shard in reading.shards_of([str(tmp_path / "in" / "00000")])]
    assert names == ["00000-00000", "00000-00001"]


def test_webdataset_holds_the_same_pictures_and_prepare_reads_the_new_captions(tmp_path):
    run(tars(tmp_path / "in"), tmp_path / "out", "webdataset")
    with tarfile.open(tmp_path / "in" / "00001.tar") as tar:
        before = {info.name: tar.extractfile(info).read() for info in tar}
    with tarfile.open(tmp_path / "out" / "00001.tar") as tar:
        after = {info.name: tar.extractfile(info).read() for info in tar}
    assert list(after) == list(before)
    assert after["000000003.jpg"] == before["000000003.jpg"]
    values = json.loads(after["000000003.json"])
    assert values["url"] == "u" and values["given"] == ["alt text 3"]
    assert after["000000003.txt"].decode() == values["caption"] == values["captions"][0]
    entries = READERS["webdataset"].read(Source((tmp_path / "out",)))
    assert len(entries) == 9 and entries[3].captions == tuple(values["captions"])


def test_pictures_without_a_name_get_the_ending_of_their_kind(tmp_path):
    table = pyarrow.table({"image": [jpeg(1)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    run(tmp_path / "a.parquet", tmp_path / "out", "webdataset")
    with tarfile.open(tmp_path / "out" / "a.tar") as tar:
        assert tar.getnames() == ["0.jpeg", "0.txt", "0.json"]


def test_a_damaged_shard_stops_no_other(tmp_path, caplog):
    source = tars(tmp_path / "in")
    content = (source / "00001.tar").read_bytes()
    (source / "00001.tar").write_bytes(content[: len(content) // 2])
    (tmp_path / "out").mkdir()
    done = caption(source, tmp_path / "out")
    assert done.returncode == 3 and "1 of 3 shards could not be read" in done.stderr
    assert "00001.tar is not a complete, uncompressed tar file" in done.stderr
    assert sorted(files_of(tmp_path / "out")) == [
        *("00000.jsonl", "00000_stats.json", "00002.jsonl", "00002_stats.json")
    ]
    (source / "00001.tar").write_bytes(content)
    done = caption(source, tmp_path / "out")
    assert done.returncode == 0 and "2 of 3 shards are captioned already" in done.stdout
    assert "9 of 9 pictures have captions" in done.stdout


def test_what_cannot_be_opened_stops_no_other_shard_and_is_told(tmp_path):
    source = parquets(tmp_path / "in")
    (source / "bad.parquet").write_bytes(b"half a file")
    out = tmp_path / "out"
    assert caption(source, out).returncode == 3
    assert {path.name for path in out.glob("*.jsonl")} == {"00000.jsonl", "hub.jsonl"}
    (source / "hub.parquet").write_bytes(b"now this, too")  # what it had is no longer counted
    done = caption(source, out)
    assert done.returncode == 3 and "2 of 3 shards could not be read" in done.stderr
    assert "1 of 2 pictures have captions" in done.stdout
    (source / "0.tar").symlink_to("nowhere.tar")
    done = caption(source / "0.tar", tmp_path / "out2")
    assert done.returncode == 3 and "1 of 1 shards could not be read" in done.stderr


def test_a_shard_whose_captions_were_deleted_is_done_again(tmp_path):
    run(tars(tmp_path / "in"), tmp_path / "out")
    (tmp_path / "out" / "00001.jsonl").unlink()
    (tmp_path / "out" / "00002_stats.json").write_text("{}")  # such as one of img2dataset
    shards = reading.shards_of([str(tmp_path / "in")])
    assert [s.name for s in work(tmp_path / "out").left(shards[:2])] == ["00001"]
    with pytest.raises(UsageError, match="another model: None, not 'aoanet"):
        work(tmp_path / "out").left(shards)


def test_webdataset_keeps_pictures_with_like_names_apart(tmp_path):
    (tmp_path / "in").mkdir()
    paths = ["a.v1.jpg", "a.v2.jpg", "image.php", "image.php"]
    image = [{"bytes": jpeg(n), "path": path} for n, path in enumerate(paths)]
    table = pyarrow.table({"image": image, "caption": [1, 2, 3, 4]})  # numbers are no captions
    pyarrow.parquet.write_table(table, tmp_path / "in" / "a.parquet")
    captions, _ = run(tmp_path / "in", tmp_path / "out", "webdataset")
    assert [row["key"] for row in captions["a"]] == ["a.v1", "a.v2", "image", "image-3"]
    assert len(READERS["webdataset"].read(Source((tmp_path / "out",)))) == 4
    with tarfile.open(tmp_path / "out" / "a.tar") as tar:
        assert tar.getnames()[::3] == ["a_v1.jpg", "a_v2.jpg", "image.jpeg", "image-3.jpeg"]
    table = pyarrow.table({"image": [jpeg(1), jpeg(2)], "key": ["1", "1"]})
    pyarrow.parquet.write_table(table, tmp_path / "twice.parquet")
    run(tmp_path / "twice.parquet", tmp_path / "out", "webdataset")
    with tarfile.open(tmp_path / "out" / "twice.tar") as tar:
        assert tar.getnames()[::3] == ["1.jpeg", "1-1.jpeg"]


def test_a_picture_of_a_folder_that_changes_is_captioned_again(tmp_path):
    source = folders(tmp_path / "in")
    run(source, tmp_path / "out")
    picture(source / "00001" / "2.jpg", 7)
    shards = reading.shards_of([str(source)])
    assert [shard.name for shard in work(tmp_path / "out").left(shards)] == ["00001-00000"]


def caption(source, out, *flags):
    flags = ["--images", str(source), "--write=jsonl", "--out", str(out), *flags]
    return commands.run_command("tfcap.caption", *flags)


def files_of(out):
    """Name -> content of the files that stay."""
    return {path.name: path.read_bytes() for path in out.glob("[!.]*")}


def wait_for_lock(out):
    """Waits for processes that were killed: each has the lock until it is gone."""
    for _ in range(300):
        with contextlib.suppress(ValueError), lock(out, "caption", ""):
            return
        time.sleep(0.1)
    raise AssertionError(f"{out} is locked")


@pytest.mark.slow
def test_a_killed_command_goes_on_and_writes_the_same_bytes(tmp_path):
    """Kills the command and its processes in the midst of a shard."""
    source = tmp_path / "in"
    source.mkdir()
    for shard in range(8):
        tar_shard(source / f"{shard:05d}.tar", 3 * shard, bad=[4])
    assert caption(source, tmp_path / "alone", "--workers=1").returncode == 0
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tfcap.caption", "--images", str(source), "--write=jsonl"]
    for finished in (1, 4):
        process = subprocess.Popen([*command, "--out", str(out)], start_new_session=True)
        while len(list(out.glob("*_stats.json"))) < finished:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_for_lock(out)
        assert len(list(out.glob("*_stats.json"))) < 8
    (out / ".tmp-1-abcdef12-00007.jsonl").write_text("half")
    done = caption(source, out)
    assert done.returncode == 0 and "shards are captioned already" in done.stdout
    assert files_of(out) == files_of(tmp_path / "alone")
    assert not list(out.glob(".tmp-*"))


def test_changed_shards_are_done_again_and_other_settings_are_refused(tmp_path):
    source = tars(tmp_path / "in")
    run(source, tmp_path / "out")
    tar_shard(source / "00001.tar", 3, bad=[3])
    shards = reading.shards_of([str(source)])
    assert [shard.name for shard in work(tmp_path / "out").left(shards)] == ["00001"]
    with pytest.raises(UsageError, match="captions with another wording: .*another `out`"):
        work(tmp_path / "out", sentence=True).left(shards)


def test_other_options_of_a_search_are_other_settings(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    shards = reading.shards_of([str(tars(tmp_path / "in"))])
    first, second = (
        Work(
            Model(("flickr8k",), decoding=f"length_power={p}"), "jsonl", str(out), Wording(), 16, 1
        )
        for p in (0, 1)
    )
    first.describe()
    first(shards[0])
    assert first.left(shards) == shards[1:]
    second.describe()
    with pytest.raises(UsageError, match="another decoding: "):
        second.left(shards)


def test_samples_differ_between_shards_and_not_between_runs(tmp_path):
    model = Model(("flickr8k",), decoding="search=sample,samples=2")
    source = tmp_path / "in"
    source.mkdir()
    for name in ("a", "b"):
        picture(source / name / "1.jpg") if (source / name).mkdir() is None else None
    texts = []
    for out in (tmp_path / "one", tmp_path / "two"):
        out.mkdir()
        captions = Work(model, "jsonl", str(out), Wording(), 16, 1)
        captions.describe()
        shards = reading.shards_of([str(source)])
        for shard in reversed(shards) if out.name == "two" else shards:
            captions(shard)
        texts.append({shard.name: rows(out, shard.name, "jsonl")[0] for shard in shards})
    assert texts[0] == texts[1]
    assert texts[0]["a-00000"]["captions"] != texts[0]["b-00000"]["captions"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--write=jsonl"], "`images` needs `write`"),
        (["--write=txt", "--out=o"], "`images` needs `write`, one of parquet, jsonl, webdataset"),
        (["--write=jsonl", "--out=o", "--overwrite"], "`overwrite` has no effect"),
        (["--write=jsonl", "--out=gs://bucket/o"], "is remote"),
        (["--write=jsonl", "--out=in"], "is the folder of `images`"),
        (["--write=jsonl", "--out=o", "missing"], "`images=missing` has no tar files"),
        (["--write=jsonl", "--out=o", "in/00000.tar"], "2 shards with the name 00000"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, monkeypatch, flags, reason):
    tars(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    done = commands.run_command("tfcap.caption", "--images=in", *flags)
    assert done.returncode == 2
    plain = done.stderr.replace("--", "").replace("`", "")
    assert reason.replace("`", "") in plain


def test_workers_without_shards_are_refused(tmp_path):
    done = commands.run_command("tfcap.caption", picture(tmp_path / "1.jpg"), "--workers=2")
    assert done.returncode == 2 and "--workers needs --images" in done.stderr


def test_names_of_tar_members_may_have_dots_and_folders(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "x/1.mask.png", BAD)
        add(tar, "x/1.jpg", jpeg(1))
        add(tar, "x/._1.jpg", BAD)
        add(tar, "x/2.json", b"[]")
    [row] = reading.shards_of([str(tmp_path / "a.tar")])[0].rows()
    assert (row.key, row.content, row.ending) == ("x/1", jpeg(1), "jpg")
    assert row.files == {"mask.png": BAD}
    assert io.BytesIO(row.content).read(2) == b"\xff\xd8"
