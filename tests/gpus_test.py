"""Why a GPU does not compute: decided from logs, folders and numbers."""

import json
import os

import pytest

from tfcap import gpus

LOG = """
I dso_loader.cc:87] Could not load dynamic library 'libcudnn.so.9'; dlerror:
I cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.
I dso_loader.cc:87] Could not load dynamic library 'libcudnn.so.9'; dlerror:
I dso_loader.cc:87] Could not load dynamic library 'libcufft.so.11'; dlerror:
"""
BUILT = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]  # of TensorFlow 2.20


@pytest.mark.parametrize(
    ("log", "installed", "advice"),
    [
        (LOG, [], "libcudnn.so.9, libcufft.so.11 is missing: pip install 'tfcap[cuda]'."),
        (LOG, ["cudnn/lib/libcudnn.so.9"], "LD_LIBRARY_PATH={}/nvidia/cudnn/lib"),
        (LOG.replace("libcufft.so.11", "libcuda.so.1"), [], "install NVIDIA's driver"),
        ("nothing", [], ""),
    ],
)
def test_a_missing_library_is_named_with_the_way_out(tmp_path, log, installed, advice):
    for name in installed:
        path = tmp_path / "nvidia" / name
        path.parent.mkdir(parents=True)
        path.touch()
    wheels = gpus.wheel_libraries(str(tmp_path))
    text = gpus.explain_missing(gpus.missing_libraries(log), wheels)
    assert text.endswith(advice.format(tmp_path)) if installed else advice in text
    assert bool(text) == bool(advice)


@pytest.mark.slow
def test_the_log_of_this_machine_is_read():
    """Without a driver, TensorFlow looks for it and does not find it."""
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("this machine has NVIDIA's driver")
    assert "libcuda.so.1" in gpus.missing_libraries(gpus.start_log())


def test_another_cuda_in_the_search_path_is_found(tmp_path):
    other, wheel = tmp_path / "cuda-11/lib64", tmp_path / "nvidia/cudnn/lib"
    for folder, name in ((other, "libcudart.so.11.0"), (wheel, "libcudnn.so.9")):
        folder.mkdir(parents=True)
        (folder / name).touch()
    path = f"{wheel}:{tmp_path}:{tmp_path}/none:{other}:"
    assert gpus.other_cuda(path, gpus.wheel_libraries(str(tmp_path))) == [str(other)]
    assert not gpus.other_cuda(path, {})  # a system CUDA alone is no fault


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((8, 6), True),  # RTX 30
        ((8, 9), True),  # RTX 40
        ((7, 5), True),
        ((9, 0), True),  # H100
        ((12, 0), False),  # RTX 50
        ((5, 2), False),
    ],
)
def test_cards_that_tensorflow_has_kernels_for(capability, expected):
    assert gpus.has_kernels(capability, BUILT) == expected


def test_the_product_that_failed_is_named():
    begun = json.dumps({"name": "float32 with XLA"})
    done = json.dumps({"name": "float32", "good": True})
    text = gpus._failed_products(f"{done}\n{begun}\n", "log\nCUDA_ERROR_INVALID_PTX\n\n", -6)
    assert text == "a product in float32 with XLA failed (code -6): CUDA_ERROR_INVALID_PTX"
    wrong = json.dumps({"name": "float16", "good": False})
    assert gpus._failed_products(f"{done}\n{wrong}\n", "", 0) == "wrong products in float16"
    assert not gpus._failed_products(f"{done}\n", "", 0)
