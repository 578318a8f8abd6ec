"""Workers without exec(2): forks of a process that has imported everything, which start in milliseconds.

Otherwise they are like real workers: own sockets, no other inherited descriptors, the same `main`.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from types import ModuleType

from decodeonce.prep.processes import child


class Forked:
    """The part of subprocess.Popen that prep uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status, or the negative number of a signal."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, 9)


def fork(module: str, fds: Sequence[int]) -> Forked:
    pid = os.fork()
    if not pid:
        _child_main(import_module(module), fds)
    return Forked(pid)


def _child_main(module: ModuleType, fds: Sequence[int]) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for first, last in pairwise([2, *sorted(fds), 4096]):
            os.closerange(first + 1, last)
        sys.stdin = open(0)  # noqa: SIM115
        code = module.main([str(fd) for fd in fds]) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def install() -> None:
    vars(child)["spawn"] = fork
