"""The mean of the last checkpoints, and small run directories."""

import dataclasses
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from helpers import commands
from helpers.run_files import EXPERIMENT, stored_weights, weights

from tfcap import export, runs
from tfcap.data.prepared import PreparedData
from tfcap.runs import build, checkpoints, compact

FILES = ["checkpoint", "ckpt-0.data-00000-of-00001", "ckpt-0.index", "dataset.json", "info.json"]
CONSENSUS = "search=sample,order=consensus"


@pytest.fixture(scope="module")
def small_run(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("small") / "run"
    path = compact.write(runs.load(trained).with_decoding("no_repeat_ngram=3", 5), str(out))
    assert path == str(out / "ckpt-0")
    return out


def test_weights_are_the_mean_of_the_last_checkpoints(trained, tmp_path):
    out = tmp_path / "mean"
    commands.run_here(
        *(export, "--model_dir", trained, "--export_dir", out, "--format=run", "--last=2"),
        "--weights=float32",
    )
    first, second = (stored_weights(f"{trained}/ckpt-{step}") for step in (4, 6))
    result = weights(runs.load(out).model)
    assert result.keys() == first.keys() == second.keys() and len(result) > 10
    for name, value in result.items():
        mean = (np.float64(first[name]) + second[name]) / 2
        np.testing.assert_array_equal(value, mean.astype(np.float32), err_msg=name)
    assert any((result[name] != second[name]).any() for name in result)
    assert json.loads((out / "info.json").read_text()) == {"signature": "cross-entropy"}
    with pytest.raises(ValueError, match="has 2 checkpoints, fewer than `last=5`"):
        compact.load_mean(trained, 5)


def test_weights_are_the_mean_of_several_runs(trained, tmp_path, capsys):
    out = tmp_path / "soup"
    folders = [trained, str(tmp_path / "mean")]
    flags = ["--format=run", "--weights=float32", "--model_dir", trained]
    commands.run_here(export, *flags, "--export_dir", folders[1], "--last=2")
    commands.run_here(export, *flags, "--export_dir", out, "--model_dir", folders[1])
    assert f"the mean of {' and '.join(folders)} is exported to {out}" in capsys.readouterr().out
    first, second = (weights(runs.load(one).model) for one in folders)
    assert any((first[name] != second[name]).any() for name in first)
    for name, value in weights(runs.load(out).model).items():
        mean = (np.float64(first[name]) + second[name]) / 2
        np.testing.assert_array_equal(value, mean.astype(np.float32), err_msg=name)
    assert json.loads((out / "info.json").read_text()) == {"signature": "cross-entropy"}
    run = runs.load(trained)
    params = run.params.replace(task={"model": {EXPERIMENT: {"width": 10}}})
    wider = build.build_model(params.task, len(run.vocab), run.fingerprint["features"])
    compact.write(dataclasses.replace(run, params=params, model=wider), str(tmp_path / "wider"))
    with pytest.raises(ValueError, match="The models of .*wider and .* differ"):
        compact.load_mean([trained, tmp_path / "wider"])


def test_it_holds_one_checkpoint_and_nothing_of_the_data(small_run, trained):
    assert sorted(os.listdir(small_run)) == [*FILES, "params.yaml", "vocab.txt"]
    text = "".join((small_run / name).read_text() for name in ("params.yaml", "dataset.json"))
    assert "shards" not in text and ".tfrecord" not in text and os.path.dirname(trained) not in text
    kept = json.loads((small_run / "dataset.json").read_text())["splits"]["train"]
    assert kept["images"] == 64 and kept["captions"] == 320
    [best] = pathlib.Path(trained, "best_ckpt").glob("*.data-*")
    # Without two slots of the optimizer in float32, and halved.
    assert os.path.getsize(small_run / FILES[1]) < best.stat().st_size / 5


def test_the_weights_are_those_of_the_best_checkpoint_in_float16(small_run, trained):
    stored, best = stored_weights(str(small_run / "ckpt-0")), runs.load(trained)
    loaded = weights(runs.load(small_run).model)
    assert stored.keys() == loaded.keys() == weights(best.model).keys()
    for name, value in weights(best.model).items():
        assert stored[name].dtype == np.float16 and loaded[name].dtype == np.float32
        np.testing.assert_array_equal(loaded[name], value.astype(np.float16), err_msg=name)


def test_it_keeps_the_signature_the_scores_and_the_new_decoding(small_run, trained, tmp_path):
    run, best = runs.load(small_run), runs.load(trained)
    assert run.signature == best.signature == "cross-entropy"
    scores = runs.read_best(f"{trained}/best_ckpt")
    kept = {name: scores[name] for name in ("loss", "perplexity")}
    assert runs.read_best(small_run) == kept  # the others are those of another search
    assert run.params.task.decoding.beam == 5 and run.params.task.decoding.no_repeat_ngram == 3
    changed = {"decoding": best.params.task.decoding.as_dict(), "data_dir": best.data_dir}
    assert run.params.replace(task=changed).as_dict() == best.params.as_dict()
    copy = shutil.copytree(trained, tmp_path / "run")
    info = copy / "best_ckpt" / "info.json"  # the perplexity of a model that diverges is infinite
    info.write_text(json.dumps(json.loads(info.read_text()) | {"perplexity": float("inf")}))
    compact.write(runs.load(str(copy)), str(tmp_path / "small"))
    scores.pop("perplexity")
    assert runs.read_best(str(tmp_path / "small")) == scores


def test_its_scores_are_not_those_of_weights_that_training_adds(trained, tmp_path):
    out = tmp_path / "run"
    compact.write(runs.load(trained), str(out), "float32")
    assert runs.load(str(out)).scores == runs.read_best(f"{trained}/best_ckpt")
    newest = checkpoints.newest_checkpoint(trained)
    for part in pathlib.Path(trained).glob(os.path.basename(newest) + ".*"):
        shutil.copy(part, out)
    info = json.loads((out / "info.json").read_text())
    (out / "info.json").write_text(json.dumps(info | {"signature": "EARLIER"}))
    later = runs.load(str(out), os.path.join(out, os.path.basename(newest)))
    assert later.scores == {} and later.signature == "cross-entropy"
    assert runs.load(str(out), str(out / "ckpt-0")).signature == "EARLIER"


def test_training_starts_from_it_and_does_not_continue_in_it(small_run, trained, shapes):
    data, run = PreparedData.load(shapes), runs.load(small_run)
    for train in (True, False):
        with pytest.raises(ValueError, match="its weights are float16. Start a new run .*init_ch"):
            runs.begin(str(small_run), EXPERIMENT, run.params, data, train=train)
    model = runs.load(trained, "latest").model
    assert checkpoints.restore_weights(model, str(small_run), start=True) == run.checkpoint
    for name, value in weights(run.model).items():
        np.testing.assert_array_equal(weights(model)[name], value)


def test_a_table_of_frequencies_is_kept_only_where_captions_need_it(trained, tmp_path):
    copy = shutil.copytree(trained, tmp_path / "copy")
    (copy / "document_frequency.npz").unlink()
    for name, source in (("run", trained), ("of_data", copy)):
        run, out = runs.load(str(source)).with_decoding(CONSENSUS), str(tmp_path / name)
        compact.write(run, out, "float32")
        files = [*FILES, "document_frequency.npz", "params.yaml", "vocab.txt"]
        assert sorted(os.listdir(out)) == sorted(files)
    run.params = run.params.replace(task={"data_dir": str(tmp_path)})
    with pytest.raises(ValueError, match="order=consensus needs the document_frequency.npz"):
        compact.write(run, str(tmp_path / "none"), "float32")
