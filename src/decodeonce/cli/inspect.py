"""`prep info`, `status`, `logs`, `verify`, `ls` and `show`: inspect and check a store."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import decodeonce
from decodeonce import cli
from decodeonce.cli import printable
from decodeonce.cli.command import ClassOption, MatchOption, RowsOption, StoreArgument, option, selected_lines
from decodeonce.cli.output import (
    bytes_as_text,
    check_out,
    count_bar,
    print_result,
    rejects_text,
    say,
    show_facts,
    store_facts,
    write_out,
)
from decodeonce.errors import BuildError, StoreError
from decodeonce.formatting import counted, duration_text, quoted
from decodeonce.host import usable_cores
from decodeonce.store.layout import Json

# C0 without tab and newline, DEL, and C1 in UTF-8
CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")

if TYPE_CHECKING:
    from decodeonce.prep.building.status import Status, TaskStatus
    from decodeonce.prep.jobs.submitted import JobStates
    from decodeonce.store import Store


def info(store: StoreArgument) -> None:
    """Print facts about a store: counts, shape, shards, rows per class, rejects, statistics, recipe."""
    from decodeonce.store.checks import check_file

    opened = decodeonce.open_store(store)
    manifest, rejects = opened.manifest, opened.paths.rejects
    check_file(rejects, manifest.files[rejects.name])
    facts: Json = {
        "store": str(store),
        "staged_part": len(opened.rows) < manifest.count,
        "first_row": opened.rows.start,
        "held_rows": len(opened.rows),
        **store_facts(store, manifest, opened.labels),
        "rows_per_class": _rows_per_class(opened),
        "columns": [column.name for column in manifest.columns],
        **({"paired": [one.text for one in manifest.paired]} if manifest.paired else {}),
        **({} if manifest.box_classes is None else {"box_classes": len(manifest.box_classes)}),
        "pixel_mean": list(manifest.pixel_mean),
        "pixel_std": list(manifest.pixel_std),
        "source": manifest.source,
        "decoder_crashes": manifest.decoder_crashes,
    }
    show_facts(_for_people(facts), facts)


def _for_people(facts: Json) -> Json:
    """Return the facts of `prep info` as text: the recipe as flags of `prep build`, and only what applies."""
    from decodeonce.prep.recipe import given_flags

    recipe = given_flags(facts["recipe"])
    decoders = recipe.pop("decoders", None)
    first, held, source = facts["first_row"], facts["held_rows"], dict(facts["source"])
    source.pop("digest", None)
    options = source.pop("options", None) or {}
    shown = {
        "store": facts["store"],
        "rows": f"{facts['rows']:,} of {'x'.join(map(str, facts['shape']))} {facts['dtype']}",
        "staged_part": f"rows {first:,} to {first + held - 1:,}" if facts["staged_part"] else None,
        "size": f"{bytes_as_text(facts['bytes_as'])} in {counted(facts['shards'], facts['container'] + ' shard')}",
        "classes": f"{facts['classes']:,}",
        "rows_per_class": _per_class_text(facts["rows_per_class"]),
        "rejects": rejects_text(facts),
        "columns": facts["columns"],
        "paired": facts.get("paired"),
        "box_classes": facts.get("box_classes"),
        "pixel_mean": [f"{value:.1f}" for value in facts["pixel_mean"]],
        "pixel_std": [f"{value:.1f}" for value in facts["pixel_std"]],
        "recipe": recipe,
        "decoders": decoders or None,
        "source": {**source, **options},
        "decoder_crashes": facts["decoder_crashes"] or None,
        "digest": facts["digest"],
    }
    return {name: value for name, value in shown.items() if value is not None}


def _rows_per_class(store: Store) -> Json:
    """Find the smallest and largest class and the median; for a staged part, those of the whole store."""
    import numpy as np

    counts = np.bincount(store.labels, minlength=len(store.classes))
    ends = {"smallest": int(counts.argmin()), "largest": int(counts.argmax())}
    found = {end: {**asdict(store.classes[label]), "rows": int(counts[label])} for end, label in ends.items()}
    return {"smallest": found["smallest"], "median": float(np.median(counts)), "largest": found["largest"]}


def _per_class_text(found: Json) -> str:
    least, median, most = found["smallest"], found["median"], found["largest"]
    if least["rows"] == most["rows"]:
        return f"{most['rows']:,} in each"
    names = [f"{one['name']} {one['description'].partition(',')[0]}".rstrip() for one in (least, most)]
    return f"smallest {least['rows']:,} ({names[0]}), median {median:,g}, largest {most['rows']:,} ({names[1]})"


def status(out: Annotated[Path, typer.Argument(help="Folder of a build or store.", metavar="OUT")]) -> None:
    """Print the progress of a build and its rejected images. The command works on every node."""
    from decodeonce.prep.building.status import read_status
    from decodeonce.prep.jobs.submitted import job_states

    jobs = job_states(out)
    found = {"jobs": {name: asdict(states) for name, states in jobs.items()}}
    shown = {"jobs": _jobs_text(jobs)} if jobs else {}
    try:
        status = read_status(out)
    except BuildError:
        if not jobs:
            raise
        state = "submitted" if any(states.queued for states in jobs.values()) else "ended"
        logs = {"next": f"prep logs {quoted(out)}"}
        return show_facts({"state": state, **shown, **logs}, {"state": state, **found, **logs})
    show_facts({**_status_facts(out, status), **shown}, {**asdict(status), **found})
    if cli.results:
        return
    undone = sorted((task for task in status.tasks if task.state != "done"), key=lambda task: task.state)
    _say_first(40, list(map(_task_text, undone)), " tasks")  # silent tasks come first
    _say_first(20, list(map(str, status.rejects)), "")


def _jobs_text(jobs: Mapping[str, JobStates]) -> str:
    texts = []
    for name, states in jobs.items():
        counts = states.queued or states.ended
        number = sum(counts.values())
        parts = [f"{count} of {number} {state}" if number > 1 else state for state, count in counts.items()]
        texts.append(f"{name}: {', '.join(parts)}")
    return "; ".join(texts)


def logs(
    out: Annotated[Path, typer.Argument(help="Build whose jobs `prep submit` wrote.", metavar="OUT")],
    lines: Annotated[int, option("Print up to N lines of each log.", "N", min=1, max=100_000)] = 20,
) -> None:
    """Print the end of each log of a build's jobs."""
    from decodeonce.prep.jobs.submitted import submitted_jobs
    from decodeonce.prep.paths import BuildPaths

    jobs = submitted_jobs(out)
    paths = [path for job in jobs for path in job.printed(out)]
    if not paths:
        what = "no job has printed anything yet" if jobs else "this build was not submitted with `prep submit`"
        raise BuildError(f"{BuildPaths(out).jobs}: {what}")
    for path in paths:
        with path.open(encoding="utf-8", errors="backslashreplace") as file:
            last = deque(file, lines)
        print(f"==> {printable(str(path))} <==", *(printable(line.rstrip("\n")) for line in last), sep="\n")


