"""From what was measured to what limits: pure functions, rates in pictures a second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from decodeonce.formatting import counted

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


@dataclass(frozen=True)
class Verdict:
    """`limits` is a key of WHAT, of the steady state; `first_epoch_limits` of a store that was not read lately."""

    limits: str
    sentence: str
    first_epoch_limits: str = ""


def limit_of(rates: Mapping[str, float]) -> str:
    """The name of the smallest rate, the first of several."""
    return min(rates, key=lambda name: rates[name])


def load_verdict(
    warm: Mapping[str, float], cold: Mapping[str, float], *, fits: bool, why_warm: str = "", room: str = ""
) -> Verdict:
    """What limits training, given the rates of each part with rows in memory, and of those that cold rows add.

    `cold` is empty where it was not measured, for the reason `why_warm`. `fits`: whether memory holds all rows; `room`
    says of how many.
    """
    from_memory, whole = limit_of(warm), {**warm, **cold}
    from_storage = limit_of(whole)
    if not cold:
        return Verdict(
            from_memory, f"{_limited('Every epoch', from_memory, warm)}, with all rows in memory: {why_warm}"
        )
    if not fits:
        word = "for" if from_storage in cold else "though"
        sentence = f"{_limited('Every epoch', from_storage, whole)}, {word} {room}{_next(from_storage, whole)}"
        return Verdict(from_storage, sentence, from_storage)
    if from_storage == from_memory:
        return Verdict(
            from_memory, f"{_limited('Every epoch', from_memory, warm)}{_next(from_memory, whole)}", from_memory
        )
    first = _limited("The first epoch", from_storage, whole)
    later = f"from the second on, with all rows in memory, by {_at(from_memory, warm)}"
    return Verdict(from_memory, f"{first}; {later}", from_storage)


def _limited(what: str, name: str, rates: Mapping[str, float]) -> str:
    return f"{what} is limited by {_at(name, rates)}"


def _at(name: str, rates: Mapping[str, float]) -> str:
    return f"{WHAT[name]}, at {rates[name]:,.0f} pictures/s"


def _next(name: str, rates: Mapping[str, float]) -> str:
    others = {other: rate for other, rate in rates.items() if other != name}
    return f"; next comes {_at(limit_of(others), others)}" if others else ""


@dataclass(frozen=True)
class BuildRates:
    """What N workers could do of each part alone; `made` is to decode and resize, `made_by_one` the same of one.

    `decode_share` is decoding's share of that. `whole` is what they did of all at once with the source in memory, None
    where there were too few pictures to tell.
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
        """What a build will do: each worker reads a picture, then makes it a row, while another thread of it writes."""
        in_turn = self.workers / (self.workers / self.reading + 1 / self.made_by_one)
        return min(in_turn, self.reading, self.made, self.writing, math.inf if self.whole is None else self.whole)

    @property
    def named(self) -> dict[str, float]:
        """The parts by their names in WHAT."""
        work = "decoding" if self.decode_share >= 0.5 else "resizing"
        return {"reading": self.reading, work: self.made, "writing": self.writing}


def build_verdict(rates: BuildRates, *, rest: str, warm_source: str = "") -> Verdict:
    """What limits a build; `rest` says how long it all takes.

    `warm_source` is why the source could be read from memory alone, "" where it could not.
    """
    limit = limit_of(rates.named)
    doubt = f"; the source was read from memory: {warm_source}" if warm_source else ""
    gives = f"with {counted(rates.workers, 'worker')} {rates.expected:,.0f} pictures/s in all, {rest}{doubt}"
    return Verdict(limit, f"{_limited('A build', limit, rates.named)}{_next(limit, rates.named)}: {gives}")
