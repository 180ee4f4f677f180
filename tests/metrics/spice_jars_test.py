"""Jars are fetched by Maven's client only, checked, and kept outside the environment."""

import hashlib
import pathlib
import shutil

import pytest
from pycocoevalcap.spice import spice as official

from tfcap import files
from tfcap.metrics import spice_jars

CONTENT = b"a small jar"
SMALL = spice_jars.Artifact("g.h:small:1.0:jar:part", 0.1, hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def mvn(tmp_path, monkeypatch):
    """Makes an `mvn` that runs these lines of shell; $to is the directory that it is given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(lines):
        path = folder / "mvn"
        path.write_text(f"#!/bin/sh\nfor last; do :; done; to=${{last#*=}}\n{lines}\n")
        path.chmod(0o755)

    return make


def test_files_have_the_names_of_maven_and_no_address_stands_in_the_code():
    names = [artifact.file_name for artifact in spice_jars.ARTIFACTS]
    assert names[:2] == ["stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"]
    assert names[2:] == ["rhino-1.7.15.1.jar", "rhino-engine-1.7.15.1.jar"]
    assert SMALL.file_name == "small-1.0-part.jar"
    source = pathlib.Path(spice_jars.__file__).read_text()
    assert "://" not in source and "www." not in source and ".com" not in source


def test_the_directory_is_in_the_cache_of_the_user_or_the_one_that_is_given(monkeypatch):
    monkeypatch.delenv(spice_jars.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert spice_jars.folder() == pathlib.Path("/caches/tfcap/spice")
    monkeypatch.setenv("HOME", "/home/me")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert spice_jars.folder() == pathlib.Path("/home/me/.cache/tfcap/spice")
    monkeypatch.setenv(spice_jars.FOLDER_VARIABLE, "/jars")
    assert spice_jars.folder() == pathlib.Path("/jars")


def test_a_fetched_jar_is_stored_and_no_longer_missing(tmp_path, mvn, monkeypatch):
    monkeypatch.setattr(spice_jars, "ARTIFACTS", (SMALL,))
    mvn(f"echo $@ > {tmp_path}/asked; printf 'a small jar' > $to/small-1.0-part.jar")
    directory = tmp_path / "a" / "b"
    assert spice_jars.missing(directory) == [SMALL]
    spice_jars.fetch(SMALL, directory)
    assert [path.name for path in directory.iterdir()] == ["small-1.0-part.jar"]
    assert spice_jars.missing(directory) == []
    assert "-Dartifact=g.h:small:1.0:jar:part " in (tmp_path / "asked").read_text()
    (directory / "small-1.0-part.jar").write_bytes(CONTENT[:-1])  # cut on a full disk
    assert spice_jars.missing(directory) == [SMALL]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("printf other > $to/small-1.0-part.jar", "must have the SHA-256 .* Received: d9298a10d"),
        ("exit 0", "brought no small-1.0-part.jar"),
        ("echo start; echo '[ERROR] No route to host'; echo '[ERROR] more'; exit 1", "No route"),
        ("exec sleep 60", "longer than 0.1 s"),
    ],
)
def test_nothing_is_stored_if_a_fetch_fails(tmp_path, mvn, monkeypatch, lines, message):
    monkeypatch.setattr(spice_jars, "_SECONDS", 0.1 if "sleep" in lines else 60)
    mvn(lines)
    with pytest.raises(ValueError, match=message):
        spice_jars.fetch(SMALL, tmp_path / "jars")
    assert list((tmp_path / "jars").iterdir()) == []


def test_without_maven_nothing_is_fetched_and_the_coordinates_are_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="mvn, the client of Maven, is not installed"):
        spice_jars.fetch(SMALL, tmp_path / "jars")
    text = spice_jars.by_hand([SMALL], tmp_path)
    assert all(part in text for part in (SMALL.coordinates, SMALL.sha256, str(tmp_path)))


@pytest.mark.slow
def test_maven_itself_brings_a_small_jar(tmp_path):
    """It is one that pycocoevalcap brings too, so its digest is known."""
    if not shutil.which("mvn"):
        pytest.skip("mvn, the client of Maven, is not installed")
    own = pathlib.Path(official.__file__).parent / "lib" / "hamcrest-core-1.3.jar"
    artifact = spice_jars.Artifact("org.hamcrest:hamcrest-core:1.3", 0.05, files.file_sha256(own))
    try:
        spice_jars.fetch(artifact, tmp_path)
    except ValueError as error:
        if "mvn failed" in str(error):
            pytest.skip(f"Maven's registry cannot be reached: {error}")
        raise
    assert (tmp_path / "hamcrest-core-1.3.jar").read_bytes() == own.read_bytes()
