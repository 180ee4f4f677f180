"""A healthy run is ok in every check; each damage is found by its own check."""

import os
import shutil

import numpy as np
import pytest
from helpers.findings import by_check, cut, faults
from helpers.prepared import with_other_vocabulary

from tfcap import runs, storage
from tfcap.files import read_json, write_json
from tfcap.health import run as health

DATA = "ckpt-6.data-00000-of-00001"


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a finished run of 6 steps with checkpoints at steps 4 and 6."""
    return shutil.copytree(trained, tmp_path / "run")


def test_a_finished_run_is_healthy(trained, shapes):
    found = by_check(health.findings(trained))
    assert not faults(found.values())
    assert list(found) == [
        "configuration",
        "vocabulary",
        "backbone",
        "checkpoint 4",
        "checkpoint 6",
        "checkpoint best",
        "newest",
        "best",
        "weights fit",
        "data",
    ]
    assert found["newest"].text == "2 checkpoints; training goes on from step 6"
    assert "trains attention_lstm for 6 steps" in found["configuration"].text
    assert found["best"].text.startswith("step 6 with CIDEr ") and shapes in found["data"].text
    assert "have 12 words or more, so task.max_length=12 cuts them" in found["data"].text


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: cut(f / DATA), {"checkpoint 6"}),
        (lambda f: cut(f / DATA, 0), {"checkpoint 6"}),
        (lambda f: (f / "ckpt-4.index").unlink(), {"checkpoint 4"}),
        (
            lambda f: cut(next((f / "best_ckpt").glob("*.data*")), 0.01),
            {"checkpoint best", "weights fit"},
        ),
        (lambda f: (f / "params.yaml").write_text("task: ["), {"configuration"}),
        (lambda f: (f / "params.yaml").unlink(), {"configuration"}),
        (lambda f: (f / "vocab.txt").unlink(), {"vocabulary", "weights fit"}),
        (lambda f: cut(f / "dataset.json"), {"vocabulary", "backbone", "weights fit", "data"}),
        (lambda f: cut(f / "best_ckpt" / "info.json"), {"best", "weights fit"}),
    ],
    ids=["cut", "empty", "index", "best", "params", "no params", "words", "fingerprint", "info"],
)
def test_damage_is_found_by_its_own_checks(run, damage, expected):
    damage(run)
    found = by_check(health.findings(str(run)))
    assert faults(found.values()) == dict.fromkeys(expected, "problem")
    assert all("Traceback" not in str(finding) for finding in found.values())


def test_a_damaged_checkpoint_has_a_remedy(run):
    cut(run / DATA)
    found = by_check(health.findings(str(run)))["checkpoint 6"]
    assert f"{run}/ckpt-6 is damaged" in found.text
    assert found.remedy.startswith("The next start of the training skips it.")


def test_training_goes_on_from_the_newest_checkpoint_that_can_be_read(run):
    cut(run / DATA)
    newest = by_check(health.findings(str(run)))["newest"]
    assert newest.status == "ok"
    assert newest.text == ("2 checkpoints; training goes on from step 4, because ckpt-6 is damaged")
    for path in run.glob("ckpt-4.*"):  # an older one, which the file names
        shutil.copy(path, run / path.name.replace("ckpt-4", "ckpt-2"))
    (run / "checkpoint").write_text('model_checkpoint_path: "ckpt-2"\n')
    newest = by_check(health.findings(str(run)))["newest"]
    assert newest.text.startswith("The newest checkpoint is ckpt-4, but the file checkpoint names")
    assert newest.remedy.endswith(f"--checkpoint {run}/ckpt-4.")
    for step in (2, 4):
        cut(run / f"ckpt-{step}.data-00000-of-00001")
    newest = by_check(health.findings(str(run)))["newest"]
    assert newest.status == "problem" and "None of the 3 checkpoints in" in newest.text


def test_weights_that_are_not_finite_are_named(trained, tmp_path):
    loaded = runs.load(trained)
    weight = loaded.model.checkpoint_items["weights"]["head/bias"]
    weight.assign(np.where(np.arange(weight.shape[0]) == 5, np.nan, weight))
    folder = str(tmp_path / "run")
    runs.create(
        folder, "attention_lstm", loaded.params, loaded.vocab, loaded.fingerprint, loaded.model
    )
    found = by_check(health.findings(folder))
    assert faults(found.values()) == {"checkpoint 0": "problem"}
    assert f"NaN or infinity in head/bias (1 of {weight.shape[0]})" in found["checkpoint 0"].text
    assert "learning_rate" in found["checkpoint 0"].remedy


def test_a_swapped_vocabulary_is_found(run):
    words = (run / "vocab.txt").read_text().splitlines()
    (run / "vocab.txt").write_text("\n".join([*words[:4], *words[:3:-1]]) + "\n")
    found = by_check(health.findings(str(run)))
    assert faults(found.values()) == {"vocabulary": "problem", "weights fit": "problem"}
    assert "must be the vocabulary of dataset.json" in found["vocabulary"].text
    assert "Copy vocab.txt from the prepared data" in found["vocabulary"].text


def test_data_of_another_vocabulary_is_found(trained, shapes, tmp_path):
    other = with_other_vocabulary(shapes, tmp_path / "other")
    found = by_check(health.findings(trained, other))
    assert faults(found.values()) == {"data": "problem"}
    assert "The vocabulary must be the one that" in found["data"].text


def test_data_that_has_gone_is_a_warning(run):
    text = (run / "params.yaml").read_text()
    lines = [line if "data_dir:" not in line else "  data_dir: /gone" for line in text.splitlines()]
    (run / "params.yaml").write_text("\n".join(lines))
    found = by_check(health.findings(str(run)))
    assert faults(found.values()) == {"data": "warning"}
    assert "/gone, which the run was trained on, does not exist" in found["data"].text


def test_a_wrong_data_dir_is_not_said_to_be_that_of_the_training(trained, shapes, tmp_path):
    found = by_check(health.findings(trained, str(tmp_path / "typo")))
    assert faults(found.values()) == {"data": "warning"}
    assert found["data"].text == f"--data_dir {tmp_path}/typo is not a directory."
    assert found["data"].remedy.endswith(f"leave it out to compare the run with {shapes}.")


def test_data_in_remote_storage_is_compared(run, shapes):
    """TensorFlow's file system in memory stands for an object store."""
    place = "ram://doctor/shapes"
    storage.copy_files(shapes, place)
    text = (run / "params.yaml").read_text()
    assert shapes in text
    (run / "params.yaml").write_text(text.replace(shapes, place))
    for given in (None, place):
        found = by_check(health.findings(str(run), given))
        assert not faults(found.values()) and place in found["data"].text


