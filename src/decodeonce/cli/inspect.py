"""`prep info`, `status`, `verify`, `ls`, `show`: what a store is, whether it is whole, and what is in it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodeonce.cli import parse, printable
from decodeonce.cli.options import ClassOption, JsonFlag, MatchOption, RowsOption, StoreArgument, option, selection
from decodeonce.cli.output import print_json, say, show_facts
from decodeonce.formatting import counted, duration_text, quoted, size_text

if TYPE_CHECKING:
    from decodeonce.prep.build.status import Status, TaskStatus
    from decodeonce.store import Store
    from decodeonce.store.select import Selection


def info(store: StoreArgument, as_json: JsonFlag = False) -> None:
    """What a store is: counts, shape, shards, rows per class, rejects, statistics, recipe."""
    from decodeonce.store import open_store

    opened = open_store(store)
    manifest = opened.manifest
    facts: dict[str, Any] = {
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
        "rows_per_class": _unless_damaged(_rows_per_class, opened),
        "rejects": _unless_damaged(_rejects, opened),
        "columns": [column.name for column in manifest.columns],
        **({} if manifest.box_classes is None else {"box_classes": len(manifest.box_classes)}),
        "pixel_mean": list(manifest.pixel_mean),
        "pixel_std": list(manifest.pixel_std),
        "recipe": manifest.recipe,
        "source": manifest.source,
        "decoder_crashes": manifest.decoder_crashes,
        "digest": manifest.digest,
    }
    if not as_json:
        facts["bytes"] = f"{facts['bytes']} ({size_text(facts['bytes'])})"
        facts["rows_per_class"] = _per_class_text(facts["rows_per_class"])
        facts["rejects"] = _rejects_text(facts["rejects"])
    show_facts(facts, as_json=as_json)


def _unless_damaged(read: Callable[[Store], dict[str, Any]], store: Store) -> dict[str, Any] | None:
    """What `read` returns; None, and a note on standard error, if the file that it reads is damaged."""
    from decodeonce.errors import StoreError

    try:
        return read(store)
    except StoreError as error:
        say(f"prep: note: {error}", err=True)
        return None


def _rows_per_class(store: Store) -> dict[str, Any]:
    """The smallest and the largest class, and the median of their rows; a staged part's classes are the store's."""
    import numpy as np

    counts = np.bincount(store.labels, minlength=len(store.classes))
    ends = {"smallest": int(counts.argmin()), "largest": int(counts.argmax())}
    found = {end: {**asdict(store.classes[label]), "rows": int(counts[label])} for end, label in ends.items()}
    return {"smallest": found["smallest"], "median": float(np.median(counts)), "largest": found["largest"]}


def _per_class_text(found: dict[str, Any] | None) -> str:
    if found is None:
        return "unknown: labels.npy is damaged"
    least, median, most = found["smallest"], found["median"], found["largest"]
    if least["rows"] == most["rows"]:
        return f"{most['rows']} in each"
    ends = [
        f"{end['rows']} ({end['name']} {end['description'].partition(',')[0]}".rstrip() + ")" for end in (least, most)
    ]
    return f"smallest {ends[0]}, median {median:g}, largest {ends[1]}"


def _rejects(store: Store) -> dict[str, Any]:
    """How often rejects.tsv has each action."""
    from decodeonce.store.checks import check_file
    from decodeonce.store.table import read_rejects

    check_file(store.paths.rejects, store.manifest.files[store.paths.rejects.name])
    return {"rejected": 0, "left out": 0, "kept": 0, **Counter(one.action for one in read_rejects(store.paths.rejects))}


def _rejects_text(found: dict[str, Any] | None) -> str:
    if found is None:
        return "unknown: rejects.tsv is damaged"
    rejects, oddities = counted(found["rejected"], "reject"), counted(found["kept"], "oddity", "oddities")
    return f"{rejects}, {found['left out']} left out, {oddities}"


def status(
    out: Annotated[Path, typer.Argument(help="A build, or a store.", metavar="OUT")], as_json: JsonFlag = False
) -> None:
    """How far a build is, from any node, while it runs; and its rejects so far."""
    from decodeonce.prep.build.status import read_status

    status = read_status(out)
    if as_json:
        return show_facts(asdict(status), as_json=True)
    show_facts(_status_facts(out, status), as_json=False)
    _show_tasks(status.tasks)
    for reject in status.rejects[:20]:
        say(f"  {reject}")
    if len(status.rejects) > 20:
        say(f"  and {len(status.rejects) - 20} more; --json lists them all")


def _status_facts(out: Path, status: Status) -> dict[str, Any]:
    """What to print of a build or a store, and the command to run next."""
    rejects = {"rejects": len(status.rejects)}
    if status.finished:
        return {"state": "finished", "rows": f"{status.rows:,}", **rejects, "next": f"prep info {quoted(str(out))}"}
    facts: dict[str, Any] = {
        "state": status.state,
        "rows_done": f"{status.rows_done:,} of {status.rows:,}",
        "blocks_done": f"{status.blocks_done:,} of {status.blocks:,}",
        "tasks_begun": len(status.tasks),
        **rejects,
    }
    if status.state == "working":
        left = "unknown" if status.seconds_left is None else duration_text(status.seconds_left)
        return {**facts, "rows_per_s": round(status.rows_per_s), "time_left": left}
    work, finish = f"prep work {quoted(str(out))}", f"prep finish {quoted(str(out))}"
    again = f"the same command again, or {work} and then {finish}"
    return {**facts, "next": {"decoded": finish, "planned": work}.get(status.state, again)}


def _show_tasks(tasks: list[TaskStatus]) -> None:
    """Print a line for each task that is not done, silent ones first."""
    undone = sorted((task for task in tasks if task.state != "done"), key=lambda task: task.state)
    for task in undone[:40]:
        say(
            f"  task {task.task} of {task.tasks} on {task.host}: {task.state}, {task.blocks_done} of {task.blocks} "
            f"blocks, {task.rows_per_s:.0f} rows/s, wrote {duration_text(task.seconds_quiet)} ago"
        )
    if len(undone) > 40:
        say(f"  and {len(undone) - 40} more tasks; --json lists them all")


def verify(store: StoreArgument, as_json: JsonFlag = False) -> None:
    """Read all of a store and check it against what was written: exit code 0 whole, 1 damaged."""
    from decodeonce.cli.progress import count_bar
    from decodeonce.host import usable_cores
    from decodeonce.store import verify_store
    from decodeonce.store.layout import repair_advice
    from decodeonce.store.verify import row_sentences

    with count_bar("rows") as bar:
        report = verify_store(store, threads=usable_cores(), progress=bar.update)
    if as_json:
        names = ("ok", "rows", "bad_rows", "unknown_rows", "bad_files")
        print_json({name: getattr(report, name) for name in names})
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


def _lines(store: Store, selected: Selection) -> Iterator[tuple[int, bytes]]:
    from decodeonce.store.select import select_lines

    with parse.usage_errors():
        return select_lines(store, selected)


def ls(store: StoreArgument, names: ClassOption = None, match: MatchOption = None, rows: RowsOption = None) -> None:
    """List rows, as samples.tsv has them: row, label, class, source, width, height, box, digest.

    A last column, description, follows if any class has one.
    """
    from decodeonce.store import open_store

    selected, opened = selection(names, match, rows), open_store(store)
    lines = _described(opened, _lines(opened, selected))
    shown = map(_shown, lines) if sys.stdout.isatty() else lines
    sys.stdout.buffer.writelines(shown)
    sys.stdout.buffer.flush()


def _described(store: Store, lines: Iterator[tuple[int, bytes]]) -> Iterator[bytes]:
    """The header of samples.tsv and the lines; with the description of each line's class if any class has one."""
    from decodeonce.store.table import escape, no_sample

    with open(store.paths.samples, "rb") as file:
        header = next(file, b"")
    if not any(cls.description for cls in store.classes):
        yield header
        yield from (line for _, line in lines)
        return
    yield header.rstrip(b"\n") + b"\tdescription\n"
    descriptions = [escape(cls.description).encode("utf-8", "replace") for cls in store.classes]
    for row, line in lines:
        try:
            yield line.rstrip(b"\n") + b"\t" + descriptions[int(line.split(b"\t", 2)[1])] + b"\n"
        except (IndexError, ValueError):
            raise no_sample(store.paths.samples, row) from None


