"""Progress on standard error: a tqdm bar on a terminal, and for builds a line every 30 s in a batch log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from decodeonce.wording import counted

if TYPE_CHECKING:
    from decodeonce.prep import Progress

LOG_SECONDS = 30.0


def count_bar(unit: str, total: int | None = None) -> Any:
    """A tqdm bar that counts `unit`s; silent where standard error is no terminal."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread of its own
    silent = not sys.stderr.isatty()
    return tqdm(total=total, unit=f" {unit}", dynamic_ncols=True, file=sys.stderr, disable=silent)


@contextmanager
def build_progress() -> Iterator[Callable[[Progress], None]]:
    """A callback for `work`: pictures a second, MB/s of the store, rejects and the time left."""
    if not sys.stderr.isatty():
        yield _Log().update
        return
    with count_bar("pictures") as bar:
        started = time.monotonic()

        def update(progress: Progress) -> None:
            if bar.total is None:
                bar.reset(total=progress.total_rows)
                bar.n = bar.initial = progress.rows - progress.new_rows  # an earlier run's rows are no part of the rate
            rate = progress.bytes / 1e6 / max(time.monotonic() - started, 1e-3)
            bar.set_postfix_str(f"{rate:.0f} MB/s, {counted(progress.rejects, 'reject')}", refresh=False)
            bar.update(progress.rows - bar.n)

        yield update


class _Log:
    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < LOG_SECONDS:
            return
        self._last = now
        seconds = now - self._started
        rate = progress.new_rows / seconds
        left = f"{(progress.total_rows - progress.rows) / rate:.0f} s left" if rate else "nothing done yet"
        print(
            f"{progress.rows}/{progress.total_rows} pictures, {rate:.0f} pictures/s, "
            f"{progress.bytes / 1e6 / seconds:.0f} MB/s, {counted(progress.rejects, 'reject')}, {left}",
            file=sys.stderr,
            flush=True,
        )
