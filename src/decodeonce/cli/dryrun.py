"""`--dry-run`: estimate the bytes, files and time of a build without writing anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir

from decodeonce.cli.bench.build import fair_sample, list_source, run_trial, scratch_folder
from decodeonce.cli.kinds import BuildRequest
from decodeonce.cli.output import advice_on
from decodeonce.formatting import counted, duration_text, size_text
from decodeonce.host import usable_cores
from decodeonce.prep.building.free_space import (
    check_free_space,
    describe_storage,
    find_storage,
    space_needed,
    stripe_advice,
)
from decodeonce.prep.building.plan import (
    Blocks,
    Listing,
    Plan,
    allowed_rejects,
    check_matches_plan,
    plan_facts,
    read_plan,
)
from decodeonce.prep.jobs.base import Chain, clock
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.base import Source
from decodeonce.store import StorePaths

SECONDS = 2.5  # spent building a sample
SCRATCH_BYTES = 128 << 20  # the most that the sample takes in the folder for temporary files
TASKS = (4, 16, 64)  # numbers of tasks to print a time for

# Describes how long `rows` rows take if one process makes `per_s` rows per second.
Time = Callable[[int, float], str]


def time_here(workers: int, rows: int, per_s: float) -> str:
    """Describe the time on this machine with `workers` workers, and on several such machines."""
    cores = min(workers, usable_cores())  # workers beyond the number of cores do not help
    others = ", ".join(f"{duration_text(rows / per_s / cores / tasks)} with {tasks}" for tasks in TASKS)
    return (
        f"time: {_about(rows / per_s / cores)} with one task of {counted(workers, 'worker')} here; {others} such tasks"
    )


def time_in_jobs(chain: Chain, workers: int, rows: int, per_s: float) -> str:
    """Describe the time of each task of a chain of jobs, and whether it fits the time limit."""
    seconds = math.ceil(rows / chain.processes) / (per_s * min(workers, chain.cpus))
    size = f"{counted(chain.processes, 'task')} of {counted(workers, 'worker')}"
    text = f"time: {_about(seconds)} for each of {size}, on cores as fast as these"
    waves = math.ceil(chain.tasks / (chain.max_running or chain.tasks))
    if waves > 1:
        text += f", {chain.max_running} at a time: {duration_text(waves * seconds)} in total"
    if chain.seconds is None:
        return text
    rounds = max(1, math.ceil(seconds / (chain.seconds - chain.lead)))  # each round resumes the previous one
    limit = f"--time {clock(chain.seconds)}"
    if rounds == 1:
        return f"{text}; fits {limit}"
    if rounds <= chain.rounds:
        return f"{text}; fits {rounds} of the {chain.rounds} rounds of {limit}"
    return f"{text}; does not fit {limit}: increase --time or --tasks, or pass --rounds {rounds}"


def _about(seconds: float) -> str:
    return duration_text(seconds) if seconds < 1 else f"about {duration_text(seconds)}"


def dry_run(request: BuildRequest, time: Time, seconds: float = SECONDS) -> Iterator[str]:
    """Yield the lines to print after decoding for `seconds`. Raises the errors of a build, lack of space last."""
    source, out, recipe = request.source, request.out, request.recipe
    paths = StorePaths(out)
    listing = list_source(request, out)
    facts = plan_facts(source, listing, recipe, decoder_versions(recipe.container))
    if started := paths.plan.exists():
        check_matches_plan(read_plan(paths), listing, facts)
    planned = planned_text(source, recipe, len(listing))
    yield f"{planned}; {counted(len(listing.rejects), 'file')} rejected; nothing was written"
    needed = space_needed(Plan(paths, facts))
    rows = needed.rows * recipe.row_bytes
    more = size_text(needed.bytes - rows)
    yield f"space: {size_text(rows)} for rows, up to {more} for other data; up to {needed.files} files"
    yield from _sampled(request, listing, time, seconds)
    if started:  # its space is already reserved
        yield f"{out}: an unfinished build is here; the same command without --dry-run resumes it"
        return
    storage = find_storage(out)
    yield from describe_storage(storage)
    if advice := stripe_advice(out, storage):
        yield advice
    check_free_space(out, storage, needed)


def planned_text(source: Source, recipe: Recipe, rows: int) -> str:
    """Describe the store that `rows` rows of a source would become."""
    row_bytes = recipe.row_bytes
    blocks = Blocks.of(rows, row_bytes, recipe.shard_size, source.block_rows(rows, row_bytes))
    return (
        f"{counted(rows, 'row')} of {recipe.height}x{recipe.width}x3 in "
        f"{counted(len(source.classes()), 'class', 'classes')}, {size_text(rows * row_bytes)} in "
        f"{counted(-(-rows // blocks.shard_rows), f'{recipe.container} shard')}"
    )


def _sampled(request: BuildRequest, listing: Listing, time: Time, seconds: float) -> Iterator[str]:
    """Yield the estimated time, its basis, and a warning if the build would fail because of too many rejects."""
    source, recipe = request.source, request.recipe
    entries = fair_sample(source, listing, recipe.shuffle_seed, max(1, SCRATCH_BYTES // recipe.row_bytes))
    with scratch_folder(Path(gettempdir())) as scratch:
        trial = run_trial(source, entries, recipe, scratch, workers=1, seconds=seconds)
    yield time(len(listing), trial.samples_per_s)
    part = "all" if trial.samples == len(listing) else "a fair sample"
    found = f"; {trial.rejects} of them cannot be decoded, first {trial.first_reject}" if trial.rejects else ""
    yield (
        f"this is an estimate: one process here read and decoded {counted(trial.samples, 'image')} ({part}) at "
        f"{trial.samples_per_s:,.0f} images/s; a slower disk or a cold cache takes longer{found}"
    )
    for line in advice_on(trial.kept):
        yield f"in this sample, {line}"
    max_bad = request.work.max_bad
    allowed = allowed_rejects(max_bad, listing.candidates)
    rejects = len(listing.rejects) + round(trial.rejects / trial.samples * len(listing))
    if rejects > allowed:
        yield (
            f"this build would fail: about {rejects} of {listing.candidates} images would be rejected, but --max-bad "
            f"{max_bad} allows {allowed}; repair or remove them, or pass a higher --max-bad"
        )
