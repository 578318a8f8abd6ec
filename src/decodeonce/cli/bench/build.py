"""`prep bench build`: time a part of a real build, first with the source on storage, then with it in memory.

The part is a fair sample of the source. `--dry-run` times such a part, too.
"""

from __future__ import annotations

import os
import resource
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from decodeonce.cli.bench.machine import busy_share, core_times, drop_pages, others_share, others_text
from decodeonce.cli.kinds import BuildRequest
from decodeonce.errors import BuildError
from decodeonce.formatting import counted, duration_text
from decodeonce.host import free_space, is_in_memory, network_file_system, usable_cores
from decodeonce.prep.building.build import make_plan
from decodeonce.prep.building.journal import Journals
from decodeonce.prep.building.output_dir import check_output_dir
from decodeonce.prep.building.plan import Listing, read_plan, row_order, scan
from decodeonce.prep.building.pool import Progress, WorkSettings, work
from decodeonce.prep.building.status import read_status
from decodeonce.prep.entry import Entry
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.base import Source, SourceWrapper
from decodeonce.store import StorePaths
from decodeonce.store.files import make_folder, remove_tree
from decodeonce.store.layout import Json

RUN_ROWS = 16  # consecutive rows of the sample: a build in the source's order reads neighbors, too
SCRATCH_BYTES = 1 << 30  # the most that is written
WORKER_ROWS = 20_000  # planned for each worker, more than it decodes; planning a million small rows takes a minute
MUCH_LESS = 0.8  # if rate and busy share of a cold build are below this ratio, it is limited by reading
BUSY = 0.6  # from this share of the cores on, a build is limited by them
WHAT = {
    "reading": "reading the source",
    "processor": "the cores, which decode and resize",
    "writing": "writing",
}

_scratch: list[Path] = []


@dataclass(frozen=True)
class Trial:
    """A part of a build.

    Attributes:
        samples: Images that were read and decoded, rejects included.
        rejects: Number of images that cannot become rows.
        first_reject: One of them with the reason, or "".
        samples_per_s: Rate after the first block, so without the start of the workers.
        busy_share: Share of the cores that was busy, by these workers or other programs; 1 is one core per worker.
        read_bytes: Bytes that came from storage and not from memory, if the file system counts them.
        kept: Number of unusual images that were kept, by reason.
    """

    samples: int
    rejects: int
    first_reject: str
    samples_per_s: float
    busy_share: float
    read_bytes: int
    kept: Mapping[str, int] = field(default_factory=dict)


class _TimeIsUp(Exception):
    pass


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Create a folder `.prep-bench-…` in `parent`, and remove it at the end or after any signal but SIGKILL."""
    folder = parent / f".prep-bench-{os.getpid()}-{secrets.token_hex(4)}"
    _scratch.append(folder)
    try:
        make_folder(folder)
        yield folder
    finally:
        remove_tree(folder)
        _scratch.remove(folder)


def remove_scratch() -> None:
    """Remove the scratch folders. The signal handler calls this before it ends the process."""
    for folder in _scratch:
        with suppress(OSError):
            remove_tree(folder)


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


def fair_sample(source: Source, listing: Listing, seed: int | None, rows: int) -> list[Entry]:
    """Return up to `rows` samples: runs of rows or read units, in random order, so that any first part is fair."""
    order = row_order(listing, seed, by_unit=bool(source.read_unit))
    units = listing.samples.rows["unit"][order] if source.read_unit else np.arange(len(order)) // RUN_ROWS
    runs = np.split(order, np.flatnonzero(np.diff(units)) + 1)
    mixed = np.random.default_rng(0).permutation(len(runs))
    return [listing.samples.entry(row) for row in np.concatenate([runs[run] for run in mixed])[:rows].tolist()]


def run_trial(
    source: Source,
    entries: Sequence[Entry],
    recipe: Recipe,
    scratch: Path,
    *,
    workers: int,
    seconds: float,
    rows: int | None = None,
) -> Trial:
    """Plan a build of these samples, repeated up to `rows`, in `scratch`, and decode them for about `seconds`.

    Raises:
        BuildError: If none of the samples can be decoded; and what a build raises.
    """
    out = scratch / secrets.token_hex(4)
    repeated = list(islice(cycle(entries), rows or len(entries)))
    make_plan(SampledSource(source, repeated), out, replace(recipe, shuffle_seed=None))  # `entries` are in random order
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
    rejects, plan = read_status(out).rejects, read_plan(paths := StorePaths(out))
    records = Journals(paths.journals).records(range(len(plan.blocks)))
    kept = dict(Counter(reject.reason for reject in plan.rejects_in(records, "kept")))
    remove_tree(out)
    (first, early), (last, late) = marks[1 if len(marks) > 2 else 0], marks[-1]
    if len(rejects) >= late:
        tried = counted(late, "image was", "images were")
        raise BuildError(f"{source.root}: {tried} tried and none can be decoded, for example {rejects[0]}")
    reject, rate = str(rejects[0]) if rejects else "", (late - early) / (last - first)
    return Trial(late, len(rejects), reject, rate, busy, 512 * (_blocks_read() - blocks_read), kept)


def _blocks_read() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock


def list_source(request: BuildRequest, out: Path) -> Listing:
    """List the source of a build into `out`. Raises the errors of a build."""
    check_output_dir(StorePaths(out), request.source)
    return scan(request.source, request.expect)


def measure_build(request: BuildRequest, seconds: float) -> Json:
    """Measure everything that `--json` prints, in images/s ("samples"); None means not measured."""
    others = others_share()
    source, recipe, folder = request.source, request.recipe, request.out.absolute().parent
    start = time.perf_counter()
    listing = list_source(request, folder / "scratch")
    listed = time.perf_counter() - start
    workers = request.work.workers or usable_cores()
    free, _ = free_space(folder)
    most = min(SCRATCH_BYTES, SCRATCH_BYTES if free is None else free // 4) // recipe.row_bytes
    rows = max(1, min(most, workers * WORKER_ROWS))
    entries = fair_sample(source, listing, recipe.shuffle_seed, rows)
    cold, why_warm = None, ""
    if not source.root.exists():
        why_warm = "SRC is not a file or folder that could be dropped from memory"
    elif is_in_memory(source.root):
        why_warm = f"{source.root} is on a memory file system"
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


def build_lines(facts: Json) -> Iterator[str]:
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
