"""The two files and the archive for COCO's server, from a model and from result files."""

import json
import shutil

import pytest
import tensorflow as tf
from helpers import commands

from tfcap import cli, decoding, submit
from tfcap.data.prepared import PreparedData
from tfcap.metrics import results, submission
from tfcap.metrics.submission import TEST, VAL
from tfcap.models.attention_lstm import AttentionLSTM

LISTS = {"val_images": [42, 73], "test_images": [1, 14, 16]}


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """A directory with COCO's lists and a result file of each split."""
    write_lists(tmp_path, LISTS)
    for split, ids in (("val", LISTS["val_images"]), ("test", LISTS["test_images"])):
        results.write_results(tmp_path / f"{split}.json", {i: f"a dog {i}" for i in reversed(ids)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_lists(folder, lists):
    (folder / "annotations").mkdir()
    names = {"val_images": "captions_val2014.json", "test_images": "image_info_test2014.json"}
    for flag, ids in lists.items():
        content = {"images": [{"id": image, "file_name": f"{image}.jpg"} for image in ids]}
        (folder / "annotations" / names[flag]).write_text(json.dumps(content))


def test_result_files_are_packed_without_a_model(inside, capsys):
    commands.run_here(submit, "--val=val.json", "--test=test.json", "--name=mine")
    folder = inside / "submission"
    assert sorted(path.name for path in folder.iterdir()) == [
        "captions_mine_results.zip",
        "captions_test2014_mine_results.json",
        "captions_val2014_mine_results.json",
    ]
    written = json.loads((folder / "captions_test2014_mine_results.json").read_text())
    assert written == [{"image_id": i, "caption": f"a dog {i}"} for i in LISTS["test_images"]]
    archive = folder / "captions_mine_results.zip"
    wanted = {VAL: LISTS["val_images"], TEST: LISTS["test_images"]}
    assert submission.check_archive(archive, "mine", wanted)[VAL] == {
        42: "a dog 42",
        73: "a dog 73",
    }
    assert "every image of annotations/captions_val2014.json and of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--test=test.json --name=a", "is missing|must be given"),
        ("--val=val.json --test=test.json", "must be given. Received: no --name."),
        ("--val=val.json --test=test.json --name=a/b", "--name must be 1 to 100 letters"),
        ("--val=val.json --test=test2014 --name=a", "--model_dir must be given"),
        ("--val=gone.json --test=test.json --name=a", "gone.json, which does not exist"),
        ("--val=test.json --test=test.json --name=a", "no images 42, 73"),
        ("--val=val.json --test=test.json --name=a --val_images=no.json", "Cannot read no.json"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(inside, arguments, message):
    with pytest.raises(ValueError, match=message):
        commands.run_here(submit, *arguments.split())
    assert not (inside / "submission").exists()


def test_what_a_place_can_be(inside):
    (inside / "data").mkdir()
    assert submit.place("val.json", "val") == submit.Place(file="val.json")
    assert submit.place("data", "val") == submit.Place(folder="data")
    assert submit.place("data:val", "val") == submit.Place(folder="data", split="val")
    assert submit.place("test2014", "test") == submit.Place(split="test2014")
    with pytest.raises(cli.UsageError, match="--test must be a prepared directory"):
        submit.place("nowhere/data", "test")


@pytest.mark.slow
def test_a_model_captions_both_splits_with_one_trace(trained, shapes, tmp_path, monkeypatch):
    data = PreparedData.load(shapes)
    ids = {split: data.index(split).id.tolist() for split in ("val", "test")}
    write_lists(tmp_path, {"val_images": ids["val"][::-1], "test_images": ids["test"]})
    out, lists = tmp_path / "out", tmp_path / "annotations"
    flags = ["--model_dir", trained, "--val", f"{shapes}:val", "--test", "test", "--name=lstm"]
    flags += ["--val_images", lists / "captions_val2014.json", "--out", out]
    flags += ["--test_images", lists / "image_info_test2014.json"]
    traced = []
    encode = AttentionLSTM.encode

    def counted(*arguments, **options):
        traced.append(not tf.executing_eagerly())
        return encode(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(AttentionLSTM, "encode", counted)
        commands.run_here(submit, *flags)
    assert sum(traced) == 1
    wanted = {VAL: ids["val"][::-1], TEST: ids["test"]}
    found = submission.check_archive(out / "captions_lstm_results.zip", "lstm", wanted)
    assert list(found[VAL]) == ids["val"][::-1] and all(found[TEST].values())
    (lists / "captions_val2014.json").write_text('{"images": [{"id": 987654321}]}')
    with pytest.raises(ValueError, match=f"split val of {shapes} must have all 1 images of"):
        commands.run_here(submit, *flags)
    flags[flags.index(f"{shapes}:val")] = shapes
    with pytest.raises(cli.UsageError, match="--val must name one of the splits train, val"):
        commands.run_here(submit, *flags)


def test_searches_that_differ_do_not_share_a_trace(shapes, moving_shapes, tmp_path):
    copy = shutil.copytree(shapes, tmp_path / "copy")
    options = decoding.Options(search="sample", samples=2, order="consensus")
    consensus = decoding.Search(options, 8, lambda tokens: tf.zeros(tf.shape(tokens)[:2]))
    beam = decoding.Search(decoding.Options(), 8)
    one, two, other = map(PreparedData.load, (shapes, str(copy), moving_shapes))
    assert submit.trace_key(one, beam) == submit.trace_key(two, beam)
    assert submit.trace_key(one, beam) != submit.trace_key(other, beam)
    assert submit.trace_key(one, consensus) == submit.trace_key(
        PreparedData.load(shapes), consensus
    )
    assert submit.trace_key(one, consensus) != submit.trace_key(two, consensus)
    assert submit.trace_key(one, consensus) != submit.trace_key(one, beam)
