"""Print messages, tables, JSON and progress, and write output files.

Progress is a tqdm bar on a terminal, otherwise a line every 15 s on standard error. With `--quiet`, which
`LoggedCommand` adds to a command, only errors, warnings and JSON are printed. With `--json`, which `JsonCommand`
adds, the result is a JSON object, and all text goes to standard error.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from decodeonce import cli
from decodeonce.cli import fitted
from decodeonce.formatting import counted, size_text, without_secrets
from decodeonce.store.layout import FORMS, Json, PixelsName, StorePaths, image_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from decodeonce.prep.building.pool import Progress
    from decodeonce.store import Manifest, Store

Bar = Any  # a bar of tqdm, which is imported only for a bar
# For tqdm, with and without a known total.
BAR = "{percentage:3.0f}%|{bar}| {n:,}/{total:,} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
COUNT = "{n:,}{unit} [{elapsed}, {rate_noinv_fmt}{postfix}]"
MOST_KINDS = 4  # of rejected images that a message counts
PROGRESS_SECONDS, LOG_SECONDS = 15.0, 30.0  # between lines of progress, and between events of --log


def say(text: str, *, err: bool = False) -> None:
    """Print a line above a bar, escaped and wrapped for terminals, and log it. Errors (`err`) ignore --quiet."""
    text = without_secrets(text)
    cli.events.info("message", {"message": text})
    if err or not cli.quiet:
        bars, stream = sys.modules.get("tqdm"), sys.stderr if err else sys.stdout
        with bars.tqdm.external_write_mode(stream) if bars else nullcontext():
            typer.echo(fitted(text, stream), err=err)


def bytes_as(nbytes: int, rows: int, pixels: PixelsName, shape: tuple[int, int, int]) -> dict[str, int]:
    """Return the bytes of a store whose `rows` hold images as `pixels` says, and what the other choices would take."""
    found: dict[str, int] = {}
    for form in (pixels, *FORMS):  # these are in the order of their sizes
        with suppress(ValueError):  # images of this size cannot be stored like that
            found[form] = nbytes + rows * (image_bytes(form, shape) - image_bytes(pixels, shape))
    return found


def bytes_as_text(found: Mapping[str, int]) -> str:
    """Format what `bytes_as` returns: "252.15 GB (126.08 GB as yuv420, 63.04 GB as bc4)"."""
    (_, nbytes), *others = found.items()
    text = ", ".join(f"{size_text(more)} as {other}" for other, more in others)
    return f"{size_text(nbytes)} ({text})" if text else size_text(nbytes)


class _Warnings(logging.Handler):
    """Prints warnings of the package like other messages."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(BrokenPipeError):  # the command goes on, as with other handlers
            say(record.getMessage(), err=True)


logging.getLogger("decodeonce").addHandler(_Warnings())


def print_result(facts: Mapping[str, object]) -> None:
    """Print the facts about what a command did if --json asks for them. Their text is printed with `say`."""
    if cli.results:
        try:
            typer.echo(json.dumps(facts), file=cli.results)
        except BrokenPipeError:  # nobody reads it, but the exit code still tells the result
            cli.drop_output(cli.results)


def store_facts(root: Path, manifest: Manifest, labels: NDArray[np.int64]) -> Json:
    """Return what `prep info --json` and the commands that write a store print; `rejected` and `kept` have reasons."""
    import numpy as np

    from decodeonce.store.table import read_rejects

    found = Counter((one.action, one.reason) for one in read_rejects(StorePaths(root).rejects))
    listed, rejected = Counter({"rejected": 0, "left out": 0, "kept": 0}), Counter[str]()
    paired = [one.name for one in manifest.paired]
    for (action, reason), count in found.items():
        listed[action] += count
        if action == "rejected":
            rejected[_kind_of(reason, paired)] += count
    nbytes = sum(shard.bytes for shard in manifest.shards)
    return {
        "rows": manifest.count,
        "shape": list(manifest.shape),
        "dtype": manifest.dtype,
        "pixels": manifest.pixels,
        "container": manifest.container,
        "shards": len(manifest.shards),
        "bytes": nbytes,
        "bytes_as": bytes_as(nbytes, manifest.count, manifest.pixels, manifest.shape),
        "classes": len(manifest.classes),
        "used_classes": int(np.count_nonzero(np.bincount(labels))),  # a class may have lost all its images
        "rejects": listed,
        "rejected": dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
        "kept": {reason: count for (action, reason), count in found.items() if action == "kept"},
        "recipe": manifest.recipe,
        "digest": manifest.digest,
    }


