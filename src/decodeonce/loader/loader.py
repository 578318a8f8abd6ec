"""The Loader: shuffled, partitioned and resumable epochs, at the speed of a memory copy."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice, starmap
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from decodeonce.host import usable_cores
from decodeonce.launch import Rank, check_rank, distributed_rank, find_rank
from decodeonce.loader.arguments import DATA_LOADER_WORDS, StoreLike, as_store, refuse_arguments, whole
from decodeonce.loader.augment import fused
from decodeonce.loader.augment.augment import Augment
from decodeonce.loader.augment.views import Views
from decodeonce.loader.buffers import Slots, page_aligned_slot, refuse_to_copy
from decodeonce.loader.dataset import StoreDataset
from decodeonce.loader.delivery import Batch, Delivery, Shape, Split, Transform, find_device, split_rows
from decodeonce.loader.epoch import Epoch, Filler
from decodeonce.loader.meter import Meter
from decodeonce.loader.order import Rows, Shuffle, derive_key, make_order
from decodeonce.loader.partition import (
    PartitionKind,
    Progress,
    StepProgress,
    Steps,
    Tail,
    add_hints,
    find_rows,
    make_partition,
    make_table,
    plan_steps,
)
from decodeonce.loader.readers import Reader, ReaderName, choose_reader, make_reader
from decodeonce.store import Store
from decodeonce.store.hashing import hexdigest
from decodeonce.store.layout import check_choice
from decodeonce.store.manifest import Manifest

# ArrayLike would fill three lines of help(Loader).
RowNumbers = Sequence[int] | NDArray[Any] | torch.Tensor
Weights = Sequence[float] | NDArray[Any] | torch.Tensor | Literal["balanced"]

# In our measurements, two threads copied as fast as two cores can. A rank should use only a few cores for loading.
MOST_THREADS = 4
MOST = 1000  # threads, and batches prepared ahead; a larger number is a mistake
MOST_STEPS = 1 << 32
GIVEN = "given"  # the source of a rank that the user passed


class Loader:
    """Iterate over a store in shuffled, resumable batches.

    Each ``for`` loop runs one epoch, and the first epoch is number 0. Without a transform, images are uint8
    (B, H, W, C). With ``Augment``, they are (B, C, H, W), as models expect. Ranks are detected automatically, and all
    of them run the same number of steps.

    Args:
        store: Path to a store, or an open ``Store``.
        batch_size: Rows per batch on each rank, at least 1.
        rows: Load only these rows of the store: distinct row numbers in any order, or a mask with a boolean per row.
            Such a subset is shuffled, partitioned and resumed like a store with only these rows, in their stored order.
            For other rows in a later phase of training, create a new Loader and call ``set_epoch()``; otherwise it
            starts at epoch 0. Default: all rows.
        device: Device that receives the batches, such as "cuda". Default: "cpu".
        shuffle: Order of an epoch. "full" (default): any row may appear anywhere. "window": blocks are shuffled, then
            rows within groups of 32 blocks; best on storage that is slow at random reads. "none": stored order.
        weights: Draw rows with replacement: a number of 0 or more for each row of the store. A row with twice the
            weight is drawn twice as often. "balanced": draw all classes equally often. An epoch draws N times from N
            rows, and ``Augment`` gives each draw its own random numbers. This needs ``shuffle="full"`` and
            ``partition="global"``, and 16 bytes of memory per row. Default: None, each row once per epoch.
        partition: How ranks share an epoch. "global" (default): all ranks share one order over all rows, and each takes
            its slice of every global batch. "range": rank r reads only the rows from r*count//world_size up to
            (r+1)*count//world_size, in an order of its own.
        seed: Any whole number. Default: 0. With the same seed, each epoch still has its own order.
        rank: Number of this rank. Pass both `rank` and `world_size`, or neither. Default: the rank from
            torch.distributed or the launcher.
        world_size: Number of ranks. Default: as for `rank`.
        tail: What to do with the rows after the last complete global batch. "drop": skip them. "pad": fill the batch
            with rows from the start of the epoch; ``Batch.valid`` is the number of rows that count. "keep": split them
            evenly into smaller batches; a rank without rows gets one row of padding. Default: "keep" with
            ``shuffle="none"``, which is for evaluation, otherwise "drop".
        steps: Steps per epoch, at least 1. Each epoch continues where the previous one ended; where too few rows for a
            batch are left, `tail` applies, and the next pass through the rows begins. Such a run resumes exactly,
            unlike one that leaves each epoch with ``break``. Default: None, an epoch is one pass.
        prefetch: Batches prepared ahead, 1 to 1,000. Default: 3. On a CPU, the Loader uses host memory for about
            ``prefetch + 2`` batches. With another device, it uses pinned host memory for 3 batches, and device memory
            for about ``prefetch + 2`` batches, also where your program queues the work of many steps: ``next()`` then
            waits until the device has followed.
        threads: Threads that copy rows, 1 to 1,000. Default: the number of usable cores, at most 4.
        reader: How to read. "auto" (default): choose by file system and memory; ``stats()`` shows the choice and the
            reason. "pread": one read per run of consecutive rows. "mmap": copy from mapped files. "direct": keep a
            fixed set of the rows in the page cache, as many as fit into 0.8 of the available memory, and read all
            others past it; "auto" chooses it for stores larger than half of the memory. Network file systems, and
            stores whose rows all fit, are read with pread instead.
        transform: Function from a ``Batch`` to a new ``Batch``, such as ``Augment``. It runs in a thread of the Loader,
            on the device and a stream of the Loader, without gradients and outside autocast. If it does not change the
            batch, it must return ``dataclasses.replace(batch)``. Default: none.
        cache: "device" keeps each row in device memory after its first use, so that its pixels are read and transferred
            once. The batches stay the same. It keeps rows as they are stored, so ImageNet at 256x256 takes 252 GB of
            memory, 126 GB as yuv420 and 63 GB as bc4. This needs a single rank or ``partition="range"``, and memory for
            all rows of the rank, which is allocated when the Loader is created. Default: None, no cache.
        verify: If True, compare each row with its checksum when it is read. A damaged row raises StoreError at
            ``next()``; the error names the row. :doc:`/how-to/verify-and-repair` shows the cost. Default: False.
        pixels: "rgb" (default): images are RGB, also of stores that hold them as yuv420 or bc4; a CPU unpacks these in
            the copying threads, a device by itself, and ``Augment`` after its first crop. "stored": as they are
            stored, so that your model or transform can unpack them; ``batch.planes`` then says how.

    Attributes:
        batch_size: Rows per batch on each rank.
        rank: Number of this rank.
        world_size: Number of ranks.
        count: Rows of the store or the subset.

    Yields:
        Batch: Unpacks to ``images``, uint8 (B, H, W, C), and ``labels``, int64 (B,).

    Raises:
        ValueError: If arguments are not valid or conflict.
        TypeError: If `transform` does not accept one argument, or an argument is one of torch's DataLoader; the message
            says what to pass instead.
        StoreError: If the store is damaged, or is a staged part without this rank's rows. Load a staged part with
            ``partition="range"``.
        Stopped: If the file server is down.

    Example:
        >>> loader = Loader("train.store", batch_size=32)  # on a GPU, add device="cuda"
        >>> for images, labels in loader:
        ...     print(images.shape, images.dtype, labels.shape)
        torch.Size([32, 256, 256, 3]) torch.uint8 torch.Size([32])
        torch.Size([32, 256, 256, 3]) torch.uint8 torch.Size([32])
        >>> loader.epoch, len(loader)
        (1, 2)
        >>> balanced = Loader("train.store", batch_size=32, weights="balanced")  # rare classes as often as others
    """

    _reader: Reader | None  # None: the Loader is closed
    _filler: Filler | None = None  # of the last epoch; its threads may outlive the epoch
    _left_after, _warned = 0, False  # steps of the epoch that Lightning has left; whether a warning was logged

    @refuse_arguments("name the others, such as batch_size={}", DATA_LOADER_WORDS)
    def __init__(  # noqa: PLR0913 - the settings are keywords that help() and editors show
        self,
        store: StoreLike,
        *,
        batch_size: int,
        rows: RowNumbers | None = None,
        device: str | torch.device = "cpu",
        shuffle: Shuffle = "full",
        weights: Weights | None = None,
        partition: PartitionKind = "global",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
        steps: int | None = None,
        prefetch: int = 3,
        threads: int | None = None,
        reader: ReaderName = "auto",
        transform: Transform | None = None,
        cache: Literal["device"] | None = None,
        verify: bool = False,
        pixels: Literal["rgb", "stored"] = "rgb",
    ) -> None:
        if isinstance(shuffle, bool):
            raise TypeError(f'shuffle is {shuffle} as for torch\'s DataLoader; pass "{"full" if shuffle else "none"}"')
        if tail is None:
            tail = "keep" if shuffle == "none" else "drop"
        check_choice("shuffle", shuffle, Shuffle)
        check_choice("partition", partition, PartitionKind)
        check_choice("tail", tail, Tail)
        check_choice("reader", reader, ReaderName)
        check_choice("cache", cache, Literal[None, "device"])
        check_choice("pixels", pixels, Literal["rgb", "stored"])
        self._shuffle, self._partition_kind = shuffle, partition
        self.batch_size, self._prefetch = whole("batch_size", batch_size, 1), whole("prefetch", prefetch, 1, MOST)
        self._seed = whole("seed", seed)
        threads = min(MOST_THREADS, usable_cores()) if threads is None else whole("threads", threads, 1, MOST)
        found = find_rank() if rank is None and world_size is None else _given_rank(rank, world_size)
        self.rank, self.world_size, self._found = found.rank, found.world_size, found
        target, opened = find_device(device), as_store(store)
        self._root, self._manifest = opened.paths.root, opened.manifest
        if transform is not None:
            _check_transform(transform, self._manifest)
        self._augment_device = target if isinstance(transform, (Augment, Views)) else None

        self._chosen = range(len(opened)) if rows is None else find_rows(rows, len(opened))
        self.count = len(self._chosen)
        self._partition = make_partition(partition, self._chosen, self.batch_size, self.rank, self.world_size, tail)
        if len(opened.rows) < len(opened):
            self._check_staged(opened)
        self._table = None if weights is None else make_table(weights, opened, self._chosen, shuffle, partition)

        slot_manifest, split = self._manifest, None  # of the rows in slots, and what makes arrays of them
        if not slot_manifest.rows_are_images:
            on_host, as_stored = target.type == "cpu" and not cache, pixels == "stored"
            slot_manifest, split = _describe_slots(self._manifest, transform, as_stored=as_stored, on_host=on_host)
        shape = (self.batch_size, *slot_manifest.row_shape)
        self._delivery = make_delivery(target, shape, self._prefetch, self._cached_rows() if cache else None)
        self._delivery.transform, self._delivery.split = transform, split
        steps = None if steps is None else whole("steps", steps, 1, MOST_STEPS)
        self._progress = StepProgress(self._partition, steps) if steps else Progress(self._partition)
        nbytes = min(self.count, len(opened.rows)) * self._manifest.row_bytes
        choice = choose_reader(self._root, nbytes, reader, slot_bytes=(self._prefetch + 2) * math.prod(shape))
        self._reader, self._choice = make_reader(opened, choice, threads, verify=verify, slot_manifest=slot_manifest)
        self._meter = Meter()

    def __repr__(self) -> str:
        size = f"{self.count} rows, {self.batch_size} per step on rank {self.rank} of {self.world_size}"
        return f"<Loader {self._root}: {size}; epoch {self.epoch}, {self.steps_left} of {len(self)} steps left>"

    __reduce__ = refuse_to_copy

    def __len__(self) -> int:
        """The number of steps of a whole epoch. It is the same on every rank, and also when the next epoch is resumed.

        For a progress bar that starts where training resumes, use
        ``tqdm(loader, initial=len(loader) - loader.steps_left)``.
        """
        return len(self._progress)

    def __getitem__(self, index: object) -> NoReturn:
        """Raise TypeError, because a DataLoader would take a Loader for a dataset."""
        raise TypeError("a Loader yields batches: iterate over it, without a DataLoader; for samples, use StoreDataset")

    @cached_property
    def dataset(self) -> StoreDataset | Subset[tuple[Any, ...]]:
        """A dataset of the rows of the store or subset. Some trainers use its length as the length of an epoch."""
        rows = StoreDataset(self._root)
        return rows if isinstance(self._chosen, range) else Subset(rows, self._chosen.tolist())

    @property
    def epoch(self) -> int:
        """Number of the running epoch; between two ``for`` loops, the number of the next epoch.

        ``for epoch in range(loader.epoch, epochs)`` runs the remaining epochs, also after ``load_state_dict()``, but
        not after ``break``: then, it is still the number of the epoch that was left, as in ``state_dict()``.
        """
        running = self._running()
        return running.number if running else self._progress.now.epoch

    @property
    def steps_left(self) -> int:
        """Number of batches left in the running epoch, which is 0 at its last batch.

        Between two ``for`` loops, it is the number of batches left in the next epoch, or after ``break`` in the epoch
        that was left.
        """
        running = self._running()
        return running.left if running else self._progress.left(self._progress.now)

    def __iter__(self) -> Iterator[Batch]:
        """Start the next epoch or, after ``load_state_dict()``, the rest of the restored epoch.

        An epoch that is still running ends.

        Returns:
            Iterator[Batch]: The batches of the epoch. If the iterator is dropped early, for example by ``break``, its
            threads end after the batches that they have begun. ``close()`` and the next epoch wait for them.

        Raises:
            RuntimeError: If the Loader is closed, or was created before torch.distributed was initialized and found
                another rank than torch.distributed.
        """
        self._end_epoch("a new epoch of this Loader was started")
        if self._reader is None:
            raise RuntimeError("this Loader is closed; create a new one")
        self._check_rank()
        # Until this epoch yields a batch, it is also the next one: Lightning creates two iterators in a row and takes
        # batches from the second.
        filler = self._begin_epoch(self._reader)
        epoch = Epoch(filler, self._progress)
        self._filler = filler
        filler.start(epoch)  # last: from here on, close() and the end of the epoch end its threads
        return epoch

    def peek(self) -> Batch:
        """Return the first batch of the next ``for`` loop, which still yields it. ``next(iter(loader))`` would not.

        Returns:
            Batch: The batch, as the loop yields it.

        Raises:
            RuntimeError: If an epoch is running, or the Loader is closed.
            StopIteration: If the epoch has no batch.

        Example:
            >>> loader = Loader("train.store", batch_size=32)
            >>> loader.peek().images.shape, loader.epoch
            (torch.Size([32, 256, 256, 3]), 0)
        """
        self._check_between_epochs("call peek() before or after its loop")
        before = self._progress.now, self._progress.next
        try:
            return next(iter(self))
        finally:
            self._end_epoch("peek() has returned")
            self._progress.now, self._progress.next = before

    def set_weights(self, weights: Weights) -> None:
        """Draw the rows of the next epochs with other weights, for example to prefer hard examples.

        The epoch keeps its number. A new Loader would start at epoch 0 again, with the draws of the first epoch.
        To resume, set the same weights before ``load_state_dict()``.

        Args:
            weights: As for the Loader, which must have been created with ``weights=``.

        Raises:
            RuntimeError: If an epoch is running.
            ValueError: If `weights` are not valid, or the Loader was created without ``weights=``.

        Example:
            >>> loader = Loader("train.store", batch_size=32, weights="balanced")
            >>> loader.set_weights([1.0] * loader.count)
        """
        if self._table is None:
            raise ValueError('this Loader was created without weights=; pass weights=, for example "balanced"')
        self._check_between_epochs("set weights between two epochs")
        self._table = make_table(weights, as_store(self._root), self._chosen, self._shuffle, self._partition_kind)
        self.__dict__.pop("_identity", None)  # it contains the digest of the weights

    def _begin_epoch(self, reader: Reader) -> Filler:
        """Move to the start of the next epoch, and return a filler for its steps that has not been started."""
        self._progress.now = self._progress.next
        self._delivery.begin()
        return Filler(self._make_steps(), reader, self._delivery, self._meter, self._prefetch)

    def _make_steps(self) -> Steps:
        """The rows of each step that this rank has left in the epoch, and the rows to read ahead when it begins."""
        partition, manifest, now = self._partition, self._manifest, self._progress.now
        seed, shuffle, table, rows = self._seed, self._shuffle, self._table, len(partition.rows)

        # Without self, which the thread of the filler would keep.
        def make_pass(number: int, consumed: int, first: int | None) -> Steps:
            key = derive_key(seed, number, *partition.words)
            order = make_order(shuffle, rows, manifest.block_rows, key, table)
            if table and first is None:  # rows are drawn, so they can repeat
                first = 0
            steps = plan_steps(order, partition, consumed, now.epoch, first)
            return add_hints(steps, order, partition, consumed, manifest.row_bytes)

        passes = starmap(make_pass, self._progress.passes(now))
        return islice(chain.from_iterable(passes), self._progress.left(now))

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End all threads, close files and free buffers. A second call does nothing; existing batches stay valid."""
        self._end_epoch("the Loader was closed")
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            self._delivery.close()

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch. Few programs need this, because epochs are counted automatically.

        If `epoch` is the epoch that ``load_state_dict()`` restored, it still resumes at the restored step.

        Args:
            epoch: Number of the epoch that the next ``for`` loop runs, 0 or more. An iterator that was created but has
                yielded no batch yet runs this epoch, too.
        """
        epoch, running = whole("epoch", epoch, 0), self._running()
        if epoch != self._progress.next.epoch:
            is_fresh = self._progress.now == self._progress.next
            self._progress.next = self._progress.start(epoch)
            if running and running.left and is_fresh and self._reader:
                assert self._filler
                self._filler.stop()
                self._filler = self._begin_epoch(self._reader)
                running.restart(self._filler)
        if running is None or not running.left:
            self._progress.now = self._progress.next

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """An object whose `sampler` sets the epoch, because Lightning calls ``batch_sampler.sampler.set_epoch()``.

        Lightning restores the state of a Loader only in the middle of an epoch.
        """
        return SimpleNamespace(sampler=LightningSampler(self))

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batches yielded so far, to save in a checkpoint.

        Prefetched batches do not count. After the last batch of an epoch, the position is the start of the next epoch.
        Therefore, count epochs with ``loader.epoch``, not with a counter of your own. A closed Loader keeps its state.

        Returns:
            dict[str, Any]: A small dict of numbers and strings, the same on every rank. "rows_consumed" counts rows of
            all ranks with ``partition="global"``, and of each rank with "range". With ``steps=``, it counts those of
            the pass number "pass", and "epoch_rows" those of the epoch.
        """
        return {**self._progress.state(), **self._identity, "world_size": self.world_size}

    def load_state_dict(self, state: Mapping[str, Any], *, other_store: bool = False) -> None:
        """Resume where `state` was taken: the next ``for`` loop yields exactly the rest of its epoch.

        The batch size may differ. With ``partition="global"``, the world size may differ, too.

        Args:
            state: The result of ``state_dict()``.
            other_store: If True, also accept the state of a store with different rows, if their number is the same. A
                converted copy of the same rows counts as the same store. Default: False.

        Raises:
            ValueError: If `state` is not the state of a Loader, or if store, rows, seed, shuffle, weights, partition or
                count differ, or the world size with "range", or the rows per block with "window", or if only one of
                both Loaders has ``steps=``. The message names what differs.

        Example:
            >>> loader = Loader("train.store", batch_size=16)
            >>> batch = next(iter(loader))
            >>> resumed = Loader("train.store", batch_size=16)
            >>> resumed.load_state_dict(loader.state_dict())
            >>> resumed.steps_left, len(resumed)
            (3, 4)
        """
        expected = {**self._identity}
        if expected["partition"] == "range":
            expected["world_size"] = self.world_size
        source = "expected what state_dict() of a Loader returned"
        if not isinstance(state, Mapping):
            raise ValueError(f"the state is {repr(state)[:100]}, {source}")
        # Only states of window orders have block_rows. Without it, the state is from a different Loader.
        if missing := {"epoch", "rows_consumed", *expected} - {"block_rows"} - set(state):
            raise ValueError(f"the state has no {', '.join(sorted(missing))}; {source}")
        store = expected.pop("store")
        if differing := [f"{k} {state.get(k)!r}, here {v!r}" for k, v in expected.items() if state.get(k) != v]:
            raise ValueError(f"the state is from a different Loader: {'; '.join(differing)}")
        if state["store"] != store and not other_store:
            found = f"its rows have digest {state['store']!r}, those of {self._root} have {store!r}"
            raise ValueError(f"the state is from a different store: {found}; to resume anyway, pass other_store=True")
        if ("pass" in state) != ("pass" in self._progress.state()):
            which = "with steps=, and this one was created without it"
            if "pass" not in state:
                which = "without steps=, and this one was created with it"
            raise ValueError(f"the state is from a Loader {which}")
        numbers = {name: whole(name, state.get(name), 0) for name in self._progress.state()}
        if numbers["rows_consumed"] > (count := len(self._partition.rows)):
            raise ValueError(f"rows_consumed is {numbers['rows_consumed']}, expected at most {count}")
        self._end_epoch("load_state_dict() was called")
        self._progress.restore(numbers)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the choices of the Loader and its counts since it was created. Fractions have three decimals.

        Returns:
            dict[str, dict[str, Any]]: These groups:

            - "reader": its `name`, `why` it was chosen, the share of the rows that it leaves in the page cache
              (`kept`), and the number of `threads` that copy.
            - "memory": `slots`, batch buffers allocated in host memory, and `cached_rows`, rows in device memory.
            - "yielded": `batches`, `bytes` of their stored rows, `seconds` spent iterating, including the work of the
              ``for`` body, and the rates over them, `samples_per_s` and `bytes_per_s`.
            - "waited": `batches` that were not ready when requested, `seconds` that the ``for`` loop waited for them
              (not counting those until the device had finished the work of earlier batches),
              `time_share` of the time spent iterating, as in ``bottleneck()``, and `queue_depth`, the batches that were
              ready when one was requested, on average.
            - "threads": `seconds_reading` and `seconds_reading_cpu`, the time of all copying threads, in total and on
              a processor; `seconds_transforming`, in calls of the transform; `seconds_sending`, waiting for buffers and
              delivering batches, without the transform; `cold_share`, the share of read-ahead checks that found rows
              outside the page cache.
            - "augment", only with ``Augment`` or ``Views``: the `kernel` for crops, flips and ``Normalize``, which is
              "triton" or "torch", and `why`.

        Example:
            >>> loader = Loader("train.store", batch_size=16)
            >>> batches = list(loader)
            >>> loader.stats()["yielded"]["batches"]
            4
        """
        memory = {"slots": self._delivery.slots.made, "cached_rows": self._delivery.cached_rows}
        facts = {"reader": {**self._choice}, "memory": memory, **self._meter.facts(self._manifest.row_bytes)}
        return facts if self._augment_device is None else {**facts, "augment": fused.choice(self._augment_device)}

    def bottleneck(self) -> str:
        """Return what has limited training so far, as a word and a reason.

        Returns:
            str: Starts with "training", "transform", "transfer" (to a device), "storage", "copy" (in memory) or, before
            the fourth batch, "unknown".
        """
        return self._meter.bottleneck(self._choice["threads"], transfers=self._delivery.transfers)

    @cached_property
    def _identity(self) -> dict[str, object]:
        """The values that must be equal in a state and in the Loader that loads it."""
        chosen, block_rows = self._chosen, {"block_rows": self._manifest.block_rows}
        return {
            "seed": self._seed,
            "shuffle": f"weighted {self._table.digest}" if self._table else self._shuffle,
            "partition": self._partition_kind,
            "store": self._manifest.rows_digest,
            "rows": "all" if isinstance(chosen, range) else f"subset {hexdigest(chosen.data.cast('B'))}",
            "count": self.count,
            **(block_rows if self._shuffle == "window" else {}),
        }

    def _check_staged(self, part: Store) -> None:
        """Raise StoreError unless a staged part holds the rows of this rank."""
        advice = 'pass partition="range", and the rank and world_size that it was staged for'
        if self._partition_kind == "range":
            advice = f"these belong to rank {self.rank} of {self.world_size}; stage the part for this rank"
        if not isinstance(self._chosen, range):
            advice = "choose rows that it holds, or open the whole store"
        own = self._partition.rows
        part.images.check_held(range(int(own[0]), int(own[-1]) + 1), advice)

    def _cached_rows(self) -> range | Rows:
        """The rows of this rank, to keep in device memory. Raise ValueError if they differ from epoch to epoch."""
        if self._partition.slices > 1:
            advice = 'with "global", a rank reads different rows each epoch'
            raise ValueError(f'cache="device" needs partition="range": {advice}')
        return self._partition.rows

    def _check_rank(self) -> None:
        """Raise RuntimeError if the rank was found, not given, and torch.distributed has another one by now."""
        now = distributed_rank()
        if now and self._found.source != GIVEN and (now.rank, now.world_size) != (self.rank, self.world_size):
            advice = "create it in each process after init_process_group(), or pass rank and world_size"
            raise RuntimeError(f"this Loader was created as {self._found}, but this process is {now}; {advice}")

    def _running(self) -> Epoch | None:
        """The epoch that has been started and has not ended."""
        epoch = self._filler.owner() if self._filler else None
        return None if epoch is None or epoch.ended else epoch

    def _check_between_epochs(self, advice: str) -> None:
        if (running := self._running()) and running.left:
            raise RuntimeError(f"epoch {running.number} is running; {advice}")

    def _end_epoch(self, why: str) -> None:
        if epoch := self._running():
            epoch.ended = why
        if self._filler:
            self._filler.stop()
            self._filler = None


class LightningSampler:
    """Passes Lightning's epochs to a Loader, and logs a warning once if Lightning leaves two after the same step."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        loader, progress = self._loader, self._loader._progress
        left = progress.now != progress.next and loader._shuffle != "none" and loader.rank == 0
        steps = len(loader) - loader.steps_left if left else 0
        if steps and steps == loader._left_after and not loader._warned:
            loader._warned = True
            logging.getLogger("decodeonce").warning(
                "%s: Lightning leaves each epoch after %d of %d steps, and each has other rows; for overfit_batches "
                'and limit_val_batches, pass shuffle="none"%s; instead of limit_train_batches, pass steps=%d',
                *(loader._root, steps, len(loader), " and no weights" if loader._table else "", steps),
            )
        loader._left_after = steps
        loader.set_epoch(epoch)


