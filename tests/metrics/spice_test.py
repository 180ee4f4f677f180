"""SPICE downloads nothing, and everything missing or broken is reported in one line."""

import json
import pathlib
import socket

import pytest

from tfcap.metrics import coco, javascript, spice
from tfcap.metrics import java as java_lib


@pytest.fixture
def jars(tmp_path):
    """A directory with empty files named like the CoreNLP jars."""
    directory = tmp_path / "corenlp"
    directory.mkdir()
    for name in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
        (directory / name).write_bytes(b"")
    return directory


def test_missing_jars_are_named_and_not_downloaded(
    java, tmp_path, monkeypatch, references, predictions
):
    def no_network(*_):
        raise AssertionError("tried to use the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    metrics = ("CIDEr", "SPICE")
    with coco.CocoScorer(metrics, java=java.path, corenlp=tmp_path) as scorer:
        found = scorer.score(references, predictions)
    assert found.corpus.keys() == {"CIDEr"}
    assert "python -m pycocoevalcap.spice.get_stanford_models" in found.unavailable["SPICE"]
    assert "stanford-corenlp-3.6.0.jar is not in" in found.unavailable["SPICE"]


def test_a_java_without_javascript_is_refused_before_the_parsing(java, jars, monkeypatch):
    if java.version <= 14:
        pytest.skip(f"Java {java.version} may have JavaScript")
    monkeypatch.setattr(javascript, "_others", lambda path: iter(()))
    with pytest.raises(java_lib.JavaError, match=f"has none. .*Java 8 to 14.* into {jars}"):
        spice.spice([["a dog"]], ["a dog"], java, corenlp=jars, timeout=60)


def test_a_failure_inside_spice_is_reported(java, jars):
    for name in javascript.JARS:
        (jars / f"{name}-15.4.jar").write_bytes(b"")
    with pytest.raises(java_lib.JavaError, match="ended with exit code 1: .*(Error|Exception)"):
        spice.spice([["a dog"]], ["a dog"], java, corenlp=jars, timeout=60)


def answering(tmp_path, java, answer):
    """Returns a Java that writes `answer` instead of running SPICE, and keeps its input."""
    path = tmp_path / "spice-java"
    (tmp_path / "answer").write_text(answer)
    path.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != edu.anu.spice.SpiceScorer ]; do shift; done\n'
        f'cp "$2" {tmp_path}/asked; cp {tmp_path}/answer "$4"\n'
    )
    path.chmod(0o755)
    return java_lib.Java(str(path), 8, "argument")


def test_request_and_answer_have_the_format_of_pycocoevalcap(tmp_path, java, jars):
    entries = [
        {"image_id": 1, "scores": {"All": {"f": 0.25}}},
        {"image_id": 0, "scores": {"All": {"f": 0.75}}},
    ]
    stand_in = answering(tmp_path, java, json.dumps(entries))
    found = spice.spice(
        [["a dog", "b"], ["a café"]], ["x", "y"], stand_in, corenlp=jars, timeout=60
    )
    assert found == (0.5, [0.75, 0.25])
    assert json.loads(pathlib.Path(tmp_path, "asked").read_text()) == [
        {"image_id": 0, "test": "x", "refs": ["a dog", "b"]},
        {"image_id": 1, "test": "y", "refs": ["a café"]},
    ]


@pytest.mark.parametrize("answer", ["", "[]", '[{"image_id": 0, "scores": {"All": {"f": null}}}]'])
def test_an_unreadable_answer_is_reported(tmp_path, java, jars, answer):
    stand_in = answering(tmp_path, java, answer)
    with pytest.raises(java_lib.JavaError, match="left no readable result"):
        spice.spice([["a"]], ["b"], stand_in, corenlp=jars, timeout=60)
