"""Progress on standard error: a tqdm bar on a terminal, otherwise a line every 15 s.

--log also records the progress. --quiet prints none.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from decodeonce.cli import log
from decodeonce.cli.output import is_quiet, say
from decodeonce.formatting import counted

if TYPE_CHECKING:
    from decodeonce.prep.building import Progress

LOG_SECONDS = 15.0


@contextmanager
def count_bar(unit: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a callback that adds to the count of `unit`s, of `total` if that is known. Any thread may call it."""
    meter, lock, count = _Meter(), threading.Lock(), 0
    of = "" if total is None else f" of {total}"
    with _bar(unit, total) as bar:

        def update(more: int) -> None:
            nonlocal count
            with lock:
                count += more
                bar.update(more)
                facts = meter.facts(count, total, count)
                log.progress(facts)
                if bar.disable:
                    meter.print(f"{count}{of} {unit}, {facts['rows_per_s']:.0f}/s")

        yield update


@contextmanager
def build_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a callback for `work` that shows images/s, MB/s written, rejects and the time left."""
    meter, started = _Meter(), False
    with _bar("images", None) as bar:

        def update(progress: Progress) -> None:
            nonlocal started
            if not started and (done := progress.rows - progress.new_rows):
                with bar.external_write_mode(sys.stdout):
                    say(f"resuming: {done:,} of {progress.total_rows:,} rows are already done")
            started = True
            facts = meter.facts(progress.rows, progress.total_rows, progress.new_rows, progress.bytes, progress.rejects)
            log.progress(facts)
            if not bar.disable:
                _move(bar, progress, facts)
            else:
                meter.print(_line(progress, facts))

        yield update


def _bar(unit: str, total: int | None) -> Any:
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # start no monitor thread
    silent = is_quiet() or not sys.stderr.isatty()
    return tqdm(total=total, unit=f" {unit}", dynamic_ncols=True, file=sys.stderr, disable=silent)


class _Meter:
    """Rates since the meter was created, and lines on standard error, at most one every LOG_SECONDS."""

    def __init__(self) -> None:
        self._started = self._printed = time.monotonic()

    def print(self, line: str) -> None:
        """Print a line unless one was printed less than LOG_SECONDS ago; with --quiet, print none."""
        if not is_quiet() and time.monotonic() - self._printed >= LOG_SECONDS:
            self._printed = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def facts(
        self, rows: int, total: int | None, new_rows: int, nbytes: int | None = None, rejects: int | None = None
    ) -> dict[str, float | None]:
        """Return progress as the log records it; None means unknown."""
        seconds = max(time.monotonic() - self._started, 1e-3)
        rate = new_rows / seconds
        return {
            "rows": rows,
            "total_rows": total,
            "rows_per_s": round(rate, 1),
            "bytes_per_s": None if nbytes is None else round(nbytes / seconds),
            "rejects": rejects,
            "seconds_left": round((total - rows) / rate, 1) if total is not None and rate else None,
        }


def _move(bar: Any, progress: Progress, facts: dict[str, float | None]) -> None:
    if bar.total is None:
        bar.reset(total=progress.total_rows)
        bar.n = bar.initial = progress.rows - progress.new_rows  # rows of an earlier run do not count for the rate
    bar.set_postfix_str(_rate_and_rejects(progress, facts), refresh=False)
    bar.update(progress.rows - bar.n)


def _line(progress: Progress, facts: dict[str, float | None]) -> str:
    left = "no rows done yet" if facts["seconds_left"] is None else f"{facts['seconds_left']:.0f} s left"
    speed = f"{facts['rows_per_s']:.0f} images/s"
    return f"{progress.rows}/{progress.total_rows} images, {speed}, {_rate_and_rejects(progress, facts)}, {left}"


def _rate_and_rejects(progress: Progress, facts: dict[str, float | None]) -> str:
    return f"{(facts['bytes_per_s'] or 0) / 1e6:.0f} MB/s, {counted(progress.rejects, 'reject')}"
