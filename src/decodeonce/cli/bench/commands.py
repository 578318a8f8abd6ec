"""The command lines of `prep bench`; what measures is imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from decodeonce.cli import parse
from decodeonce.cli.command import Group, LoggedCommand, new_app
from decodeonce.cli.options import JsonFlag, Size, Src, StoreArgument, Workers, option
from decodeonce.cli.output import print_json, say
from decodeonce.prep.sources import KINDS

BUILD_SECONDS, LOAD_SECONDS = 4.0, 3.0  # of one probe of several

app = new_app(cls=Group, help="What limits a build, or training from a store, here: under a minute each.")


def _known_kind(kind: str) -> str:
    if kind not in ("auto", *KINDS):
        raise typer.BadParameter(f"{kind!r} is not one of 'auto', {', '.join(map(repr, KINDS))}.")
    return kind


KindOption = Annotated[
    str,
    option(
        f"What SRC is: {', '.join(KINDS)}; auto: find out by its names.",
        "KIND",
        callback=_known_kind,
        autocompletion=lambda: ["auto", *KINDS],
    ),
]
Reader = Literal["auto", "pread", "mmap"]
Folder = Annotated[Path, option("Where rows are written for a trial, and removed.", "FOLDER")]


@app.command("build", cls=LoggedCommand)
def build(
    src: Src,
    kind: KindOption = "auto",
    size: Size = "256",
    workers: Workers = None,
    out: Folder = Path(),
    as_json: JsonFlag = False,
) -> None:
    """What limits a build of SRC: reading it, decoding, resizing, or writing; and how long all of it takes.

    A fair sample is read, decoded and written to a scratch folder in FOLDER, which is removed.
    """
    height, width = parse.row_size(size)
    if not out.is_dir():
        raise typer.BadParameter(f"--out {out}: no such folder; expected the one that is to hold the store")
    from decodeonce.cli.bench.build import measure_build
    from decodeonce.cli.bench.kinds import find_source
    from decodeonce.cli.bench.results import build_lines
    from decodeonce.prep.recipe import Recipe

    source = find_source(kind, src)
    recipe = Recipe(height=height, width=width, shuffle_seed=None if source.keeps_order else 0)
    if not as_json:
        say(f"{source.root}: {source.found}")
    facts = measure_build(source, recipe, out, workers=workers, seconds=BUILD_SECONDS)
    if as_json:
        return print_json(facts)
    for line in (*build_lines(facts), facts["sentence"]):
        say(line)


@app.command("load", cls=LoggedCommand)
def load(
    store: StoreArgument,
    batch_size: Annotated[int, option("Rows of a batch.", "N", min=1)] = 256,
    gpu_rate: Annotated[
        float, option("Pictures a second that the training step takes.", "X", min=0.001, max=1e9)
    ] = 3000,
    reader: Annotated[Reader, option("How the Loader reads.")] = "auto",
    threads: Annotated[int | None, option("Threads that copy. (default: the Loader's)", "N", min=1, max=1024)] = None,
    device: Annotated[str, option("Where batches go: cpu, cuda, cuda:1.", "NAME")] = "cpu",
    as_json: JsonFlag = False,
) -> None:
    """What limits training from a store: storage, memory, the transfer to the device, or the training step.

    Its pages are dropped from the page cache for the cold figures; other jobs that use them read them again.
    """
    from decodeonce.cli.bench.epochs import LoaderSettings
    from decodeonce.cli.bench.load import measure_load
    from decodeonce.cli.bench.results import load_lines
    from decodeonce.loader.delivery import find_device

    try:
        find_device(device)
    except (ValueError, RuntimeError) as error:  # torch's own, for what is no device's name
        raise typer.BadParameter(f"--device {device}: {str(error).splitlines()[0]}") from None
    how = LoaderSettings(batch_size, device, reader, threads)
    facts = measure_load(store, how, gpu_rate, LOAD_SECONDS)
    if as_json:
        return print_json(facts)
    for line in (*load_lines(facts), facts["sentence"]):
        say(line)
