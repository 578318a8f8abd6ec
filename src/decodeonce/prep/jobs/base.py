"""What is asked of a batch system, and what one must be able to write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from decodeonce.prep.jobs.site import Site

# Blocks take seconds; Slurm sends its signal up to a minute early, and looks for it about every 30 s.
LEAD_SECONDS = 120


@dataclass(frozen=True)
class Chain:
    """What every job may use, and how many there are.

    `tasks` elements of an array, `max_running` of them at a time; each has `nodes` nodes with a process a node, `cpus`
    cores and `mem` (as 64G) a node, for `seconds` at most. The array is sent `rounds` times. `then` is a job script of
    the user's own, for after a good finish.
    """

    tasks: int
    cpus: int
    rounds: int = 1
    nodes: int = 1
    max_running: int | None = None
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
    def lead(self) -> int:
        """Seconds before the time limit at which a task is told to end with the blocks in hand."""
        return min(LEAD_SECONDS, (self.seconds or 0) // 4)


@dataclass(frozen=True)
class Job:
    """One script: what it is called and runs, on how much; `array` is whether it is the array of tasks."""

    name: str
    command: Sequence[str]
    nodes: int
    cpus: int
    array: bool = False


class Scheduler(Protocol):
    """What a batch system wants written; a new one is a module with this, and a line in `SCHEDULERS`."""

    suffix: str
    submit: str  # prints the id of the job it submits
    hold: str  # the option that keeps a job from starting until `release`
    release: str
    show: str  # fails if the job is not in the queue
    cancel: str
    with_store: str  # has a job see the variable STORE
    unfit: str  # characters that a folder of logs must not have

    def head(self, job: Job, site: Site, chain: Chain) -> list[str]:
        """The directives at the head of a job's script."""

    def warned(self, command: str, chain: Chain) -> str:
        """The shell command that runs `command`, a task, and tells it in time that its limit is near."""

    def after(self, condition: str) -> str:
        """The options that have a job wait, say for "afterok:1,afterany:2"; where that cannot be, it never runs."""


def no_option(path: Path) -> str:
    """The path as a text that no command takes for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def clock(seconds: int) -> str:
    """Seconds as H:MM:SS, which both batch systems read."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
