"""What the results of `prep bench build` and `prep bench load` share: a table, and a sentence that names the limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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


def limited(what: str, name: str, rates: Mapping[str, float]) -> str:
    """Say what limits `what`, and its rate."""
    return f"{what} is limited by {at(name, rates)}"


def at(name: str, rates: Mapping[str, float]) -> str:
    """Name a part and its rate."""
    return f"{WHAT[name]}, at {rates[name]:,.0f} images/s"


def next_limit(name: str, rates: Mapping[str, float]) -> str:
    """Name the part with the next smallest rate; "" if there is no other part."""
    others = {other: rate for other, rate in rates.items() if other != name}
    return f"; the next limit is {at(limit_of(others), others)}" if others else ""


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a table with one line per rate."""
    width = max(len(what) for what, _, _ in lines)
    yield f"{'':{width}}  {'MB/s':>10}  {'images/s':>10}"
    for what, nbytes, images in lines:
        yield f"{what:{width}}  {_number(nbytes, 1e6):>10}  {_number(images):>10}"


def _number(value: float | None, unit: float = 1.0) -> str:
    return "-" if value is None else f"{value / unit:,.0f}"
