"""Start processes that work for this one: plain subprocesses of this Python, with this process's import path.

They are not multiprocessing's: no fork of a program with threads, no second import of the user's script.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# `python -m` would put the current folder first, whatever lies there. Python's own threshold of 700 collects garbage 60
# times while a worker imports its modules, which takes 20 ms of 200.
START = """
import gc, sys
from importlib import import_module
gc.set_threshold(20_000)
sys.path[:] = sys.argv[1].split("\\n")
sys.exit(import_module(sys.argv[2]).main(sys.argv[3:]))
"""

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold SIGINT and SIGUSR1 back; a process that is started meanwhile has them blocked for good.

    These two reach the whole process group, or every process of a job, and the parent decides what they mean.
    """
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def spawn(module: str, fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start `main(arguments)` of a module in a process; it inherits the descriptors `fds`, which are its arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", START, "\n".join(sys.path), module, *map(str, fds)],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends.

    A closed socket ends a worker only at its next message, which never comes if an image hangs it.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
