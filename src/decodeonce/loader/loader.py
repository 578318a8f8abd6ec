"""The Loader: shuffled, partitioned, resumable epochs of batches at the speed of a memory copy."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from decodeonce.loader.augment import Augment
from decodeonce.loader.batch import Batch
from decodeonce.loader.delivery import find_device, make_delivery
from decodeonce.loader.epoch import Epoch, Filler, Position, Progress
from decodeonce.loader.meter import Meter
from decodeonce.loader.order import WindowOrder, derive_key, make_order
from decodeonce.loader.partition import Step, find_rows, make_partition, plan_steps
from decodeonce.loader.read_ahead import blocks_ahead, rows_ahead, windows_fit
from decodeonce.loader.readers import Reader, ShardFiles, make_reader
from decodeonce.loader.settings import Settings, StoreLike, check_whole, with_parameters_of
from decodeonce.store import Store, open_store
from decodeonce.store.hashing import hexdigest


class Loader:
    """Iterate over a store in shuffled, resumable batches.

    Each ``for`` loop runs one epoch; the first is number 0. Ranks are detected automatically, and all of them run the
    same number of steps.

    Args:
        store: Path to a store, or an open ``Store``.
        batch_size: Rows per batch on each rank.
        rows: Load only these rows of the store: distinct row numbers in any order, or a mask with a boolean for each
            row. Such a subset is shuffled, partitioned and resumed like a store that has only these rows, in their
            stored order.
        device: Device that receives the batches.
        shuffle: Order of an epoch. "full": any row may appear anywhere. "window": blocks are shuffled, then rows within
            each 32 blocks; best on storage that is slow at random reads. "none": stored order.
        partition: How ranks share an epoch. "global": ranks take slices of each global batch of one order over all
            rows. "range": rank r reads only rows [r*count//world_size, (r+1)*count//world_size), shuffled among
            themselves.
        seed: Any whole number. Each epoch has its own order with the same seed.
        rank: This rank's number. Pass both `rank` and `world_size`, or neither to take them from torch.distributed or
            the launcher.
        world_size: Number of ranks.
        tail: What to do with the rows after the last whole global batch. "drop": leave them out. "pad": fill the batch
            with rows from the start of the epoch; ``Batch.valid`` says how many count. "keep": split them evenly into
            smaller batches; a rank without any gets one row of padding.
        prefetch: Batches prepared ahead. Host memory is about ``prefetch + 2`` batches.
        threads: Threads that copy. Default: the usable cores, at most 4.
        reader: How to read. "mmap": copy out of mappings, except on network file systems. "pread": one read per run of
            rows. "auto": choose by file system and memory. ``stats()`` says what was chosen and why.
        transform: Takes and returns a ``Batch``. It is called in a thread of the Loader, on the device, on a stream of
            the Loader, without gradients and outside of autocast.
        cache: "device" keeps each row of the rank's range in the device's memory once it was read, so that no pixels
            are read or transferred twice; the batches are the same. Needs one rank, or partition="range".
        verify: Check each row against its checksum as it is read. A wrong or damaged row raises StoreError at
            ``next()``, which names the row. docs/verify-and-repair.md says what that costs.

    Attributes:
        batch_size: Rows per batch on each rank.
        rank: This rank's number.
        world_size: Number of ranks.
        count: Rows of the store or the subset.

    Yields:
        Batch: unpacks to ``images``, uint8 (B, H, W, C), and ``labels``, int64 (B,).

    Raises:
        ValueError: If arguments conflict.
        StoreError: If the store is damaged, or is a staged part without this rank's rows; such a part goes with
            partition="range".
        Stopped: If a file server is away.

    Example:
        >>> loader = Loader("train.store", batch_size=256, device="cuda")
        >>> for images, labels in loader: ...
    """

    @with_parameters_of(Settings)
    def __init__(self, store: StoreLike, **settings: Any) -> None:
        self._settings = chosen = Settings(store, **settings)
        place, device, threads = chosen.find_rank(), find_device(chosen.device), chosen.copying_threads()
        opened = store if isinstance(store, Store) else open_store(store)
        self.batch_size, self.rank, self.world_size = chosen.batch_size, place.rank, place.world_size
        self._root = opened.paths.root
        self._manifest = manifest = opened.manifest
        if isinstance(chosen.transform, Augment):
            chosen.transform.check_columns(column.name for column in manifest.columns)
            chosen.transform.check_classes(len(manifest.classes))
        rows = find_rows(chosen.rows, len(opened))
        self.count = len(rows)
        self._partition = partition = make_partition(
            chosen.partition, rows, chosen.batch_size, place.rank, place.world_size, chosen.tail
        )
        self._rows_name = "all" if isinstance(rows, range) else f"subset {hexdigest(rows.data.cast('B'))}"
        advice = 'take partition="range" with the world size it was staged for'
        if chosen.partition == "range":
            advice = f"those of rank {place.rank} of {place.world_size}; it was staged for another"
        if chosen.rows is not None:
            advice = "choose rows that it holds, or open the whole store"
        first, last = int(partition.rows[0]), int(partition.rows[-1])
        opened.check_held(range(first, last + 1), advice)  # once: no step asks again
        if chosen.cache and partition.slices > 1:
            raise ValueError(
                f'cache={chosen.cache!r} with partition="global": a rank needs other rows in each epoch; use "range"'
            )
        shape, cached = (chosen.batch_size, *manifest.shape), partition.rows if chosen.cache else None
        self._delivery = make_delivery(device, shape, chosen.prefetch, chosen.transform, cached)
        self._files = ShardFiles(opened)
        reader, why = make_reader(opened, self._files, chosen.reader, threads, verify=chosen.verify)
        self._reader: Reader | None = reader
        self._choice = {"reader": reader.name, "why": why, "threads": threads}
        self._meter = Meter()
        self._progress = Progress()
        self._epoch: weakref.ref[Epoch] | None = None
        self._filler: Filler | None = None  # the last epoch's; its threads may outlive the epoch

    def __repr__(self) -> str:
        size = f"{self.count} rows, {self.batch_size} per step on rank {self.rank} of {self.world_size}"
        return f"<Loader {self._root}: {size}; epoch {self.epoch}, {self.steps_left} of {len(self)} steps left>"

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on every rank, also if the next epoch is resumed in the middle.

        A progress bar that starts where training resumes is ``tqdm(loader, initial=len(loader) - loader.steps_left)``.
        """
        return self._partition.steps()

    @property
    def epoch(self) -> int:
        """Number of the running epoch, up to the end of its ``for``; otherwise of the epoch that the next ``for`` runs.

        ``for epoch in range(loader.epoch, epochs)`` runs the epochs that are left, also after load_state_dict().
        """
        running = self._running()
        return running.number if running else self._progress.next.epoch

    @property
    def steps_left(self) -> int:
        """Batches that the running epoch has yet to give, 0 at its last one; otherwise those of the next ``for``."""
        running = self._running()
        return running.left if running else self._partition.steps(self._progress.next.rows_consumed)

    def __iter__(self) -> Iterator[Batch]:
        """The next epoch, or the rest of one after load_state_dict(). Ends the epoch that was being iterated."""
        self._end_epoch("another epoch of this Loader was begun")
        if self._reader is None:
            raise RuntimeError("this Loader is closed; make another")
        # This epoch stays the next one until it hands out a batch: Lightning asks for two iterators in a row, and takes
        # batches from the second.
        start = self._progress.now = self._progress.next
        self._delivery.begin()
        steps, prefetch = self._plan(start), self._settings.prefetch
        filler = Filler(steps, self._reader, self._delivery, self._meter, prefetch)
        count, stride = self._partition.steps(start.rows_consumed), self._partition.stride
        epoch = Epoch(filler, self._progress, steps=count, stride=stride)
        self._filler = filler
        self._epoch = weakref.ref(epoch)
        return epoch

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End all threads, close files and free slots; a second call does nothing. Batches that are held stay valid."""
        self._end_epoch("the Loader was closed")
        if self._reader is not None:
            self._reader = None
            self._files.close()
            self._delivery.close()

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the number of the next one. The epoch that load_state_dict() went to keeps its offset."""
        check_whole(0, epoch=epoch)
        if epoch != self._progress.next.epoch:
            self._progress.next = Position(epoch, 0)
        running = self._running()
        if running is None or not running.left:
            self._progress.now = self._progress.next

    def state_dict(self) -> dict[str, Any]:
        """Where training is after the batches handed out so far, however many are ready: a small plain dict.

        At an epoch's last batch that is the start of the next epoch, so count epochs with `epoch`, not on your own.

        rows_consumed counts rows of all ranks with partition="global", of each rank with "range". A closed Loader still
        has its state.
        """
        return {**asdict(self._progress.now), **self._identity(), "world_size": self.world_size}

    def load_state_dict(self, state: Mapping[str, Any], *, other_store: bool = False) -> None:
        """Resume where `state` was taken: the next ``for`` gives exactly the rest of its epoch.

        Batch size may differ and, with partition="global", so may world size.

        Args:
            state: What state_dict() returned.
            other_store: Accept a state of a store with other rows, if there are as many. A converted copy of the same
                rows is the same store.

        Raises:
            ValueError: If store, rows, seed, shuffle, partition or count differ, or world size with "range"; the
                message says which.
        """
        expected = self._identity()
        store = expected.pop("store")
        if self._settings.partition == "range":
            expected["world_size"] = self.world_size
        if differing := [f"{k} {state[k]!r}, here {v!r}" for k, v in expected.items() if state.get(k, v) != v]:
            raise ValueError(f"the state is that of another Loader: {'; '.join(differing)}")
        if missing := {"epoch", "rows_consumed", "store", *expected} - set(state):
            raise ValueError(f"not the state of a Loader: it lacks {', '.join(sorted(missing))}")
        if state["store"] != store and not other_store:
            found = f"its rows have digest {state['store']!r}, those of {self._root} have {store!r}"
            raise ValueError(f"the state is that of another store: {found}; to resume here, pass other_store=True")
        position = Position(state["epoch"], state["rows_consumed"])
        check_whole(0, epoch=position.epoch, rows_consumed=position.rows_consumed)
        if position.rows_consumed > (count := len(self._partition.rows)):
            raise ValueError(f"rows_consumed is {position.rows_consumed}, expected {count} at most")
        self._end_epoch("load_state_dict() was called")
        self._progress.now = self._progress.next = position

    def stats(self) -> dict[str, Any]:
        """What was chosen, and counts since the Loader was made.

        reader and why, threads; slots made; cached_rows on the device; batches handed out and the bytes of their
        pixels; seconds of iteration, the user's own work included, and samples_per_s and bytes_per_s over them;
        seconds_waited for batches; waited_time_share, which is seconds_waited over seconds, as in bottleneck();
        waited_batch_share, the share of batches that were not ready when asked for; queue_depth, how many were, on
        average; cold_share, of looks ahead that found rows not in memory; seconds_reading of all copying threads and
        seconds_reading_cpu, those in which they were not blocked; seconds_transforming, of calls of the transform;
        seconds_sending, of waiting for slots and delivering batches, without those.
        """
        slots, cached = self._delivery.slots.made, self._delivery.cached_rows()
        return {**self._choice, "slots": slots, "cached_rows": cached, **self._meter.facts(self._manifest.row_bytes)}

    def bottleneck(self) -> str:
        """What limits training so far: a word and why.

        The word is "training", "transform", "transfer" (to a device), "storage" or "copy" (in memory).
        """
        return self._meter.bottleneck(self._settings.copying_threads(), transfers=self._delivery.transfers)

    def _identity(self) -> dict[str, Any]:
        """What a state must agree in with the Loader that loads it."""
        chosen = self._settings
        identity = {"seed": chosen.seed, "shuffle": chosen.shuffle, "partition": chosen.partition}
        blocks = {"block_rows": self._manifest.block_rows} if chosen.shuffle == "window" else {}
        store = {"store": self._manifest.rows_digest, "rows": self._rows_name, "count": self.count}
        return {**identity, **store, **blocks}

    def _plan(self, start: Position) -> Iterator[Step]:
        partition, manifest, consumed = self._partition, self._manifest, start.rows_consumed
        words = [self._settings.seed, start.epoch]
        if self._settings.partition == "range":
            words += [self.world_size, self.rank]  # else ranges of equal size would be shuffled alike
        order = make_order(self._settings.shuffle, len(partition.rows), manifest.block_rows, derive_key(*words))
        steps = plan_steps(order, partition, consumed, start.epoch)
        if isinstance(order, WindowOrder) and partition.slices == 1 and windows_fit(order, manifest.row_bytes):
            return blocks_ahead(steps, order, partition, consumed, manifest.row_bytes)
        return rows_ahead(steps, manifest.row_bytes)

    def _running(self) -> Epoch | None:
        """The epoch whose ``for`` has begun and is not over."""
        epoch = self._epoch() if self._epoch else None
        return None if epoch is None or epoch.ended else epoch

    def _end_epoch(self, why: str) -> None:
        if epoch := self._running():
            epoch.end(why)
        if self._filler is not None:
            self._filler.stop()
            self._filler = None
