"""The request for the jobs of a build, a job script, and the profile of a site."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

# A block takes seconds. Slurm sends signals up to a minute early and looks at limits about every 30 s.
LEAD_SECONDS = 120


@dataclass(frozen=True)
class Chain:
    """The number of jobs and their resources.

    Args:
        tasks: Elements of the job array.
        cpus: Cores per node.
        rounds: Number of times the array is submitted. Finished blocks are skipped.
        nodes: Nodes per element; each node runs one process.
        max_running: Elements that run at the same time; None sets no limit.
        account: Account or project to charge.
        queue: Queue, partition or QOS.
        seconds: Time limit of each job in seconds, at least 60; None uses the default of the batch system.
        mem: Memory per node, such as "64G"; None uses the default of the batch system.
        mail: Address that gets a mail when the plan fails, or when `prep finish` ends.
        then: Job script of the user to run after `prep finish` succeeds.
        directives: Options for every job script, after those of the site.

    Raises:
        ValueError: If a value is invalid.
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
    mail: str | None = None
    then: Path | None = None
    directives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("account", "queue", "mail"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[\w.:,@/+-]+", value):
                raise ValueError(f"{name} is {value!r}, expected a name without spaces or special characters")
        if wrong := [directive for directive in self.directives if not directive.isprintable()]:
            raise ValueError(f"directive is {wrong[0]!r}, expected an option of the batch system on a single line")
        if self.seconds is not None and self.seconds < 60:
            raise ValueError(f"time is {self.seconds} s, expected at least 60 s")

    @property
    def processes(self) -> int:
        """Number of `prep work` processes, one per node of each element."""
        return self.tasks * self.nodes

    @property
    def lead(self) -> int:
        """Seconds before the time limit at which a task is signalled to stop after its current blocks."""
        return min(LEAD_SECONDS, (self.seconds or 0) // 4)


@dataclass(frozen=True)
class Job:
    """A job script: the names of script and job, its command and resources. `array` is True for the array of tasks."""

    name: str
    shown_name: str
    command: Sequence[str]
    nodes: int
    cpus: int
    array: bool = False


def clock(seconds: int) -> str:
    """Return seconds as H:MM:SS, which both batch systems accept."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


@dataclass(frozen=True)
class Site:
    """The profile of a site.

    Args:
        name: Name of the site.
        scheduler: "slurm" or "pbs".
        source: URL of the documentation that the profile follows.
        queue_flag: Option of the batch system that takes the name of a queue.
        launch: Command that starts one process per node; {nodes} and {cpus} are replaced.
        directives: Directives for every job script.
        setup: Shell lines that run before every command.
        needs: Flags of `prep submit` that the site requires, without dashes.
        advice: Sentences that `prep submit` prints.
        defaults: Default values of flags, by name.
        array_directives: Directives for the script of the array only.
    """

    name: str
    scheduler: str
    source: str
    queue_flag: str
    launch: str
    directives: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    defaults: dict[str, int | str] = field(default_factory=dict)
    array_directives: tuple[str, ...] = ()

    def directives_of(self, array: bool) -> tuple[str, ...]:
        """Return the directives of the script of the array, or of other scripts."""
        return (*self.directives, *self.array_directives) if array else self.directives

    def launch_command(self, command: str, *, nodes: int, cpus: int) -> str:
        """Return the shell command that runs `command` once on each of `nodes` nodes."""
        launch = self.launch.replace("{nodes}", str(nodes)).replace("{cpus}", str(cpus))
        return f"{launch} {command}"
