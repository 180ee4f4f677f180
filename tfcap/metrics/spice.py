"""Computes SPICE with the jar of pycocoevalcap, without downloading anything.

SPICE needs CoreNLP 3.6.0 with its models. The constructor of pycocoevalcap's `Spice` downloads them
into site-packages. This module downloads nothing: it searches for the two jars, and if they are
absent the error says how to get them (`spice_jars`). The input and output files are in a temporary
directory, and the process has a time limit.

SPICE formats its result with JavaScript, which not every Java has. `javascript` checks this first,
because SPICE itself fails only after minutes of parsing.

Paper: Anderson et al., "SPICE: Semantic Propositional Image Caption Evaluation", ECCV 2016.
Called as pycocoevalcap does, but without its cache of parsed references: this database is not
available on every machine and fails on network file systems.
"""

import json
import os
import pathlib
import tempfile
from collections.abc import Sequence

import numpy as np
from pycocoevalcap.spice import spice as official

from tfcap.metrics import java as java_lib
from tfcap.metrics import javascript, spice_jars

_DIRECTORY = pathlib.Path(official.__file__).parent


def find_jars(corenlp: str | os.PathLike | None = None) -> pathlib.Path:
    """Returns the directory that holds the two CoreNLP jars.

    Args:
        corenlp: The directory; by default the directory in the variable TFCAP_SPICE_JARS. If the
            variable is not set, the directory to which `doctor --fetch spice` writes the jars, or
            the directory of pycocoevalcap if only that one holds them.

    Raises:
        JavaError: A jar is missing; the message says how to get it.
    """
    directory = jar_folder(corenlp)
    missing = _missing(directory)
    if missing:
        given = corenlp is not None or os.environ.get(spice_jars.FOLDER_VARIABLE)
        # A path of the cache would help nobody.
        place = f"{missing[0]} is not in {directory}" if given else "CoreNLP is not installed"
        raise java_lib.JavaError(f"{place}. To fetch it (387 MB), run: {spice_jars.COMMAND}")
    return directory


def jar_folder(corenlp: str | os.PathLike | None = None) -> pathlib.Path:
    """Returns the directory that `find_jars` checks; the rules are those of `find_jars`."""
    if corenlp is not None:
        return pathlib.Path(corenlp)
    directory, lib = spice_jars.folder(), _DIRECTORY / "lib"
    given = os.environ.get(spice_jars.FOLDER_VARIABLE)
    return lib if not given and _missing(directory) and not _missing(lib) else directory


def _missing(directory: pathlib.Path) -> list[str]:
    names = [artifact.file_name for artifact in spice_jars.CORENLP]
    return [name for name in names if not (directory / name).is_file()]


def spice(
    references: Sequence[Sequence[str]],
    hypotheses: Sequence[str],
    java: java_lib.Java,
    *,
    corenlp: str | os.PathLike | None = None,
    timeout: float | None = None,
) -> tuple[float, list[float]]:
    """Computes SPICE of tokenized captions in one process, which parses 10,000 of them at a time.

    Args:
        references: For each image one or more reference captions.
        hypotheses: For each image the caption to score.
        java: The Java to use.
        corenlp: Directory of the CoreNLP jars, see `find_jars`.
        timeout: Seconds after which SPICE is stopped; None allows one hour, plus half a second for
            each caption and reference, which is six times the time that they take on one free
            processor core.

    Returns:
        The mean F-score over the images and the F-score of each image, 0 to 1.

    Raises:
        JavaError: A jar is missing, or Java failed.
    """
    jars = find_jars(corenlp)
    java = javascript.with_javascript(java, jars)
    images = [
        {"image_id": position, "test": hypothesis, "refs": list(captions)}
        for position, (captions, hypothesis) in enumerate(zip(references, hypotheses, strict=True))
    ]
    if timeout is None:
        timeout = 3600.0 + 0.5 * sum(1 + len(captions) for captions in references)
    with tempfile.TemporaryDirectory(prefix="tfcap-spice-") as scratch:
        request, answer = pathlib.Path(scratch, "in.json"), pathlib.Path(scratch, "out.json")
        request.write_text(json.dumps(images), encoding="ascii")
        classes = [_DIRECTORY / official.SPICE_JAR, _DIRECTORY / "lib" / "*", jars / "*"]
        command = java.command(
            "-cp",
            os.pathsep.join(map(str, classes)),
            "edu.anu.spice.SpiceScorer",
            *(str(request), "-out", str(answer), "-subset", "-silent"),
            heap_gb=_heap_gb(),
            open_modules=True,
        )
        java_lib.run(command, cwd=scratch, timeout=timeout)
        return _read_answer(answer, len(images))


def _heap_gb() -> int:
    """Returns the heap limit: 8 GiB as in pycocoevalcap, or 3/4 of a smaller memory."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8  # Windows does not report its memory here.
    return max(2, min(8, memory * 3 // 4 // 2**30))


def _read_answer(path: pathlib.Path, images: int) -> tuple[float, list[float]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        by_position = {entry["image_id"]: entry["scores"]["All"]["f"] for entry in entries}
        each = [float(by_position[position]) for position in range(images)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise java_lib.JavaError(
            f"SPICE left no readable result: {type(error).__name__} {error}"
        ) from error
    return float(np.mean(each)), each
