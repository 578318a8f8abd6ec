"""`--dry-run`: what a build would take, in bytes, files and time; nothing is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from decodeonce.cli.bench.build import check_decoded, killed_text
from decodeonce.cli.bench.sample import Pace, fair_runs, measure_pace
from decodeonce.formatting import counted, duration_text, size_text
from decodeonce.host import usable_cores
from decodeonce.prep.build.blocks import Blocks
from decodeonce.prep.build.free_space import Need, check_room, find_storage, need, room_sentences, stripe_advice
from decodeonce.prep.build.max_bad import Allowance
from decodeonce.prep.build.output_dir import check_output_dir
from decodeonce.prep.build.plan import Plan, plan_facts, read_plan
from decodeonce.prep.build.plan_diff import check_same
from decodeonce.prep.build.scan import Listing, check_expected, check_listing, scan
from decodeonce.prep.jobs.base import clock
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.processes.child import ChildDied
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import Source
from decodeonce.store import StorePaths

if TYPE_CHECKING:
    from decodeonce.cli.kinds import BuildRequest
    from decodeonce.prep.jobs import Chain

SECONDS = 2.5  # of decoding a sample
TASKS = (4, 16, 64)  # as many of which a line tells the time, too

# How long so many rows take, in a sentence, if one process makes so many rows per second.
Time = Callable[[int, float], str]


def time_here(workers: int, rows: int, per_s: float) -> str:
    """The time on this machine with so many workers, and on more machines like it."""
    cores = min(workers, usable_cores())  # more workers than cores decode no faster
    others = ", ".join(f"as {tasks} such tasks {duration_text(rows / per_s / cores / tasks)}" for tasks in TASKS)
    return f"time: {_about(rows / per_s / cores)} here with {counted(workers, 'worker')}; {others}"


def time_in_jobs(chain: Chain, workers: int, rows: int, per_s: float) -> str:
    """The time of each task of a chain of jobs, and whether it is within the time limit."""
    seconds = task_seconds(rows, per_s, chain.processes, min(workers, chain.cpus))
    size = f"{counted(chain.processes, 'task')} of {counted(workers, 'worker')}"
    told = f"time: {_about(seconds)} for each of {size}, on cores as fast as these"
    waves = math.ceil(chain.tasks / (chain.max_running or chain.tasks))
    if waves > 1:
        told += f", {chain.max_running} at a time: {duration_text(waves * seconds)} in all"
    if chain.seconds is None:
        return told
    rounds = rounds_needed(seconds, chain.seconds - chain.lead)
    limit = f"--time {clock(chain.seconds)}"
    if rounds == 1:
        return f"{told}; fits {limit}"
    fits = f"fits {rounds} of the {chain.rounds} rounds of" if rounds <= chain.rounds else "does not fit"
    more = "" if rounds <= chain.rounds else f": give more --time or --tasks, or --rounds {rounds}"
    return f"{told}; {fits} {limit}{more}"


def _about(seconds: float) -> str:
    return duration_text(seconds) if seconds < 1 else f"about {duration_text(seconds)}"


def task_seconds(rows: int, per_s: float, tasks: int, cores: int) -> float:
    """Seconds of the longest of `tasks` shares of the rows, on so many cores each."""
    return math.ceil(rows / tasks) / (per_s * cores)


def rounds_needed(seconds: float, limit: float) -> int:
    """How often a task of so many seconds must be sent under a limit, for it goes on where it was stopped."""
    return max(1, math.ceil(seconds / limit))


def dry_run(request: BuildRequest, time: Time, seconds: float = SECONDS) -> Iterator[str]:
    """The lines to tell, after decoding for so many seconds; raises what a build would, a lack of space last."""
    source, out, recipe = request.source, request.out, request.recipe
    paths = StorePaths(out)
    check_output_dir(paths, source)
    decoders = decoder_versions(recipe.container)
    listing = scan(source, recipe.boxes_a_row)
    check_listing(source, listing)
    check_expected(source, listing.candidates, request.expect)
    facts = plan_facts(source, listing, recipe, decoders)
    if begun := paths.plan.exists():
        check_same(read_plan(paths), listing, facts)
    planned = planned_text(source, recipe, len(listing))
    yield f"{planned}; {counted(len(listing.rejects), 'file')} cannot be rows; nothing was written"
    needed = need(Plan(paths, facts))
    yield _needed_text(needed, recipe)
    yield from _sampled(request, listing, time, seconds)
    if begun:  # its room is taken already
        yield f"{out}: a build is begun here; the same command goes on with it"
        return
    storage = find_storage(out)
    yield from room_sentences(storage, needed)
    if advice := stripe_advice(out, storage):
        yield advice
    check_room(out, storage, needed)


def planned_text(source: Source, recipe: Recipe, rows: int) -> str:
    """What so many rows of a source would become, for people."""
    row_bytes = recipe.row_bytes
    blocks = Blocks.of(rows, row_bytes, recipe.shard_size, source.block_rows(rows, row_bytes))
    return (
        f"{counted(rows, 'row')} of {recipe.height}x{recipe.width}x3 in "
        f"{counted(len(source.classes()), 'class', 'classes')}, {size_text(rows * row_bytes)} in "
        f"{counted(-(-rows // blocks.shard_rows), f'{recipe.container} shard')}"
    )


def _needed_text(needed: Need, recipe: Recipe) -> str:
    rows = needed.rows * recipe.row_bytes
    return (
        f"bytes: {size_text(rows)} of rows, up to {size_text(needed.bytes - rows)} besides; up to {needed.files} files"
    )


def _sampled(request: BuildRequest, listing: Listing, time: Time, seconds: float) -> Iterator[str]:
    """How long it takes, what that is based on, and whether as many rejects fail the build."""
    source, recipe = request.source, request.recipe
    runs = fair_runs(source, listing, recipe.shuffle_seed)
    try:
        pace = measure_pace(source, recipe, runs, workers=1, seconds=seconds)
    except ChildDied as died:
        yield killed_text(source, died)
        return
    check_decoded(source, pace)
    yield time(len(listing), pace.per_s)
    yield _rests_on(pace, len(listing))
    yield from _too_many_rejects(pace, listing, request.work.allowance)


def _rests_on(pace: Pace, samples: int) -> str:
    done = pace.total
    all_of = "all" if done.pictures == samples else "a fair sample"
    text = (
        f"this is an estimate: one process here read and decoded {counted(done.pictures, 'picture')} ({all_of}) at "
        f"{pace.per_s:,.0f} a second; a slower disk, or a cold one, makes it longer"
    )
    if not done.rejects:
        return text
    return f"{text}; {done.rejects} of them cannot be decoded, first {done.first_reject}"


def _too_many_rejects(pace: Pace, listing: Listing, allowance: Allowance) -> Iterator[str]:
    """A line where the listing's rejects, and the sample's for all, are more than a build may have."""
    done, allowed = pace.total, allowance.allowed(listing.candidates)
    rejects = len(listing.rejects) + round(done.rejects / done.pictures * len(listing))
    if rejects > allowed:
        yield (
            f"such a build fails: about {rejects} of {listing.candidates} pictures are rejects, --max-bad "
            f"{allowance.text} allows {allowed}; mend them, or give a higher --max-bad"
        )
