"""`--dry-run`: estimate the bytes, files and time of a build, and what limits it. A part of the source is built."""

from __future__ import annotations

import math
import os
import resource
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from decodeonce.cli.bench.machine import busy_share, core_times, drop_pages, others_share, others_text
from decodeonce.cli.kinds import BuildRequest
from decodeonce.cli.output import advice_on, both_sizes_text
from decodeonce.errors import BuildError
from decodeonce.formatting import counted, duration_text, size_text
from decodeonce.host import free_space, is_in_memory, network_file_system, usable_cores
from decodeonce.prep.building.build import make_plan
from decodeonce.prep.building.free_space import (
    check_free_space,
    describe_storage,
    find_storage,
    space_needed,
    stripe_advice,
)
from decodeonce.prep.building.output_dir import check_output_dir
from decodeonce.prep.building.plan import (
    Blocks,
    Listing,
    Plan,
    allowed_rejects,
    check_matches_plan,
    plan_content,
    read_plan,
    row_order,
    scan,
)
from decodeonce.prep.building.pool import Progress, WorkSettings, work
from decodeonce.prep.building.status import read_status
from decodeonce.prep.entry import Entry
from decodeonce.prep.jobs.base import Chain, clock
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.base import Source, SourceWrapper
from decodeonce.store import Reject, StorePaths, disk
from decodeonce.store.files import remove_tree

SECONDS = 2.0  # of each trial
RUN_ROWS = 16  # consecutive rows of the sample: a build in the source's order reads neighbors, too
WORKER_BYTES, SCRATCH_BYTES = 128 << 20, 1 << 30  # the most that is written for each worker, and for all
WORKER_ROWS = 20_000  # planned for each worker, more than it decodes; planning a million small rows takes a minute
MUCH_LESS = 0.8  # if rate and busy share of a cold build are below this ratio, it is limited by reading
BUSY = 0.6  # from this share of the cores on, a build is limited by them
TASKS = (4, 16, 64)  # numbers of tasks to print a time for

# Describes how long `rows` rows take if one process makes `per_s` rows per second.
Time = Callable[[int, float], str]

_scratch: list[Path] = []


@dataclass(frozen=True)
class Trial:
    """A part of a build.

    Attributes:
        samples: Images that were read and decoded, rejects included.
        rejects: Those that cannot become rows.
        samples_per_s: Rate after the first block, so without the start of the workers.
        busy_share: Share of the cores that was busy, by these workers or other programs; 1 is one core per worker.
        read_bytes: Bytes that came from storage and not from memory, if the file system counts them.
        kept: Number of unusual images that were kept, by reason.
    """

    samples: int
    rejects: Sequence[Reject]
    samples_per_s: float
    busy_share: float
    read_bytes: int
    kept: Mapping[str, int]


class _TimeIsUp(Exception):
    pass


class SampledSource(SourceWrapper):
    """A source with the given samples of another source."""

    def __init__(self, source: Source, entries: Sequence[Entry]) -> None:
        super().__init__(source)
        self._entries = entries
        self.column_names = ()  # the samples come from a plan, without their values

    def warnings(self, samples: int) -> list[str]:
        return []

    def entries(self) -> Iterator[Entry]:
        return iter(self._entries)


def dry_run(request: BuildRequest, time: Time, *, workers: int, seconds: float = SECONDS) -> Iterator[str]:
    """Yield the lines to print after trials with `workers` workers. Raises the errors of a build, lack of space last.

    Each of up to two trials takes about `seconds`.
    """
    source, out, recipe = request.source, request.out, request.recipe
    paths = StorePaths(out)
    check_output_dir(paths, source)
    listing = scan(source, request.expect)
    content = plan_content(source, listing, recipe, decoder_versions(recipe.container))
    if started := paths.plan.exists():
        check_matches_plan(read_plan(paths), listing, content)
    planned = planned_text(source, recipe, len(listing))
    yield f"{planned}; {counted(len(listing.rejects), 'file')} rejected; nothing was written"
    needed = space_needed(Plan(paths, content))
    rows = needed.rows * recipe.row_bytes
    more = size_text(needed.bytes - rows)
    yield f"space: {size_text(rows)} for rows, up to {more} for other data; up to {needed.files} files"
    yield from _timed(request, listing, time, workers, seconds)
    if started:  # its space is already reserved
        yield f"{out}: an unfinished build is here; the same command without --dry-run resumes it"
        return
    storage = find_storage(out)
    yield from [*describe_storage(storage), *stripe_advice(out, storage)]
    check_free_space(out, storage, needed)


