"""`prep info`, `status`, `verify`, `ls`, `show`: what a store is, whether it is whole, and what is in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodeonce.cli import printable
from decodeonce.cli.output import JsonFlag, say, show_facts

if TYPE_CHECKING:
    from decodeonce.store import Store
    from decodeonce.store.select import Selection

StoreArgument = Annotated[Path, typer.Argument(help="A finished store.", metavar="STORE")]
ClassOption = Annotated[
    list[str] | None, typer.Option("--class", help="Only rows of this class; may be given again.", metavar="NAME")
]
SourceOption = Annotated[
    str | None, typer.Option(help="Only rows whose source is like this: 'train/n01440764/*'.", metavar="GLOB")
]
RowsOption = Annotated[
    str | None, typer.Option(help="Only rows of this range, as a Python slice: 0:1000, or -500:", metavar="A:B")
]


def info(store: StoreArgument, as_json: JsonFlag = False) -> None:
    """What a store is: counts, shape, shards, statistics, recipe."""
    from decodeonce.store import open_store

    opened = open_store(store)
    manifest = opened.manifest
    facts = {
        "store": str(store),
        "rows": manifest.count,
        "staged_part": len(opened.rows) < manifest.count,
        "first_row": opened.rows.start,
        "held_rows": len(opened.rows),
        "shape": list(manifest.shape),
        "dtype": manifest.dtype,
        "container": manifest.container,
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "classes": len(manifest.classes),
        "columns": [column.name for column in manifest.columns],
        "pixel_mean": list(manifest.pixel_mean),
        "pixel_std": list(manifest.pixel_std),
        "recipe": manifest.recipe,
        "source": manifest.source,
        "decoder_crashes": manifest.decoder_crashes,
        "digest": manifest.digest,
    }
    show_facts(facts, as_json=as_json)


def status(
    out: Annotated[Path, typer.Argument(help="A build, or a store.", metavar="OUT")], as_json: JsonFlag = False
) -> None:
    """How far a build is, from any node, while it runs; and its rejects so far."""
    from decodeonce.prep.status import read_status

    facts = asdict(read_status(out))
    if as_json:
        return show_facts(facts, as_json=True)
    rejects, tasks = facts.pop("rejects"), facts.pop("tasks")
    left = facts.pop("seconds_left")
    facts["rows_per_s"] = round(facts["rows_per_s"])
    facts["time_left"] = "none" if facts["finished"] else _duration(left)
    show_facts({**facts, "tasks_begun": len(tasks), "rejects": len(rejects)}, as_json=False)
    _show_tasks(tasks)
    for reject in rejects[:20]:
        say(f"  {reject['source']}: {reject['reason']}")
    if len(rejects) > 20:
        say(f"  and {len(rejects) - 20} more; --json lists them all")


def _show_tasks(tasks: list[dict[str, Any]]) -> None:
    """A line a task that is not done, silent ones first."""
    undone = sorted((task for task in tasks if task["state"] != "done"), key=lambda task: task["state"])
    for task in undone[:40]:
        say(
            f"  task {task['task']} of {task['tasks']} on {task['host']}: {task['state']}, {task['blocks_done']} of "
            f"{task['blocks']} blocks, {task['rows_per_s']:.0f} rows/s, wrote {_duration(task['seconds_quiet'])} ago"
        )
    if len(undone) > 40:
        say(f"  and {len(undone) - 40} more tasks; --json lists them all")


def _duration(seconds: float | None) -> str:
    """Seconds as people say them; None is not known."""
    if seconds is None:
        return "unknown: nothing is being done"
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def verify(store: StoreArgument, as_json: JsonFlag = False) -> None:
    """Read all of a store and check it against what was written: exit code 0 whole, 1 damaged."""
    from decodeonce.cli.progress import count_bar
    from decodeonce.host import usable_cores
    from decodeonce.store import verify_store
    from decodeonce.store.layout import repair_advice
    from decodeonce.store.verify import row_sentences
    from decodeonce.wording import counted

    with count_bar("rows") as bar:
        report = verify_store(store, threads=usable_cores(), progress=bar.update)
    if as_json:
        names = ("ok", "rows", "bad_rows", "unknown_rows", "bad_files")
        say(json.dumps({name: getattr(report, name) for name in names}))
    elif report.ok:
        say(f"{store}: whole, {counted(report.rows, 'row')}")
    if report.ok:
        return
    for problem in report.problems:
        say(f"prep: error: {problem}{'' if report.rows else '; no row was checked'}", err=True)
    if report.bad_rows or report.unknown_rows:
        for sentence in row_sentences(store, report, most=20):
            say(f"prep: error: {sentence}", err=True)
        say(f"prep: error: {store}: {repair_advice(store / 'store.json')}", err=True)
    raise typer.Exit(1)


def selection(names: list[str] | None, source: str | None, rows: str | None) -> Selection:
    """What --class, --source and --rows select; a usage error where --rows is no range."""
    from decodeonce.store.select import Selection, row_range

    try:
        return Selection(tuple(names or ()), source, row_range(rows) if rows is not None else (None, None))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _lines(store: Store, selected: Selection) -> Iterator[tuple[int, bytes]]:
    from decodeonce.store.select import select_lines

    try:
        return select_lines(store, selected)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def ls(store: StoreArgument, names: ClassOption = None, source: SourceOption = None, rows: RowsOption = None) -> None:
    """List rows, as samples.tsv has them: row, label, class, source, width, height, box, digest."""
    from decodeonce.store import open_store

    selected, opened = selection(names, source, rows), open_store(store)
    lines = (line for _, line in _lines(opened, selected))
    with open(opened.paths.samples, "rb") as file:
        header = next(file, b"")
    shown = map(_shown, lines) if sys.stdout.isatty() else lines
    sys.stdout.buffer.write(header)
    sys.stdout.buffer.writelines(shown)
    sys.stdout.buffer.flush()


def _shown(line: bytes) -> bytes:
    """The line for a terminal, which obeys some bytes that names may hold: with escapes for those."""
    fields = line.decode("utf-8", "surrogateescape").rstrip("\n").split("\t")
    return ("\t".join(map(printable, fields)) + "\n").encode("utf-8", "backslashreplace")


def show(
    store: StoreArgument,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("sheet.png"),
    names: ClassOption = None,
    source: SourceOption = None,
    rows: RowsOption = None,
) -> None:
    """Write a contact sheet of the first 64 selected rows (with a shuffle seed, a fair draw) as a PNG."""
    from decodeonce.cli.sheet import write_sheet
    from decodeonce.errors import StoreError
    from decodeonce.store import open_store

    selected, opened = selection(names, source, rows), open_store(store)
    first = [row for row, _ in islice(_lines(opened, selected), 64)]
    if not first:
        raise StoreError(f"{store}: no row here is selected; `prep ls {store}` lists rows, classes and sources")
    shown = write_sheet(opened.images.take(first), out)
    say(f"{out}: {shown} pictures of {store}")
