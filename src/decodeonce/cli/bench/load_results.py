"""Print the results of `prep bench load`: a table, and a sentence that names the limit and how many steps waited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from decodeonce.cli.bench.results import Line, Verdict, at, limit_of, limited, next_limit, table
from decodeonce.formatting import counted, size_text


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
        return Verdict(later, f"{limited('Every epoch', later, warm)}, with all rows in memory: {why_warm}")
    if not fits:
        word = "because" if first in cold else "although"
        return Verdict(first, f"{limited('Every epoch', first, whole)}, {word} {room}{next_limit(first, whole)}", first)
    if first == later:
        return Verdict(later, f"{limited('Every epoch', later, warm)}{next_limit(later, whole)}", first)
    then = f"later epochs, with all rows in memory, by {at(later, warm)}"
    return Verdict(later, f"{limited('The first epoch', first, whole)}; {then}", first)


def load_summary(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Find what limits training, and the steady rates: those of cold reads if memory does not hold the rows."""
    row_bytes, memory = facts["row_bytes"], facts["available_memory_bytes"] or 0
    cold, cold_rate = {}, facts["loader_cold_bytes_per_s"] or facts["random_read_cold_bytes_per_s"]
    if cold_rate is not None:
        busy = (facts["loader_cold_waits_for"] or "").startswith("copy")
        cold["processor" if busy else "storage"] = cold_rate / row_bytes
    room = f"{size_text(facts['bytes'])} of rows do not fit into {size_text(memory)} of memory"
    warm = {**_warm_rates(facts), "training": facts["gpu_samples_per_s"]}
    found = load_verdict(warm, cold, fits=facts["fits_memory"], why_warm=facts["why_not_cold"], room=room)
    steady = facts["loader_warm_bytes_per_s"] if facts["fits_memory"] or cold_rate is None else cold_rate
    return {
        "samples_per_s": steady / row_bytes,
        "bytes_per_s": steady,
        "limits": found.limits,
        "first_epoch_limits": found.first_epoch_limits or None,
        "sentence": f"{found.sentence}{_warm_text(facts)}",
    }


def _warm_rates(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the rates of copies in memory and of transfers, in images/s, with all rows in memory.

    Both compete for the bandwidth of memory, so the Loader can be slower than either alone. Its rate then counts as
    that of the slower one.
    """
    rates = {"memory": facts["loader_host_bytes_per_s"] / facts["row_bytes"]}
    if facts["transfer_bytes_per_s"] is not None:
        rates["transfer"] = facts["transfer_bytes_per_s"] / facts["row_bytes"]
    slower = limit_of(rates)
    return {**rates, slower: min(rates[slower], facts["loader_warm_bytes_per_s"] / facts["row_bytes"])}


def _warm_text(facts: Mapping[str, Any]) -> str:
    """Say how the Loader's transfers compare with plain copies, and how many training steps waited."""
    found = []
    if facts["transfer_over_copies"] is not None:
        found.append(f"transfers reach {facts['transfer_over_copies']:.0%} of plain pinned copies")
    if facts["steps"]:
        found.append(f"{facts['steps_waited']:,} of {counted(facts['steps'], 'training step')} waited for a batch")
    return f"; with rows in memory, {' and '.join(found)}" if found else ""


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
        "transfer": f"plain pinned copies to {facts['device']}",
    }
    if facts["device"] == "cpu":
        del parts["transfer"]
    rates = {what: facts[f"{name}_bytes_per_s"] for name, what in parts.items()}
    lines: list[Line] = [(what, rate, None if rate is None else rate / row) for what, rate in rates.items()]
    lines.append(("training step (--gpu-rate)", facts["gpu_samples_per_s"] * row, facts["gpu_samples_per_s"]))
    yield from table(lines)
    cold = "" if facts["first_batch_cold_s"] is None else f", cold {facts['first_batch_cold_s'] * 1e3:,.0f} ms"
    yield f"first batch of {facts['batch_size']} after {facts['first_batch_s'] * 1e3:,.0f} ms{cold}"
    yield _steps_line(facts)
    slots = f"of which {size_text(facts['slot_bytes'])} for the Loader's batches"
    yield f"anonymous memory: at most {size_text(facts['peak_anon_bytes'])}, {slots}"


def _steps_line(facts: Mapping[str, Any]) -> str:
    if facts["why_no_steps"]:
        return f"waits of training steps were not measured: {facts['why_no_steps']}"
    waited = f"{facts['steps_waited']:,} of {facts['steps']:,} waited, {facts['step_wait_s'] * 1e3:,.1f} ms on average"
    processor = f"{facts['processor_s_per_step'] * 1e3:,.1f} ms of processor time each"
    return f"training steps of {facts['step_s'] * 1e3:,.1f} ms: {waited}; {processor}"
