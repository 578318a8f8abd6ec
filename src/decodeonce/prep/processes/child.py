"""The protocol between a process and its workers: JSON messages, one per line, through a socket per worker.

The parent process has a `Child` per worker. In the worker, `main` opens the other end as a `Parent`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from decodeonce import errors
from decodeonce.errors import DecodeonceError
from decodeonce.prep.processes.heartbeat import Heartbeat
from decodeonce.prep.processes.spawn import end_with_parent, signals_held, spawn

_alive: set[int] = set()
_started_early: dict[str, list[Child]] = defaultdict(list)


class ChildDied(Exception):
    """A process ended with this exit status before it was asked to."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a worker process died (exit status {status})")
        self.status = status


class ParentGone(Exception):
    """The process that started this one has ended or closed the socket."""


class Child:
    """A worker process that runs `main` of a module, as seen from its parent."""

    def __init__(self, module: str) -> None:
        page, (self.socket, theirs) = Heartbeat.new_fd(), socket.socketpair()
        self.heartbeat = Heartbeat(page)
        with theirs, signals_held():
            self._process = spawn(module, (theirs.fileno(), page))
            _alive.add(self._process.pid)
        os.close(page)
        self._unread = bytearray()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send a message. If the process has died, nothing is raised: its exit status says why."""
        with suppress(ConnectionError):
            self.socket.sendall(_encoded(message))

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have arrived; call this when `socket` is readable.

        Returns:
            The complete messages, or None if the process has ended.

        Raises:
            DecodeonceError, OSError: What the process raised.
        """
        try:
            chunk = self.socket.recv(1 << 20)
        except ConnectionError:
            chunk = b""
        if not chunk:
            return None
        self._unread += chunk
        if b"\n" not in chunk:  # avoids splitting a long message again for each chunk
            return []
        *lines, self._unread = self._unread.split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if "failed" in message:
                raise _raised(*message["failed"])
        return messages

    def wait(self) -> int:
        """Wait for the end of the process; return its exit status, negative for a signal."""
        return self._process.wait()

    def kill(self) -> None:
        """Kill the process, if it is still alive."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process if it is still alive, and release everything."""
        self.kill()
        self.wait()
        _alive.discard(self.pid)
        self.socket.close()
        self.heartbeat.close()


@contextmanager
def started_early(module: str) -> Iterator[None]:
    """Start a process early, so that it has imported its modules when `child_of(module)` in the block takes it."""
    early = _started_early[module]
    early.append(Child(module))
    try:
        yield
    finally:
        for child in early:  # nothing in the block took it
            child.end()
        early.clear()


def child_of(module: str) -> Child:
    """Return a process that runs `main` of a module: a process from `started_early`, or a new one."""
    early = _started_early[module]
    return early.pop() if early else Child(module)


def kill_children() -> None:
    """Kill and reap every child; for a signal handler that then ends this process."""
    for pid in list(_alive):
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Parent:
    """The parent process, as seen from a worker.

    As a context manager, it reports a DecodeonceError or OSError that ends the block to the parent. The block ends
    without an error if the parent is gone when this process sends a message or waits for an order.

    Args:
        arguments: The arguments of `main`.
        shared: By default, the kernel kills this process when the thread that started it ends. True: it does not, for
            a process that other threads of the parent use, too.
    """

    def __init__(self, arguments: Sequence[str], *, shared: bool = False) -> None:
        if not shared:
            end_with_parent()
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
        with _parent_gone_on_error():
            line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise ParentGone
        return json.loads(line)

    def orders(self) -> Iterator[Any]:
        """Ask for orders and yield them until there are no more."""
        self._send({"ready": True})
        while (order := self.receive()) is not None:
            yield order
            self._send({"ready": True})

    def report(self, message: Any) -> None:
        """Send a message that is not a request for an order."""
        self._send({"report": message})

    def _send(self, message: Any) -> None:
        with _parent_gone_on_error():
            self._socket.sendall(_encoded(message))


@contextmanager
def _parent_gone_on_error() -> Iterator[None]:
    """Turn the socket's ConnectionError into ParentGone, because that of a lost file server must reach the parent."""
    try:
        yield
    except ConnectionError:
        raise ParentGone from None


def _encoded(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _described(error: DecodeonceError | OSError) -> tuple[str, list[Any]]:
    if isinstance(error, OSError):
        name = error.filename
        return "OSError", [error.errno, error.strerror or str(error), None if name is None else os.fsdecode(name)]
    return next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__), [str(error)]


def _raised(name: str, arguments: list[Any]) -> Exception:
    return OSError(*arguments) if name == "OSError" else getattr(errors, name)(*arguments)
