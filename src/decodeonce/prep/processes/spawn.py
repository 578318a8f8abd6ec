"""Start worker processes: plain subprocesses of this Python, with this process's import path.

multiprocessing is not used, because it would fork a program with threads or import the user's script a second time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# `python -m` would put the current folder first on the import path. With Python's default threshold of 700, garbage is
# collected 60 times while a worker imports its modules, which takes 20 ms of 200.
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
    """Block SIGINT and SIGUSR1 in this block; a process that is started in it keeps them blocked.

    These signals reach the whole process group or every process of a job. Only the parent should handle them.
    """
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def spawn(module: str, fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a process that runs `main` of a module with the inherited descriptors `fds` as arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", START, "\n".join(sys.path), module, *map(str, fds)],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends.

    A closed socket ends a worker only at its next message, which a worker that hangs never sends.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
