"""Call code that may crash, hang or take too much memory in a process of its own."""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections.abc import Callable
from typing import Any

from decodeonce.errors import Stopped
from decodeonce.prep.processes.child import Child, Parent, death, wait_for

MEMORY_BYTES = 8 << 30  # limit for such a process; labels and paths of a row group take megabytes
ANSWER_SECONDS = 600.0  # the labels of a row group of 100,000 rows take less than one second


class Isolated:
    """A process that answers questions. It starts with the first question.

    Args:
        module: Module to run; its `main` calls `answer_questions`.
        seconds: Time limit for an answer, by the clock.
    """

    def __init__(self, module: str, seconds: float = ANSWER_SECONDS) -> None:
        self._module, self._seconds = module, seconds
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._environ: dict[str, str] = {}

    def ask(self, path: str, **question: object) -> Any:
        """Return the answer to a question about the file `path`.

        Raises:
            DecodeonceError, OSError: What the answering function raised.
            BuildError: The process crashed.
            Stopped: The process was killed, or exceeded the time limit.
        """
        with self._lock:
            try:
                return self._answer(path, question)
            except BaseException:
                self.close()  # otherwise the next question would receive the answer to this one
                raise

    def _answer(self, path: str, question: dict[str, object]) -> Any:
        if self._environ != os.environ:  # such as credentials that were set after the process had started
            self.close()
        if self._child is None:
            self._environ = dict(os.environ)
            self._child = Child(self._module)
            self._end = weakref.finalize(self, self._child.end)
        self._child.send(question)
        while wait_for([self._child], self._seconds):
            messages = self._child.receive()
            if messages is None:
                advice = "the file is damaged: copy or download it again"
                raise death(f"{path}: its reader", self._child.exit_status(), advice)
            if message := next(messages, None):
                return message["report"]
        raise Stopped(f"{path}: could not be read in {self._seconds:.4g} s; run the same command again")

    def close(self) -> None:
        """End the process; the next question starts another."""
        if self._child is not None:
            self._end()
            self._child = None


def answer_questions(arguments: list[str], answer: Callable[..., object]) -> int:
    """Answer the parent's questions with `answer(**question)` until it is gone, within MEMORY_BYTES of memory."""
    with Parent(arguments, shared=True) as parent:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)  # hides what a library prints when it crashes; the parent reports it in one line
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard < 0 or hard > MEMORY_BYTES:  # -1 is no limit
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        while True:
            parent.report(answer(**parent.receive()))
    return 0
