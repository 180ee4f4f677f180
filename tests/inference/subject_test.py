"""Captions of files, lists and dictionaries are read without TensorFlow."""

import pytest
from helpers import commands

from tfcap import errors
from tfcap.inference.subject import named_paths, subject_of_captions, tokens_of_directory
from tfcap.metrics import results

REFERENCES = {7: ["a dog runs"], 9: ["two circles"], 11: ["a cat"]}


def test_a_subject_has_the_captions_and_the_references_of_its_images():
    subject = subject_of_captions({7: "a dog", 9: "circles"}, REFERENCES, "val")
    assert (subject.name, subject.images) == ("captions", [7, 9, 11])
    assert subject.captions.best() == {7: "a dog", 9: "circles"}
    assert subject.references == REFERENCES and subject.max_regions is None
    subject = subject_of_captions(["a dog"], None, "test")
    assert subject.images == [0] and subject.references == {}


def test_only_the_images_that_all_have_are_compared(tmp_path, capsys):
    path, other = tmp_path / "lr0.1.json", tmp_path / "other.json"
    results.write_results(path, {7: "a dog", 9: "circles", 99: "a tree"})
    results.write_results(other, {9: "a circle", 11: "a cat"})
    subject = subject_of_captions(path, REFERENCES, "val", others=[str(other)])
    assert subject.name == "lr0.1" and subject.images == [9]
    assert subject.captions.best() == {9: "circles"}
    assert capsys.readouterr().out == "note: 1 of 3 images with references are scored\n"


def test_the_prepared_data_beside_references_says_how_they_are_cut(tmp_path, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    references = data / "references_val.json"
    assert tokens_of_directory(references) == tokens_of_directory(REFERENCES) == "raw"
    (data / "dataset.json").write_text('{"tokens": "characters"}')
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (references, str(references), "~/data/references_val.json"):
        assert tokens_of_directory(path) == "characters"
    for content in ("[]", "{}", '{"tokens": ["a", "b"]}'):  # of another program
        (data / "dataset.json").write_text(content)
        assert tokens_of_directory(references) == "raw"
    (data / "dataset.json").write_text("{")
    with pytest.raises(ValueError, match="dataset.json is not valid JSON.*Give `tokens`"):
        tokens_of_directory(references)


def test_others_have_names_of_their_own():
    assert named_paths(["a=x.json", "b=runs/b=1"], "c") == {"a": "x.json", "b": "runs/b=1"}
    for item in ("x.json", "=x.json"):
        with pytest.raises(errors.UsageError, match="must be NAME=results.json"):
            named_paths([item])
    for items in (["a=x", "a=y"], ["c=x"]):
        with pytest.raises(errors.UsageError, match="is already used"):
            named_paths(items, "c")


def test_captions_are_scored_without_tensorflow():
    program = (
        "import sys; from tfcap.evaluate import evaluate\n"
        "evaluate(['a dog'], [['a dog runs']], ['CIDEr'])\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert commands.python("-c", program).returncode == 0
