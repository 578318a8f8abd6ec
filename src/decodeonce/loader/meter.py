"""Where an iteration's time goes, and what that says."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

# A consumer who waits for less than this share of its time gains nothing from a faster loader.
SLIGHT = 0.05
# Threads that copy from memory were blocked for a tenth of their time on busy machines, and for half of it and more
# where rows came from a disk that could not keep up: the kernel's work for each page that comes in is done in them too.
BLOCKED = 0.3


@dataclass
class Spent:
    """Seconds on the clock of what passed in `with` blocks of one thread, and those in which the processor worked."""

    seconds: float = 0.0
    cpu: float = 0.0
    _start: float = 0.0
    _cpu: float = 0.0

    def __enter__(self) -> None:
        self._start, self._cpu = time.perf_counter(), time.thread_time()

    def __exit__(self, *exc: object) -> None:
        self.seconds += time.perf_counter() - self._start
        self.cpu += time.thread_time() - self._cpu

    def add(self, other: Spent) -> None:
        """Add another thread's."""
        self.seconds += other.seconds
        self.cpu += other.cpu


@dataclass
class Meter:
    """Counts of one Loader since it was made; the consumer's thread writes the first group, the filler's the second."""

    batches: int = 0
    rows: int = 0
    nbytes: int = 0
    ready: int = 0  # batches that lay ready when one was asked for, summed
    waits: int = 0
    seconds: float = 0.0  # in iteration, the consumer's own work included
    seconds_waited: float = 0.0

    hints: int = 0  # looks ahead, and those that found rows which were not in memory
    cold: int = 0
    reading: Spent = field(default_factory=Spent)  # of all copying threads
    sending: Spent = field(default_factory=Spent)

    def facts(self) -> dict[str, Any]:
        """The counts and rates of stats()."""
        seconds = self.seconds or 1.0
        return {
            "batches": self.batches,
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "samples_per_s": self.rows / seconds,
            "bytes_per_s": self.nbytes / seconds,
            "seconds_waited": self.seconds_waited,
            "waited_share": self.waits / self.batches if self.batches else 0.0,
            "queue_depth": self.ready / self.batches if self.batches else 0.0,
            "cold_share": self.cold / self.hints if self.hints else 0.0,
            "seconds_reading": self.reading.seconds,
            "seconds_reading_cpu": self.reading.cpu,
            "seconds_sending": self.sending.seconds,
        }

    def bottleneck(self, threads: int) -> str:
        """What training waits for: one sentence that begins with training, transfer, storage or copy."""
        if not self.batches:
            return "unknown: no batch has been handed out yet"
        share = self.seconds_waited / self.seconds
        waited = f"{share:.0%} of {self.seconds:.1f} s went into waiting for batches"
        if share < SLIGHT:
            return f"training: only {waited}"
        reading = self.reading.seconds / threads
        if self.sending.seconds > reading:
            return f"transfer: {waited}, most of it for copies to the device and the transform"
        blocked = 1 - self.reading.cpu / self.reading.seconds
        # Threads are blocked too where others have the processor; storage is to blame if rows came from there.
        if blocked > BLOCKED and self.cold > SLIGHT * self.hints:
            return f"storage: {waited}, and the threads that read were blocked for {blocked:.0%} of their time"
        return f"copy: {waited}, and {threads} threads that copy from memory were busy; more threads may help"