def planned_text(source: Source, recipe: Recipe, rows: int) -> str:
    """Describe the store that `rows` rows of a source would become."""
    row_bytes = recipe.row_bytes
    blocks = Blocks.of(rows, row_bytes, recipe.shard_size, source.block_rows(rows, row_bytes))
    return (
        f"{counted(rows, 'row')} of {recipe.height}x{recipe.width}x3 in "
        f"{counted(len(source.classes()), 'class', 'classes')}, "
        f"{both_sizes_text(rows * row_bytes, rows, recipe.pixels, recipe.shape)} in "
        f"{counted(-(-rows // blocks.shard_rows), f'{recipe.container} shard')}"
    )


def _timed(request: BuildRequest, listing: Listing, time: Time, workers: int, seconds: float) -> Iterator[str]:
    """Yield the estimated time, its basis, and a warning if the build would fail because of too many rejects."""
    others = others_share()
    first, warm = trials(request, listing, workers, seconds)
    rate = min(trial.samples_per_s for trial in (first, warm or first))
    yield time(len(listing), rate / min(workers, usable_cores()))
    part = "all" if first.samples == len(listing) else "a fair sample"
    rates = f"{first.samples_per_s:,.0f} images/s"
    rates += f" from storage and at {warm.samples_per_s:,.0f} images/s from memory" if warm else ""
    caution = "" if warm else "; a slower disk or a cold cache takes longer"
    found = f"; {len(first.rejects)} of them cannot be decoded, first {first.rejects[0]}" if first.rejects else ""
    yield (
        f"this is an estimate: {counted(workers, 'worker')} here read and decoded {counted(first.samples, 'image')} "
        f"({part}) at {rates}{caution}{found}"
    )
    yield f"limit: {limit_of(first, warm)}"
    yield from others_text(others)
    for line in advice_on(first.kept):
        yield f"in this sample, {line}"
    max_bad = request.work.max_bad
    allowed = allowed_rejects(max_bad, listing.candidates)
    rejects = len(listing.rejects) + round(len(first.rejects) / first.samples * len(listing))
    if rejects > allowed:
        yield (
            f"this build would fail: about {rejects} of {listing.candidates} images would be rejected, but --max-bad "
            f"{max_bad} allows {allowed}; repair or remove them, or pass a higher --max-bad"
        )


def limit_of(first: Trial, warm: Trial | None) -> str:
    """Describe what limits a build. `warm` is a second trial, with the source in memory."""
    if warm and first.samples_per_s < warm.samples_per_s:
        ratios = first.samples_per_s / warm.samples_per_s, first.busy_share / warm.busy_share
        if max(ratios) < MUCH_LESS:
            return f"reading the source, at {first.samples_per_s:,.0f} images/s"
    last = warm or first
    if last.busy_share >= BUSY:
        return f"the cores, which decode and resize; they were {last.busy_share:.0%} busy"
    return f"writing; the cores were {last.busy_share:.0%} busy"