def _shown(line: bytes) -> bytes:
    """The line for a terminal, which obeys some bytes that names may hold: with escapes for those."""
    fields = line.decode("utf-8", "surrogateescape").rstrip("\n").split("\t")
    return ("\t".join(map(printable, fields)) + "\n").encode("utf-8", "backslashreplace")


def show(
    store: StoreArgument,
    out: Annotated[Path, option("The PNG to write.", "FILE")] = Path("sheet.png"),
    names: ClassOption = None,
    match: MatchOption = None,
    rows: RowsOption = None,
    count: Annotated[int | None, option("The first N selected rows. (default: 64)", "N", min=1, max=4096)] = None,
    random: Annotated[int | None, option("N of the selected rows, drawn at random.", "N", min=1, max=4096)] = None,
    seed: Annotated[int | None, option("Another draw for --random. (default: 0)", "N", min=0, max=2**63 - 1)] = None,
) -> None:
    """Write a contact sheet of selected rows as a PNG: each with its class and row, damaged ones in a red frame."""
    if random is not None and count is not None:
        raise typer.BadParameter("--count takes the first rows, --random draws among all; give one of them")
    if seed is not None and random is None:
        raise typer.BadParameter("--seed is for --random N")
    from decodeonce.cli.rows import CheckedRows, damage_messages, draw_rows, shown_rows
    from decodeonce.cli.sheet import draw_sheet
    from decodeonce.cli.thumbnail import need_pillow
    from decodeonce.cli.written import check_out, write_out
    from decodeonce.errors import StoreError
    from decodeonce.store import open_store

    selected, opened = selection(names, match, rows), open_store(store)
    check_out(opened, out)
    need_pillow("write a PNG")
    found = (row for row, _ in _lines(opened, selected))
    chosen = draw_rows(found, random, seed or 0) if random else list(islice(found, count or 64))
    if not chosen:
        listing = f"`prep ls {quoted(str(store))}`"
        raise StoreError(f"{store}: no row here is selected; {listing} lists rows, classes and sources")
    checked = CheckedRows(opened)
    shown = list(shown_rows(opened, chosen, checked))
    write_out(out, draw_sheet(shown))
    say(f"{out}: {len(shown)} pictures of {store}")
    for sentence in damage_messages(opened, [one.row for one in shown if one.damaged], checked.trouble):
        say(f"prep: note: {sentence}", err=True)