def _status_facts(out: Path, status: Status) -> Json:
    """Return the facts to print about a build or store, with the command to run next."""
    rejects = {"rejects": len(status.rejects)}
    if status.finished:
        return {"state": "finished", "rows": f"{status.rows:,}", **rejects, "next": f"prep info {quoted(out)}"}
    facts: Json = {
        "state": status.state,
        "rows_done": f"{status.rows_done:,} of {status.rows:,}",
        "blocks_done": f"{status.blocks_done:,} of {status.blocks:,}",
        "tasks_started": len(status.tasks),
        **rejects,
    }
    if status.state == "working":
        left = "unknown" if status.seconds_left is None else duration_text(status.seconds_left)
        return {**facts, "rows_per_s": round(status.rows_per_s), "time_left": left}
    from decodeonce.prep.building.plan import allowed_rejects, enough_rejects
    from decodeonce.prep.building.pool import WorkSettings

    # `work` and `finish` will fail because of too many rejects unless --max-bad allows them.
    too_many = status.expected_rejects > allowed_rejects(WorkSettings().max_bad, status.rows)
    enough = status.expected_rejects
    if status.state != "decoded":
        enough = enough_rejects(enough, status.rows + len(status.rejects))
    flag = f" --max-bad {enough}" if too_many else ""
    work, finish = f"prep work {quoted(out)}{flag}", f"prep finish {quoted(out)}{flag}"
    again = f"the same command again{flag and f' with{flag}'}, or {work} and then {finish}"
    advice = {"decoded": finish, "planned": work}.get(status.state, again)
    return {**facts, "next": f"{advice}, if you accept these rejects" if too_many else advice}


def _task_text(task: TaskStatus) -> str:
    return (
        f"task {task.task} of {task.tasks} on {task.host}: {task.state}, {task.blocks_done} of {task.blocks} blocks, "
        f"{task.rows_per_s:.0f} rows/s, last write {duration_text(task.seconds_quiet)} ago"
    )


