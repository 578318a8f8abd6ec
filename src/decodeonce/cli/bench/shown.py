"""What was measured, for people: a table with units, and the sentence under it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from decodeonce.formatting import counted, duration_text, size_text

NOT_MEASURED = "-"
Line = tuple[str, float | None, float | None]  # what, bytes a second, pictures a second


def load_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The lines of `prep bench load`."""
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
    ring = f"{size_text(facts['ring_bytes'])} of it the Loader's ring"
    yield f"anonymous memory, at most {size_text(facts['peak_anon_bytes'])}, {ring}"


def build_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The lines of `prep bench build`."""
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
    """Aligned, with a line of units at the top."""
    width = max(len(what) for what, _, _ in lines)
    yield f"{'':{width}}  {'MB/s':>10}  {'pictures/s':>10}"
    for what, nbytes, pictures in lines:
        yield f"{what:{width}}  {_number(nbytes, 1e6):>10}  {_number(pictures):>10}"


def _number(value: float | None, unit: float = 1.0) -> str:
    return NOT_MEASURED if value is None else f"{value / unit:,.0f}"
