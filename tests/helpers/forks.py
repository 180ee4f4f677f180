"""Runs Python programs in processes that are copies of one that has imported TensorFlow.

Importing TensorFlow and the libraries above it takes a process eight seconds, several times what
the commands of most tests take. A server imports them once and copies itself (`os.fork`) for each
program. A program has its own arguments, environment, directory, and standard input, output and
error, and it can be killed. Tests of how a process starts use real processes. At its end Python
does not take TensorFlow apart, unless a test asks for it (`WHOLE_END`).

Where pytest-xdist runs the tests, its workers are such copies, and all share one server.
"""

import atexit
import concurrent.futures
import ctypes
import fcntl
import functools
import gc
import json
import os
import pathlib
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TextIO

# Read when TensorFlow is imported. It is the value that the package sets.
_AT_IMPORT = {"TF_CPP_MIN_LOG_LEVEL": "3"}
# A program with this in its environment takes also the server's modules apart when it ends.
WHOLE_END = {"TFCAP_TEST_WHOLE_END": "1"}
_IMPORTED: dict[str, types.ModuleType] = {}  # all modules of the server
# The environment variable with the path of the server that all workers of pytest-xdist share.
_SHARED = "TFCAP_TEST_SERVER"


class Process:
    """A program, with the methods of `subprocess.Popen` that the tests use.

    Attributes:
      pid: its process.
      stdout, stderr: text files where it writes into pipes, else None.
      returncode: None while it runs; negative for the number of the signal that killed it.
    """

    def __init__(self, link: socket.socket, stdout: TextIO | None, stderr: TextIO | None):
        self._link, self.stdout, self.stderr = link.makefile("r"), stdout, stderr
        self.returncode: int | None = None
        self.pid = int(self._link.readline())

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._link], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked program", timeout or 0)
            self.returncode = int(self._link.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Returns standard output and error when the program has ended."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            files = (self.stdout, self.stderr)
            texts = [pool.submit(file.read) if file else None for file in files]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.send_signal(signal.SIGKILL)  # it ends the threads, too
                raise
        out, err = (text.result() if text else "" for text in texts)
        return out, err


def start(
    arguments: Sequence[Any],
    cwd: str | os.PathLike,
    env: dict[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    python: str = sys.executable,
) -> Process:
    """Starts `python ARGUMENTS...`, which begin with `-m MODULE` or `-c CODE`.

    Args:
      stdout, stderr: `subprocess.PIPE`, `subprocess.DEVNULL` or a descriptor; None shows it.
      python: the interpreter; each has a server of its own.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    theirs, ours, opened = [nothing], [], [nothing]
    for number, wanted in ((1, stdout), (2, stderr)):
        read = None
        if wanted == subprocess.PIPE:
            pipe, wanted = os.pipe()
            read = os.fdopen(pipe)
            opened.append(wanted)
        elif wanted == subprocess.DEVNULL:
            wanted = os.open(os.devnull, os.O_WRONLY)
            opened.append(wanted)
        theirs.append(number if wanted is None else wanted)
        ours.append(read)
    link = _ask(_server(python), arguments, cwd, os.environ if env is None else env, theirs)
    process = Process(link, *ours)
    for descriptor in opened:
        os.close(descriptor)
    return process


def run(
    arguments: Sequence[Any], cwd: str | os.PathLike, **more: Any
) -> subprocess.CompletedProcess:
    """Runs a program to its end, like `subprocess.run(..., capture_output=True, text=True)`."""
    process = start(arguments, cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    out, err = process.communicate()
    return subprocess.CompletedProcess(list(arguments), process.wait(), out, err)


def executable(folder: pathlib.Path) -> str:
    """Writes a program that takes the arguments of Python, and runs them in a copied process.

    It stands in the place of `sys.executable` where our code starts a process itself.
    """
    path = folder / "python"
    path.write_text(
        f"#!{sys.executable} -IS\n"
        f"import sys\nsys.path.append({os.path.dirname(os.path.dirname(__file__))!r})\n"
        f"from helpers import forks\nforks.become({_server(sys.executable)!r})\n"
    )
    path.chmod(0o755)
    return str(path)


def shared(folder: pathlib.Path) -> str:
    """Starts one server for all processes that this one will start.

    Returns the command of a Python that is a copy of it, as `executable` writes it.
    """
    os.environ[_SHARED] = _server(sys.executable)
    return shlex.quote(executable(folder))


def become(server: str) -> NoReturn:
    """Runs the program that `sys.argv` names in a copy of a server, and ends as it ends."""
    kept = _descriptors()
    link = _ask(server, sys.argv[1:], os.getcwd(), os.environ, [0, 1, 2], kept)
    process = Process(link, None, None)
    _copy_of(pathlib.Path(sys.argv[0]), os.getpid()).write_text(str(process.pid))
    status = process.wait()
    if status < 0:  # Python changes the action of no signal that ends a program but SIGINT
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _descriptors() -> list[int]:
    """Returns the descriptors that this process has inherited, but for 0, 1 and 2."""
    with os.scandir("/proc/self/fd") as listed:
        found = [int(entry.name) for entry in listed]
    return [number for number in found if number > 2 and os.path.exists(f"/proc/self/fd/{number}")]


def pid_of_copy(python: str, pid: int) -> int:
    """Returns the process that runs the program of the process `pid` of `executable`."""
    return int(_copy_of(pathlib.Path(python), pid).read_text())


def _copy_of(python: pathlib.Path, pid: int) -> pathlib.Path:
    return python.parent / f"copy-of-{pid}"


def _ask(
    server: str,
    arguments: Sequence[Any],
    cwd: str | os.PathLike,
    env: Mapping[str, str],
    descriptors: list[int],
    kept: Sequence[int] = (),
) -> socket.socket:
    """Sends a program to a server, with the standard input, output and error that it shall have.

    It also gets the descriptors `kept`, under their numbers.
    """
    given = {"arguments": [str(a) for a in arguments], "cwd": os.fspath(cwd), "kept": list(kept)}
    given["env"] = dict(env) | _AT_IMPORT
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(server)
    content = json.dumps(given).encode()
    socket.send_fds(link, [len(content).to_bytes(8, "little")], [*descriptors, *kept])
    link.sendall(content)
    return link


@functools.cache
def _server(python: str) -> str:
    """Returns the path of the socket of the shared server, or else of a new one of this process."""
    if python == sys.executable and _SHARED in os.environ:
        return os.environ[_SHARED]
    path = os.path.join(tempfile.mkdtemp(), "socket")
    # Another interpreter has its own packages, and not those of this variable.
    hidden = () if python == sys.executable else ("PYTHONPATH", "PYTHONHOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    # It ends when its standard input does, so also when this process is killed.
    server = subprocess.Popen(
        [python, __file__, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment, **_AT_IMPORT},
    )
    atexit.register(server.kill)
    assert server.stdout.readline() == b"ready\n"
    return path


def _serve(path: str) -> dict[str, Any]:
    """Waits for programs. Returns only in a copy of the process, with what it shall run."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that ended launchers leave no zombies
    while True:
        if sys.stdin.fileno() in select.select([listener, sys.stdin], [], [])[0]:
            os._exit(0)
        link, _ = listener.accept()
        if os.fork():
            link.close()
            continue
        listener.close()
        return _launch(link)


def _launch(link: socket.socket) -> dict[str, Any]:
    """Copies the process again: one copy returns and runs the program, this one reports its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, descriptors, _, _ = socket.recv_fds(link, 8, 64)
    with link.makefile("rb") as file:
        given = json.loads(file.read(int.from_bytes(size, "little")))
    child = os.fork()
    if child:
        for descriptor in descriptors:
            os.close(descriptor)
        link.sendall(b"%d\n" % child)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            link.sendall(b"%d\n" % status)
        finally:
            os._exit(0)
    link.close()
    # First out of the way of the numbers that they shall have.
    for number, descriptor in zip([0, 1, 2, *given["kept"]], _moved(descriptors), strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return given


def _moved(descriptors: Sequence[int]) -> list[int]:
    """Gives descriptors numbers that are not in use elsewhere, and returns these."""
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 500) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return moved


def _prepare(given: dict[str, Any]) -> None:
    """Gives this process what `python ARGUMENTS...` has, and runs the program."""
    os.environ.clear()
    os.environ.update(given["env"])
    os.chdir(given["cwd"])
    arguments = given["arguments"]
    # Options of Python come first. pytest-xdist asks for output without a buffer, and writes to
    # the descriptor itself.
    begin = next(place for place, given in enumerate(arguments) if given in ("-c", "-m"))
    option, program, *rest = arguments[begin:]
    paths = given["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [os.getcwd(), *filter(None, paths)]
    sys.argv = ["-c" if option == "-c" else program, *rest]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(main))


def _import() -> None:
    atexit.register(_keep_modules)  # what is registered first runs last
    import keras  # noqa: F401
    import orbit  # noqa: F401
    import quick  # this file runs as a program, whose directory Python looks in
    import tensorflow  # noqa: F401
    import tensorflow_text  # noqa: F401
    from official.core import base_trainer  # noqa: F401

    _IMPORTED.update(sys.modules)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_IMPORTED))  # never freed

    quick.set_up()
    gc.freeze()


def _keep_modules() -> None:
    """Keeps Python from taking the server's modules apart when a program ends.

    It would write to each page of memory that they share, and take a third of a second.
    """
    if WHOLE_END.keys() <= os.environ.keys():
        return
    for name in _IMPORTED.keys() - sys.builtin_module_names:
        sys.modules.pop(name, None)


if __name__ == "__main__":
    _import()
    _prepare(_serve(sys.argv[1]))
