"""A healthy export captions the doctor's picture; each damage is found by its own check."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.findings import by_check, cut, faults

from tfcap import runs
from tfcap.health import export as health
from tfcap.runs import savedmodel


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "served")


@pytest.mark.slow
def test_an_export_is_healthy(exported):
    found = by_check(health.findings(exported))
    assert not faults(found.values())
    assert list(found) == ["versions", "files", "load", "signatures", "caption"]
    assert found["signatures"].text == (
        "features takes features, num_regions; serving_default takes image_bytes"
    )
    assert found["caption"].text.startswith("a drawn red disc: ")
    assert not faults(health.findings(f"{exported}/1"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: cut(f / "1" / "saved_model.pb"), {"load"}),
        (lambda f: cut(f / "1" / "saved_model.pb", 0.01), {"load"}),
        (lambda f: (f / "1" / "saved_model.pb").unlink(), {"files", "load"}),
        (lambda f: cut(f / "1" / "variables" / "variables.data-00000-of-00001"), {"load"}),
        (lambda f: (f / "1" / "variables" / "variables.index").unlink(), {"files", "load"}),
    ],
    ids=["graph", "most of the graph", "no graph", "variables", "index"],
)
def test_damage_is_found_by_its_own_checks(folder, damage, expected):
    damage(folder)
    found = by_check(health.findings(str(folder)))
    assert faults(found.values()) == dict.fromkeys(expected, "problem")
    assert found["load"].remedy.startswith("Export again: python -m tfcap.export")


@pytest.mark.slow
def test_a_missing_signature_is_found(served, tmp_path):
    signature = served.signatures()["serving_default"]
    tf.saved_model.save(served, str(tmp_path / "1"), signatures={"serving_default": signature})
    found = by_check(health.findings(str(tmp_path)))
    assert faults(found.values()) == {"signatures": "problem", "caption": "problem"}
    assert found["signatures"].text == (
        "The signature features is missing. Received: serving_default takes image_bytes."
    )


@pytest.mark.slow
def test_scores_that_are_not_finite_are_found(trained, tmp_path):
    broken = runs.server(runs.load(trained))
    bias = broken.model.checkpoint_items["weights"]["head/bias"]
    bias.assign(bias * np.nan)
    savedmodel._save(broken, str(tmp_path / "1"))
    found = by_check(health.findings(str(tmp_path)))
    assert faults(found.values()) == {"caption": "problem"}
    assert "scores of the exported model must be finite" in found["caption"].text


def test_directories_without_a_version_are_a_problem(tmp_path):
    (tmp_path / "latest").mkdir()
    (found,) = health.findings(str(tmp_path))
    assert found.status == "problem" and "has no version" in found.text
    (found,) = health.findings(str(tmp_path / "none"))
    assert found.status == "problem" and "is not a directory" in found.text


def test_the_newest_version_is_checked_and_leftovers_are_named(tmp_path):
    left = f".tmp-{'0' * 32}"
    for name in ("2", "10", left):
        (tmp_path / name).mkdir()
    found = by_check(health.findings(str(tmp_path)))
    assert found["versions"].status == "warning" and left in found["versions"].text
    (tmp_path / left).rmdir()
    assert by_check(health.findings(str(tmp_path)))["versions"].status == "ok"
    assert found["files"].text == f"{tmp_path}/10 lacks saved_model.pb, variables/variables.index."


def test_a_saved_model_whose_name_is_no_number_is_warned_of(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    found = by_check(health.findings(str(tmp_path)))
    assert (
        found["versions"].status == "warning" and "name is not a number" in found["versions"].text
    )
    assert found["load"].status == "problem"


def test_the_remedy_for_a_saved_model_works_with_a_slash_at_the_end(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"")
    remedy = by_check(health.findings(f"{folder}/"))["versions"].remedy
    assert remedy == (
        f"mkdir {folder}.served && mv {folder} {folder}.served/1, and serve {folder}.served."
    )
