"""`prep bench build`: how fast a source is read, pictures are decoded, and rows written; each alone, then together."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from decodeonce.cli.bench.pages import Place, make_cold
from decodeonce.cli.bench.sample import Pace, Run, fair_runs, measure_pace
from decodeonce.cli.bench.scratch import scratch_folder
from decodeonce.cli.bench.trial import trial_rate
from decodeonce.cli.bench.verdicts import BuildRates, build_verdict
from decodeonce.cli.bench.writes import write_rate
from decodeonce.errors import BuildError
from decodeonce.formatting import counted, duration_text
from decodeonce.host import usable_cores
from decodeonce.prep.build.blocks import block_rows_for
from decodeonce.prep.build.output_dir import check_output_dir
from decodeonce.prep.build.scan import check_listing, scan
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.processes.child import ChildDied
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import Source
from decodeonce.store import StorePaths

SCRATCH_BYTES = 1 << 30  # that are written, at most
PLACES = 64  # that are looked at to see whether pages were dropped


@dataclass(frozen=True)
class Paces:
    """Reading a sample by all workers, not in memory and in memory; making rows of it by one and by all of them.

    `why_warm` is why the first was from memory, too.
    """

    cold: Pace
    warm: Pace
    one: Pace
    all: Pace
    why_warm: str


def measure_build(
    source: Source, recipe: Recipe, folder: Path, *, workers: int | None, seconds: float
) -> dict[str, Any]:
    """All of it, as `--json` prints it: bytes and pictures (samples) a second, None for what was not measured."""
    decoder_versions(recipe.container)  # says what to install
    check_output_dir(StorePaths(folder / "scratch"), source)
    workers = workers or usable_cores()
    start = time.perf_counter()
    listing = scan(source)
    listed = time.perf_counter() - start
    check_listing(source, listing)
    runs = fair_runs(source, listing, recipe.shuffle_seed)
    paces = _paces(source, recipe, runs, workers, seconds)
    block_rows = block_rows_for(len(listing), recipe.row_bytes)
    made = paces.all.rate_of("making")
    with scratch_folder(folder) as scratch:
        disk = os.statvfs(scratch)
        room = min(SCRATCH_BYTES, disk.f_bavail * disk.f_frsize // 4)
        block_bytes = block_rows * recipe.row_bytes
        written = write_rate(scratch, block_bytes, room, writers=workers, seconds=seconds)
        rows = max(1, min(int(made * 1.5 * seconds), room // recipe.row_bytes))
        entries = [entry for run in paces.cold.begun for entry in run.entries]
        whole = trial_rate(
            source, entries, recipe, scratch / "store", rows=rows, block_rows=block_rows, workers=workers
        )
    what = {"source": str(source.root), "kind": source.kind, "samples": len(listing), "listing_s": listed}
    facts = {**what, "workers": workers, "usable_cores": usable_cores(), **_facts(paces, recipe)}
    facts |= {"write_bytes_per_s": written, "write_samples_per_s": written / recipe.row_bytes}
    return {**facts, "whole_build_samples_per_s": whole, **_verdict(facts, paces, recipe, whole)}


def _paces(source: Source, recipe: Recipe, runs: list[Run], workers: int, seconds: float) -> Paces:
    measure = partial(measure_pace, source, recipe)
    why_warm = make_cold(*_places(source, runs))
    try:
        cold = measure(runs, workers=workers, seconds=seconds, part="read")
        known = cold.begun  # in memory from now on
        warm = measure(known, workers=workers, seconds=seconds / 4, part="read", again=True)
        one = measure(known, workers=1, seconds=seconds, part="decode")
        check_decoded(source, one)
        return Paces(cold, warm, one, measure(known, workers=workers, seconds=seconds, again=True), why_warm)
    except ChildDied as died:
        raise BuildError(killed_text(source, died)) from None


def killed_text(source: Source, died: ChildDied) -> str:
    """What to say of a picture that killed its decoder."""
    return (
        f"{source.root}: a picture of the sample killed its decoder (exit status {died.status}), so nothing can be "
        "said of the time; a build lists it in rejects.tsv"
    )


def check_decoded(source: Source, pace: Pace) -> None:
    """Raise BuildError where not one of the pictures that were tried is one."""
    if pace.total.rejects == pace.total.pictures:
        tried = counted(pace.total.pictures, "picture that was", "pictures that were")
        raise BuildError(f"{source.root}: of {tried} tried none can be decoded, first {pace.total.first_reject}")


def _places(source: Source, runs: list[Run]) -> tuple[set[Path], list[Place]]:
    """The files of the sample, and some bytes in them."""
    entries = [entry for run in runs for entry in run.entries]
    held = [(Path(os.fsdecode(source.holder(entry))), entry) for entry in entries]
    some = held[:: -(-len(held) // PLACES)]
    if source.read_unit:  # places are not those in the file
        return {path for path, _ in held}, [Place(path, path.stat().st_size // 2) for path, _ in some]
    return {path for path, _ in held}, [Place(path, entry.place + entry.size // 2) for path, entry in some]


def _facts(paces: Paces, recipe: Recipe) -> dict[str, Any]:
    one, warm = paces.one.total, paces.warm.rate_of("reading")
    mean = paces.cold.total.bytes / paces.cold.total.pictures
    cold = None if paces.why_warm else paces.cold.rate_of("reading")
    return {
        "sampled": one.pictures,
        "rejects": one.rejects,
        "first_reject": one.first_reject,
        "mean_picture_bytes": mean,
        "row_bytes": recipe.row_bytes,
        "why_not_cold": paces.why_warm,
        "read_cold_samples_per_s": cold,
        "read_cold_bytes_per_s": None if cold is None else cold * mean,
        "read_warm_samples_per_s": warm,
        "read_warm_bytes_per_s": warm * mean,
        "decode_one_process_samples_per_s": (one.pictures - one.rejects) / one.decoding,
        "make_one_process_samples_per_s": one.pictures / one.making,
        "make_samples_per_s": paces.all.rate_of("making"),
    }


def _verdict(facts: dict[str, Any], paces: Paces, recipe: Recipe, whole: float | None) -> dict[str, Any]:
    rates = BuildRates(
        workers=facts["workers"],
        reading=facts["read_cold_samples_per_s"] or facts["read_warm_samples_per_s"],
        made=facts["make_samples_per_s"],
        made_by_one=facts["make_one_process_samples_per_s"],
        decode_share=paces.one.total.decoding / paces.one.total.making,
        writing=facts["write_samples_per_s"],
        whole=whole,
    )
    seconds = facts["samples"] / rates.expected
    rest = f"{counted(facts['samples'], 'picture')} in {duration_text(seconds)}"
    verdict = build_verdict(rates, rest=rest, warm_source=paces.why_warm)
    return {
        "samples_per_s": rates.expected,
        "bytes_per_s": rates.expected * recipe.row_bytes,
        "build_s": seconds,
        "limits": verdict.limits,
        "sentence": verdict.sentence,
    }
