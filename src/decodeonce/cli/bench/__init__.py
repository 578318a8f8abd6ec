"""`prep bench load`: measure what limits training from a store on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from decodeonce.cli.command import Group, LoggedCommand, new_app
from decodeonce.cli.options import JsonFlag, StoreArgument, option
from decodeonce.cli.output import print_json, say
from decodeonce.loader.choose_reader import ReaderName

LOAD_SECONDS = 3.0  # per measurement; the command makes several

app = new_app(cls=Group, help="Measure what limits training from a store on this machine.")
app.callback()(lambda: None)  # otherwise Typer makes the only command the command of the group


@app.command("load", cls=LoggedCommand)
def bench_load(
    store: StoreArgument,
    batch_size: Annotated[int, option("Load batches of N rows.", "N", min=1)] = 256,
    gpu_rate: Annotated[
        float, option("Compare with a training step that processes X images/s.", "X", min=0.001, max=1e9)
    ] = 2500,
    reader: Annotated[
        ReaderName,
        option(
            "How the Loader reads. auto: it chooses; pread: read calls; mmap: memory map; direct: past the "
            "page cache, except for the rows that fit into it."
        ),
    ] = "auto",
    threads: Annotated[
        int | None, option("Copy with N threads. (default: as many as the Loader chooses)", "N", min=1, max=1024)
    ] = None,
    device: Annotated[str, option("Load batches to this device: cpu, cuda or cuda:1.", "NAME")] = "cpu",
    verbose: Annotated[
        bool, option("Also print stats() and bottleneck() of each Loader.", flag="--verbose/-v")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure what limits training from a store: storage, memory, the transfer to the device or the training step.

    The store is dropped from the page cache to measure cold reads, so other jobs that use it must read it again.
    """
    from decodeonce.cli.bench.load import load_lines, measure_load
    from decodeonce.loader.delivery import find_device

    try:
        find_device(device)
    except (ValueError, RuntimeError) as error:  # torch raises these for an invalid device name
        raise typer.BadParameter(f"--device {device}: {str(error).splitlines()[0]}") from None
    how = {"batch_size": batch_size, "device": device, "reader": reader, "threads": threads}
    measured = measure_load(store, how, gpu_rate, LOAD_SECONDS)
    if as_json:
        return print_json(measured)
    for line in load_lines(measured, verbose=verbose):
        say(line)
