"""`prep build`, `prep plan`, `prep work`, `prep finish`."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decodeonce.cli import parse
from decodeonce.cli.kinds import BuildRequest, OnBadOption, kinds_app
from decodeonce.cli.options import MaxBad, Workers, option
from decodeonce.cli.output import say
from decodeonce.formatting import counted, quoted

if TYPE_CHECKING:
    from decodeonce.cli.dryrun import Time
    from decodeonce.launch import Task
    from decodeonce.store import Manifest

Planned = Annotated[Path, typer.Argument(metavar="OUT", help="A store that was planned.")]


def run_build(request: BuildRequest) -> None:
    """Plan, decode, finish; say what came of it."""
    from decodeonce.cli.progress import build_progress
    from decodeonce.prep import build as builds
    from decodeonce.store import StorePaths

    check_alone(SHARED)
    say_found(request)
    if request.dry_run:
        return say_dry_run(request)
    was_finished = StorePaths(request.out).manifest.exists()
    with build_progress() as progress:
        manifest = builds.build(request.source, request.out, request.recipe, request.work, progress, request.expect)
    if was_finished:
        return say_built(request.out)
    _say_finished(request.out, manifest)


def run_plan(request: BuildRequest) -> None:
    """Write the plan and reserve the space; say what to do next."""
    from decodeonce.prep import build as builds

    check_alone(SHARED)
    say_found(request)
    if request.dry_run:
        return say_dry_run(request)
    say_storage(request.out)
    plan = builds.plan_unless_built(request.source, request.out, request.recipe, request.expect)
    if plan is None:
        return say_built(request.out)
    found = f"{counted(plan.candidates, 'picture')} found in {counted(len(plan.classes), 'class', 'classes')}"
    planned = f"{counted(plan.count, 'row')} in {counted(len(plan.blocks), 'block')}"
    say(f"{request.out}: {found}, {planned} planned; next: prep work {quoted(str(request.out))}")


build = kinds_app(run_build, "Build a store: plan, decode and finish.")
plan = kinds_app(run_plan, "Run only the first step of a build, with the same flags.")


def say_built(out: Path) -> None:
    """Tell that there is nothing to do: of a job that was sent twice this is the second."""
    say(f"{out}: finished already, nothing to do")


def say_found(request: BuildRequest) -> None:
    """Tell what was recognised, before it is listed."""
    say(f"{request.source.root}: {request.source.found}")


SHARED = "; let ranks share `prep work OUT`, between prep plan and prep finish"


def check_alone(advice: str = "") -> None:
    """A usage error under srun or mpiexec, where several would trip over each other; it ends with the advice."""
    from decodeonce.launch import find_rank

    rank = find_rank()
    if rank.world_size > 1:
        raise typer.BadParameter(f"{rank}, but this is for one process{advice}")


def say_storage(out: Path) -> None:
    """Tell, before anything is written, what the storage offers and asks for."""
    from decodeonce.prep.build.free_space import find_storage, sentences, stripe_advice

    storage = find_storage(out)
    advice = stripe_advice(out, storage)
    for sentence in [*sentences(storage), *([advice] if advice else [])]:
        say(sentence)


def say_dry_run(request: BuildRequest, time: Time | None = None) -> None:
    """Tell what a build would take: bytes, files, space and time (default: on this machine); write nothing."""
    from decodeonce.cli.dryrun import dry_run, time_here
    from decodeonce.host import usable_cores
    from decodeonce.prep.build import is_built

    if is_built(request.source, request.out, request.recipe, request.expect):
        return say_built(request.out)
    for line in dry_run(request, time or partial(time_here, request.work.workers or usable_cores())):
        say(line)


def _say_finished(out: Path, manifest: Manifest) -> None:
    from decodeonce.store import StorePaths
    from decodeonce.store.table import read_rejects

    listed = Counter(reject.action for reject in read_rejects(StorePaths(out).rejects))
    left_out = f"{listed['left out']} left out, " if listed["left out"] else ""
    rejects, oddities = counted(listed["rejected"], "reject"), counted(listed["kept"], "oddity", "oddities")
    rows = f"{counted(manifest.count, 'row')} in {counted(len(manifest.classes), 'class', 'classes')}"
    say(f"{out}: {rows}, {left_out}{rejects}, {oddities} (rejects.tsv)")


def work(
    out: Planned,
    task: Annotated[int | None, option("This task's number. (default: the launcher's)", "I", min=0)] = None,
    tasks: Annotated[int | None, option("How many tasks there are. (default: the launcher's)", "N", min=1)] = None,
    workers: Workers = None,
    on_bad: OnBadOption = "reject",
    max_bad: MaxBad = "0.1%",
) -> None:
    """Decode a task's blocks of a planned store: the task that is named, or that a job array and launcher give.

    Without either, every block that no journal has done: so a task that is lost is taken over. SIGUSR1 has it stop at
    the end of the blocks it is at, with exit code 75.
    """
    from decodeonce.cli.progress import build_progress
    from decodeonce.launch import find_idle_hosts
    from decodeonce.prep import build as builds
    from decodeonce.store import StorePaths

    share = _share(task, tasks)
    with parse.usage_errors():
        how = builds.Work(workers=workers, task=share.task, tasks=share.tasks, max_bad=max_bad, on_bad=on_bad)
    if StorePaths(out).manifest.exists():
        return say_built(out)
    if StorePaths(out).plan.exists():  # else `builds.work` says what is missing
        say(f"{out}: {share}")
    if task is None and (idle := find_idle_hosts()):
        say(f"warning: {idle}", err=True)
    with build_progress() as progress:
        builds.work(out, how, progress)
    if StorePaths(out).manifest.exists():
        return say_built(out)
    say(f"{out}: task {share.task} of {share.tasks} is done; when all are: prep finish {quoted(str(out))}")


def _share(task: int | None, tasks: int | None) -> Task:
    from decodeonce.launch import Task, find_task

    if task is None:
        try:
            return find_task(tasks) or Task(0, 1, "every block that is not done")
        except ValueError as error:
            raise typer.BadParameter(f"{error} (--task I --tasks N)") from None
    if tasks is None:
        raise typer.BadParameter(f"--task {task} of how many? give --tasks N, too")
    return Task(task, tasks, "as named")


def finish(out: Planned, max_bad: MaxBad = "0.1%") -> None:
    """Close the gaps of rejects and write the manifest: a planned and worked store becomes a finished one."""
    from decodeonce.prep import build as builds
    from decodeonce.prep.build.max_bad import Allowance
    from decodeonce.store import StorePaths

    with parse.usage_errors():
        allowance = Allowance.parse(max_bad)
    was_finished = StorePaths(out).manifest.exists()
    manifest = builds.finish(out, allowance)  # which clears up where one was killed
    if was_finished:
        return say_built(out)
    _say_finished(out, manifest)
