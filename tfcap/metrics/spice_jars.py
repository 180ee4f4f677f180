"""Names the jars that SPICE needs besides those of pycocoevalcap, and fetches them with Maven.

pycocoevalcap brings SPICE's own jar and most of its libraries. It lacks CoreNLP 3.6.0 with its
models, and JavaScript for a Java that has none: SPICE formats its result with a script. Rhino runs
in every Java from 8 on. Nashorn does not run in the Java of the extra `java`, which has no module
jdk.dynalink.

Nothing is fetched unless the user asks for it. Maven's own client `mvn` knows the registry and the
user's mirrors, so this module holds coordinates and no address. Every file must have the SHA-256
below.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

from tfcap import files

COMMAND = "python -m tfcap.doctor --fetch spice"
FOLDER_VARIABLE = "TFCAP_SPICE_JARS"  # a directory of CoreNLP's jars and those of JavaScript
NO_MAVEN = (
    "mvn, the client of Maven, is not installed. Install it (on Debian and Ubuntu: sudo apt-get "
    f"install -y --no-install-recommends maven) and run {COMMAND}, or get the jars by hand."
)
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_SECONDS = 3600.0  # for one file


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A jar in Maven's registry.

    Attributes:
        coordinates: group:artifact:version, with ":jar:classifier" if it has a classifier.
        megabytes: Its size, for the message.
        sha256: The digest of its content, in hexadecimal.
    """

    coordinates: str
    megabytes: float
    sha256: str

    @property
    def file_name(self) -> str:
        """The name that Maven gives the file: artifact-version[-classifier].jar."""
        _, artifact, version, *rest = self.coordinates.split(":")
        return "-".join([artifact, version, *rest[1:]]) + ".jar"


CORENLP = (
    Artifact(
        "edu.stanford.nlp:stanford-corenlp:3.6.0",
        7.3,
        "d341d5863276f55782c5ef73212222d6b3b48e02ae1951ab6de7618d28b12742",
    ),
    Artifact(
        "edu.stanford.nlp:stanford-corenlp:3.6.0:jar:models",
        378.1,
        "d285157bd7887ee3018094b5dbae092e49088b023361ccdb550ee1daf9b2c9bd",
    ),
)
RHINO = (
    Artifact(
        "org.mozilla:rhino:1.7.15.1",
        1.4,
        "f3520a0e2e22d550f1216a456be233eb5385bf08e3219407dece7a16369eb38f",
    ),
    Artifact(
        "org.mozilla:rhino-engine:1.7.15.1",
        0.02,
        "10a5f3b84d0d7a021b1b179a0ffbae0802cc3dabff32d31ae22b4e7df07d0bcb",
    ),
)
ARTIFACTS = CORENLP + RHINO


def folder() -> pathlib.Path:
    """Returns the directory for the jars, which may not exist yet.

    It is the directory in the variable TFCAP_SPICE_JARS. If the variable is not set, it is a
    directory in the user's cache, outside the Python environment.
    """
    if given := os.environ.get(FOLDER_VARIABLE):
        return pathlib.Path(given)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification ignores relative paths
        base = os.path.expanduser("~/.cache")
    return pathlib.Path(base, "tfcap", "spice")


def missing(directory: pathlib.Path) -> list[Artifact]:
    """Returns the jars of `ARTIFACTS` that a directory lacks, or holds with wrong content.

    It reads every jar, which takes seconds.
    """
    return [
        artifact
        for artifact in ARTIFACTS
        if not (directory / artifact.file_name).is_file()
        or files.file_sha256(directory / artifact.file_name) != artifact.sha256
    ]


def by_hand(artifacts: Sequence[Artifact], directory: pathlib.Path) -> str:
    """Returns the lines that say how to get jars without Maven: coordinates and digests."""
    lines = [f"{a.coordinates} as {a.file_name}, SHA-256 {a.sha256}" for a in artifacts]
    return "\n".join([f"From Maven's registry into {directory}:", *lines])


def fetch(artifact: Artifact, directory: pathlib.Path) -> None:
    """Fetches one jar with `mvn` and stores it if its digest is right.

    Args:
        artifact: The jar.
        directory: Where to store it; it is made if it is absent.

    Raises:
        ValueError: `mvn` failed or took too long, or the file has another digest.
        OSError: There is no `mvn`, or the directory cannot be written.
    """
    client = shutil.which("mvn")
    if client is None:
        raise FileNotFoundError(NO_MAVEN)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=directory) as scratch:
        _call_maven(
            [client, "-B", "-q", _GOAL, f"-Dartifact={artifact.coordinates}"]
            + [f"-DoutputDirectory={scratch}"],
            scratch,
        )
        path = pathlib.Path(scratch, artifact.file_name)
        if not path.is_file():
            raise ValueError(f"mvn brought no {artifact.file_name} for {artifact.coordinates}.")
        digest = files.file_sha256(path)
        if digest != artifact.sha256:
            raise ValueError(
                f"{artifact.coordinates} must have the SHA-256 {artifact.sha256}. Received: "
                f"{digest}. The file was not stored. Check the mirrors in Maven's settings.xml."
            )
        os.replace(path, directory / artifact.file_name)


def _call_maven(command: list[str], cwd: str) -> None:
    """Runs `mvn` in `cwd`, where no pom.xml lies; an error has the first line of its errors."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"mvn took longer than {_SECONDS:g} s. Try again later.") from None
    if done.returncode:
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        errors = [line for line in lines if "ERROR" in line] or lines[-1:] or ["no message"]
        raise ValueError(
            f"mvn failed: {errors[0].strip()[:300]} Check the network and Maven's settings.xml."
        )
