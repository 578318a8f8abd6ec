"""Ask questions of code that may crash its process, take too much memory or hang: it runs in a process of its own."""

from __future__ import annotations

import os
import resource
import selectors
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.processes.child import Child, Parent

MEMORY_BYTES = 8 << 30  # that such a process may take; labels and paths of a row group take megabytes
ANSWER_SECONDS = 600.0  # the labels of a row group of 100,000 rows take less than one
KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGXCPU)  # by an operator, the OOM killer, a limit


class Isolated:
    """A process that answers questions; it starts when first asked. Its module's `main` calls `answer_questions`.

    An answer may take `seconds` by the clock.
    """

    def __init__(self, module: str, seconds: float = ANSWER_SECONDS) -> None:
        self._module, self._seconds = module, seconds
        self._lock = threading.Lock()
        self._child: Child | None = None

    def ask(self, path: str, **question: Any) -> Any:
        """Return the answer to a question about the file `path`.

        Raises:
            DecodeonceError, OSError: What the answering function raised.
            BuildError: The process died of the question.
            Stopped: The process was killed, or took longer than it may.
        """
        with self._lock:
            try:
                return self._answer(path, question)
            except BaseException:
                self.close()  # otherwise the next question would get the answer to this one
                raise

    def _answer(self, path: str, question: dict[str, Any]) -> Any:
        if self._child is None:
            self._child = Child(self._module)
            self._end = weakref.finalize(self, self._child.end)
        self._child.send(question)
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.socket, selectors.EVENT_READ)
            while selector.select(self._seconds):
                messages = self._child.receive()
                if messages is None:
                    raise _death(path, self._child.wait())
                if messages:
                    return messages[0]["report"]
        raise Stopped(f"{path}: could not be read in {self._seconds:.4g} s; run the same command again")

    def close(self) -> None:
        """End the process; the next question starts another."""
        if self._child is not None:
            self._end()  # ends the child, and forgets it
            self._child = None


def _death(path: str, status: int) -> BuildError | Stopped:
    if status in KILLED:
        name = signal.Signals(-status).name
        return Stopped(f"{path}: its reader was killed ({name}); run the same command again with more memory")
    return BuildError(f"{path}: its reader died with exit status {status}: damaged; copy or download it again")


def answer_questions(arguments: list[str], answer: Callable[..., Any]) -> int:
    """Answer a parent's questions with `answer(**question)` until it is gone, within MEMORY_BYTES of memory."""
    with Parent(arguments, shared=True) as parent:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)  # what a library prints when it dies; the parent says it in one line
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard < 0 or hard > MEMORY_BYTES:  # -1 is no limit
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        while True:
            parent.report(answer(**parent.receive()))
    return 0
