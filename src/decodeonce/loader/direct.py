"""Read the rows of a store that is larger than memory past the page cache, with O_DIRECT."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import weakref
from contextlib import suppress
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from decodeonce.host import direct_alignment
from decodeonce.loader.aio import REQUEST, ReadQueue, fork_guard
from decodeonce.loader.buffers import page_aligned
from decodeonce.loader.order import Rows
from decodeonce.loader.readers import Call, Reader, Scratch, Span, close_all
from decodeonce.store import Store
from decodeonce.store.files import add_path_to_errors
from decodeonce.store.hashing import GOLDEN, mix
from decodeonce.store.pixels import Pixels

MOST_READS = 256  # of a thread at a time
THREADS_WITHOUT_AIO = 16


class _OfThread(Scratch):
    """The queue of a thread, if the kernel has one for it, and its memory for reads that do not fit a slot."""

    @cached_property  # and not in __init__, which also runs in the thread that makes the reader
    def queue(self) -> ReadQueue | None:
        with suppress(OSError):
            return ReadQueue(MOST_READS)
        return None


class DirectReader(Reader):
    """Read a fixed set of the rows through the page cache, and all others with O_DIRECT into the slots.

    Direct reads cost no copy, and do not evict what the page cache holds. If each epoch has another order, a cache of
    the latest rows holds few of the rows that are needed next, but a fixed set is hit as often as its share of the rows
    says (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021). A row belongs to the set by
    a hash of its number: so ranks and Loaders share the pages of their sets, and a smaller set is part of a larger one.

    Each call starts its direct reads, copies its kept rows meanwhile, and then waits for the reads. If the kernel has
    no AIO for a thread, the thread makes one direct read after the other. A direct read that fails is repeated through
    the page cache, which works or raises the right error.

    Args:
        kept: Share of the rows to keep in the page cache, 0 to 1.

    Raises:
        OSError: The file system does not support direct reads.
    """

    def __init__(self, store: Store, threads: int, *, kept: float = 0.0) -> None:
        super().__init__(store, threads)
        self._below = np.uint64(min(kept * 2.0**64, 2.0**64 - 2.0**11))
        self._direct: dict[int, int] = {}
        self.close = weakref.finalize(self, close_all, self._fds, self._direct)
        self._own = _OfThread()
        self._warned = False
        (shard,) = self.open(np.array(store.rows[:1]))  # a staged part does not hold the first rows of its store
        fd, self._align = self._direct[shard], direct_alignment(self.paths[shard])
        with add_path_to_errors(self.paths[shard]):
            if not self._align or not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            os.preadv(fd, [page_aligned(self._align)], 0)
        try:
            ReadQueue(MOST_READS).close()
        except OSError:
            self.threads = max(threads, THREADS_WITHOUT_AIO)

    def open(self, rows: Rows) -> list[int]:
        """Open the shards that hold `rows`, also for direct reads, and return their numbers."""
        shards = super().open(rows)
        for shard in shards:
            if shard not in self._direct:
                self._direct[shard] = self._open(shard)
                with suppress(OSError):  # on another disk than the first shard; its rows are then copied
                    fcntl.fcntl(self._direct[shard], fcntl.F_SETFL, os.O_DIRECT)
        return shards

    def hint(self, rows: Rows) -> Call | None:
        """A call that reads ahead those of these rows that are kept; it does nothing if only the others are cold."""
        kept = self._are_kept(rows)
        return super().hint(rows[kept]) or (None if kept.all() else lambda: None)

    def _are_kept(self, rows: Rows) -> NDArray[np.bool_]:
        return mix(rows.astype(np.uint64) * np.uint64(GOLDEN)) < self._below

    def _copy(self, rows: Rows, out: Pixels) -> None:
        size, align, kept = self.row_bytes, self._align, self._are_kept(rows)
        shards, target = self.manifest.shard_indexes(rows), out.data.cast("B")
        offsets = self._origins[shards] + rows * size
        direct = np.flatnonzero(~kept)
        starts = offsets[direct] // align * align
        leads, sizes = offsets[direct] - starts, -(-(offsets[direct] + size) // align) * align - starts
        fits = not (leads.any() or size % align or out.ctypes.data % align)
        memory, places = (out.reshape(-1), direct * size) if fits else self._scratch(len(direct), size + 2 * align)
        requests = np.zeros(len(direct), REQUEST)
        requests["fd"] = [self._direct[shard] for shard in shards[direct].tolist()]
        requests["address"], requests["nbytes"], requests["offset"] = memory.ctypes.data + places, sizes, starts

        def read(at: int) -> None:
            span = Span(at, at + 1, int(shards[at]), int(offsets[at]))
            self._read(span, int(rows[at]), target[at * size : (at + 1) * size])

        if queue := self._own.queue:
            queue.start(requests)
        try:
            for at in np.flatnonzero(kept).tolist():
                read(at)
        finally:  # also after an error: until then, the kernel writes to the slot
            done = queue.finish() if queue else _read_each(requests, memory, places)
        for at, result, lead, place in zip(*(a.tolist() for a in (direct, done, leads, places)), strict=True):
            if result < lead + size:
                read(at)
                self._warn(-result)
            elif not fits:
                target[at * size : (at + 1) * size] = memory[place + lead : place + lead + size].data

    def _warn(self, code: int) -> None:
        """Say once that direct reads fail, although the rows can be read through the page cache."""
        if not self._warned:
            self._warned = True
            why = os.strerror(code) if code > 0 else "too few bytes"
            text = "%s: rows are read through the page cache, because direct reads fail: %s"
            logging.getLogger("decodeonce").warning(text, self._root, why)

    def _scratch(self, reads: int, nbytes: int) -> tuple[Pixels, Rows]:
        """Aligned memory of this thread for reads of up to `nbytes`, and where each begins in it."""
        stride = -(-nbytes // self._align) * self._align
        return self._own.take(reads * stride), np.arange(reads) * stride


def _read_each(requests: NDArray[np.void], memory: Pixels, places: Rows) -> NDArray[np.int64]:
    """Make the reads one after the other; return the bytes of each, or the negative number of its error."""
    done = np.zeros(len(requests), np.int64)
    fields = (requests["fd"], requests["nbytes"], requests["offset"], places)
    for number, (fd, nbytes, offset, place) in enumerate(zip(*(a.tolist() for a in fields), strict=True)):
        fork_guard.enter()
        try:
            done[number] = os.preadv(fd, [memory[place : place + nbytes].data], offset)
        except OSError as error:
            done[number] = -(error.errno or errno.EIO)
        finally:
            fork_guard.leave()
    return done
