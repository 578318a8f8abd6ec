"""Start worker processes and talk to them: JSON messages, one per line, through a socket per worker.

The parent process has a `Child` per worker. In the worker, `main` opens the other end as a `Parent`. A page of memory
that both share, and that outlives the worker, holds the row it is working on.

Workers are plain subprocesses of this Python, with this process's import path. multiprocessing is not used, because it
would fork a program with threads or import the user's script a second time.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from decodeonce import errors
from decodeonce.errors import BuildError, DecodeonceError, Stopped
from decodeonce.store.layout import Json

# `python -m` would put the current folder first on the import path. With Python's default threshold of 700, garbage is
# collected 60 times while a worker imports its modules, which takes 20 ms of 200.
START = """
import gc, sys
from importlib import import_module
gc.set_threshold(20_000)
sys.path[:] = sys.argv[1].split("\\n")
sys.exit(import_module(sys.argv[2]).main(sys.argv[3:]))
"""

EXIT_SECONDS = 2.0  # that a process may take to exit after its work, for example to remove temporary files
KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGXCPU)  # by an operator, the OOM killer, or a limit
PR_SET_PDEATHSIG = 1  # linux/prctl.h

alive: set[int] = set()  # process numbers of the children to kill if a signal stops this process
BLOCK_WORKER = "decodeonce.prep.building.worker"  # named here, because importing the module takes 0.2 s
_started_early: dict[str, Child] = {}


class Heartbeat:
    """A page of memory: which row is being read or decoded, if any.

    Args:
        fd: The descriptor of a page that this process inherited. Default: a new page.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("heartbeat") if fd is None else fd
        os.truncate(self.fd, 8)
        self._row = memoryview(mmap.mmap(self.fd, 8)).cast("q")

    def start_reading(self, row: int) -> None:
        """Record that this planned row is being read."""
        self._row[0] = -row - 1

    def start_decoding(self, row: int) -> None:
        """Record that this planned row is being decoded."""
        self._row[0] = row + 1

    def idle(self) -> None:
        """Record that no row is being read or decoded."""
        self._row[0] = 0

    @property
    def decoding(self) -> int | None:
        """The planned row that is being decoded, if any."""
        stored = self._row[0]
        return stored - 1 if stored > 0 else None

    @property
    def reading(self) -> int | None:
        """The planned row that is being read, if any."""
        stored = self._row[0]
        return -stored - 1 if stored < 0 else None


