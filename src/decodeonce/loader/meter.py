"""Where an iteration's time goes, and what that says."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from torch.autograd import profiler

# A consumer who waits for less than this share of its time gains nothing from a faster loader.
SLIGHT = 0.05
# Threads that copy from memory were blocked for a tenth of their time on busy machines, and for half of it and more
# where rows came from a disk that could not keep up: the kernel's work for each page that comes in is done in them too.
BLOCKED = 0.3


def mark(name: str) -> AbstractContextManager[Any]:
    """Show what happens inside as decodeonce.<name> in the trace of a running profiler (TensorBoard, Perfetto)."""
    # record_function takes 5 us whether one runs or not, four times a step; this is what torch itself looks at.
    if getattr(profiler, "_is_profiler_enabled", True):
        return profiler.record_function(f"decodeonce.{name}")
    return nullcontext()


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Call it; return the seconds on the clock and those in which the processor worked for this thread."""
    start, cpu = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - start, time.thread_time() - cpu


@dataclass
class Meter:
    """Counts of one Loader since it was made; the consumer's thread writes the first group, the filler's the second."""

    batches: int = 0
    rows: int = 0
    ready: int = 0  # batches that were ready when one was asked for, summed
    waits: int = 0
    seconds: float = 0.0  # in iteration, the consumer's own work included
    seconds_waited: float = 0.0

    hints: int = 0  # looks ahead, and those that found rows which were not in memory
    cold: int = 0
    seconds_reading: float = 0.0  # of all copying threads
    seconds_reading_cpu: float = 0.0
    seconds_sending: float = 0.0
    seconds_transforming: float = 0.0

    @property
    def waited_time_share(self) -> float:
        """The share of iteration's time that went into waiting for batches: what stats() and bottleneck() give."""
        return self.seconds_waited / (self.seconds or 1.0)

    def facts(self, row_bytes: int) -> dict[str, Any]:
        """The counts and rates of stats()."""
        seconds, batches, nbytes = self.seconds or 1.0, self.batches or 1, self.rows * row_bytes
        return {
            **{name: value for name, value in asdict(self).items() if name == "batches" or name.startswith("seconds")},
            "bytes": nbytes,
            "samples_per_s": self.rows / seconds,
            "bytes_per_s": nbytes / seconds,
            "waited_time_share": self.waited_time_share,
            "waited_batch_share": self.waits / batches,
            "queue_depth": self.ready / batches,
            "cold_share": self.cold / (self.hints or 1),
        }

    def bottleneck(self, threads: int, *, transfers: bool) -> str:
        """What training waits for, in one sentence; `transfers` is whether batches are copied to a device."""
        if not self.batches:
            return "unknown: no batch has been handed out yet"
        waited = f"{self.waited_time_share:.0%} of {self.seconds:.1f} s went into waiting for batches"
        if self.waited_time_share < SLIGHT:
            return f"training: only {waited}"
        # One thread transforms and sends, while others read.
        if self.seconds_transforming + self.seconds_sending > self.seconds_reading / threads:
            if self.seconds_transforming > self.seconds_sending:
                took = f"the transform took {self.seconds_transforming:.1f} s"
                more = "" if transfers else ", more cores, a GPU"
                try_ = f"fewer or cheaper steps, smaller rows (prep convert --size){more}"
                return f"transform: {waited}, and {took}; what may help: {try_}"
            if transfers:
                return f"transfer: {waited}, most of it for copies to the device and the transform's work there"
            return f"copy: {waited}, most of it for work that each batch costs; a larger batch_size may help"
        blocked = 1 - self.seconds_reading_cpu / self.seconds_reading
        # Threads are blocked too where others have the processor; storage is to blame if rows came from there.
        if blocked > BLOCKED and self.cold > SLIGHT * self.hints:
            return f"storage: {waited}, and the threads that read were blocked for {blocked:.0%} of their time"
        return f"copy: {waited}, and {threads} threads that copy from memory were busy; more threads may help"
