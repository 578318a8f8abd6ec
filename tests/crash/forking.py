"""Workers without exec(2): forks of a process that has imported everything, which take milliseconds to start.

All but exec is there: pipes of their own, no other descriptor than the one that they are given, the same `main`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import IO

from decodeonce.prep.processes import spawn as real

BEGINNINGS: list[Callable[[], None]] = []  # called by every worker first


class Forked:
    """What prep makes use of in a subprocess.Popen."""

    def __init__(self, pid: int, stdin: int | None, stdout: int | None) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = open(stdin, "wb") if stdin is not None else None  # noqa: SIM115
        self.stdout: IO[bytes] | None = open(stdout, "rb") if stdout is not None else None  # noqa: SIM115
        self._status: int | None = None

    def wait(self) -> int:
        """Its exit status, or the negative number of the signal that ended it."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def kill(self) -> None:
        """SIGKILL, if it was not seen to end."""
        if self._status is None:
            os.kill(self.pid, 9)


def fork(module: str, arguments: Sequence[str], *, fd: int, stdin: int, stdout: int | None = None) -> Forked:
    """Start `main(arguments)` of a module, as spawn.spawn does."""
    theirs_in, ours_in = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), None)
    ours_out, theirs_out = os.pipe() if stdout == subprocess.PIPE else (None, None)
    pid = os.fork()
    if not pid:
        _live(import_module(module), list(arguments), fd, theirs_in, theirs_out)
    os.close(theirs_in)
    if theirs_out is not None:
        os.close(theirs_out)
    return Forked(pid, ours_in, ours_out)


def _live(module: ModuleType, arguments: list[str], fd: int, stdin: int, stdout: int | None) -> None:
    code = 1
    try:
        os.dup2(stdin, 0)
        if stdout is not None:
            os.dup2(stdout, 1)
        os.closerange(3, fd)
        os.closerange(fd + 1, 4096)
        sys.stdin = open(0)  # noqa: SIM115
        for begin in BEGINNINGS:
            begin()
        code = module.main(arguments) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def install() -> None:
    """Have all of prep start its workers so, in this process and those it forks."""
    for name, module in list(sys.modules.items()):
        if name.startswith("decodeonce.") and getattr(module, "spawn", None) is real.spawn and module is not real:
            setattr(module, "spawn", fork)  # noqa: B010