def trials(request: BuildRequest, listing: Listing, workers: int, seconds: float) -> tuple[Trial, Trial | None]:
    """Build a fair sample, read from storage if possible; then build it again, from memory.

    The second trial is None if the file system of the source does not show that the first one read from storage.
    """
    source, recipe = request.source, request.recipe
    on_disk = source.root.exists() and not is_in_memory(source.root)
    with scratch_folder(request.out.absolute().parent) as scratch:
        free, _ = free_space(scratch)
        most = min(WORKER_BYTES * workers, SCRATCH_BYTES if free is None else min(SCRATCH_BYTES, free // 4))
        rows = max(1, min(most // recipe.row_bytes, workers * WORKER_ROWS))
        entries = fair_sample(source, listing, recipe.shuffle_seed, rows)
        if on_disk:
            drop_pages({Path(os.fsdecode(source.holder(entry))) for entry in entries})
        first = run_trial(source, entries, recipe, scratch, workers=workers, seconds=seconds)
        entries = entries[: first.samples]  # these are in memory now
        stayed = 2 * first.read_bytes < sum(entry.size for entry in entries)  # other processes may use the files
        if not on_disk or (stayed and not network_file_system(source.root)):
            return first, None
        repeated = list(islice(cycle(entries), rows))
        return first, run_trial(source, repeated, recipe, scratch, workers=workers, seconds=seconds)


def fair_sample(source: Source, listing: Listing, seed: int | None, rows: int) -> list[Entry]:
    """Return up to `rows` samples: runs of rows or read units, in random order, so that any first part is fair."""
    order = row_order(listing, seed, by_unit=bool(source.read_unit))
    units = listing.samples.rows["unit"][order] if source.read_unit else np.arange(len(order)) // RUN_ROWS
    runs = np.split(order, np.flatnonzero(np.diff(units)) + 1)
    mixed = np.random.default_rng(0).permutation(len(runs))
    return [listing.samples.entry(row) for row in np.concatenate([runs[run] for run in mixed])[:rows].tolist()]


def run_trial(
    source: Source, entries: Sequence[Entry], recipe: Recipe, scratch: Path, *, workers: int, seconds: float
) -> Trial:
    """Plan a build of these samples in `scratch`, and decode them for about `seconds`.

    Raises:
        BuildError: If none of the samples can be decoded; and what a build raises.
    """
    out = scratch / secrets.token_hex(4)
    make_plan(SampledSource(source, entries), out, replace(recipe, shuffle_seed=None))  # `entries` are in random order
    marks, before, blocks_read = [(time.perf_counter(), 0)], core_times(), _blocks_read()

    def note(progress: Progress) -> None:
        now = time.perf_counter()
        if progress.new_rows > marks[-1][1]:
            marks.append((now, progress.new_rows))
        if len(marks) > 1 and now > marks[1][0] + seconds:
            raise _TimeIsUp

    with suppress(_TimeIsUp):
        work(out, WorkSettings(workers=workers, max_bad="100%"), note)
    busy = busy_share(before) * len(os.sched_getaffinity(0)) / min(workers, usable_cores())
    status = read_status(out)
    remove_tree(out)
    (first, early), (last, late) = marks[1 if len(marks) > 2 else 0], marks[-1]
    if len(status.rejects) >= late:
        tried = counted(late, "image was", "images were")
        raise BuildError(f"{source.root}: {tried} tried and none can be decoded, for example {status.rejects[0]}")
    rate, read = (late - early) / (last - first), 512 * (_blocks_read() - blocks_read)
    return Trial(late, status.rejects, rate, busy, read, status.kept)


def _blocks_read() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Create a folder `.prep-trial-…` in `parent`, or in the folder for temporary files if that is not possible.

    It is removed at the end, and after any signal but SIGKILL.
    """
    folder = parent / f".prep-trial-{os.getpid()}-{secrets.token_hex(4)}"
    _scratch.append(folder)
    try:
        disk.mkdir(folder)
    except OSError:
        _scratch[-1] = folder = Path(gettempdir()) / folder.name
        disk.mkdir(folder)
    try:
        yield folder
    finally:
        remove_tree(folder)
        _scratch.remove(folder)


def remove_scratch() -> None:
    """Remove the scratch folders. The signal handler calls this before it ends the process."""
    for folder in _scratch:
        with suppress(OSError):
            remove_tree(folder)


def time_here(workers: int, rows: int, per_s: float) -> str:
    """Describe the time on this machine with `workers` workers, and on several such machines."""
    cores = min(workers, usable_cores())  # workers beyond the number of cores do not help
    seconds = rows / per_s / cores
    text = f"time: {_about(seconds)} with one task of {counted(workers, 'worker')} here"
    others = ", ".join(f"{duration_text(seconds / tasks)} with {tasks}" for tasks in TASKS if seconds >= tasks)
    return f"{text}; {others} such tasks" if others else text


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
