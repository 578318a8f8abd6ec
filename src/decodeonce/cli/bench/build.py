"""`prep bench build`: time a part of a real build, first with the source on storage, then with it in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from decodeonce.cli.bench.machine import drop_pages, others_share, others_text
from decodeonce.cli.bench.trial import fair_sample, run_trial, scratch_folder
from decodeonce.cli.kinds import BuildRequest
from decodeonce.formatting import counted, duration_text
from decodeonce.host import free_space, is_in_memory, network_file_system, usable_cores
from decodeonce.prep.building.output_dir import check_output_dir
from decodeonce.prep.building.plan import scan
from decodeonce.store import StorePaths

SCRATCH_BYTES = 1 << 30  # the most that is written
MUCH_LESS = 0.8  # if rate and busy share of a cold build are below this ratio, it is limited by reading
BUSY = 0.6  # from this share of the cores on, a build is limited by them
WHAT = {
    "reading": "reading the source",
    "processor": "the cores, which decode and resize",
    "writing": "writing",
}


def measure_build(request: BuildRequest, seconds: float) -> dict[str, Any]:
    """Measure everything that `--json` prints, in images/s ("samples"); None means not measured."""
    others = others_share()
    source, recipe, folder = request.source, request.recipe, request.out.absolute().parent
    check_output_dir(StorePaths(folder / "scratch"), source)
    start = time.perf_counter()
    listing = scan(source, request.expect)
    listed = time.perf_counter() - start
    workers = request.work.workers or usable_cores()
    free, _ = free_space(folder)
    rows = max(1, min(SCRATCH_BYTES, SCRATCH_BYTES if free is None else free // 4) // recipe.row_bytes)
    entries = fair_sample(source, listing, recipe.shuffle_seed, rows)
    cold, why_warm = None, f"{source.root} is on a memory file system" if is_in_memory(source.root) else ""
    with scratch_folder(folder) as scratch:
        if not why_warm:
            drop_pages({Path(os.fsdecode(source.holder(entry))) for entry in entries})
            cold = run_trial(source, entries, recipe, scratch, workers=workers, seconds=seconds)
            entries = entries[: cold.samples]  # these are in memory now
            if 2 * cold.read_bytes < sum(entry.size for entry in entries) and not network_file_system(source.root):
                cold, why_warm = None, "the files stayed in memory, probably because another process uses them"
        warm = run_trial(source, entries, recipe, scratch, workers=workers, seconds=seconds, rows=rows)
    limits, rate = "processor" if warm.busy_share >= BUSY else "writing", warm.samples_per_s
    if cold and cold.samples_per_s < rate:
        waits = max(cold.samples_per_s / rate, cold.busy_share / warm.busy_share) < MUCH_LESS
        limits, rate = "reading" if waits else limits, cold.samples_per_s
    total = f"{counted(workers, 'worker')} reach {rate:,.0f} images/s"
    rest = f"{counted(len(listing), 'image')} take {duration_text(len(listing) / rate)}"
    return {
        "source": str(source.root),
        "kind": source.kind,
        "samples": len(listing),
        "listing_s": listed,
        "workers": workers,
        "other_programs_share": others,
        "row_bytes": recipe.row_bytes,
        "why_not_cold": why_warm,
        "cold": asdict(cold) if cold else None,
        "warm": asdict(warm),
        "samples_per_s": rate,
        "bytes_per_s": rate * recipe.row_bytes,
        "build_s": len(listing) / rate,
        "limits": limits,
        "sentence": f"A build is limited by {WHAT[limits]}: {total}, and {rest}",
    }


def build_lines(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of `prep bench build`."""
    yield f"{counted(facts['samples'], 'image')}, listed in {duration_text(facts['listing_s'])}"
    for name in ("cold", "warm"):
        if trial := facts[name]:
            tried = f"{counted(trial['samples'], 'image')}, {counted(trial['rejects'], 'reject')}"
            first = f", first {trial['first_reject']}" if trial["rejects"] else ""
            yield f"build, source {name}: {trial['samples_per_s']:,.0f} images/s, cores {trial['busy_share']:.0%} busy"
            yield f"  {tried}{first}"
        else:
            yield f"build, source {name}: not measured: {facts['why_not_cold']}"
    yield from others_text(facts["other_programs_share"])
    yield facts["sentence"]
