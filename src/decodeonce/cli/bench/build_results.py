"""Print the results of `prep bench build`: a table, and a sentence that names the limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from decodeonce.cli.bench.results import Line, Verdict, limit_of, limited, next_limit, table
from decodeonce.formatting import counted, duration_text


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
    return Verdict(limit, f"{limited('A build', limit, rates.named)}{next_limit(limit, rates.named)}: {total}")


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
