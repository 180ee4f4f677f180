"""GPUs that TensorFlow does not use are found, and the memory that is free."""

import pytest

from tfcap import devices

TWO = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c1a7b0e-1111-2222-3333-444455556666)
  MIG 1g.5gb      Device  0: (UUID: MIG-1b2c)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-5c1a7b0e-1111-2222-3333-444455557777)
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    """An empty PATH and no folder of the driver."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_DRIVER", str(tmp_path / "gpus"))
    return tmp_path


def tool(path, text, code=0):
    """Writes an nvidia-smi that prints `text`."""
    script = path / "bin" / "nvidia-smi"
    script.write_text(
        f"#!/bin/sh\nwhile read -r l; do echo \"$l\"; done <<'E'\n{text}E\nexit {code}\n"
    )
    script.chmod(0o755)


def test_without_a_driver_there_is_no_gpu(path):
    assert devices.driver_gpus() == [] and devices.unused_gpus(0) == ""


def test_the_tool_of_the_driver_lists_the_gpus(path):
    tool(path, TWO)
    assert devices.driver_gpus() == ["NVIDIA A100-SXM4-40GB"] * 2
    assert devices.unused_gpus(1) == (
        "The driver shows 2 GPUs (NVIDIA A100-SXM4-40GB, NVIDIA A100-SXM4-40GB) and TensorFlow "
        "uses 1."
    )
    assert devices.unused_gpus(2) == ""


def test_gpus_that_are_hidden_on_purpose_are_not_missed(path, monkeypatch):
    tool(path, TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.unused_gpus(0) == ""


def test_without_a_tool_that_works_the_folder_of_the_driver_tells(path):
    tool(path, "NVIDIA-SMI has failed\n", code=9)
    assert devices.driver_gpus() == []
    (path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    assert devices.driver_gpus() == ["NVIDIA GPU"]
    (path / "gpus" / "0000:01:00.0" / "information").write_text("Model: \t NVIDIA T4\nIRQ: 9\n")
    assert devices.driver_gpus() == ["NVIDIA T4"]


def test_the_free_memory_is_less_than_the_memory():
    free = devices.available_memory()
    assert free is None or 0 < free < 2**50


def test_files_in_the_memory_of_a_container_count_as_free(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_CGROUP", tmp_path)
    whole = devices.available_memory()
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 3000\nactive_file 500\n")
    assert devices.available_memory() == (None if whole is None else 4000)
    (tmp_path / "memory.max").write_text("max\n")
    assert whole is None or devices.available_memory() > 5000
