"""Print the results of `prep bench`: a table, and a sentence that names the limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decodeonce.formatting import counted, duration_text, size_text

WHAT = {
    "storage": "storage",
    "processor": "this machine's cores, which are busy with reading",
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
    """Keys of WHAT: `limits` in the steady state, `first_epoch_limits` for a store that is not in memory yet."""

    limits: str
    sentence: str
    first_epoch_limits: str = ""


def limit_of(rates: Mapping[str, float]) -> str:
    """Return the name of the smallest rate; the first one if several are equal."""
    return min(rates, key=lambda name: rates[name])


def load_verdict(
    warm: Mapping[str, float], cold: Mapping[str, float], *, fits: bool, why_warm: str = "", room: str = ""
) -> Verdict:
    """Find what limits training.

    Args:
        warm: Rate of each part in images/s, with all rows in memory.
        cold: Rates of the parts that matter for rows that are not in memory. Empty if they were not measured.
        fits: Whether memory holds all rows.
        why_warm: Why cold rates were not measured.
        room: How many rows do not fit, if `fits` is false.
    """
    whole = {**warm, **cold}
    first, later = limit_of(whole), limit_of(warm)
    if not cold:
        return Verdict(later, f"{_limited('Every epoch', later, warm)}, with all rows in memory: {why_warm}")
    if not fits:
        word = "because" if first in cold else "although"
        return Verdict(first, f"{_limited('Every epoch', first, whole)}, {word} {room}{_next(first, whole)}", first)
    if first == later:
        return Verdict(later, f"{_limited('Every epoch', later, warm)}{_next(later, whole)}", first)
    then = f"later epochs, with all rows in memory, by {_at(later, warm)}"
    return Verdict(later, f"{_limited('The first epoch', first, whole)}; {then}", first)


def _limited(what: str, name: str, rates: Mapping[str, float]) -> str:
    return f"{what} is limited by {_at(name, rates)}"


def _at(name: str, rates: Mapping[str, float]) -> str:
    return f"{WHAT[name]}, at {rates[name]:,.0f} images/s"


def _next(name: str, rates: Mapping[str, float]) -> str:
    others = {other: rate for other, rate in rates.items() if other != name}
    return f"; the next limit is {_at(limit_of(others), others)}" if others else ""


@dataclass(frozen=True)
class BuildRates:
    """Rates of each part of a build alone, in images/s.

    `made` is decoding and resizing by all workers and `made_by_one` by one worker; `decode_share` is the share of
    decoding in that time. `whole` is the whole build with the source in memory, or None if there were too few images.
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
        """Estimate the rate of a build: each worker reads an image, then makes its row, while a thread writes."""
        in_turn = self.workers / (self.workers / self.reading + 1 / self.made_by_one)
        return min(in_turn, self.reading, self.made, self.writing, math.inf if self.whole is None else self.whole)

    @property
    def named(self) -> dict[str, float]:
        """The rates of the parts by their keys in WHAT."""
        work = "decoding" if self.decode_share >= 0.5 else "resizing"
        return {"reading": self.reading, work: self.made, "writing": self.writing}


def build_verdict(rates: BuildRates, *, rest: str, why_warm: str = "") -> Verdict:
    """Find what limits a build. `rest` says how long it takes, `why_warm` why the source was read from memory."""
    limit = limit_of(rates.named)
    doubt = f"; the source was read from memory: {why_warm}" if why_warm else ""
    total = f"{counted(rates.workers, 'worker')} reach {rates.expected:,.0f} images/s in total, {rest}{doubt}"
    return Verdict(limit, f"{_limited('A build', limit, rates.named)}{_next(limit, rates.named)}: {total}")


def load_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `prep bench load`."""
    row, memory = facts["row_bytes"], facts["available_memory_bytes"]
    of = "" if memory is None else f"; {size_text(memory)} of memory available"
    yield f"{counted(facts['rows'], 'row')} of {size_text(row)}, {size_text(facts['bytes'])}{of}"
    yield f"reader {facts['reader']}: {facts['why']}"
    if facts["why_not_cold"]:
        yield f"cold reads were not measured: {facts['why_not_cold']}"
    parts = {
        "random_read_cold": "random row reads, cold",
        "sequential_read_cold": "sequential row reads, cold",
        "loader_cold": "Loader, cold",
        "random_read_warm": "random row reads, warm",
        "sequential_read_warm": "sequential row reads, warm",
        "loader_warm": f"Loader, warm, {counted(facts['threads'], 'thread')}",
        "memcpy": "memory copy, two threads",
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
    slots = f"of which {size_text(facts['slot_bytes'])} for the Loader's batches"
    yield f"anonymous memory: at most {size_text(facts['peak_anon_bytes'])}, {slots}"


def build_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `prep bench build`."""
    listed = f"listed in {duration_text(facts['listing_s'])}"
    yield f"{counted(facts['samples'], 'image')}, {listed}; {facts['sampled']} tried, {_rejects(facts)}"
    if facts["why_not_cold"]:
        yield f"the source was read from memory: {facts['why_not_cold']}"
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
        (f"whole build, source warm, {workers}", None if whole is None else whole * row, whole),
    ]
    yield from table(lines)


def _rejects(facts: Mapping[str, Any]) -> str:
    first = f", first: {facts['first_reject']}" if facts["rejects"] else ""
    return f"{counted(facts['rejects'], 'image')} rejected{first}"


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a table with one line per rate."""
    width = max(len(what) for what, _, _ in lines)
    yield f"{'':{width}}  {'MB/s':>10}  {'images/s':>10}"
    for what, nbytes, images in lines:
        yield f"{what:{width}}  {_number(nbytes, 1e6):>10}  {_number(images):>10}"


def _number(value: float | None, unit: float = 1.0) -> str:
    return "-" if value is None else f"{value / unit:,.0f}"
