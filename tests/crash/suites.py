"""The suites of points of a target; each suite tests all of its points, or a random sample of them."""

import errno
import os
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from mmap import PAGESIZE  # tmpfs counts these pages: 4 KiB, or 64 KiB on some aarch64 kernels
from pathlib import Path
from typing import Any

from decodeonce.store import disk
from tests.crash.double import KINDS, Double, Fault
from tests.crash.points import Crasher, Ended, Failure, run_command, run_in_child
from tests.crash.power import Disk, Recorder, Tree, lay_out

FEWER_KINDS = ("SIGKILL", "SIGKILL of all", "torn at 512 bytes, SIGKILL", "EIO", "ENOSPC from then on")
MIXTURES = 6
SPARE_PAGES = 40  # for plan, journals, folders and temporary files

Point = Callable[[], str | None]  # tests a point; returns its kind, or None if the fault did not happen


class Suites:
    """The suites of one target. Power losses ignore the calls in `ignored`, which must lead to failures."""

    def __init__(self, crasher: Crasher, folder: Path, seed: int, ignored: Collection[str] = ()) -> None:
        self._crasher, self._folder, self._seed, self._ignored = crasher, folder, seed, ignored
        self.count: Counter[str] = Counter()  # of tested points by kind
        self.failures: list[str] = []

    def run(self, suite: str, at_most: int | None) -> None:
        """Test the points of a suite; `at_most` limits them to a random sample."""
        points: list[tuple[str, Point]] = list(getattr(self, f"_{suite}")())
        rng = random.Random(self._seed)
        if at_most is not None and at_most < len(points):
            points = rng.sample(points, at_most)
        for name, point in points:
            try:
                kind = point()
            except Failure as error:
                self.failures.append(f"{self._crasher.target.name}, {name}: {error}")
                kind = suite
            if kind is not None:
                self.count[kind] += 1

    def _faults(self) -> Iterator[tuple[str, Point]]:
        """Every kind of fault at every call that it can happen to."""
        for kind in KINDS if self._crasher.target.name == "npy" else FEWER_KINDS:
            for number, call in enumerate(self._crasher.calls, 1):
                if call.accepts(kind):
                    yield f"{kind} at call {number}, {call}", partial(self._fault, Fault(number, kind))

    def _fault(self, fault: Fault) -> str | None:
        return fault.kind if self._crasher.try_fault(fault) else None

    def _many(self) -> Iterator[tuple[str, Point]]:
        """Up to four random faults of any kind in a row."""
        for number in range(len(self._crasher.calls)):
            yield f"faults at random, {number}", partial(self._several, number)

    def _several(self, number: int) -> str | None:
        rng = random.Random(f"{self._seed} {number}")
        faults = [
            Fault(rng.randint(1, len(self._crasher.calls)), rng.choice([*KINDS]), rng.randrange(99))
            for _ in range(rng.randint(1, 4))
        ]
        try:
            self._crasher.try_faults(faults)
        except Failure as error:
            raise Failure(f"{faults}: {error}") from None
        return "at random, up to four in a row"

    def _full(self) -> Iterator[tuple[str, Point]]:
        """A disk of every size in pages, from too small to large enough; then more space."""
        return self._sizes("reserved", lambda: None)

    def _sparse(self) -> Iterator[tuple[str, Point]]:
        """The same on a file system that cannot reserve space, so that the disk is full during the work."""
        return self._sizes("not reserved", _without_fallocate)

    def _sizes(self, what: str, prepare: Callable[[], None]) -> Iterator[tuple[str, Point]]:
        largest = sum(-(-len(data) // PAGESIZE) for data in self._crasher.expected.values()) + SPARE_PAGES
        for pages in range(2, largest):
            yield f"a disk of {pages} pages, {what}", partial(self._fill, pages, prepare)

    def _fill(self, pages: int, prepare: Callable[[], None]) -> str:
        crasher, sandbox = self._crasher, self._crasher.target.sandbox
        crasher.clear()
        tmpfs = ["mount", "-t", "tmpfs", "-o", f"size={pages * PAGESIZE}", "tmpfs", str(sandbox)]
        subprocess.run(tmpfs, check=True, capture_output=True)
        try:

            def run() -> int:
                prepare()
                return run_command(crasher.target)

            ended = run_in_child(crasher.errors, run)
            crasher.check_full_disk(ended)
            subprocess.run(["mount", "-o", f"remount,size={pages + (1 << 20)}", str(sandbox)], check=True)
            crasher.check_rerun(complete=ended.status == 0)
        finally:
            subprocess.run(["umount", str(sandbox)], check=True)
        return "a full disk"

    def _power(self) -> Iterator[tuple[str, Point]]:
        """A power loss after every call of a run without faults."""
        yield from self._losses(self._recorded(None), 0, MIXTURES)

    def _again(self) -> Iterator[tuple[str, Point]]:
        """A SIGKILL at every call, the command again, and a power loss during or after that."""
        for number in range(1, len(self._crasher.calls) + 1):
            yield f"SIGKILL at call {number}, again, power loss", partial(self._loss_again, number)

    def _loss_again(self, number: int) -> str:
        by_worker = self._crasher.calls[number - 1].by_worker
        first = self._recorded(Fault(number, "SIGKILL of all" if by_worker else "SIGKILL"))
        records = self._recorded(None, again=True)
        rng = random.Random(f"{self._seed} {number}")
        losses = list(self._losses(records, len(first) + 1, 1, unflushed=1))
        for name, point in [*rng.sample(losses[:-1], min(2, len(losses) - 1)), *losses[-1:]]:
            try:
                point()
            except Failure as error:
                raise Failure(f"{name}: {error}") from None
        return "SIGKILL, again, power loss"

    def _recorded(self, fault: Fault | None, *, again: bool = False) -> list[tuple[Any, ...]]:
        """Run the command and return the recorded calls; `again` adds to what the run before left and recorded."""
        crasher = self._crasher
        if not again:
            crasher.clear()
            self._recorder = Recorder(self._folder / "records", self._ignored)
            self._disk_root = crasher.target.sandbox.stat().st_ino
        double = Double(self._folder, fault)

        def run() -> int:
            double.install()
            self._recorder.install()
            return run_command(crasher.target)

        ended = run_in_child(crasher.errors, run)
        if fault is None and ended != Ended(0, ""):
            raise Failure(f"{ended}")
        return self._recorder.records()

    def _losses(
        self, records: list[tuple[Any, ...]], first: int, mixtures: int, unflushed: int = 0
    ) -> Iterator[tuple[str, Point]]:
        """Yield a point for each different state after each record from number `first` on, and one for the end.

        A killed worker may have written the journal lines of `unflushed` blocks without a flush.
        """
        model, seen = Disk(self._disk_root), set[int]()
        for number in range(len(records) + 1):
            if number:
                model.do(records[number - 1])
            if number < first:
                continue
            rng, at_end = random.Random(f"{self._seed} {number}"), number == len(records)
            after = f"after record {number} of {len(records)}"
            for name, tree in model.states(rng, mixtures):
                key = hash(tuple(tree.items()))
                if key not in seen:
                    seen.add(key)
                    durable = _blocks_done(records[:number]) - unflushed if name == "nothing unflushed" else 0
                    yield f"power loss {after}: {name}", self._loss(tree, at_end, durable)
        yield "power loss at the end", self._loss(model.worst(), True, 0)

    def _loss(self, tree: Tree, complete: bool, durable: int) -> Point:
        def point() -> str:
            self._crasher.clear()
            lay_out(tree, self._crasher.target.sandbox)
            self._crasher.check_rerun(complete=complete, durable=durable)
            return "power loss"

        return point


def _without_fallocate() -> None:
    def fallocate(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    disk.fallocate = fallocate


def _blocks_done(records: list[tuple[Any, ...]]) -> int:
    """Return the number of blocks in the journal before the last write to a shard.

    A worker writes the next block only after the one before is durable.
    """
    files = {facts[2]: facts[1] for name, *facts in records if name == "make"}
    written = [files[facts[0]] for name, *facts in records if name == "write"]
    shards = [number for number, file in enumerate(written) if file.startswith("images-")]
    return sum(file.endswith(".log") for file in written[: shards[-1]]) if shards else 0
