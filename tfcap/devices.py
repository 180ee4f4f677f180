"""Finds the GPUs that the driver shows, and the memory that a new process can use."""

import glob
import os
import pathlib
import shutil
import subprocess

REMEDY = "pip install 'tfcap[cuda]'"
_DRIVER = "/proc/driver/nvidia/gpus"
_CGROUP = pathlib.Path("/sys/fs/cgroup")
_SECONDS = 20.0  # the first call of nvidia-smi after a start of the machine loads the driver


def driver_gpus() -> list[str]:
    """Lists the NVIDIA GPUs that the driver shows, whether or not TensorFlow can use them.

    Returns:
      The name of each GPU, as far as it is known; empty without a driver.
    """
    if tool := shutil.which("nvidia-smi"):
        try:
            shown = subprocess.run(
                [tool, "-L"], capture_output=True, text=True, timeout=_SECONDS, check=True
            ).stdout
            lines = [line for line in shown.splitlines() if line.startswith("GPU ")]
            return [line.partition(": ")[2].partition(" (UUID")[0] for line in lines]
        except (OSError, subprocess.SubprocessError):
            pass  # the tool may be there without its driver
    return [_model(folder) for folder in sorted(glob.glob(os.path.join(_DRIVER, "*")))]


def unused_gpus(used: int) -> str:
    """Returns a sentence if the driver shows more GPUs than TensorFlow uses.

    Args:
      used: the number of GPUs that TensorFlow lists.

    Returns:
      The sentence; empty if TensorFlow uses all GPUs, or if `CUDA_VISIBLE_DEVICES` hides some.
    """
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return ""
    shown = driver_gpus()
    if len(shown) <= used:
        return ""
    return f"The driver shows {len(shown)} GPUs ({', '.join(shown)}) and TensorFlow uses {used}."


def available_memory() -> int | None:
    """Returns the bytes that a new process can use; None if the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:  # a container may have less than the machine
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        parts = dict(map(str.split, (_CGROUP / "memory.stat").read_text().splitlines()))
        used -= int(parts["inactive_file"])  # pages of files, which the system can drop
        return min(free, int(limit) - used) if limit.isdecimal() else free
    except (OSError, KeyError, ValueError):
        return free


def _model(folder: str) -> str:
    """Reads the name of a GPU from the driver's folder for this GPU."""
    try:
        with open(os.path.join(folder, "information"), encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Model:"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return "NVIDIA GPU"
