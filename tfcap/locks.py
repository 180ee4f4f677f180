"""Lets only one process at a time write into a directory."""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator

from tfcap import storage

_BUSY = (errno.EACCES, errno.EAGAIN)


@contextlib.contextmanager
def exclusive(folder: str | os.PathLike, name: str, work: str, remedy: str) -> Iterator[None]:
    """Locks a directory against a second process, until the block or the process ends in any way.

    The lock is one of the operating system (`flock`) on the file `.NAME.lock`, which is not
    deleted. The file names the host and the number of the process that holds or held the lock. A
    file system without locks is not an error. Remote paths (`tfcap.storage`) are never locked, so
    a second process is not noticed there.

    Args:
      folder: the directory; it must exist.
      name: the name of the lock.
      work: what only one process may do, for the error message.
      remedy: what to do instead, for the error message.

    Raises:
      ValueError: another process holds the lock.
    """
    if storage.is_remote(folder):
        yield
        return
    with open(os.path.join(folder, f".{name}.lock"), "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                file.seek(0)
                holder = " ".join(file.read(200).split()) or "another process"
                raise ValueError(
                    f"Only one {work} may write to {folder}. Received: a second one, while "
                    f"{holder} is running. Wait for the first, or {remedy}."
                ) from None
        else:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        yield
