"""Measure how time, memory and files of plan, finish and the start of a task grow with the number of samples.

    python -m bench.scale [--counts 1000000 10000000] [--classes 1000] [--scratch build] [--json]

It runs the real code on generated names, sizes and journals. The shards are sparse, so ten million rows of 256x256
(2 TB) take no disk space. Each step runs in a new process. Memory is the peak of its resident memory minus the resident
memory before the step. Each task has 10,000 rows: the cost of its start must not grow with the number of samples.
Scratch files take about 300 bytes per sample and are removed. Values for larger counts are extrapolated on a straight
line through the two largest counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.conditions import conditions, heading
from decodeonce.prep.building.finish import finish
from decodeonce.prep.building.journal import FACTS, BlockRecord, journal_line
from decodeonce.prep.building.plan import Block, checked_listing, plan_content, read_plan, write_plan
from decodeonce.prep.building.pool import WorkSettings, work
from decodeonce.prep.building.status import read_status
from decodeonce.prep.listing import Entry, Scan
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.base import Source
from decodeonce.store import ImageClass
from decodeonce.store.hashing import row_checksum

SCRATCH = Path(__file__).resolve().parent.parent / "build"
RECIPE = Recipe(shuffle_seed=0)
TASK_ROWS = 10_000
ROWS_PER_REJECT, ROWS_PER_UNUSUAL = 50_000, 30_000  # about as in ImageNet
LARGER = (14_000_000, 1_000_000_000)
LABELS = {
    "scan s": "listing time",
    "again s": "time without imports",
    "s": "time",
    "cpu s": "processor time",
    "peak": "peak memory",
    "anon": "anonymous memory",
    "written": "files",
}


class SyntheticSource(Source):
    """A source with `count` sample names like ImageNet's, but no files."""

    kind = "folder"

    def __init__(self, count: int, classes: int) -> None:
        super().__init__(Path("/nowhere"))
        self._count, self._classes = count, classes

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a folder with one class. No file is ever read."""
        return {"classes": ["n00000000"]}

    def scan(self) -> Scan:
        """Return all samples, class by class. The names of the classes are wnids."""
        classes = tuple(ImageClass(f"n{label:08d}", "a thing, or another") for label in range(self._classes))
        return Scan(self._entries(), classes)

    def _entries(self) -> Iterator[Entry]:
        for label in range(self._classes):
            first, last = (self._count * k // self._classes for k in (label, label + 1))
            for number in range(last - first):
                name = b"train/n%08d/n%08d_%d.JPEG" % (label, label, number)
                yield Entry(name, label, 20_000 + number * 97 % 180_000, 1_339_000_000_123_456_789 + number)

    def read(self, entry: Entry) -> list[bytes]:
        """Fail, because no sample is read."""
        raise AssertionError(entry.text)


def resident(key: str = "VmRSS") -> int:
    """Return a value of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


class Meter:
    """Measure a `with` block: seconds, and the peak of resident memory above its value before the block.

    Anonymous memory is sampled every 20 ms. It does not include pages of mapped files, which the system can drop.
    On a busy machine, processor seconds are more reliable than elapsed time.
    """

    def __enter__(self) -> Meter:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
        self._before, self._anonymous_before = resident(), resident("RssAnon")
        self._anonymous, self._over = self._anonymous_before, threading.Event()
        self._watch = threading.Thread(target=self._sample)
        self._watch.start()
        self._start, self._cpu_start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        seconds, cpu = time.perf_counter() - self._start, time.process_time() - self._cpu_start
        self._over.set()
        self._watch.join()
        peak, anonymous = resident("VmHWM") - self._before, self._anonymous - self._anonymous_before
        self.found = {"s": seconds, "cpu s": cpu, "peak": float(peak), "anon": float(anonymous)}

    def _sample(self) -> None:
        while not self._over.wait(0.02):
            self._anonymous = max(self._anonymous, resident("RssAnon"))


def measure_plan(out: Path, count: int, classes: int) -> dict[str, float]:
    """Scan and write a plan like `make_plan`, but do not create shards."""
    paths, source, decoders = BuildPaths(out), SyntheticSource(count, classes), decoder_versions(RECIPE.container)
    paths.journals.mkdir(parents=True)
    with Meter() as meter:
        start = time.perf_counter()
        listing = checked_listing(source)
        scanned = time.perf_counter() - start
        write_plan(paths, listing, plan_content(source, listing, RECIPE, decoders))
    return {**meter.found, "scan s": scanned, "written": file_bytes(paths.build)}


