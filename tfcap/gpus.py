"""Finds out why NVIDIA GPUs do not compute: missing libraries, missing kernels, a second CUDA.

Most functions take logs and version numbers as arguments, so that their tests need no GPU.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

USE_GPUS = "pip install 'tfcap[cuda]'"

# A process of its own, because a kernel that fails can end it. It runs one product in each
# precision, plain and compiled by XLA, and prints a line for each.
_PROGRAM = """
import json, sys
import numpy as np
import tensorflow as tf
gpu = tf.config.list_physical_devices("GPU")[int(sys.argv[1])]
tf.config.set_visible_devices([gpu], "GPU")
tf.config.experimental.set_memory_growth(gpu, True)
left = np.random.default_rng(1).integers(-2, 3, (64, 64))
for dtype in ("float32", "bfloat16", "float16"):
    for xla in (False, True):
        name = f"{dtype} with XLA" if xla else dtype
        print(json.dumps({"name": name}), flush=True)
        with tf.device("/GPU:0"):
            value = tf.constant(left, dtype)
            product = tf.function(tf.matmul, jit_compile=xla)(value, value, transpose_b=True)
        good = np.array_equal(tf.cast(product, tf.float32), left @ left.T)
        print(json.dumps({"name": name, "good": bool(good)}), flush=True)
"""


def missing_libraries(log: str) -> list[str]:
    """Returns the file names of the libraries that TensorFlow looked for and did not find.

    Args:
      log: what TensorFlow logs at its start, see `start_log`.
    """
    names = re.findall(r"Could not load dynamic library '([^']+)'", log)
    return list(dict.fromkeys(names))


def start_log() -> str:
    """Starts TensorFlow in a new process, and returns what it logs when it looks for GPUs.

    The log is detailed enough to name each library (VLOG level 1).
    """
    levels = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_MAX_VLOG_LEVEL": "1"}
    program = "import tensorflow as tf; tf.config.list_physical_devices('GPU')"
    return _child([program], levels).stderr


def explain_missing(names: Sequence[str], wheels: Mapping[str, str]) -> str:
    """Returns a text that says what the user can do about missing libraries; "" if none is missing.

    Args:
      names: the file names of the missing libraries.
      wheels: the result of `wheel_libraries`.
    """
    if "libcuda.so.1" in names:
        return "libcuda.so.1 is missing: install NVIDIA's driver, or give the container its GPUs."
    if here := [name for name in names if name in wheels]:
        directories = ":".join(dict.fromkeys(wheels[name] for name in here))
        return (
            f"TensorFlow does not find {', '.join(here)}. Run: export LD_LIBRARY_PATH={directories}"
        )
    return f"{', '.join(names)} is missing: pip install 'tfcap[cuda]'." if names else ""


def wheel_libraries(site: str | None = None) -> dict[str, str]:
    """Finds the libraries that pip installed with NVIDIA's wheels.

    Args:
      site: the directory of the installed packages; None searches those of this Python.

    Returns:
      the file name of each library -> its directory.
    """
    roots = [site] if site else [path for path in sys.path if path.endswith("-packages")]
    files = (file for root in roots for file in pathlib.Path(root).glob("nvidia/*/lib/*.so*"))
    return {file.name: str(file.parent) for file in files}


def other_cuda(search_path: str, wheels: Mapping[str, str]) -> list[str]:
    """Finds a second CUDA, whose libraries would be loaded in place of those that pip installed.

    Args:
      search_path: the value of LD_LIBRARY_PATH.
      wheels: the result of `wheel_libraries`.

    Returns:
      the directories of LD_LIBRARY_PATH with such libraries; none if pip installed no libraries.
    """
    if not wheels:  # a CUDA of the system alone is right
        return []
    names = re.compile(r"lib(cudart|cudnn|cublas)\b.*\.so")
    directories = set(search_path.split(":")) - set(wheels.values())
    return [
        directory
        for directory in sorted(filter(os.path.isdir, directories))
        if any(map(names.match, os.listdir(directory)))
    ]


def has_kernels(capability: tuple[int, int], built: Sequence[str]) -> bool:
    """True if TensorFlow was built with kernels that run on a GPU.

    Kernels named `sm_XY` run on GPUs of the compute capability X.Y, and of capabilities with the
    same X and a larger Y. So `sm_80` runs on all GPUs of capability 8.x. The names `compute_XY`
    are treated in the same way. The driver could compile the code of `compute_XY` for a GPU with a
    larger X, too, but only if the CUDA version knows that GPU. This function does not rely on it.

    Args:
      capability: the compute capability of the GPU, major and minor, such as (8, 6).
      built: the `cuda_compute_capabilities` of `tf.sysconfig.get_build_info()`, such as `sm_80`.
    """
    major, minor = capability
    matches = [re.fullmatch(r"(sm|compute)_(\d+)(\d)", name) for name in built]
    return any(int(match[2]) == major and int(match[3]) <= minor for match in matches if match)


def compute(gpu: int) -> str:
    """Tests a GPU by products of matrices, in a new process.

    Args:
      gpu: the index of the GPU, from 0.

    Returns:
      A text that says what failed; "" if nothing did.
    """
    done = _child([_PROGRAM, str(gpu)], {"TF_CPP_MIN_LOG_LEVEL": "1"})
    return _failed_products(done.stdout, done.stderr, done.returncode)


def _failed_products(out: str, errors: str, code: int) -> str:
    """Reads from the output of `_PROGRAM` which products failed; "" if none did.

    Args:
      out, errors: standard output and standard error of the process.
      code: its exit code.
    """
    rows = [json.loads(line) for line in out.splitlines() if re.fullmatch(r"\{.*\}", line)]
    ended = {row["name"] for row in rows if "good" in row}
    wrong = [row["name"] for row in rows if not row.get("good", True)]
    if code:
        reason = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
        at = [row["name"] for row in rows if row["name"] not in ended]
        return f"a product in {at[0] if at else 'float32'} failed (code {code}): {reason[:300]}"
    return f"wrong products in {', '.join(wrong)}" if wrong else ""


def _child(arguments: list[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", *arguments]
    env = os.environ | variables
    try:
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired as error:
        printed = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return subprocess.CompletedProcess(command, 1, printed, "no answer in five minutes")


def driver_gpus() -> list[str]:
    """Returns the names of the GPUs that NVIDIA's driver finds, by nvidia-smi.

    The list is empty if nvidia-smi does not run. TensorFlow may be unable to use these GPUs.
    """
    try:
        lines = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return re.findall(r"^GPU \d+: (.*?)(?: \(UUID.*)?$", lines, re.M)


def unused_gpus(used: int) -> str:
    """Returns a warning if TensorFlow uses fewer GPUs than the driver finds, else "".

    The result is also "" if CUDA_VISIBLE_DEVICES is set: then the user has chosen the GPUs.

    Args:
      used: the number of GPUs that TensorFlow uses.
    """
    if "CUDA_VISIBLE_DEVICES" in os.environ or len(names := driver_gpus()) <= used:
        return ""
    return f"The driver shows {len(names)} GPUs ({', '.join(names)}) and TensorFlow uses {used}."
