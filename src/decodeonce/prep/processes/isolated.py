"""Reading in a process of its own what libraries crash on: it is asked through pipes, and nothing else comes back."""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from importlib import import_module
from typing import Any

from decodeonce.errors import BuildError, DecodeonceError, Stopped
from decodeonce.prep.processes.spawn import signals_held, spawn

APART_BYTES = 8 << 30  # of memory that such a process may take; labels and paths of a row group take megabytes
ANSWER_SECONDS = 600.0  # the labels of a row group of 100,000 rows take less than one
KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGXCPU)  # an operator, the OOM killer, a limit


class Apart:
    """A process that answers with what `module`.answer(**question) returns, JSON-ready; started when first asked."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, path: str, **question: Any) -> Any:
        """The answer about the file `path`.

        Raises what answer() raised, BuildError where the process died of it, Stopped where it was killed or took long.
        """
        with self._lock:
            try:
                line, status = self._asked(question)
            except BaseException:
                self.close()  # else the next question gets the answer of this one
                raise
            if line is None:
                self.close()
        if line is None:
            again = "run the same command again"
            if status is None:
                raise Stopped(f"{path}: could not be read in {ANSWER_SECONDS:.4g} s; {again}")
            if status in KILLED:
                raise Stopped(
                    f"{path}: its reader was killed ({signal.Signals(-status).name}); {again} with more memory"
                )
            raise BuildError(f"{path}: its reader died with exit status {status}: damaged; copy or download it again")
        told = json.loads(line)
        if "failed" in told:
            raise (Stopped if told["stopped"] else BuildError)(told["failed"])
        return told["answer"]

    def _asked(self, question: dict[str, Any]) -> tuple[bytes | None, int | None]:
        """The line that is the answer, if there is one, and the exit status of the process, if it has ended."""
        process = self._started()
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: its end of file says so
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        line = _line(process)
        return line, process.poll()

    def close(self) -> None:
        """End the process; the next question starts another."""
        if self._process is not None:
            _end(self._process)
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            pipe = subprocess.PIPE
            with signals_held():
                self._process = spawn(__name__, [self._module], stdin=pipe, stdout=pipe)
            weakref.finalize(self, _end, self._process)
        return self._process


def _line(process: subprocess.Popen[bytes]) -> bytes | None:
    """What the process says, to the end of the line; None where it has ended, or says nothing for too long."""
    assert process.stdout is not None
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not (parts and parts[-1].endswith(b"\n")):
            if not selector.select(ANSWER_SECONDS):
                return None
            if not (part := os.read(process.stdout.fileno(), 1 << 20)):
                process.wait()
                return None
            parts.append(part)
    return b"".join(parts)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):  # closing flushes, and there is nobody to read
                pipe.close()


def main(arguments: list[str]) -> int:
    """Answer questions from standard input until its end, with no more memory than APART_BYTES."""
    out, silent = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)  # what a library says when it dies; its parent says it in a line
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard < 0 or hard > APART_BYTES:  # below 0 there is none
        resource.setrlimit(resource.RLIMIT_DATA, (APART_BYTES, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = import_module(arguments[0]).answer
    with open(out, "wb") as answers:
        for question in map(json.loads, sys.stdin.buffer):
            try:
                told = {"answer": answer(**question)}
            except DecodeonceError as error:
                told = {"failed": str(error), "stopped": isinstance(error, Stopped)}
            answers.write(json.dumps(told).encode() + b"\n")
            answers.flush()
    return 0
