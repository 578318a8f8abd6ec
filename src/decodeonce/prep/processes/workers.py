"""Processes that are given orders one at a time: JSON, a line a message, through a socket each."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from decodeonce import errors
from decodeonce.errors import DecodeonceError
from decodeonce.prep.processes.spawn import end_with_parent, signals_held, spawn

Tell = Callable[[Any], None]


class WorkerDied(Exception):
    """A worker ended, with this exit status, before it was told to."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a worker process died (exit status {status})")
        self.status = status


class _Worker:
    """A worker as its parent sees it."""

    def __init__(self, module: str) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs, signals_held():
            fd = theirs.fileno()
            self._process = spawn(module, [str(fd)], fd=fd, stdin=subprocess.DEVNULL)
        self._unread = b""

    def tell(self, message: Any) -> None:
        with suppress(ConnectionError):  # it has died: the end of what it says shows that, and its status why
            _send(self.socket, message)

    def answers(self) -> Iterator[Any] | None:
        """What has come, or None at its good end; call when its socket is readable."""
        try:
            chunk = self.socket.recv(1 << 16)
        except ConnectionError:
            chunk = b""
        if not chunk:
            if status := self._process.wait():
                raise WorkerDied(status)
            return None
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return map(json.loads, lines)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.socket.close()


def run_crew(module: str, size: int, task: Any, orders: Iterator[Any], take: Tell) -> None:
    """Have the orders done by `size` processes that run `module.main`, which is to call serve(); all of it JSON-ready.

    `take` gets what they tell. Raises the DecodeonceError or OSError that one raised, or WorkerDied. Whatever ends
    this, they are killed and reaped.
    """
    crew: list[_Worker] = []
    with selectors.DefaultSelector() as selector:
        try:
            for _ in range(size):
                crew.append(_Worker(module))
                selector.register(crew[-1].socket, selectors.EVENT_READ, crew[-1])
                crew[-1].tell(task)
            while selector.get_map():
                for key, _ in selector.select():
                    if not _hear(key.data, orders, take):
                        selector.unregister(key.fileobj)
        finally:
            for worker in crew:
                worker.end()


def _hear(worker: _Worker, orders: Iterator[Any], take: Tell) -> bool:
    """Take in what a worker says; returns whether it may say more."""
    answers = worker.answers()
    for answer in answers or ():
        if "failed" in answer:
            raise _error(*answer["failed"])
        if "told" in answer:
            take(answer["told"])
        else:
            worker.tell(next(orders, None))
    return answers is not None


def serve(fd: int, start: Callable[[Any, Tell], Tell]) -> None:
    """The life of a worker at its descriptor `fd`: `start(task, tell)` gives what is called with every order.

    That its parent is gone is found where it tells something, where it waits for an order, and by the kernel.
    """
    end_with_parent()
    with socket.socket(fileno=fd) as parent, suppress(ConnectionError):
        try:
            messages = _messages(parent)
            if (task := next(messages, None)) is None:
                return
            do = start(task, lambda message: _send(parent, {"told": message}))
            _send(parent, {"ready": True})
            for order in messages:
                do(order)
                _send(parent, {"ready": True})
        except ConnectionError:
            raise
        except (DecodeonceError, OSError) as error:
            _send(parent, {"failed": _told(error)})


def _messages(parent: socket.socket) -> Iterator[Any]:
    """What the parent sends, until it sends None or is gone."""
    with parent.makefile("rb") as lines:
        for line in lines:
            message = json.loads(line) if line.endswith(b"\n") else None
            if message is None:
                return
            yield message


def _send(end: socket.socket, message: Any) -> None:
    end.sendall(json.dumps(message).encode() + b"\n")


def _told(error: DecodeonceError | OSError) -> tuple[str, list[Any]]:
    if isinstance(error, OSError):
        name = error.filename
        return "OSError", [error.errno, error.strerror or str(error), None if name is None else os.fsdecode(name)]
    return next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__), [str(error)]


def _error(name: str, arguments: list[Any]) -> Exception:
    return OSError(*arguments) if name == "OSError" else getattr(errors, name)(*arguments)
