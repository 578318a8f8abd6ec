"""One epoch being iterated, and how far training has come."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty

from decodeonce.loader.batch import Batch
from decodeonce.loader.device import Sent, Side
from decodeonce.loader.filling import LOOK_SECONDS, Filler
from decodeonce.loader.marks import mark
from decodeonce.loader.meter import Meter


@dataclass(frozen=True)
class Place:
    """A point in training: rows consumed of an epoch, as its partition counts them."""

    epoch: int
    rows_consumed: int


class Progress:
    """Where training stands (`place`), and where the next `for` begins (`next`)."""

    def __init__(self) -> None:
        self.place = self.next = Place(0, 0)

    def begin(self) -> Place:
        """Where the epoch that begins now starts; it is the next one still as long as no batch of it is handed out.

        Lightning asks for two iterators in a row, and takes from the second.
        """
        self.place = self.next
        return self.place

    def advance(self, rows: int, *, last: bool) -> None:
        """A batch of `rows` rows was handed out; after an epoch's last, training stands at the next one's start."""
        if self.next == self.place:
            self.next = Place(self.place.epoch + 1, 0)
        self.place = self.next if last else Place(self.place.epoch, self.place.rows_consumed + rows)


class Epoch(Iterator[Batch]):
    """The `steps` batches of an epoch, `stride` rows each; its threads end with it, also when it is dropped halfway."""

    def __init__(
        self, filler: Filler, side: Side, progress: Progress, meter: Meter, *, steps: int, stride: int
    ) -> None:
        self._filler, self._side, self._progress, self._meter = filler, side, progress, meter
        self._left, self._stride = steps, stride
        self._ended = ""
        self._process = os.getpid()
        self._since = time.perf_counter()
        # The filler does not know the epoch, so an epoch that is abandoned dies, and this ends its threads. It does so
        # at exit too: a thread that is inside torch when the interpreter goes can bring the process down.
        weakref.finalize(self, filler.stop)
        if not steps:
            progress.advance(0, last=True)

    @property
    def running(self) -> bool:
        """Whether it has batches to give."""
        return self._left > 0 and not self._ended

    def end(self, why: str) -> None:
        """End the threads; whoever asks for a further batch is told why."""
        self._ended = self._ended or why
        self._filler.stop()

    def __next__(self) -> Batch:
        if not self._left:
            self.end("it is over")
            raise StopIteration
        if self._ended:
            raise RuntimeError(f"this epoch has ended: {self._ended}")
        if os.getpid() != self._process:
            raise RuntimeError("this epoch was begun before a fork, which its threads did not survive; begin it here")
        try:
            sent = self._wait()
            if not isinstance(sent, BaseException):
                return self._receive(sent)
        except BaseException as error:
            # Ctrl-C, most likely. A batch may be lost by now, so this epoch must not go on; the next one, or a resumed
            # one, will. Not waited for here: what the threads are at may wait for the user.
            self._ended = f"{type(error).__name__}: {error}"
            self._filler.tell_to_stop()
            raise
        self.end(f"{type(sent).__name__}: {sent}")
        if isinstance(sent, StopIteration):  # a transform's: as it is, it would look like the end of the epoch
            raise RuntimeError("transform raised StopIteration") from sent
        raise sent

    def _receive(self, sent: Sent) -> Batch:
        self._filler.more()
        batch = self._side.receive(sent)
        self._left -= 1
        self._progress.advance(self._stride, last=not self._left)
        self._count(sent)
        return batch

    def _wait(self) -> Sent | BaseException:
        self._meter.ready += self._filler.ready.qsize()
        try:
            return self._filler.ready.get_nowait()
        except Empty:
            start = time.perf_counter()
            with mark("wait"):
                sent = self._get()
            self._meter.seconds_waited += time.perf_counter() - start
            self._meter.waits += 1
            return sent

    def _get(self) -> Sent | BaseException:
        while True:
            with suppress(Empty):
                return self._filler.ready.get(timeout=LOOK_SECONDS)

    def _count(self, sent: Sent) -> None:
        meter, now = self._meter, time.perf_counter()
        meter.batches += 1
        meter.rows += sent.rows
        meter.nbytes += sent.nbytes
        meter.seconds, self._since = meter.seconds + now - self._since, now
