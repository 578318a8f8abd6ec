"""What a measurement needs to know about the machine: whether it is idle, and that files are not in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.store.files import sync_file

LOOK_SECONDS = 0.5
IDLE = 0.1  # a smaller share of busy cores changes no result by much


def core_times() -> NDArray[np.float64]:
    """Return idle and total time of the cores that this process may use, since the machine started."""
    usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    times = np.array([line[1:9] for line in lines if line[0] in usable], float).reshape(-1, 8).sum(axis=0)
    return np.array([times[3] + times[4], times.sum()])  # idle and iowait are the columns 3 and 4 of proc(5)


def busy_share(before: NDArray[np.float64]) -> float:
    """Return which share of these cores was busy since an earlier result of core_times."""
    idle, total = core_times() - before
    return float(1 - idle / max(1.0, total))


def others_share() -> float:
    """Return which share of these cores other programs use while this one sleeps."""
    before = core_times()
    time.sleep(LOOK_SECONDS)
    return busy_share(before)


def others_text(share: float) -> list[str]:
    """Return a warning if other programs use the machine."""
    used = f"other programs use {share:.0%} of the cores"
    return [f"warning: {used}, so these rates are too low; measure again when the machine is idle"] * (share > IDLE)


def drop_pages(paths: Iterable[Path]) -> None:
    """Drop files from the page cache, without root rights. Pages that a process has mapped stay."""
    for path in paths:
        with suppress(OSError):  # read-only file systems such as squashfs have no fsync
            sync_file(path)
        with suppress(OSError), open(path, "rb") as file:  # a file that cannot be read is reported by what reads it
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