def _kind_of(reason: str, paired: Collection[str]) -> str:
    """Return a reason without its details, such as "truncated"; the name of a `paired` image or a map stays."""
    name, _, rest = reason.partition(": ")
    if name in paired or re.fullmatch(r"[\w.]+:\w+", name):
        return f"{name}: {_kind_of(rest, ())}"
    kind = rest if name.lower().endswith((".json", ".xml")) else reason
    return re.split("[:;] |, (?=which|run)", kind)[0]


def built_facts(out: Path, manifest: Manifest, *, already_finished: bool, **more: object) -> Json:
    """Return the facts about a store that a command has built, or found."""
    import numpy as np

    from decodeonce.store.files import read_regular

    labels = np.load(io.BytesIO(read_regular(StorePaths(out).labels)))  # another node may have just replaced the file
    facts = store_facts(out, manifest, labels)
    return {"out": str(out), "already_finished": already_finished, **facts, **more}


def show_facts(shown: Mapping[str, object], facts: Mapping[str, object]) -> None:
    """Print what is shown, one fact per line, or only the facts if --json asks for them."""
    if cli.results:
        return print_result(facts)
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        say(f"{name.replace('_', ' '):<{width}}  {_text(value)}")


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def rejects_text(facts: Json) -> str:
    """Describe what `store_facts` says of rejects.tsv: "1 of 1,200 images was rejected (1 truncated)"."""
    rejected, left_out, kept = (facts["rejects"][action] for action in ("rejected", "left out", "kept"))
    total = counted(facts["rows"] + rejected + left_out, "image")
    most = [f"{count:,} {kind}" for kind, count in facts["rejected"].items()][:MOST_KINDS]
    others = rejected - sum(list(facts["rejected"].values())[:MOST_KINDS])
    why = ", ".join(most + [f"{others:,} for other reasons"] * (others > 0))
    texts = [f"{rejected:,} of {total} {_was(rejected)} rejected ({why})" if rejected else "no image was rejected"]
    texts += [f"{left_out:,} {_was(left_out)} left out by --map"] if left_out else []
    texts += [f"{counted(kept, 'unusual image')} {_was(kept)} kept"] if kept else []
    return " and ".join(texts)


def advice_on(kept: Mapping[str, int], levels: object) -> Iterator[str]:
    """Yield a line for what a flag of a build, or other files, would change in images that were kept, by reason.

    Also if the `levels` of the recipe changed no image.
    """
    if turned := sum(count for reason, count in kept.items() if "EXIF rotation" in reason):
        found = f"{counted(turned, 'image')} {_was(turned)}"
        yield f"{found} stored without the rotation in EXIF; --exif apply rotates them"
    dark = [
        (int(bits), count) for reason, count in kept.items() for bits in re.findall(r"values of (\d+) bits", reason)
    ]
    if dark:
        count, bits = sum(count for _, count in dark), max(bits for bits, _ in dark)
        yield (
            f"{counted(count, 'image')} {_was(count)} stored dark: the values have at most {bits} "
            f"bits; --levels 0:{(1 << bits) - 1} scales all images equally, and --levels auto each image by itself"
        )
    if garbled := sum(count for reason, count in kept.items() if "garbled" in reason):
        found = f"{counted(garbled, 'garbled image')} {_was(garbled)} kept, maybe with wrong pixels"
        yield f"{found}; --on-damaged reject leaves {'it' if garbled == 1 else 'them'} out"
    if white := sum(count for reason, count in kept.items() if "above --levels" in reason):
        found = f"{counted(white, 'image')} {_was(white)} stored mostly white"
        yield f"{found}, because most of the values are above --levels {levels}"
    if lossy := sum(count for reason, count in kept.items() if "JPEG, which changes values" in reason):
        yield f"masks of {counted(lossy, 'image')} were JPEGs, so that edges have other values; save masks as PNG"
    if paged := sum(count for reason, count in kept.items() if "several pages" in reason):
        yield f"{counted(paged, 'TIFF')} {_was(paged)} stored as the first of several pages"
    if levels is not None and not any(re.search(r"\b1[26] bit", reason) for reason in kept):
        yield f"--levels {levels} scaled none of the stored images, because none has 12 or 16 bits"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def check_out(store: Store, out: Path) -> None:
    """Raise a usage error if `out` is a file of the store: writing it would damage the store."""
    manifest, paths = store.manifest, store.paths
    own = {paths.manifest.name, paths.part.name, *manifest.files, *(shard.file for shard in manifest.shards)}
    folder, name = os.path.split(os.path.realpath(out))  # writing follows links
    if name in own and folder == os.path.realpath(paths.root):
        raise typer.BadParameter(f"--out {out}: this file is part of the store; choose another name")


