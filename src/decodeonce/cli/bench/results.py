"""The results of `prep bench` for people: a table, and a sentence that names the limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decodeonce.formatting import counted, duration_text, size_text

WHAT = {
    "storage": "storage",
    "processor": "this machine's cores, busy with reading",
    "memory": "copying in memory",
    "transfer": "the transfer to the device",
    "training": "the training step",
    "reading": "reading the source",
    "decoding": "decoding",
    "resizing": "resizing",
    "writing": "writing",
}
Line = tuple[str, float | None, float | None]  # what, bytes/s, images/s


@dataclass(frozen=True)
class Verdict:
    """Keys of WHAT: `limits` in the steady state, `first_epoch_limits` for a store that was not read lately."""

    limits: str
    sentence: str
    first_epoch_limits: str = ""


def limit_of(rates: Mapping[str, float]) -> str:
    """The name of the smallest rate, the first of several."""
    return min(rates, key=lambda name: rates[name])


def load_verdict(
    warm: Mapping[str, float], cold: Mapping[str, float], *, fits: bool, why_warm: str = "", room: str = ""
) -> Verdict:
    """Tell what limits training.

    Args:
        warm: The rates of each part, with all rows in memory.
        cold: The rates that come in with cold rows; empty if they were not measured, for the reason `why_warm`.
        fits: Whether memory holds all rows; if not, `room` says how many.
    """
    whole = {**warm, **cold}
    first, later = limit_of(whole), limit_of(warm)
    if not cold:
        return Verdict(later, f"{_limited('Every epoch', later, warm)}, with all rows in memory: {why_warm}")
    if not fits:
        word = "for" if first in cold else "though"
        return Verdict(first, f"{_limited('Every epoch', first, whole)}, {word} {room}{_next(first, whole)}", first)
    if first == later:
        return Verdict(later, f"{_limited('Every epoch', later, warm)}{_next(later, whole)}", first)
    then = f"from the second on, with all rows in memory, by {_at(later, warm)}"
    return Verdict(later, f"{_limited('The first epoch', first, whole)}; {then}", first)


def _limited(what: str, name: str, rates: Mapping[str, float]) -> str:
    return f"{what} is limited by {_at(name, rates)}"


def _at(name: str, rates: Mapping[str, float]) -> str:
    return f"{WHAT[name]}, at {rates[name]:,.0f} pictures/s"


def _next(name: str, rates: Mapping[str, float]) -> str:
    others = {other: rate for other, rate in rates.items() if other != name}
    return f"; next comes {_at(limit_of(others), others)}" if others else ""


@dataclass(frozen=True)
class BuildRates:
    """What the workers could do of each part alone, in images/s.

    `made` is decoding and resizing by all workers, `made_by_one` by one, `decode_share` decoding's share of that.
    `whole` is everything at once, with the source in memory; None if there were too few images to tell.
    """

    workers: int
    reading: float
    made: float
    made_by_one: float
    decode_share: float
    writing: float
    whole: float | None = None

    @property
    def expected(self) -> float:
        """The rate of a build: each worker reads an image, then makes a row of it, while a thread of it writes."""
        in_turn = self.workers / (self.workers / self.reading + 1 / self.made_by_one)
        return min(in_turn, self.reading, self.made, self.writing, math.inf if self.whole is None else self.whole)

    @property
    def named(self) -> dict[str, float]:
        """The rates of the parts, by their names in WHAT."""
        work = "decoding" if self.decode_share >= 0.5 else "resizing"
        return {"reading": self.reading, work: self.made, "writing": self.writing}


def build_verdict(rates: BuildRates, *, rest: str, why_warm: str = "") -> Verdict:
    """Tell what limits a build; `rest` says how long it takes, `why_warm` why the source was read from memory."""
    limit = limit_of(rates.named)
    doubt = f"; the source was read from memory: {why_warm}" if why_warm else ""
    gives = f"with {counted(rates.workers, 'worker')} {rates.expected:,.0f} pictures/s in all, {rest}{doubt}"
    return Verdict(limit, f"{_limited('A build', limit, rates.named)}{_next(limit, rates.named)}: {gives}")


def load_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The table of `prep bench load`."""
    row, memory = facts["row_bytes"], facts["available_memory_bytes"]
    of = "" if memory is None else f", {size_text(memory)} of memory to hold them"
    yield f"{counted(facts['rows'], 'row')} of {size_text(row)}, {size_text(facts['bytes'])}{of}"
    yield f"reader {facts['reader']}: {facts['why']}"
    if facts["why_not_cold"]:
        yield f"nothing is measured cold: {facts['why_not_cold']}"
    parts = {
        "random_read_cold": "rows read at random, cold",
        "sequential_read_cold": "rows read in order, cold",
        "loader_cold": "Loader, cold",
        "random_read_warm": "rows read at random, warm",
        "sequential_read_warm": "rows read in order, warm",
        "loader_warm": f"Loader, warm, {counted(facts['threads'], 'thread')}",
        "memcpy": "memory copied by two threads",
        "transfer": f"transfer to {facts['device']}",
    }
    if facts["device"] == "cpu":
        del parts["transfer"]
    rates = {what: facts[f"{name}_bytes_per_s"] for name, what in parts.items()}
    lines: list[Line] = [(what, rate, None if rate is None else rate / row) for what, rate in rates.items()]
    lines.append(("training step (--gpu-rate)", facts["gpu_samples_per_s"] * row, facts["gpu_samples_per_s"]))
    yield from table(lines)
    cold = "" if facts["first_batch_cold_s"] is None else f", cold {facts['first_batch_cold_s'] * 1e3:,.0f} ms"
    yield f"first batch of {facts['batch_size']} after {facts['first_batch_s'] * 1e3:,.0f} ms{cold}"
    ring = f"{size_text(facts['slot_bytes'])} of it the Loader's ring"
    yield f"anonymous memory, at most {size_text(facts['peak_anon_bytes'])}, {ring}"


