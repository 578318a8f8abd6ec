"""`prep bench build`: measure how fast images are read, decoded and written, each alone and all together."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from decodeonce.cli.bench.build_results import BuildRates, build_verdict
from decodeonce.cli.bench.pages import FilePosition, make_cold
from decodeonce.cli.bench.sample import Pace, Run, fair_runs, measure_pace
from decodeonce.cli.bench.trial import scratch_folder, trial_rate, write_rate
from decodeonce.errors import BuildError
from decodeonce.formatting import counted, duration_text
from decodeonce.host import free_space, usable_cores
from decodeonce.prep.build.blocks import block_rows_for
from decodeonce.prep.build.output_dir import check_output_dir
from decodeonce.prep.build.plan import check_listing, scan
from decodeonce.prep.entry import Entry
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.processes.child import ChildDied
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import Source
from decodeonce.store import StorePaths

SCRATCH_BYTES = 1 << 30  # the most that is written


def measure_build(
    source: Source, recipe: Recipe, folder: Path, *, workers: int | None, seconds: float
) -> dict[str, Any]:
    """Measure everything that `--json` prints, in bytes/s and images/s ("samples"); None means not measured."""
    decoder_versions(recipe.container)  # raises an error if a decoder is not installed
    check_output_dir(StorePaths(folder / "scratch"), source)
    start = time.perf_counter()
    listing = scan(source)
    listed = time.perf_counter() - start
    check_listing(source, listing)
    facts: dict[str, Any] = {
        "source": str(source.root),
        "kind": source.kind,
        "samples": len(listing),
        "listing_s": listed,
        "workers": workers or usable_cores(),
        "usable_cores": usable_cores(),
        "row_bytes": recipe.row_bytes,
    }
    runs = fair_runs(source, listing, recipe.shuffle_seed)
    read, rates = _measure_images(source, recipe, runs, facts["workers"], seconds)
    facts |= rates
    entries = [entry for run in read for entry in run.entries]
    facts |= _measure_writes(source, recipe, entries, folder, facts, seconds)
    return {**facts, **_verdict(facts)}


def _measure_images(
    source: Source, recipe: Recipe, runs: list[Run], workers: int, seconds: float
) -> tuple[list[Run], dict[str, Any]]:
    """Read runs with all workers, cold and warm; then make rows of them with one worker and with all.

    Returns:
        The runs that were read, and the rates.
    """
    measure = partial(measure_pace, source, recipe)
    why_warm = make_cold(_positions(source, runs))
    try:
        cold = measure(runs, workers=workers, seconds=seconds, part="read")
        read = cold.started  # these files are in memory now
        warm = measure(read, workers=workers, seconds=seconds / 4, part="read", again=True)
        one = measure(read, workers=1, seconds=seconds, part="decode")
        check_decoded(source, one)
        made = measure(read, workers=workers, seconds=seconds, again=True)
    except ChildDied as died:
        raise BuildError(killed_text(source, died)) from None
    mean, done = cold.total.bytes / cold.total.images, one.total
    cold_rate, warm_rate = None if why_warm else cold.rate_of("reading"), warm.rate_of("reading")
    return read, {
        "sampled": done.images,
        "rejects": done.rejects,
        "first_reject": done.first_reject,
        "mean_image_bytes": mean,
        "why_not_cold": why_warm,
        "read_cold_samples_per_s": cold_rate,
        "read_cold_bytes_per_s": None if cold_rate is None else cold_rate * mean,
        "read_warm_samples_per_s": warm_rate,
        "read_warm_bytes_per_s": warm_rate * mean,
        "decode_one_process_samples_per_s": (done.images - done.rejects) / done.decoding,
        "make_one_process_samples_per_s": done.images / done.making,
        "make_samples_per_s": made.rate_of("making"),
    }


def _measure_writes(
    source: Source, recipe: Recipe, entries: list[Entry], folder: Path, facts: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Write blocks to a scratch folder, then build some rows in it."""
    block_rows = block_rows_for(facts["samples"], recipe.row_bytes)
    with scratch_folder(folder) as scratch:
        free, _ = free_space(scratch)
        room = SCRATCH_BYTES if free is None else min(SCRATCH_BYTES, free // 4)
        block_bytes, workers = block_rows * recipe.row_bytes, facts["workers"]
        written = write_rate(scratch, block_bytes, room, writers=workers, seconds=seconds)
        rows = max(1, min(int(facts["make_samples_per_s"] * 1.5 * seconds), room // recipe.row_bytes))
        out = scratch / "store"
        whole = trial_rate(source, entries, recipe, out, rows=rows, block_rows=block_rows, workers=workers)
    return {
        "write_bytes_per_s": written,
        "write_samples_per_s": written / recipe.row_bytes,
        "whole_build_samples_per_s": whole,
    }


def killed_text(source: Source, died: ChildDied) -> str:
    """Return the message for an image that crashed its decoder."""
    return (
        f"{source.root}: an image of the sample crashed its decoder (exit status {died.status}), so the time cannot be "
        "estimated; a build skips such an image and lists it in rejects.tsv"
    )


def check_decoded(source: Source, pace: Pace) -> None:
    """Raise BuildError if no image that was tried can be decoded."""
    if pace.total.rejects == pace.total.images:
        tried = counted(pace.total.images, "image was", "images were")
        first = pace.total.first_reject
        raise BuildError(f"{source.root}: {tried} tried and none can be decoded, for example {first}")


def _positions(source: Source, runs: list[Run]) -> list[FilePosition]:
    """Return a file position in each image of the runs; in the file of a unit if units are read whole."""
    entries = [entry for run in runs for entry in (run.entries[:1] if source.read_unit else run.entries)]
    held = [(Path(os.fsdecode(source.holder(entry))), entry) for entry in entries]
    if source.read_unit:
        return [FilePosition(path, path.stat().st_size // 2) for path, _ in held]
    return [FilePosition(path, entry.place + entry.size // 2) for path, entry in held]


def _verdict(facts: dict[str, Any]) -> dict[str, Any]:
    """Find what limits a build and how long it takes."""
    rates = BuildRates(
        workers=facts["workers"],
        reading=facts["read_cold_samples_per_s"] or facts["read_warm_samples_per_s"],
        made=facts["make_samples_per_s"],
        made_by_one=facts["make_one_process_samples_per_s"],
        decode_share=facts["make_one_process_samples_per_s"] / facts["decode_one_process_samples_per_s"],
        writing=facts["write_samples_per_s"],
        whole=facts["whole_build_samples_per_s"],
    )
    seconds = facts["samples"] / rates.expected
    rest = f"{counted(facts['samples'], 'image')} in {duration_text(seconds)}"
    verdict = build_verdict(rates, rest=rest, why_warm=facts["why_not_cold"])
    return {
        "samples_per_s": rates.expected,
        "bytes_per_s": rates.expected * facts["row_bytes"],
        "build_s": seconds,
        "limits": verdict.limits,
        "sentence": verdict.sentence,
    }
