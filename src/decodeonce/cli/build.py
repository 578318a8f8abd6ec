"""`prep build KIND`, `prep plan KIND`, `prep work`, `prep finish`.

`build` and `plan` have a command for each kind of source. The flags of one kind are the keyword-only parameters of its
opener (decodeonce/prep/sources/__init__.py). The flags of all kinds are the fields of `BuildOptions`.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decodeonce.cli import parse
from decodeonce.cli.kinds import BuildRequest, OnBadOption, kinds_app
from decodeonce.cli.options import DEFAULT_MAX_BAD, MaxBad, Workers, option
from decodeonce.cli.output import advice_on, build_progress, rejects_text, say
from decodeonce.formatting import counted, duration_text, quoted, size_text
from decodeonce.launch import Task, find_idle_hosts, find_rank, find_task
from decodeonce.prep.paths import BuildPaths

if TYPE_CHECKING:
    from decodeonce.prep.building.pool import Progress
    from decodeonce.store import Manifest

Planned = Annotated[Path, typer.Argument(metavar="OUT", help="Planned store.")]


def run_build(request: BuildRequest) -> None:
    """Plan, decode and finish a build, and print a summary."""
    from decodeonce.prep.building.build import build

    check_alone(SHARED)
    say_found(request)
    if request.dry_run:
        return say_dry_run(request)
    was_finished = BuildPaths(request.out).manifest.exists()
    start, decoded = time.monotonic(), 0
    with build_progress() as show:

        def progress(now: Progress) -> None:
            nonlocal decoded
            decoded = now.new_rows
            show(now)

        manifest = build(request.source, request.out, request.recipe, request.work, progress, request.expect)
    if was_finished:
        return say_built(request.out)
    seconds = time.monotonic() - start
    _say_finished(request.out, manifest, f" in {duration_text(seconds)}, {decoded / seconds:,.0f} images/s")


def run_plan(request: BuildRequest) -> None:
    """Write the plan, reserve the space and print the next command."""
    from decodeonce.prep.building.build import plan_unless_built

    check_alone(SHARED)
    say_found(request)
    if request.dry_run:
        return say_dry_run(request)
    say_storage(request.out)
    plan = plan_unless_built(request.source, request.out, request.recipe, request.expect)
    if plan is None:
        return say_built(request.out)
    found = f"{counted(plan.candidates, 'image')} found in {counted(len(plan.classes), 'class', 'classes')}"
    planned = f"{counted(plan.count, 'row')} in {counted(len(plan.blocks), 'block')}"
    say(f"{request.out}: {found}, {planned} planned; next: prep work {quoted(request.out)}")


build = kinds_app(run_build, "Build a store from images: plan, decode and finish in one command.")
plan = kinds_app(run_plan, "Plan a build: list the images, assign rows and reserve space.")


def say_built(out: Path) -> None:
    """Print that the build is finished, for example if a job was submitted twice."""
    say(f"{out}: already finished, nothing to do")


def say_found(request: BuildRequest) -> None:
    """Print what kind of source was recognized, and a warning if the decoders are installed wrongly."""
    from decodeonce.prep.pixels.versions import two_pillows

    if warning := two_pillows():
        say(f"warning: {warning}", err=True)
    say(f"{request.source.root}: {request.source.found}")


SHARED = "; run prep plan once, then prep work in all ranks, then prep finish once"


def check_alone(advice: str = "") -> None:
    """Raise a usage error, which ends with `advice`, if a launcher started several ranks."""
    rank = find_rank()
    if rank.world_size > 1:
        raise typer.BadParameter(f"this is {rank}, but this command must run in one process{advice}")


def say_storage(out: Path) -> None:
    """Print the free space of the storage, and advice for it."""
    from decodeonce.prep.building.free_space import describe_storage, find_storage, stripe_advice

    storage = find_storage(out)
    for sentence in [*describe_storage(storage), *stripe_advice(out, storage)]:
        say(sentence)


def say_dry_run(request: BuildRequest) -> None:
    """Print the bytes, files and space of a build, and what a look at a few images shows."""
    from decodeonce.cli.dryrun import dry_run
    from decodeonce.prep.building.output_dir import is_built

    if is_built(request.source, request.out, request.recipe, request.expect):
        return say_built(request.out)
    for line in dry_run(request):
        say(line)


def _say_finished(out: Path, manifest: Manifest, speed: str = "") -> None:
    from decodeonce.store.table import read_rejects

    found = Counter((reject.action, reject.reason) for reject in read_rejects(BuildPaths(out).rejects))
    listed = Counter[str]()
    for (action, _), count in found.items():
        listed[action] += count
    size, classes = size_text(sum(shard.bytes for shard in manifest.shards)), len(manifest.classes)
    rows = f"{counted(manifest.count, 'row')} in {counted(classes, 'class', 'classes')}"
    if listed:
        say(f"{out}: {rejects_text(listed, manifest.count)}; see rejects.tsv")
    for line in advice_on({reason: count for (action, reason), count in found.items() if action == "kept"}):
        say(f"{out}: {line}")
    say(f"{out}: {rows}, {size}, written{speed}; next: prep info {quoted(out)}")


def work(
    out: Planned,
    task: Annotated[
        int | None, option("Decode the blocks of task I, counted from 0. (default: from the launcher)", "I", min=0)
    ] = None,
    tasks: Annotated[
        int | None, option("Divide the blocks among N tasks. (default: from the launcher)", "N", min=1)
    ] = None,
    workers: Workers = None,
    on_bad: OnBadOption = "reject",
    max_bad: MaxBad = DEFAULT_MAX_BAD,
) -> None:
    """Decode one task's blocks of a planned store.

    The task number comes from --task and --tasks, or from a job array or launcher. Without either, the command decodes
    all blocks that are not done, which also completes the work of lost tasks. On SIGUSR1, it finishes its current
    blocks and exits with code 75.
    """
    from decodeonce.prep.building import pool

    share = _share(task, tasks)
    with parse.usage_errors():
        how = pool.WorkSettings(workers=workers, task=share.task, tasks=share.tasks, max_bad=max_bad, on_bad=on_bad)
    if BuildPaths(out).manifest.exists():
        return say_built(out)
    if BuildPaths(out).plan.exists():  # otherwise `pool.work` reports what is missing
        say(f"{out}: {share}")
    if task is None and (idle := find_idle_hosts()):
        say(f"warning: {idle}", err=True)
    with build_progress() as progress:
        pool.work(out, how, progress)
    if BuildPaths(out).manifest.exists():
        return say_built(out)
    say(f"{out}: task {share.task} of {share.tasks} is done; after all tasks, run: prep finish {quoted(out)}")


def _share(task: int | None, tasks: int | None) -> Task:
    if task is None:
        try:
            return find_task(tasks) or Task(0, 1, "all remaining blocks")
        except ValueError as error:
            raise typer.BadParameter(f"{error} (--task I --tasks N)") from None
    if tasks is None:
        raise typer.BadParameter(f"--task requires --tasks; run: prep work OUT --task {task} --tasks N")
    return Task(task, tasks, "from --task")


def finish(out: Planned, max_bad: MaxBad = DEFAULT_MAX_BAD) -> None:
    """Finish a store whose blocks are all decoded: fill the rows of rejected images and write the manifest."""
    from decodeonce.prep.building.finish import finish as finish_build
    from decodeonce.prep.building.pool import WorkSettings

    with parse.usage_errors():
        WorkSettings(max_bad=max_bad)
    was_finished = BuildPaths(out).manifest.exists()
    manifest = finish_build(out, max_bad)  # this also completes a finish that was killed
    if was_finished:
        return say_built(out)
    _say_finished(out, manifest)
