"""Measure where the time of an iteration goes, and name the bottleneck."""

from __future__ import annotations

from dataclasses import dataclass

# A consumer that waits for less than this share of its time gains nothing from a faster loader.
SLIGHT = 0.05
LEAST_BATCHES = 4  # the wait for the first ones is that for threads to start, and for the default prefetch
# On busy machines, threads that copy from memory were blocked for a tenth of their time. When the disk could not keep
# up, they were blocked for half of it and more: these threads also do the kernel's work for each page.
BLOCKED = 0.3


@dataclass
class Meter:
    """Counts of one Loader since it was created.

    The consumer's thread writes the first group of fields, the filler's thread the second.
    """

    batches: int = 0
    rows: int = 0
    batches_ready: int = 0  # batches that were ready when one was requested, summed over all requests
    waits: int = 0
    seconds: float = 0.0  # time spent iterating, including the consumer's own work
    seconds_waited: float = 0.0

    hints: int = 0  # read-ahead checks
    cold: int = 0  # read-ahead checks that found rows outside the page cache
    seconds_reading: float = 0.0  # summed over all copying threads
    seconds_reading_cpu: float = 0.0
    seconds_sending: float = 0.0
    seconds_transforming: float = 0.0
    seconds_held: float = 0.0  # waited before sending, because the device was still working on earlier batches

    @property
    def waited_time_share(self) -> float:
        """The share of the iteration's time spent waiting for batches; stats() and bottleneck() report it."""
        return self.seconds_waited / (self.seconds or 1.0)

    def facts(self, row_bytes: int) -> dict[str, dict[str, float]]:
        """The counts, times and rates that stats() returns, rounded for people: seconds to 1 ms."""
        seconds, batches, nbytes = self.seconds or 1.0, self.batches or 1, self.rows * row_bytes
        groups = {
            "yielded": {
                "batches": self.batches,
                "bytes": nbytes,
                "seconds": self.seconds,
                "samples_per_s": self.rows / seconds,
                "bytes_per_s": round(nbytes / seconds),
            },
            "waited": {
                "batches": self.waits,
                "seconds": self.seconds_waited,
                "time_share": self.waited_time_share,
                "queue_depth": self.batches_ready / batches,
            },
            "threads": {
                "seconds_reading": self.seconds_reading,
                "seconds_reading_cpu": self.seconds_reading_cpu,
                "seconds_transforming": self.seconds_transforming,
                "seconds_sending": self.seconds_sending,
                "cold_share": self.cold / (self.hints or 1),
            },
        }
        return {group: {name: round(value, 3) for name, value in facts.items()} for group, facts in groups.items()}

    def bottleneck(self, threads: int, *, transfers: bool) -> str:
        """What training waits for, in one sentence. `transfers`: whether batches are copied to a device."""
        if self.batches < LEAST_BATCHES:
            return f"unknown: too early to tell: {self.batches} of the first {LEAST_BATCHES} batches were yielded"
        waited = f"{self.waited_time_share:.0%} of {self.seconds:.1f} s was spent waiting for batches"
        if self.waited_time_share < SLIGHT:
            return f"training: only {waited}"
        # One thread transforms and sends while the others read.
        if self.seconds_transforming + self.seconds_sending > self.seconds_reading / threads:
            if self.seconds_transforming > self.seconds_sending:
                took = f"the transform took {self.seconds_transforming:.1f} s"
                more = "" if transfers else ", more cores, a GPU"
                advice = f"fewer or cheaper steps, smaller rows (prep convert --size){more}"
                return f"transform: {waited}, and {took}; try {advice}"
            if transfers:
                return f"transfer: {waited}, mostly for copies to the device and the transform's work there"
            return f"copy: {waited}, mostly for the fixed cost of each batch; try a larger batch_size"
        blocked = 1 - self.seconds_reading_cpu / self.seconds_reading
        # Threads are also blocked when other processes use the processor. Blame storage only if rows came from there.
        if blocked > BLOCKED and self.cold > SLIGHT * self.hints:
            return f"storage: {waited}, and reading threads were blocked for {blocked:.0%} of their time"
        return f"copy: {waited}, and {threads} threads were busy copying from memory; try more threads"