def write_out(path: Path, data: bytes) -> None:
    """Write a file atomically. A pipe or a device gets the bytes directly."""
    from decodeonce.store.files import write_atomic

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
    with closing(_Meter(unit, total)) as meter:

        def update(more: int) -> None:
            nonlocal count
            with lock:
                count += more
                meter.show(count, total, count)

        yield update


@contextmanager
def build_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a callback for `work` that shows images/s, MB/s written, rejects and the time left."""
    with closing(_Meter("images")) as meter:
        yield lambda now: meter.show(now.rows, now.total_rows, now.new_rows, now.bytes, now.rejects)


class _Meter:
    """Logs progress, and shows it as a bar on a terminal, otherwise as a line every PROGRESS_SECONDS."""

    def __init__(self, unit: str, total: int | None = None) -> None:
        self._unit = unit
        self._bar: Bar = _bar(unit, total) if _has_columns(sys.stderr) and not cli.quiet else None
        self._started = self._printed = self._logged = time.monotonic()
        self._is_first = True
        self._unlogged: Json = {}

    def show(
        self, rows: int, total: int | None, new_rows: int, nbytes: int | None = None, rejects: int | None = None
    ) -> None:
        """Show that `rows` of `total` are done, `new_rows` of them by this command; None means unknown.

        If there are more rows than new ones, of an earlier run of a build, `total` must be known.
        """
        if self._is_first and rows > new_rows:
            say(f"resuming: {rows - new_rows:,} of {total:,} rows are already done")
        self._is_first = False
        now = time.monotonic()
        seconds = max(now - self._started, 1e-3)
        rate = new_rows / seconds
        left = round((total - rows) / rate, 1) if total is not None and rate else None
        written = None if nbytes is None else round(nbytes / seconds)
        facts = {"rows": rows, "total_rows": total, "rows_per_s": round(rate, 1), "rejects": rejects}
        self._unlogged = facts = {**facts, "bytes_per_s": written, "seconds_left": left}
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            self._log()
        if self._bar is not None:
            self._move_bar(rows, total, new_rows, rejects)
        elif not cli.quiet and now - self._printed >= PROGRESS_SECONDS:
            self._printed = now
            self._print_line(facts, rate)

    def _log(self) -> None:
        if self._unlogged:
            cli.events.info("progress", self._unlogged)
            self._unlogged = {}

    def _print_line(self, facts: Json, rate: float) -> None:
        total, written, left = facts["total_rows"], facts["bytes_per_s"], facts["seconds_left"]
        of_all = "" if total is None else f" of {total:,}"
        parts = [f"{facts['rows']:,}{of_all} {self._unit}", f"{rate:,.0f} {self._unit}/s"]
        parts += [] if written is None else [f"{written / 1e6:.0f} MB/s"]
        parts += [counted(facts["rejects"], "reject")] if facts["rejects"] else []
        parts += [] if left is None else [f"{left:,.0f} s left"]
        print(", ".join(parts), file=sys.stderr, flush=True)

    def _move_bar(self, rows: int, total: int | None, new_rows: int, rejects: int | None) -> None:
        if self._bar.total != total:
            self._bar.reset(total=total)
            self._bar.n = self._bar.initial = rows - new_rows  # rows of an earlier run do not count for the rate
        self._bar.bar_format = COUNT if total is None else BAR
        self._bar.set_postfix_str(counted(rejects, "reject") if rejects else "", refresh=False)
        self._bar.update(rows - self._bar.n)

    def close(self) -> None:
        """End the bar, and log the last progress."""
        self._log()
        if self._bar is not None:
            self._bar.close()


def _has_columns(stream: TextIO) -> bool:
    """Whether a stream is a terminal that knows its width. Others, such as those of some containers, say 0."""
    return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0


def _bar(unit: str, total: int | None) -> Bar:
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # start no monitor thread
    return tqdm(total=total, unit=f" {unit}", dynamic_ncols=True, file=sys.stderr)
