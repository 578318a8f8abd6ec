"""`prep stage`: copy a node's rows of a store to its own disk or memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

import decodeonce
from decodeonce.cli.command import option
from decodeonce.cli.output import count_bar, print_result, say
from decodeonce.formatting import quoted, size_text
from decodeonce.launch import check_rank, find_rank


def stage(
    store: Annotated[str, typer.Argument(help="Finished store, or the URL of one.", metavar="STORE")],
    dest: Annotated[Path, typer.Argument(help="New folder on the node's own disk or in /dev/shm.", metavar="DEST")],
    rank: Annotated[int | None, option("Stage the rows of rank R. (default: from the launcher)", "R")] = None,
    world_size: Annotated[
        int | None, option("Divide the store among N ranks. (default: from the launcher)", "N")
    ] = None,
    node_rank: Annotated[
        int | None, option("Stage the rows of all ranks of node K. Use it instead of --rank.", "K")
    ] = None,
    node_count: Annotated[
        int | None, option("Divide the store among N nodes. Use it instead of --world-size.", "N")
    ] = None,
    threads: Annotated[int | None, option("Copy with N threads. (default: 8, or 32 from a URL)", "N", min=1)] = None,
) -> None:
    """Copy a node's rows of a store to DEST, for a Loader with partition="range".

    STORE may be in an object store or on a web server, such as s3://bucket/train.store.

    With g ranks per node, node K of N gets the rows of ranks K*g to K*g+g-1 of N*g. Without flags, the numbers come
    from the launcher: start one process per node, with `srun --ntasks-per-node=1` or mpiexec. Run the same command
    again to resume.
    """
    part, parts, who = _share(rank, world_size, node_rank, node_count)
    from decodeonce.remote import is_url, source_path
    from decodeonce.store import RemoteStore, part_rows, stage_store
    from decodeonce.store.manifest import rows_text

    path = source_path(store)
    opened = RemoteStore(path) if is_url(path) else decodeonce.open_store(path)
    rows = part_rows(len(opened), part, parts)
    say(f"{dest}: staging {rows_text(rows)} of the {len(opened)} rows of {path}, for {who}")
    started = time.monotonic()
    with count_bar("rows", total=len(rows)) as update:
        staged = stage_store(opened, dest, rows=rows, threads=threads, progress=update)
    seconds = max(time.monotonic() - started, 1e-3)
    size = staged.copied * opened.manifest.row_bytes
    if staged.finished:  # jobs start with this command, so it does not read the rows again
        what = "already staged: names, sizes and headers of its files match; to check its rows, run: "
        say(f"{dest}: {what}prep verify {quoted(dest)}")
    else:
        there = f"{len(rows) - staged.copied} of {len(rows)} rows were already there"
        speed = f"{size_text(round(size / seconds))}/s"
        say(f"{dest}: done, {size_text(size)} copied in {seconds:.1f} s ({speed}); {there}")
    facts = {"first_row": rows.start, "rows": len(rows), "copied_rows": staged.copied, "copied_bytes": size}
    print_result({"dest": str(dest), "already_finished": staged.finished, **facts, "seconds": round(seconds, 3)})


def _share(
    rank: int | None, world_size: int | None, node_rank: int | None, node_count: int | None
) -> tuple[int, int, str]:
    """Return (part, number of parts, description), from the flags or the launcher."""
    pairs = (("--rank", rank, "--world-size", world_size), ("--node-rank", node_rank, "--node-count", node_count))
    given = [pair for pair in pairs if pair[1] is not None or pair[3] is not None]
    if len(given) == 2:
        raise typer.BadParameter("give --rank and --world-size, or --node-rank and --node-count, but not both pairs")
    try:
        for name, number, size_name, size in given:
            if number is None or size is None:
                raise ValueError(f"{name} and {size_name} must be given together")
            check_rank(number, size, name, size_name)
            return number, size, f"{name[2:].removesuffix('-rank')} {number} of {size}"
        found = find_rank()
        return found.rank, found.world_size, str(found)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
