"""The commands of `prep bench`. The modules that measure are imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from decodeonce.cli import parse
from decodeonce.cli.command import Group, LoggedCommand, new_app
from decodeonce.cli.options import JsonFlag, Size, Src, StoreArgument, Workers, option
from decodeonce.cli.output import print_json, say
from decodeonce.errors import DecodeonceError
from decodeonce.prep.sources import KINDS

BUILD_SECONDS, LOAD_SECONDS = 4.0, 3.0  # per probe; each command runs several

app = new_app(
    cls=Group, help="Measure in under a minute what limits a build, or training from a store, on this machine."
)


def _known_kind(kind: str) -> str:
    if kind not in ("auto", *KINDS):
        raise typer.BadParameter(f"{kind!r} is not one of 'auto', {', '.join(map(repr, KINDS))}.")
    return kind


KindOption = Annotated[
    str,
    option(
        f"Choose the kind of SRC: {', '.join(KINDS)}; auto: recognise it by file names.",
        "KIND",
        callback=_known_kind,
        autocompletion=lambda: ["auto", *KINDS],
    ),
]
Reader = Literal["auto", "pread", "mmap"]
Folder = Annotated[Path, option("Write trial rows to a scratch folder in FOLDER, which is removed.", "FOLDER")]


@app.command("build", cls=LoggedCommand)
def build(
    src: Src,
    kind: KindOption = "auto",
    size: Size = "256",
    workers: Workers = None,
    out: Folder = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Measure what limits a build of SRC: reading, decoding, resizing or writing; and estimate its time.

    A fair sample is read, decoded and written to a scratch folder in FOLDER, which is removed afterwards.
    """
    height, width = parse.row_size(size)
    if not out.is_dir():
        raise typer.BadParameter(f"--out {out}: no such folder; expected the folder that will hold the store")
    from decodeonce.cli.bench.build import measure_build
    from decodeonce.cli.bench.build_results import build_lines
    from decodeonce.prep.recipe import Recipe
    from decodeonce.prep.sources.kinds import find_source

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
    batch_size: Annotated[int, option("Load batches of N rows.", "N", min=1)] = 256,
    gpu_rate: Annotated[
        float, option("Compare with a training step that takes X images/s.", "X", min=0.001, max=1e9)
    ] = 2500,
    reader: Annotated[
        Reader, option("Choose how the Loader reads. auto: let it choose; pread: read calls; mmap: memory map.")
    ] = "auto",
    threads: Annotated[
        int | None, option("Copy with N threads. (default: that of the Loader)", "N", min=1, max=1024)
    ] = None,
    device: Annotated[str, option("Load batches to this device: cpu, cuda or cuda:1.", "NAME")] = "cpu",
    as_json: JsonFlag = False,
) -> None:
    """Measure what limits training from a store: storage, memory, the transfer to the device or the training step.

    The store is dropped from the page cache to measure cold reads; other jobs that use it must read it again.
    """
    try:
        from decodeonce.cli.bench.epochs import LoaderSettings
        from decodeonce.cli.bench.load import measure_load
        from decodeonce.cli.bench.load_results import load_lines
        from decodeonce.loader.delivery import find_device
    except ImportError as error:
        raise DecodeonceError(f"a package of the Loader cannot be imported: {error}; run: prep doctor") from None
    try:
        find_device(device)
    except (ValueError, RuntimeError) as error:  # torch raises these for an invalid device name
        raise typer.BadParameter(f"--device {device}: {str(error).splitlines()[0]}") from None
    how = LoaderSettings(batch_size, device, reader, threads)
    facts = measure_load(store, how, gpu_rate, LOAD_SECONDS)
    if as_json:
        return print_json(facts)
    for line in (*load_lines(facts), facts["sentence"]):
        say(line)
