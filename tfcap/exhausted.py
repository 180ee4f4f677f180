"""Turns the errors for exhausted memory and full disks into one line, without TensorFlow."""

import contextlib
import errno
import re
from collections.abc import Iterator

# What TensorFlow, XLA and CUDA write in the line of an error that tells the reason.
_REASON = r"(?i)(OOM when [^\n]{1,200}|out of memory[^\n]{0,200}|failed to allocate [^\n]{1,200})"
_ERRORS = ("ResourceExhaustedError", "InternalError")  # of tf.errors
DECODING = "give a smaller --batch_size, or decode with a smaller beam or fewer samples"


@contextlib.contextmanager
def readable_errors(work: str, remedy: str) -> Iterator[None]:
    """Turns an error for exhausted memory inside the block into one line.

    Args:
      work: what needs the memory, for example "a training step".
      remedy: what reduces the memory that the work needs.

    Raises:
      ValueError: the memory of the machine or of a GPU was exhausted.
    """
    try:
        yield
    except Exception as error:
        # The first line of an error of a graph is "Graph execution error:". A full disk raises the
        # same type of error.
        match = re.search(_REASON, str(error)) if type(error).__name__ in _ERRORS else None
        if not match and not isinstance(error, MemoryError):
            raise
        reason = match[0].strip() if match else "Python could not allocate memory"
        raise ValueError(
            f"There is not enough memory for {work}: {reason}. To use less, {remedy}."
        ) from error


def full_disk(error: BaseException) -> str | None:
    """Returns a sentence for an error of a full disk; None for another error.

    Python raises an `OSError` for a full disk, and TensorFlow several types of its own.
    """
    text = " ".join(str(error).split())
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    match = re.search(r"[^ :;]*(?=[:;] (No space left on device|Disk quota exceeded))", text)
    if not full and not (match and type(error).__module__.startswith("tensorflow")):
        return None
    name = error.filename if isinstance(error, OSError) else match and match[0]
    return (
        f"The disk is full: {name or 'a file'} cannot be written. What was written before is kept. "
        "Free space, then give the same command again."
    )