def spawn(module: str, fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a process that runs `main` of a module with the inherited descriptors `fds` as arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", START, "\n".join(sys.path), module, *map(str, fds)],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )


class ParentGone(Exception):
    """The process that started this one has ended or closed the socket."""


class Child:
    """A worker process that runs `main` of a module, as seen from its parent."""

    def __init__(self, module: str) -> None:
        self.heartbeat, (self.socket, theirs) = Heartbeat(), socket.socketpair()
        # These signals reach the whole process group or every process of a job. Only the parent should handle them, and
        # a process that is started while they are blocked keeps them blocked.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})
        try:
            with theirs:
                self.process = spawn(module, (theirs.fileno(), self.heartbeat.fd))
                alive.add(self.process.pid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            os.close(self.heartbeat.fd)  # the page stays mapped
        self.dismissed = False  # True after None was sent instead of an order
        self._unread = bytearray()
        # Of the process itself: a process that a user's code left behind can keep the socket open for longer.
        self.pidfd: int | None = None
        # Linux before 5.3, a container that forbids the call, or a Python that was compiled for an older Linux
        with suppress(OSError, AttributeError):
            self.pidfd = os.pidfd_open(self.process.pid)

    def send(self, message: object) -> None:
        """Send a message. If the process has died, nothing is raised: its exit status says why."""
        self.dismissed = message is None
        with suppress(ConnectionError):
            self.socket.sendall(_encoded(message))

    def receive(self) -> Iterator[Json] | None:
        """Return the messages of a child that `wait_for` returned, or None if it has ended.

        If the child raised an error, the iterator raises it after the messages that the child sent before.
        """
        try:
            chunk = self.socket.recv(1 << 20, socket.MSG_DONTWAIT)
        except (ConnectionError, BlockingIOError):  # the latter: the process has ended, and its messages were received
            chunk = b""
        if not chunk:
            return None
        self._unread += chunk
        if b"\n" not in chunk:  # avoids splitting a long message again for each chunk
            return iter(())
        *lines, self._unread = self._unread.split(b"\n")
        return map(_decoded, lines)

    def exit_status(self) -> int:
        """Wait for the end of a process that `receive` has found to end; kill it if threads of a user keep it alive."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(EXIT_SECONDS)
        self.process.kill()
        return self.process.wait()

    def end(self) -> None:
        """Kill the process if it is still alive, and release everything."""
        self.process.kill()
        self.process.wait()
        alive.discard(self.process.pid)
        self.socket.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


@contextmanager
def started_early(module: str) -> Iterator[None]:
    """Start a process early, so that it has imported its modules when `child_of(module)` in the block takes it."""
    _started_early[module] = Child(module)
    try:
        yield
    finally:
        end_early()


def end_early() -> None:
    """End the processes that were started early and not taken."""
    while _started_early:
        _started_early.popitem()[1].end()


def child_of(module: str) -> Child:
    """Return a process that runs `main` of a module: a process from `started_early`, or a new one."""
    return _started_early.pop(module, None) or Child(module)


def wait_for(children: Collection[Child], seconds: float | None = None) -> list[Child]:
    """Return the children with messages to `receive`, or that have ended; wait up to `seconds` for one (None: ever)."""
    poll, by_fd = select.poll(), dict[int, Child]()
    for child in children:
        for fd in (child.socket.fileno(), child.pidfd):
            if fd is not None:
                poll.register(fd, select.POLLIN)
                by_fd[fd] = child
    return list({by_fd[fd]: None for fd, _ in poll.poll(None if seconds is None else 1000 * seconds)})


def death(what: str, status: int, advice: str) -> BuildError | Stopped:
    """Return the error for a process that ended with this exit status before it was asked to.

    Args:
        what: The process, as the subject of the sentence.
        status: Its exit status.
        advice: What to do if it crashed instead of being killed.
    """
    if status in (*KILLED, -signal.SIGBUS):  # SIGBUS: a mapped file was truncated, or its file system fails
        again = "run the same command again with more memory or fewer workers"
        return Stopped(f"{what} was killed ({signal.Signals(-status).name}); {again}")
    verb = "crashed" if status else "ended early"
    return BuildError(f"{what} {verb} ({how_ended(status)}); {advice}")


def how_ended(status: int) -> str:
    """Describe the exit status of a process."""
    names = {int(number): number.name for number in signal.Signals}
    return f"exit status {status}" if status >= 0 else f"signal {-status}, {names.get(-status, 'no name')}"


def user_death(names: Iterable[str], status: int) -> BuildError | Stopped:
    """Return the error for a process that imported these functions or classes of the user, `module:name`."""
    modules, functions = (", ".join(dict.fromkeys(name.partition(":")[part] for name in names)) for part in (0, 2))
    what = f"the process that runs {', '.join(names)}"
    return death(what, status, f"find out why in Python: import {modules}, and call {functions}")


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def kill_children() -> None:
    """Kill and reap every child; for a signal handler that then ends this process."""
    for pid in list(alive):
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Parent:
    """The parent process, as seen from a worker.

    As a context manager, it reports a DecodeonceError or OSError that ends the block to the parent. The block ends
    without an error if the parent is gone when this process sends a message or waits for an order.

    Args:
        arguments: The arguments of `main`.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        # A closed socket ends a worker only at its next message, which a worker that hangs never sends.
        die_with_parent()
        with suppress(OSError):  # standard error may be closed
            os.dup2(2, 1)  # keeps a library's output out of the parent's standard output
        fd, page = map(int, arguments)
        self._socket = socket.socket(fileno=fd)
        self._lines = self._socket.makefile("rb")
        self.heartbeat = Heartbeat(page)

    def __enter__(self) -> Parent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        with self._socket, suppress(ParentGone):
            if isinstance(error, (DecodeonceError, OSError)):
                self._send({"failed": _described(error)})
        return isinstance(error, (DecodeonceError, OSError, ParentGone))

    def receive(self) -> Any:
        """Wait for the next message and return it."""
        try:
            line = self._lines.readline()
        except ConnectionError:
            line = b""
        if not line.endswith(b"\n"):
            raise ParentGone
        return json.loads(line)

    def orders(self) -> Iterator[Any]:
        """Ask for orders and yield them until there are no more."""
        self._send({"ready": True})
        while (order := self.receive()) is not None:
            yield order
            self._send({"ready": True})

    def report(self, message: object) -> None:
        """Send a message that is not a request for an order."""
        self._send({"report": message})

    def _send(self, message: object) -> None:
        try:
            self._socket.sendall(_encoded(message))
        except ConnectionError:  # not an error of this process: one of a lost file server must reach the parent
            raise ParentGone from None


def _encoded(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _decoded(line: bytearray) -> Json:
    """Return the message of a child; raise the error that it reports instead."""
    message: Json = json.loads(line)
    if "failed" not in message:
        return message
    name, arguments = message["failed"]
    raise OSError(*arguments) if name == "OSError" else getattr(errors, name)(*arguments)


def _described(error: DecodeonceError | OSError) -> tuple[str, list[object]]:
    if isinstance(error, OSError):
        name = error.filename
        return "OSError", [error.errno, error.strerror or str(error), None if name is None else os.fsdecode(name)]
    return next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__), [str(error)]
