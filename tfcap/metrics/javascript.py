"""Finds a Java with JavaScript for SPICE, which formats its result with a script.

Java 8 to 14 have JavaScript inside (Nashorn; JEP 372 removed it from Java 15). A later Java needs
jars on the class path: those of Rhino, which run in every Java that has the module java.scripting,
or those of Nashorn, which need the module jdk.dynalink as well. The Java of the extra `java` lacks
jdk.dynalink, so `spice_jars` brings Rhino. The Java that runs METEOR is preferred; without
JavaScript in it, the other Javas of the machine are searched.
"""

import functools
import os
import pathlib
from collections.abc import Iterator

from tfcap.metrics import java as java_lib
from tfcap.metrics import spice_jars

LAST_WITH_JAVASCRIPT = 14
# The beginnings of the names of the jars; the rest is the version.
RHINO = ("rhino", "rhino-engine")
NASHORN = ("nashorn-core", "asm", "asm-commons", "asm-tree", "asm-util", "asm-analysis")
_FIRST_WITH_NASHORN_JARS = 11  # nashorn-core 15 is built for Java 11
# Where Javas are installed: Debian, Red Hat, SDKMAN, IntelliJ, macOS.
_PLACES = (
    "/usr/lib/jvm/*/bin/java",
    "/opt/*/bin/java",
    "~/.sdkman/candidates/java/*/bin/java",
    "~/.jdks/*/bin/java",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
)


def with_javascript(java: java_lib.Java, folder: pathlib.Path) -> java_lib.Java:
    """Returns a Java that can run JavaScript: `java` if it can, or another one of this machine.

    Args:
        java: The Java of the other metrics.
        folder: The directory of jars that is on the class path; jars of any version count.

    Raises:
        JavaError: No Java can run JavaScript; the message says what is missing.
    """
    rhino, nashorn = (
        all(any(folder.glob(f"{name}-[0-9]*.jar")) for name in names) for names in (RHINO, NASHORN)
    )
    if _usable(java, rhino, nashorn):
        return java
    for other in _others(java.path):
        if _usable(other, rhino, nashorn):
            return other
    remedy = f"To fetch it, run: {spice_jars.COMMAND}"
    if rhino or b"java.scripting@" not in _modules(java.path):
        remedy = "Install a full Java 8 or later: this one has no module java.scripting"
    raise java_lib.JavaError(
        f"SPICE needs JavaScript inside Java, and {java.path} (Java {java.version}) has none. "
        f"{remedy}"
    )


def _usable(java: java_lib.Java, rhino: bool, nashorn: bool) -> bool:
    if java.version < 9:
        return True  # Every Java 8 has JavaScript; it cannot list modules.
    modules = _modules(java.path)
    if java.version <= LAST_WITH_JAVASCRIPT and b"jdk.scripting.nashorn@" in modules:
        return True
    if b"java.scripting@" not in modules:
        return False
    new = java.version >= _FIRST_WITH_NASHORN_JARS
    return rhino or (nashorn and new and b"jdk.dynalink@" in modules)


@functools.cache
def _modules(path: str) -> bytes:
    """Returns the modules of a Java, one in a line with its version behind @."""
    try:
        return java_lib.run([path, "--list-modules"], timeout=30.0)[0]
    except java_lib.JavaError:
        return b""


def _others(path: str) -> Iterator[java_lib.Java]:
    """Yields the other Javas of the machine that run, the first found first."""
    seen = {os.path.realpath(path)}
    homes = [os.environ[name] for name in sorted(os.environ) if name.startswith("JAVA_HOME")]
    candidates = [os.path.join(home, "bin", "java") for home in homes]
    for pattern in _PLACES:
        folder = pathlib.Path(pattern.partition("*")[0]).expanduser()
        rest = pattern[len(pattern.partition("*")[0]) :]
        candidates += map(str, sorted(folder.glob(rest))) if folder.is_dir() else []
    for other in candidates:
        real = os.path.realpath(other)
        if real in seen or not os.path.isfile(real):
            continue
        seen.add(real)
        try:
            yield java_lib.find_java(other)
        except java_lib.JavaError:
            continue
