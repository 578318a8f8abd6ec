"""Print messages, tables, JSON and progress, and write output files.

Progress is a tqdm bar on a terminal, otherwise a line every 15 s on standard error. With `--quiet`, which
`LoggedCommand` adds to a command, only errors and JSON are printed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from decodeonce.cli import fitted, log
from decodeonce.formatting import counted

if TYPE_CHECKING:
    from decodeonce.prep.building import Progress
    from decodeonce.store import Store

PROGRESS_SECONDS = 15.0

_quiet = False


@contextmanager
def quiet_if(*, quiet: bool) -> Iterator[None]:
    """Silence `say` and progress bars inside the block if `quiet`."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


def say(text: str, *, err: bool = False) -> None:
    """Print a line, escaped and wrapped for terminals, and log it. Errors (`err`) are printed with --quiet, too."""
    log.message(text)
    if err or not _quiet:
        typer.echo(fitted(text, sys.stderr if err else sys.stdout), err=err)


def say_marked(mark: str, colour: str, text: str) -> None:
    """Print a line that starts with `mark`, coloured if the output is a terminal that wants colours."""
    line = fitted(f"{mark:<4}  {text}", sys.stdout)
    typer.echo(typer.style(line[:4], fg=colour) + line[4:])


def colour_wanted() -> bool | None:
    """Return False if NO_COLOR (no-color.org) or TERM=dumb is set, otherwise None: colours only on a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object, with --quiet, too."""
    typer.echo(json.dumps(data))


def show_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the facts, one per line or as JSON."""
    if as_json:
        print_json(facts)
        return
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        say(f"{name.replace('_', ' '):<{width}}  {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def check_out(store: Store, out: Path) -> None:
    """Raise a usage error if `out` is a file of the store: writing it would damage the store."""
    manifest, paths = store.manifest, store.paths
    own = {paths.manifest.name, paths.part.name, *manifest.files, *(shard.file for shard in manifest.shards)}
    folder, name = os.path.split(os.path.realpath(out))  # writing follows links
    if name in own and folder == os.path.realpath(paths.root):
        raise typer.BadParameter(f"--out {out}: this file is part of the store; choose another name")


def write_out(path: Path, data: bytes) -> None:
    """Write a file atomically. A pipe or a device gets the bytes directly."""
    from decodeonce.store.durable import write_atomic

    if path.exists() and not path.is_file():
        with open(path, "wb") as pipe:
            pipe.write(data)
        return
    try:
        write_atomic(Path(os.path.realpath(path)), [data])
    except OSError as error:
        error.filename = str(path)  # not the name of the temporary file
        raise


@contextmanager
def count_bar(unit: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a callback that adds to the count of `unit`s, of `total` if that is known. Any thread may call it."""
    lock, count = threading.Lock(), 0
    with _bar(unit, total) as bar:
        meter = _Meter(bar, unit)

        def update(more: int) -> None:
            nonlocal count
            with lock:
                count += more
                meter.show(count, total, count)

        yield update


@contextmanager
def build_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a callback for `work` that shows images/s, MB/s written, rejects and the time left."""
    started = False
    with _bar("images", None) as bar:
        meter = _Meter(bar, "images")

        def update(progress: Progress) -> None:
            nonlocal started
            if not started and (done := progress.rows - progress.new_rows):
                with bar.external_write_mode(sys.stdout):
                    say(f"resuming: {done:,} of {progress.total_rows:,} rows are already done")
            started = True
            meter.show(progress.rows, progress.total_rows, progress.new_rows, progress.bytes, progress.rejects)

        yield update


def _bar(unit: str, total: int | None) -> Any:
    """Return a tqdm bar, which is disabled with --quiet or if standard error is not a terminal."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # start no monitor thread
    silent = _quiet or not sys.stderr.isatty()
    return tqdm(total=total, unit=f" {unit}", dynamic_ncols=True, file=sys.stderr, disable=silent)


class _Meter:
    """Show progress: move the bar, or print a line every PROGRESS_SECONDS if there is none. The log gets it, too."""

    def __init__(self, bar: Any, unit: str) -> None:
        self._bar, self._unit = bar, unit
        self._started = self._printed = time.monotonic()

    def show(
        self, rows: int, total: int | None, new_rows: int, nbytes: int | None = None, rejects: int | None = None
    ) -> None:
        """Show and log that `rows` of `total` are done, `new_rows` of them by this command. None means unknown."""
        now = time.monotonic()
        seconds = max(now - self._started, 1e-3)
        rate = new_rows / seconds
        left = (total - rows) / rate if total is not None and rate else None
        log.progress(
            {
                "rows": rows,
                "total_rows": total,
                "rows_per_s": round(rate, 1),
                "bytes_per_s": None if nbytes is None else round(nbytes / seconds),
                "rejects": rejects,
                "seconds_left": None if left is None else round(left, 1),
            }
        )
        more = f"{(nbytes or 0) / seconds / 1e6:.0f} MB/s, {counted(rejects, 'reject')}" if rejects is not None else ""
        if not self._bar.disable:
            if self._bar.total != total:
                self._bar.reset(total=total)
                self._bar.n = self._bar.initial = rows - new_rows  # an earlier run's rows do not count for the rate
            self._bar.set_postfix_str(more, refresh=False)
            self._bar.update(rows - self._bar.n)
        elif not _quiet and now - self._printed >= PROGRESS_SECONDS:
            self._printed = now
            of, time_left = "" if total is None else f" of {total}", "" if left is None else f"{left:.0f} s left"
            parts = [f"{rows}{of} {self._unit}", f"{rate:.0f} {self._unit}/s", more, time_left]
            print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)
