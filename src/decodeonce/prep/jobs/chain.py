"""The chain of a build's jobs: plan, rounds of one array, finish, and what the user wants done then."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from decodeonce.errors import BuildError
from decodeonce.prep.jobs.pbs import PBS
from decodeonce.prep.jobs.site import Site
from decodeonce.prep.jobs.slurm import Slurm
from decodeonce.store import StorePaths
from decodeonce.store.files import write_atomic

# plan and finish are one process each, which waits for the file system more than it computes; where memory comes with
# cores, so many bring what a plan of tens of millions needs.
FEW_CPUS = 4
# Blocks take seconds; Slurm sends its signal up to a minute early, and looks for it about every 30 s.
LEAD_SECONDS = 120


@dataclass(frozen=True)
class Chain:
    """What every job may use, and how many there are.

    `tasks` elements of an array, `throttle` of them at a time; each has `nodes` nodes with a process a node, `cpus`
    cores and `mem` (as 64G) a node, for `seconds` at most. The array is sent `rounds` times. `then` is a job script of
    the user's own, for after a good finish.
    """

    tasks: int
    cpus: int
    rounds: int = 1
    nodes: int = 1
    throttle: int | None = None
    account: str | None = None
    queue: str | None = None
    seconds: int | None = None
    mem: str | None = None
    then: Path | None = None

    def __post_init__(self) -> None:
        for name in ("tasks", "cpus", "rounds", "nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("account", "queue"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[\w.:,@/+-]+", value):
                raise ValueError(f"{name} is {value!r}, expected a name without blanks")
        if self.seconds is not None and self.seconds < 60:
            raise ValueError(f"time is {self.seconds} s, expected at least a minute")
        if self.mem is not None and not re.fullmatch("[0-9]+[KMGT]", self.mem):
            raise ValueError(f"mem is {self.mem!r}, expected as 64G")

    @property
    def processes(self) -> int:
        """How many tasks of `prep work` there are."""
        return self.tasks * self.nodes

    @property
    def signal_after(self) -> int | None:
        """Seconds after which a task is told to end with the blocks in hand; None without a time limit."""
        return None if self.seconds is None else self.seconds - self.lead

    @property
    def lead(self) -> int:
        """Seconds before the time limit at which that is."""
        return min(LEAD_SECONDS, (self.seconds or 0) // 4)


@dataclass(frozen=True)
class Job:
    """One script: what it is called and runs; an array of tasks, or one process on few cores."""

    name: str
    command: Sequence[str]
    array: bool = False


class Scheduler(Protocol):
    """What a batch system wants written; a new one is a module with this, and a line in `SCHEDULERS`."""

    suffix: str
    submit: str  # prints the id of the job it submits
    cancel: str
    with_store: str  # has a job see the variable STORE
    unfit: str  # characters that a folder of logs must not have

    def head(self, job: Job, site: Site, chain: Chain, cpus: int) -> list[str]:
        """The directives at the head of a job's script."""

    def started(self, command: str, job: Job, site: Site, chain: Chain) -> str:
        """The shell command that runs `command` once a node, and tells it in time that the job's limit is near."""

    def after(self, condition: str) -> str:
        """The options that have a job wait, say for "afterok:1,afterany:2"; where that cannot be, it never runs."""


SCHEDULERS: dict[str, Scheduler] = {"slurm": Slurm(), "pbs": PBS()}


def write_scripts(out: Path, site: Site, chain: Chain, commands: Sequence[Sequence[str]], folder: Path) -> Path:
    """Write the scripts of plan, array and finish, and one that submits them, into OUT.jobs; returns the latter's path.

    `commands` are what the three run, in `folder`, so that relative paths mean what they meant there.
    """
    paths, scheduler = StorePaths(out), SCHEDULERS[site.scheduler]
    if found := set(scheduler.unfit) & set(str(paths.jobs)):
        raise BuildError(
            f"{paths.jobs}: {site.scheduler} gives {found.pop()!r} in a log's path a meaning of its own; "
            "choose another OUT"
        )
    paths.jobs.mkdir(parents=True, exist_ok=True)
    jobs = [Job("plan", commands[0]), Job("array", commands[1], array=True), Job("finish", commands[2])]
    for job in jobs:
        lines = [
            "#!/bin/bash",
            *scheduler.head(job, site, chain, cpus=chain.cpus if job.array else min(FEW_CPUS, chain.cpus)),
            f"cd -- {shlex.quote(str(folder))} || exit",
            *site.setup,
            f"exec {scheduler.started(shlex.join(job.command), job, site, chain)}",
        ]
        _write(paths.jobs / f"{job.name}{scheduler.suffix}", lines)
    _write(paths.submit, _submission(paths, scheduler, chain, folder))
    return paths.submit


def _submission(paths: StorePaths, scheduler: Scheduler, chain: Chain, folder: Path) -> list[str]:
    array, finish = f"array{scheduler.suffix}", f"finish{scheduler.suffix}"
    later = scheduler.after("afterok:$plan,afterany:$id")
    lines = [
        "#!/bin/bash",
        "# Submits the jobs as a chain, each after the one before: all of them, or none.",
        "set -Eeuo pipefail",
        f"cd -- {shlex.quote(str(paths.jobs.absolute()))}",
        "jobs=()",
        "undo() {",
        "  [ ${#jobs[@]} = 0 ] || " + scheduler.cancel + ' "${jobs[@]}" || echo "still queued: ${jobs[*]}" >&2',
        "}",
        "trap undo ERR",
        "trap 'undo; exit 130' INT TERM HUP",
        "submit() { # [OPTION...] SCRIPT",
        f'  id=$(trap - ERR; {scheduler.submit} "$@")',
        "  id=${id%%;*}  # of several clusters, Slurm names the one, too",
        '  jobs+=("$id")',
        "}",
        f"submit plan{scheduler.suffix}",
        "plan=$id",
        f"submit {scheduler.after('afterok:$plan')} {array}",
        *[f"submit {later} {array}  # what is done is skipped" for _ in range(chain.rounds - 1)],
        f"submit {later} {finish}",
    ]
    if chain.then is not None:
        lines += [f"cd -- {shlex.quote(str(folder))}", f"export STORE={shlex.quote(str(paths.root.absolute()))}"]
        lines += [f"submit {scheduler.after('afterok:$id')} {scheduler.with_store}{shlex.quote(str(chain.then))}"]
    return [*lines, 'echo "${jobs[*]}"']


def _write(path: Path, lines: Sequence[str]) -> None:
    write_atomic(path, [f"{line}\n".encode("utf-8", "surrogateescape") for line in lines])