def test_other_data_in_the_default_place_is_a_warning_for_a_run_that_names_none(
    run, shapes, tmp_path, monkeypatch
):
    text = (run / "params.yaml").read_text()
    lines = [line if "data_dir:" not in line else "  data_dir: ''" for line in text.splitlines()]
    (run / "params.yaml").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    found = by_check(health.findings(str(run)))
    assert found["data"].status == "ok" and "does not exist yet" in found["data"].text
    (tmp_path / "data").mkdir()
    with_other_vocabulary(shapes, tmp_path / "data" / "shapes")
    found = by_check(health.findings(str(run)))
    assert faults(found.values()) == {"data": "warning"}


def test_a_state_file_that_names_an_older_checkpoint_is_a_warning(run):
    (run / "checkpoint").write_text('model_checkpoint_path: "ckpt-4"\n')
    found = by_check(health.findings(str(run)))
    assert faults(found.values()) == {"newest": "warning"}
    assert "The newest checkpoint is ckpt-6, but the file checkpoint names" in found["newest"].text


def test_scores_of_another_step_are_found(run):
    info = run / "best_ckpt" / "info.json"
    scores = read_json(info, "")
    write_json(info, scores | {"best_ckpt_global_step": 4.0})
    assert "is of step 4, but" in by_check(health.findings(str(run)))["best"].text
    os.remove(info)
    assert faults(health.findings(str(run))) == {"best": "warning"}


def test_a_run_without_checkpoints_is_a_problem(run):
    for path in [*run.glob("ckpt-*"), *run.glob("best_ckpt/*"), run / "checkpoint"]:
        path.unlink()
    found = by_check(health.findings(str(run)))
    assert faults(found.values()) == {"newest": "problem", "weights fit": "problem"}


def test_a_directory_that_does_not_exist_is_a_problem(tmp_path):
    (found,) = health.findings(str(tmp_path / "none"))
    assert found.status == "problem" and "none is not a directory" in found.text
