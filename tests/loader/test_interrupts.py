"""Ctrl-C at any moment: it ends the loop, and the Loader leaves no threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from decodeonce import Loader
from tests.conftest import COUNT

AT_RANDOM = """
import os, random, signal, sys, time
from decodeonce import Loader

store, rounds = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGALRM, signal.default_int_handler)  # the timer's signal acts as Ctrl-C

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
loader = Loader(store, batch_size=4)
for _ in loader:
    pass
started = time.perf_counter()
next(iter(loader))
starting = time.perf_counter() - started
loader.close()

caught = 0
for number in range(rounds):
    loader, batches = Loader(store, batch_size=4), None
    deadline = time.perf_counter() + 20
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2 * starting))
        while time.perf_counter() < deadline:
            batches = iter(loader)  # ends the epoch of the round before, which is dropped
            if number % 2:
                next(batches)
    except KeyboardInterrupt:
        caught += 1
    if number % 3:
        loader.close()
    del loader, batches
deadline = time.perf_counter() + 20  # threads of a dropped epoch end a moment later
while threads() > before and time.perf_counter() < deadline:
    pass
print(caught, threads() - before)
"""


@pytest.mark.parametrize("rounds", [30, pytest.param(300, marks=pytest.mark.long)])
def test_ctrl_c_at_random_moments_arrives_and_leaves_no_threads(store: Path, rounds: int) -> None:
    command = [sys.executable, "-c", AT_RANDOM, str(store), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{rounds} 0\n", "")


DROPPED = """
import _thread, operator, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT in processes started with &
from decodeonce import Loader

loader = Loader(sys.argv[1], batch_size=4)
for _ in range(20):
    held = [iter(loader)]
    next(held[0])
    try:
        # list() calls both in C. So the signal arrives before the epoch is dropped, and Python can handle it only in
        # code that dropping runs, or after list().
        list(map(operator.methodcaller("__call__"), [_thread.interrupt_main, held.clear]))
    except KeyboardInterrupt:
        print("interrupted", len(held))
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
"""


def test_ctrl_c_interrupts_dropping_an_epoch(store: Path) -> None:
    command = [sys.executable, "-c", DROPPED, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted 0\n" * 20, "")


def test_epoch_that_gets_no_thread_is_an_error(store: Path) -> None:
    with Loader(store, batch_size=4) as loader:
        threading.stack_size(2**46)  # more than a process can address, so the system starts no thread
        try:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                iter(loader)
        finally:
            threading.stack_size(0)
        assert len(list(loader)) == COUNT // 4
        with pytest.MonkeyPatch.context() as patch:  # the limit is reached between a thread and the next one
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="no more threads"):
                next(iter(loader))
        assert len(list(loader)) == COUNT // 4


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("no more threads")
