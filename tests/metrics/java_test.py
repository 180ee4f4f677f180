"""Java is found and speaks English, failing commands end, tokens are those of pycocoevalcap."""

import os
import time

import pytest

from tfcap.metrics import java as java_lib


def locale_of(java):
    """Returns the language and country of a Java that is started with `Java.command`."""
    command = java.command("-XshowSettings:properties", "-version", heap_gb=1, open_modules=True)
    _, settings = java_lib.run(command, timeout=60)
    pairs = [line.split(" = ") for line in settings.decode().splitlines() if " = " in line]
    result = {key.strip(): value.strip() for key, value in pairs}
    return result["user.language"], result["user.country"], result.get("user.language.format", "en")


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"])
def test_the_locale_is_english_with_any_environment(java, monkeypatch, variable):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv(variable, "-Duser.language=de -Duser.country=DE -Duser.language.format=de")
    assert locale_of(java) == ("en", "US", "en")


def test_a_java_that_does_not_run_is_skipped(java, monkeypatch, tmp_path):
    if os.name != "posix":
        pytest.skip("the stand-in is a shell script")
    broken = tmp_path / "java"
    broken.write_text("#!/bin/sh\necho Unable to locate a Java Runtime >&2\nexit 1\n")
    broken.chmod(0o755)
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").symlink_to(java.path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_lib.find_java().source == "JAVA_HOME"
    with pytest.raises(java_lib.JavaError, match="Unable to locate a Java Runtime"):
        java_lib.find_java(broken)


def test_the_version_of_a_java_is_asked_once(tmp_path):
    path, starts = tmp_path / "java", tmp_path / "starts"
    path.write_text(f"#!/bin/sh\necho >> {starts}\necho 'openjdk version \"17.0.1\"' >&2\n")
    path.chmod(0o755)
    for _ in range(2):
        assert java_lib.find_java(path).version == 17
    assert starts.read_text() == "\n"


@pytest.mark.slow
def test_a_hanging_command_is_ended_with_its_children(tmp_path):
    if os.name != "posix":
        pytest.skip("uses a shell")
    marker = tmp_path / "marker"
    start = time.monotonic()
    with pytest.raises(java_lib.JavaError, match="no result within 0.3 s"):
        java_lib.run(["sh", "-c", f"(sleep 1; touch {marker}) & wait"], timeout=0.3)
    assert time.monotonic() - start < 1
    time.sleep(1.5)
    assert not marker.exists(), "the child outlived the command"


def tokenize(captions, java):
    return java_lib.ptb_tokenize([java_lib.one_line(c) for c in captions], java)


def test_ptb_tokens_equal_those_of_pycocoevalcap(java, official_tokenize, references, predictions):
    captions = [caption for captions in references.values() for caption in captions]
    captions += ["", *predictions.values(), "I ate vitamin C.", "Two <unk> birds", "(a [b])"]
    official = official_tokenize({1: captions})[1]
    assert tokenize(captions, java) == official
    assert official[0] == "a small red circle is above the large blue square"


def test_line_breaks_do_not_split_a_caption(java):
    captions = ["a dog\nruns", "a\r\ncat", "one\u2028two\u0085three\x0bfour\ttabs", "", "end"]
    expected = ["a dog runs", "a cat", "one two three four tabs", "", "end"]
    assert tokenize(captions, java) == expected
    tokens = tokenize(['A dog <p align="x', 'y"> and a cat', "the last one"], java)
    assert len(tokens) == 3 and tokens[2] == "the last one"  # an unfinished tag joins no captions


def test_other_scripts_and_invalid_text_are_tokenized(java, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    captions = ["Ein Mädchen läuft", "犬が走る", "a \ud83d dog", "a dog \N{GRINNING FACE}"]
    assert tokenize(captions, java) == ["ein mädchen läuft", "犬が走る", "a dog", "a dog"]
