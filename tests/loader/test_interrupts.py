"""Ctrl-C at any moment: it ends the loop, and the Loader leaves no threads."""

import signal
import threading
from pathlib import Path

import pytest

from decodeonce import Loader
from tests.conftest import COUNT
from tests.loader.conftest import RunForked

START = """
import _thread, dataclasses, operator, os, random, signal, sys, threading, time, weakref
from decodeonce import Loader
from decodeonce.augment import Augment, RandomResizedCrop
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT in processes started with &
signal.signal(signal.SIGALRM, signal.default_int_handler)
store = sys.argv[1]

def block(thread):
    if thread == "another":  # another thread gets the signal, so it does not interrupt what the main thread waits for
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
"""


AT_RANDOM = """
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
for number in range(int(sys.argv[2])):
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


@pytest.mark.parametrize("rounds", ["15", pytest.param("300", marks=pytest.mark.long)])
def test_ctrl_c_at_random_moments_arrives_and_leaves_no_threads(
    run_forked: RunForked, store: Path, rounds: str
) -> None:
    assert run_forked(START + AT_RANDOM, store, rounds) == (0, f"{rounds} 0\n", "")


WAITING = """
def stall(batch):
    if batch.rows[0] == 4:
        seen.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        caught.wait(60)
    return dataclasses.replace(batch)

for thread in ("main", "another"):
    seen, caught = threading.Event(), threading.Event()
    with Loader(store, batch_size=4, shuffle="none", transform=stall) as loader:
        try:
            for batch in loader:
                print(thread, int(batch.rows[0]), flush=True)
                block(thread)
                seen.set()
        except KeyboardInterrupt:
            caught.set()
            if thread == "another":
                raise
"""


def test_ctrl_c_interrupts_waiting_for_a_batch(run_forked: RunForked, store: Path) -> None:
    code, printed, errors = run_forked(START + WAITING, store)
    assert printed == "main 0\nanother 0\n"
    assert code in (-signal.SIGINT, 128 + signal.SIGINT)  # the latter if all threads that are left block SIGINT
    assert errors.endswith("KeyboardInterrupt\n")


DROPPING = """
for kind in ("batch", "augmented batch", "epoch"):
    # 3 MB; 1 MB or less is not reused
    transform = Augment(RandomResizedCrop(512)) if kind == "augmented batch" else None
    loader = Loader(store, batch_size=4, transform=transform)
    batches = iter(loader)
    for _ in range(8):
        held = [iter(loader) if kind == "epoch" else next(batches)]
        dropped = weakref.ref(held[0])
        try:
            # list() calls both in C. So the signal arrives before the batch is dropped, and Python can handle it only
            # in code that dropping runs, or after list().
            list(map(operator.methodcaller("__call__"), [_thread.interrupt_main, held.clear]))
        except KeyboardInterrupt:
            print(kind, dropped() is None)
"""


def test_ctrl_c_interrupts_dropping(run_forked: RunForked, store: Path) -> None:
    assert run_forked(START + DROPPING, store) == (
        0,
        "batch True\n" * 8 + "augmented batch True\n" * 8 + "epoch True\n" * 8,
        "",
    )


CLOSING_TWICE = """
def copying():
    return any(thread.name.startswith("decodeonce-copy") for thread in threading.enumerate())

def stall(batch):
    if batch.rows[0] == 8:
        stalled.set()
        closing.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        proceed.wait(60)
    return dataclasses.replace(batch)

for thread in ("main", "another"):
    stalled, closing, proceed = threading.Event(), threading.Event(), threading.Event()
    loader = Loader(store, batch_size=4, shuffle="none", transform=stall)
    batches = iter(loader)
    next(batches)
    stalled.wait(60)
    block(thread)
    try:
        closing.set()
        loader.close()
    except KeyboardInterrupt:
        print("interrupted", copying())
    proceed.set()
    loader.close()
    print(copying())
"""


def test_closing_again_after_ctrl_c_waits_for_the_threads(run_forked: RunForked, store: Path) -> None:
    assert run_forked(START + CLOSING_TWICE, store) == (0, "interrupted True\nFalse\n" * 2, "")


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


FORKING = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, for forks of processes with threads
from decodeonce.loader.aio import fork_guard
from tests.loader.test_direct import fork_waits

def read():
    fork_guard.enter()
    begun.set()
    while not fork_waits():
        pass
    os.kill(os.getpid(), signal.SIGINT)
    fork_guard.leave()

for _ in range(5):
    begun = threading.Event()
    reading = threading.Thread(target=read)
    reading.start()
    begun.wait()
    try:
        if not os.fork():
            os._exit(0)
        time.sleep(5)
    except KeyboardInterrupt:
        print("interrupted", os.waitstatus_to_exitcode(os.wait()[1]))
    reading.join()
fork_guard.enter()
print("reads")
"""


def test_ctrl_c_while_a_fork_waits_for_reads_arrives(run_forked: RunForked, store: Path) -> None:
    assert run_forked(START + FORKING, store) == (0, "interrupted 0\n" * 5 + "reads\n", "")


CREATING = """
from decodeonce.loader import readers
readers.KEPT_MEMORY = 0.0  # for a store of any size, direct reads

def create():
    Loader(store, batch_size=4, reader="direct").close()

create()
started = time.perf_counter()
create()
took = time.perf_counter() - started
for number in range(20):
    try:
        signal.setitimer(signal.ITIMER_REAL, took * (number + 1) / 20)
        create()
        time.sleep(5)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_while_a_loader_with_direct_reads_is_created_arrives(run_forked: RunForked, store: Path) -> None:
    assert run_forked(START + CREATING, store) == (0, "interrupted\n" * 20, "")
