"""Errors and Ctrl-C in the middle of an epoch: later batches on the device are complete, and processes end."""

import dataclasses
import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from decodeonce import Batch, Loader
from tests.gpu.consumer import consume, on_host

BATCH = 4
STEPS = 15


@pytest.mark.parametrize("kind", [LookupError, torch.OutOfMemoryError])
def test_epoch_after_a_failed_transform_is_complete(store: Path, device: torch.device, kind: type[Exception]) -> None:
    numbers = itertools.count()

    def transform(batch: Batch) -> Batch:
        if next(numbers) == 5:
            if kind is LookupError:
                raise LookupError("not this one")
            torch.empty(2**50, dtype=torch.uint8, device=device)  # more memory than the device has
        return dataclasses.replace(batch)

    with Loader(store, batch_size=BATCH, device=device, transform=transform) as loader:
        with pytest.raises(kind):
            consume(loader, 1, device)
        assert consume(loader, 1, device) == on_host(store, 2, batch_size=BATCH)[STEPS:]


INTERRUPTED = """
import dataclasses, os, signal, sys, threading
import torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT in processes started with &
from decodeonce import Loader

first_is_seen, caught = threading.Event(), threading.Event()
stalls = iter([False, True])

def stall(batch):
    if next(stalls, False):
        first_is_seen.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        caught.wait(60)
    return dataclasses.replace(batch)

factor, rows = torch.ones((2048, 2048), device=sys.argv[2]), []
with Loader(sys.argv[1], batch_size=4, shuffle="none", device=sys.argv[2], transform=stall) as loader:
    try:
        for batch in loader:
            rows.append(batch.rows)
            for _ in range(50):
                factor @ factor
            if sys.argv[3] == "another":  # another thread gets the signal, so it does not interrupt the main thread
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            first_is_seen.set()
    except KeyboardInterrupt:
        caught.set()
        print(len(rows))
        loader.load_state_dict(loader.state_dict())
        rows += [batch.rows for batch in loader]
        print(torch.cat(rows).tolist() == list(range(60)), flush=True)
        raise
"""


@pytest.mark.parametrize("thread", ["main", "another"])
def test_ctrl_c_ends_an_epoch_that_can_be_resumed(store: Path, device: torch.device, thread: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(store), str(device), thread]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "1\nTrue\n"), done.stderr
    assert done.stderr.endswith("KeyboardInterrupt\n")


ENDED = """
import dataclasses, sys
import torch
from decodeonce import Loader

factor = torch.ones((2048, 2048), device=sys.argv[2])
batches = iter(Loader(sys.argv[1], batch_size=1, prefetch=1000, device=sys.argv[2], transform=dataclasses.replace))
kept = [next(batches), next(batches)]
for _ in range(50):
    factor @ factor
"""


def test_exit_during_an_epoch_prints_no_error(store: Path, device: torch.device) -> None:
    command = [sys.executable, "-c", ENDED, str(store), str(device)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Traceback" not in done.stderr