def write_journals(out: Path, tasks: int) -> dict[str, float]:
    """Create sparse shards of full size, and one journal per task that records all of its blocks as completed."""
    plan = read_plan(BuildPaths(out))
    blocks, zeros = plan.blocks, row_checksum(bytes(plan.recipe.row_bytes))
    for shard in range(blocks.place(plan.count - 1)[0] + 1):
        with open(plan.paths.shard(shard, ".npy"), "wb") as file:
            file.truncate(blocks.place(blocks.shard_rows - 1)[1] + plan.recipe.row_bytes)
    for task in range(tasks):
        with open(plan.paths.journals / f"{task}of{tasks}-node-1-0badcafe.log", "wb") as journal:
            journal.writelines(record_line(blocks[block], zeros) for block in blocks.of_task(task, tasks))
    return {"written": file_bytes(plan.paths.journals)}


def record_line(block: Block, zeros: int) -> bytes:
    """Return the journal line of a block whose pixels are all zeros. Some of its images are rejects or unusual."""
    bad = [row for row in range(block.first, block.last) if row % ROWS_PER_REJECT == 7]
    facts = np.zeros(block.rows, FACTS)
    for row in range(block.rows):
        facts[row] = zeros, row * 0x9E3779B97F4A7C15 % 2**64, 500, 300 + row % 100, 1
    facts[np.array(bad, int) - block.first] = np.zeros((), FACTS)
    record = BlockRecord(
        block.index,
        facts,
        rejects=[
            *((row, "truncated: Premature end of JPEG file", "rejected") for row in bad),
            *((row, "CMYK", "kept") for row in range(block.first, block.last) if row % ROWS_PER_UNUSUAL == 11),
        ],
        sums=[0] * 3,
        squares=[0] * 3,
    )
    return journal_line(record, time.time())


def measure_start(out: Path, tasks: int) -> dict[str, float]:
    """Run `prep work` for a task in the middle whose blocks are all completed."""
    found = []
    for _ in range(6):
        with Meter() as meter:
            work(out, WorkSettings(task=tasks // 2, tasks=tasks))
        found.append(meter.found)
    return {**found[0], "again s": statistics.median(later["s"] for later in found[1:])}  # the first imports Pillow


def measure_status(out: Path) -> dict[str, float]:
    """Run `prep status`."""
    with Meter() as meter:
        read_status(out)
    return meter.found


def measure_finish(out: Path) -> dict[str, float]:
    """Run `prep finish`."""
    with Meter() as meter:
        finish(out, "0.1%")
    return {**meter.found, "written": sum(p.stat().st_size for p in out.iterdir() if not p.match("images-*"))}


def file_bytes(folder: Path) -> int:
    """Return the total size of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def in_new_process(step: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """Run a step in a new process, so that its memory can be measured."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(step, arguments)


def measure(count: int, classes: int, scratch: Path) -> dict[str, dict[str, float]]:
    """Measure every step for one number of samples."""
    tasks = max(1, count // TASK_ROWS)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="scale-") as folder:
        out = Path(folder, "store")
        return {
            "plan": in_new_process(measure_plan, out, count, classes),
            "journals": in_new_process(write_journals, out, tasks),
            "a task's start": in_new_process(measure_start, out, tasks),
            "status": in_new_process(measure_status, out),
            "finish": in_new_process(measure_finish, out),
        }


def growth(found: dict[int, dict[str, dict[str, float]]], step: str, key: str) -> tuple[float, float]:
    """Return (slope, intercept) of a value over the number of samples, from the two largest counts."""
    less, more = sorted(found)[-2:]
    slope = (found[more][step][key] - found[less][step][key]) / (more - less)
    return slope, found[more][step][key] - slope * more


def table(found: dict[int, dict[str, dict[str, float]]]) -> Iterator[list[str]]:
    """Yield the cells of the table, one line per value of each step."""
    counts = sorted(found)
    larger = [count for count in LARGER if count > counts[-1]] if len(counts) > 1 else []
    slopes = ["per sample", *(f"{count:,}?" for count in larger)] if len(counts) > 1 else []
    yield ["", *(f"{count:,}" for count in counts), *slopes]
    for step, figures in found[counts[0]].items():
        for key in figures:
            cells = [amount(found[count][step][key], key) for count in counts]
            if slopes:
                slope, start = growth(found, step, key)
                each = f"{slope * 1e6:.2f} us" if key.endswith("s") else f"{slope:.1f} B"
                cells += [each, *(amount(start + slope * count, key) if slope > 0 else "no growth" for count in larger)]
            yield [f"{step}, {LABELS[key]}", *cells]


def amount(value: float, key: str) -> str:
    """Format seconds, or bytes as megabytes."""
    return f"{value:,.2f} s" if key.endswith("s") else f"{value / 1e6:,.1f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000_000, 10_000_000], metavar="N")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder for temporary files (default: build)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    here = conditions(max(options.counts), "generated names, sparse shards")
    found = {count: measure(count, options.classes, options.scratch) for count in sorted(set(options.counts))}
    if options.json:
        print(json.dumps(found))
        return
    print(heading(here))
    print("Counts with a question mark are extrapolated.")
    for cells in table(found):
        print(f"{cells[0]:34s}", *(f"{cell:>15s}" for cell in cells[1:]))


if __name__ == "__main__":
    main()