def _check_transform(transform: object, manifest: Manifest) -> None:
    """Raise TypeError unless `transform` accepts one argument: users pass a step of Augment, or a list of steps.

    Raise ValueError if an Augment does not fit the store.
    """
    if isinstance(transform, Augment):
        transform.check_store(manifest)
    try:
        inspect.signature(transform).bind(None)  # type: ignore[arg-type]
    except ValueError:  # a function of C, whose parameters are unknown
        return
    except TypeError:
        expected = "expected a function with one parameter, a Batch; wrap steps in Augment(...)"
        raise TypeError(f"transform is {transform!r}, {expected}") from None


def make_delivery(device: torch.device, shape: Shape, prefetch: int, cached: range | Rows | None = None) -> Delivery:
    """Create the delivery to a device, with slots of `shape`. `cached`: rows to keep in device memory, or None."""
    if device.type == "cpu" and cached is None:
        # Up to `prefetch` batches are ready or in progress. The user holds one batch while the next is received.
        return Delivery(Slots(partial(page_aligned_slot, shape), prefetch + 2))
    from decodeonce.loader import streams  # batches on a host do not need it

    target = streams.HostDevice(device) if device.type == "cpu" else streams.Device(device)
    if cached is None:
        return streams.StreamDelivery(shape, target, prefetch)
    return streams.CachedDelivery(shape, target, prefetch, cached)


def _describe_slots(
    manifest: Manifest, transform: Transform | None, *, as_stored: bool, on_host: bool
) -> tuple[Manifest, Split | None]:
    """The manifest of the rows in slots, and what makes arrays of them, if rows are not RGB images alone."""
    # Augment and Views crop before they unpack. A subclass can have its own __call__, which expects RGB.
    as_stored |= type(transform).__call__ in (Augment.__call__, Views.__call__)
    if on_host and not as_stored:  # copying threads unpack rows for a host; a device does this itself
        manifest = replace(manifest, pixels="rgb")
    return manifest, None if manifest.rows_are_images else partial(split_rows, manifest, not as_stored)


def _given_rank(rank: int | None, world_size: int | None) -> Rank:
    if rank is None or world_size is None:
        raise ValueError(f"rank is {rank!r} and world_size {world_size!r}, expected both or neither")
    rank, world_size = whole("rank", rank), whole("world_size", world_size)
    check_rank(rank, world_size)
    return Rank(rank, world_size, GIVEN)