def _say_first(most: int, lines: list[str], what: str) -> None:
    for line in lines[:most]:
        say(f"  {line}")
    if len(lines) > most:
        say(f"  and {len(lines) - most} more{what}; --json lists all of them")


def verify(store: StoreArgument) -> None:
    """Read a whole store and compare it with its checksums. The exit code is 0 if it is intact, and 1 if not."""
    from decodeonce.store import verify_store
    from decodeonce.store.checks import repair_advice
    from decodeonce.store.verify import ranges_text

    with count_bar("rows") as update:
        report = verify_store(store, threads=usable_cores(), progress=update)
    if report.ok:
        say(f"{store}: {counted(report.rows, 'row')} intact")
    for problem in report.problems:
        say(f"prep: error: {problem}{'' if report.rows else '; no row was checked'}", err=True)
    rows = {"damaged": report.bad_rows, "cannot be checked, because checksums.npy is damaged": report.unknown_rows}
    for what, ranges in rows.items():
        if ranges:
            say(f"prep: error: {store}: {ranges_text(ranges)}: {what}", err=True)
    if any(rows.values()):
        say(f"prep: error: {store}: {repair_advice(store / 'store.json')}", err=True)
    print_result({name: getattr(report, name) for name in ("ok", "rows", "bad_rows", "unknown_rows", "bad_files")})
    if not report.ok:
        raise typer.Exit(1)


def ls(store: StoreArgument, names: ClassOption = None, match: MatchOption = None, rows: RowsOption = None) -> None:
    """List rows with the columns of samples.tsv: row, label, class, source, width, height, box, digest.

    If classes have descriptions, these are the last column.
    """
    opened = decodeonce.open_store(store)
    lines = _with_descriptions(opened, selected_lines(opened, names, match, rows))
    sys.stdout.buffer.writelines(map(_escaped if sys.stdout.isatty() else _without_controls, lines))
    sys.stdout.buffer.flush()


def _with_descriptions(store: Store, lines: Iterator[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield the header of samples.tsv and the lines, with descriptions of classes if any class has one."""
    from decodeonce.store.table import escape, invalid_sample_error

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
            raise invalid_sample_error(store.paths.samples, row) from None


def _escaped(line: bytes) -> bytes:
    """Escape the bytes of a line that a terminal would act on; names may contain them."""
    fields = line.decode("utf-8", "surrogateescape").rstrip("\n").split("\t")
    return ("\t".join(map(printable, fields)) + "\n").encode("utf-8", "backslashreplace")


def _without_controls(line: bytes) -> bytes:
    """Escape only control characters: a pipe may lead to a terminal, or to a program that needs the names."""
    return CONTROLS.sub(lambda control: b"\\x%02x" % control[0][-1], line)


def show(
    store: StoreArgument,
    out: Annotated[Path, option("Write the PNG to FILE.", "FILE")] = Path("sheet.png"),
    names: ClassOption = None,
    match: MatchOption = None,
    rows: RowsOption = None,
    count: Annotated[int | None, option("Show the first N selected rows. (default: 64)", "N", min=1, max=4096)] = None,
    random: Annotated[int | None, option("Show N of the selected rows, drawn at random.", "N", min=1, max=4096)] = None,
    seed: Annotated[
        int | None, option("Draw the rows of --random with this seed. (default: 0)", "N", min=0, max=2**63 - 1)
    ] = None,
) -> None:
    """Write a PNG of selected rows, each with its class and row number. Damaged rows get a red frame.

    Boxes and masks are drawn over their images. A second image is to the right of its image.
    """
    if random is not None and count is not None:
        raise typer.BadParameter("--count and --random exclude each other; give only one of them")
    if seed is not None and random is None:
        raise typer.BadParameter("--seed requires --random N")
    from decodeonce.cli.drawing import draw_sheet
    from decodeonce.cli.rows import CheckedRows, damage_messages, draw_rows, shown_rows

    opened = decodeonce.open_store(store)
    found = (row for row, _ in selected_lines(opened, names, match, rows))
    check_out(opened, out)
    chosen = draw_rows(found, random, seed or 0) if random else list(islice(found, count or 64))
    if not chosen:
        advice = f"to list rows, classes and sources, run: prep ls {quoted(store)}"
        raise StoreError(f"{store}: no row is selected; {advice}")
    checked = CheckedRows(opened)
    shown = list(shown_rows(opened, chosen, checked))
    write_out(out, draw_sheet(shown))
    say(f"{out}: {counted(len(shown), 'row')} of {store} shown")
    for sentence in damage_messages(opened, [one.row for one in shown if one.damaged], checked.problem):
        say(f"prep: note: {sentence}", err=True)
