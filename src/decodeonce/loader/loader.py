"""The Loader: shuffled, partitioned, resumable epochs of batches at the speed of a memory copy."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from decodeonce.host import usable_cores
from decodeonce.launch import Rank, check_rank, find_rank
from decodeonce.loader.ahead import ReadAhead, blocks_ahead, rows_ahead, windows_fit
from decodeonce.loader.batch import Batch
from decodeonce.loader.device import Transform, find_device, make_side
from decodeonce.loader.epoch import Epoch, Place, Progress
from decodeonce.loader.filling import Filler, Source
from decodeonce.loader.meter import Meter
from decodeonce.loader.order import SHUFFLES, Order, WindowOrder, derive_key, make_order
from decodeonce.loader.partition import PARTITIONS, TAILS, Partition, make_partition
from decodeonce.loader.reading import READERS, CheckedReader, make_reader
from decodeonce.loader.shards import ShardFiles
from decodeonce.loader.steps import Step, plan_steps
from decodeonce.store import Store, open_store

# Two threads reach what two cores can copy here; more than a few cores a rank are not the loader's to take.
MOST_THREADS = 4


class Loader:
    """Batches of a store, epoch after epoch: each `for` over the Loader is the next epoch, the first is number 0.

    store: a path or an open Store. batch_size: rows of a batch on each rank. device: where batches go.
    shuffle: "full" (any row may stand anywhere), "window" (blocks shuffled, then rows within each 32 of them, so that
    cold storage is read region by region) or "none". partition: "global" (ranks take slices of each global batch of one
    order over all rows) or "range" (rank r has rows [r*count//world_size, (r+1)*count//world_size) only, shuffled
    inside). seed: any whole number; epochs differ by themselves. rank, world_size: both or neither; by default what
    torch.distributed or the launcher says. tail: what becomes of rows after the last whole global batch: "drop", "pad"
    (it is filled from the epoch's start, Batch.valid tells) or "keep" (dealt evenly in smaller batches; a rank left
    with none gets one row of padding). Every rank always has the same number of steps. prefetch: batches made ahead.
    threads: those that copy (default: usable cores, 4 at most). reader: "mmap", "pread" or "auto", see stats().
    transform: takes and returns a Batch; called in the Loader's thread, on the device, on a stream of the Loader's own,
    without gradients and outside of autocast.
    cache: "device" keeps each row of the rank's range in the device's memory from its first time on (one rank, or
    partition="range"): after that no pixels of it are read or transferred. The batches are the same.
    verify: check each row as it is read against the checksum that was written; one that is another row, or damaged, is
    a StoreError at next() that names it. docs/verify-and-repair.md says what that costs.

    Raises ValueError for settings that make no sense together, StoreError for a damaged store, and for a staged part
    that does not hold the rank's rows: a part goes with partition="range". Raises Stopped if a file server is away.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        *,
        batch_size: int,
        device: str | torch.device = "cpu",
        shuffle: str = "full",
        partition: str = "global",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        tail: str = "drop",
        prefetch: int = 3,
        threads: int | None = None,
        reader: str = "auto",
        transform: Transform | None = None,
        cache: str | None = None,
        verify: bool = False,
    ) -> None:
        threads = min(MOST_THREADS, usable_cores()) if threads is None else threads
        _check_choices(shuffle=(shuffle, SHUFFLES), partition=(partition, PARTITIONS), tail=(tail, TAILS))
        _check_choices(reader=(reader, READERS), cache=(cache, (None, "device")))
        _check_whole(1, batch_size=batch_size, prefetch=prefetch, threads=threads)
        _check_whole(None, seed=seed)
        place = _find_rank(rank, world_size)
        target = find_device(device)
        opened = store if isinstance(store, Store) else open_store(store)
        self.batch_size, self.rank, self.world_size = batch_size, place.rank, place.world_size
        self._partition = make_partition(partition, len(opened), batch_size, place.rank, place.world_size, tail)
        _check_held(opened, self._partition, partition)
        # A rank that reads every row of the order's blocks may have them read whole.
        self._owns_order = partition == "range" or place.world_size == 1
        if cache and not self._owns_order:
            raise ValueError(
                f'cache={cache!r} with partition="global": a rank needs other rows in each epoch; use "range"'
            )
        first_row = self._partition.first_row
        cached = range(first_row, first_row + self._partition.count) if cache else None
        self._manifest = opened.manifest
        self._side = make_side(target, (batch_size, *opened.manifest.shape), prefetch, transform, cached)
        self._prefetch = prefetch
        self._files = ShardFiles(opened)
        chosen, why = make_reader(opened, self._files, reader)
        chosen = CheckedReader(chosen, opened) if verify else chosen
        self._source: Source | None = Source(opened, chosen, ReadAhead(opened, self._files), threads)
        self._choice = {"reader": chosen.name, "why": why, "threads": threads}
        self._threads, self._meter = threads, Meter()
        self._identity: dict[str, Any] = {
            "seed": seed,
            "shuffle": shuffle,
            "partition": partition,
            "count": len(opened),
        }
        if shuffle == "window":
            self._identity["block_rows"] = opened.manifest.block_rows
        self._progress = Progress()
        self._epoch: weakref.ref[Epoch] | None = None
        self._filler: Filler | None = None  # of the last epoch, which may be gone before its threads are

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on every rank."""
        return self._partition.steps()

    def __iter__(self) -> Iterator[Batch]:
        """The next epoch, or the rest of one after load_state_dict(). Ends the epoch that was being iterated."""
        self._end_epoch("another epoch of this Loader was begun")
        if self._source is None:
            raise RuntimeError("this Loader is closed; make another")
        place = self._progress.begin()
        self._side.begin()
        filler = self._filler = Filler(self._plan(place), self._source, self._side, self._meter, self._prefetch)
        steps, stride = self._partition.steps(place.rows_consumed), self._partition.stride
        epoch = Epoch(filler, self._side, self._progress, self._meter, steps=steps, stride=stride)
        self._epoch = weakref.ref(epoch)
        return epoch

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End all threads, let go of files and slots; a second call does nothing. Batches that are held stay valid."""
        self._end_epoch("the Loader was closed")
        if self._source is not None:
            self._source = None
            self._files.close()
            self._side.close()

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the number of the next one. The epoch that load_state_dict() went to keeps its offset."""
        _check_whole(0, epoch=epoch)
        if epoch != self._progress.next.epoch:
            self._progress.next = Place(epoch, 0)
        running = self._epoch() if self._epoch else None
        if running is None or not running.running:
            self._progress.place = self._progress.next

    def state_dict(self) -> dict[str, Any]:
        """Where training stands after the batches handed out so far, however many are ready: a small plain dict.

        rows_consumed counts rows of all ranks with partition="global", of each rank with "range". A closed Loader still
        has its state.
        """
        return {**asdict(self._progress.place), **self._identity, "world_size": self.world_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken: the next `for` gives exactly the rest of its epoch.

        Batch size may differ and, with partition="global", so may world size. Raises ValueError, which names what
        differs, where seed, shuffle, partition or count (with "range", world_size too) do.
        """
        expected = dict(self._identity)
        if expected["partition"] == "range":
            expected["world_size"] = self.world_size
        if missing := {"epoch", "rows_consumed", *expected} - set(state):
            raise ValueError(f"not the state of a Loader: it lacks {', '.join(sorted(missing))}")
        if differing := [f"{k} {state[k]!r}, here {v!r}" for k, v in expected.items() if state[k] != v]:
            raise ValueError(f"the state is that of another Loader: {'; '.join(differing)}")
        place = Place(state["epoch"], state["rows_consumed"])
        _check_whole(0, epoch=place.epoch, rows_consumed=place.rows_consumed)
        if place.rows_consumed > self._partition.count:
            raise ValueError(f"rows_consumed is {place.rows_consumed}, expected {self._partition.count} at most")
        self._end_epoch("load_state_dict() was called")
        self._progress.place = self._progress.next = place

    def stats(self) -> dict[str, Any]:
        """What was chosen, and what came of it since the Loader was made.

        reader and why, threads; slots made; cached_rows on the device; batches handed out and the bytes of their
        pixels; seconds of iteration, the user's own work included, and samples_per_s and bytes_per_s over them;
        seconds_waited for batches; waited_share, the share of batches that were not ready when asked for; queue_depth,
        how many were, on average; cold_share, of looks ahead that found rows not in memory; seconds_reading of all
        copying threads and seconds_reading_cpu, those in which they were not blocked; seconds_sending, of waiting for
        slots and moving batches on, transformed.
        """
        cached = self._side.cache.rows if self._side.cache else 0
        return {**self._choice, "slots": self._side.ring.made, "cached_rows": cached, **self._meter.facts()}

    def bottleneck(self) -> str:
        """What limits training so far, in one sentence: "training", "transfer", "storage" or "copy", and why."""
        return self._meter.bottleneck(self._threads)

    def _plan(self, place: Place) -> Iterator[Step]:
        order, partition, consumed = self._order(place.epoch), self._partition, place.rows_consumed
        steps = plan_steps(order, partition, consumed, place.epoch)
        row_bytes = self._manifest.row_bytes
        if isinstance(order, WindowOrder) and self._owns_order and windows_fit(order, row_bytes):
            return blocks_ahead(steps, order, partition, consumed, row_bytes)
        return rows_ahead(steps, row_bytes)

    def _order(self, epoch: int) -> Order:
        words = [self._identity["seed"], epoch]
        if self._identity["partition"] == "range":
            words += [self.world_size, self.rank]  # else shares of equal size would be shuffled alike
        key = derive_key(*words)
        return make_order(self._identity["shuffle"], self._partition.count, self._manifest.block_rows, key)

    def _end_epoch(self, why: str) -> None:
        epoch = self._epoch() if self._epoch else None
        if epoch is not None:
            epoch.end(why)
        if self._filler is not None:
            self._filler.stop()
            self._filler = None


def _find_rank(rank: int | None, world_size: int | None) -> Rank:
    if rank is None and world_size is None:
        return find_rank()
    if rank is None or world_size is None:
        raise ValueError(f"rank is {rank!r} and world_size {world_size!r}, expected both or neither")
    _check_whole(None, rank=rank, world_size=world_size)
    check_rank(rank, world_size)
    return Rank(rank, world_size, "given")


def _check_held(store: Store, partition: Partition, kind: str) -> None:
    """Once and for all: no step asks again."""
    advice = 'take partition="range" with the world size it was staged for'
    if kind == "range":
        advice = f"those of rank {partition.rank} of {partition.world_size}; it was staged for another"
    store.check_held(range(partition.first_row, partition.first_row + partition.count), advice)


def _check_choices(**choices: tuple[str | None, tuple[str | None, ...]]) -> None:
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}, expected {', '.join(map(repr, allowed))}")


def _check_whole(least: int | None, /, **values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
            bound = "" if least is None else f" of {least} or more"
            raise ValueError(f"{name} is {value!r}, expected a whole number{bound}")
