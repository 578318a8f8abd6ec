"""Workers without exec(2): forks of a process that has imported everything, which take milliseconds to start.

All but exec is there: pipes of their own, no other descriptor than the one that they are given, the same `main`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from types import ModuleType

from decodeonce.prep.processes import spawn as real

BEGINNINGS: list[Callable[[], None]] = []  # called by every worker first


class Forked:
    """What prep makes use of in a subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
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


def fork(module: str, fds: Sequence[int]) -> Forked:
    """Start `main(arguments)` of a module, as spawn.spawn does."""
    pid = os.fork()
    if not pid:
        _live(import_module(module), fds)
    return Forked(pid)


def _live(module: ModuleType, fds: Sequence[int]) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for first, last in pairwise([2, *sorted(fds), 4096]):
            os.closerange(first + 1, last)
        sys.stdin = open(0)  # noqa: SIM115
        for begin in BEGINNINGS:
            begin()
        code = module.main([str(fd) for fd in fds]) or 0
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
