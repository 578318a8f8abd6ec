"""One epoch being iterated, and how far training has come."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty
from typing import Any

from decodeonce.loader.batch import Batch
from decodeonce.loader.device import Sent, Side
from decodeonce.loader.filling import Filler


@dataclass(frozen=True)
class Place:
    """A point in training: rows consumed of an epoch, as its partition counts them."""

    epoch: int
    rows_consumed: int


class Progress:
    """Where training stands (`place`), where the next `for` begins (`next`), and counts for stats()."""

    def __init__(self) -> None:
        self.place = self.next = Place(0, 0)
        self.batches = self.bytes = self.waits = 0
        self.seconds_waited = 0.0

    def begin(self) -> Place:
        """Where the epoch that begins now starts."""
        self.place, self.next = self.next, Place(self.next.epoch + 1, 0)
        return self.place

    def advance(self, rows: int, nbytes: int, *, last: bool) -> None:
        """A batch was handed out; after an epoch's last, training stands at the next one's start."""
        self.place = self.next if last else Place(self.place.epoch, self.place.rows_consumed + rows)
        self.batches += 1
        self.bytes += nbytes

    def facts(self) -> dict[str, Any]:
        """The counts."""
        return {
            "batches": self.batches,
            "bytes": self.bytes,
            "seconds_waited": self.seconds_waited,
            "waited_share": self.waits / self.batches if self.batches else 0.0,
        }


class Epoch(Iterator[Batch]):
    """The `steps` batches of an epoch, `stride` rows each; its threads end with it, also when it is dropped halfway."""

    def __init__(self, filler: Filler, side: Side, progress: Progress, steps: int, stride: int) -> None:
        self._filler, self._side, self._progress = filler, side, progress
        self._left, self._stride = steps, stride
        self._ended = ""
        self._process = os.getpid()
        # The filler does not know the epoch, so an epoch that is abandoned dies, and this ends its threads. It does so
        # at exit too: a thread that is inside torch when the interpreter goes can bring the process down.
        self._stop = weakref.finalize(self, filler.stop)
        if not steps:
            progress.place = progress.next

    @property
    def running(self) -> bool:
        """Whether it has batches to give."""
        return self._left > 0 and not self._ended

    def end(self, why: str) -> None:
        """End the threads; whoever asks for a further batch is told why."""
        self._ended = self._ended or why
        self._stop()

    def __next__(self) -> Batch:
        if not self._left:
            self.end("it is over")
            raise StopIteration
        if self._ended:
            raise RuntimeError(f"this epoch has ended: {self._ended}")
        if os.getpid() != self._process:
            raise RuntimeError("this epoch was begun before a fork, which its threads did not survive; begin it here")
        sent = self._wait()
        if isinstance(sent, BaseException):
            self.end(f"{type(sent).__name__}: {sent}")
            if isinstance(sent, StopIteration):  # a transform's: as it is, it would look like the end of the epoch
                raise RuntimeError("transform raised StopIteration") from sent
            raise sent
        self._filler.more()
        batch = self._side.receive(sent)
        self._left -= 1
        self._progress.advance(self._stride, sent.nbytes, last=not self._left)
        return batch

    def _wait(self) -> Sent | BaseException:
        try:
            return self._filler.ready.get_nowait()
        except Empty:
            start = time.perf_counter()
            sent = self._filler.ready.get()
            self._progress.seconds_waited += time.perf_counter() - start
            self._progress.waits += 1
            return sent