def build_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The table of `prep bench build`."""
    listed = f"listed in {duration_text(facts['listing_s'])}"
    yield f"{counted(facts['samples'], 'picture')}, {listed}; {facts['sampled']} of them tried, {_rejects(facts)}"
    if facts["why_not_cold"]:
        yield f"the source is read from memory: {facts['why_not_cold']}"
    row, workers = facts["row_bytes"], counted(facts["workers"], "worker")
    one, made = facts["make_one_process_samples_per_s"], facts["make_samples_per_s"]
    decoded, whole = facts["decode_one_process_samples_per_s"], facts["whole_build_samples_per_s"]
    lines: list[Line] = [
        (f"source read, cold, {workers}", facts["read_cold_bytes_per_s"], facts["read_cold_samples_per_s"]),
        (f"source read, warm, {workers}", facts["read_warm_bytes_per_s"], facts["read_warm_samples_per_s"]),
        ("decoded, one process", None, decoded),
        ("decoded and resized, one process", one * row, one),
        (f"decoded and resized, {workers}", made * row, made),
        ("rows written and flushed", facts["write_bytes_per_s"], facts["write_samples_per_s"]),
        (f"all of it, source warm, {workers}", None if whole is None else whole * row, whole),
    ]
    yield from table(lines)


def _rejects(facts: Mapping[str, Any]) -> str:
    first = f", first {facts['first_reject']}" if facts["rejects"] else ""
    return f"{counted(facts['rejects'], 'reject')}{first}"


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Align the lines below their units."""
    width = max(len(what) for what, _, _ in lines)
    yield f"{'':{width}}  {'MB/s':>10}  {'pictures/s':>10}"
    for what, nbytes, pictures in lines:
        yield f"{what:{width}}  {_number(nbytes, 1e6):>10}  {_number(pictures):>10}"


def _number(value: float | None, unit: float = 1.0) -> str:
    return "-" if value is None else f"{value / unit:,.0f}"
