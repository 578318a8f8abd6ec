"""Find this process's rank or task from the environment variables of launchers and job arrays.

`find_rank` is for training. It asks torch.distributed, then reads a launcher's variables, and otherwise returns 0 of 1.
`find_task` is for work that can also be split over a job array, each element of which can run several ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Launcher:
    """The variables that a launcher sets in each of its processes. If `needs` is not empty, it must be set too."""

    name: str
    rank: str
    world_size: str
    needs: str = ""


# The first launcher whose variables are all set is used.
LAUNCHERS = (
    # torchrun is first: it starts several ranks inside one task of srun or mpirun, and they inherit its variables. The
    # reverse does not happen: a task that was started inside a torchrun rank is not a rank of the training.
    Launcher("torchrun", "RANK", "WORLD_SIZE"),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("PMI", "PMI_RANK", "PMI_SIZE"),
    # A batch script under `sbatch -n 4` sees SLURM_PROCID=0 and SLURM_NTASKS=4 although it is one process. Only a step
    # of srun has a step id below those that Slurm reserves. A script that was submitted inside a step inherits the id
    # of that step, but also its number of processes, which is 1 for an interactive shell.
    Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", needs="SLURM_STEP_ID"),
    Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", needs="SLURM_STEP_ID"),
)

# If LaunchParameters has use_interactive_step, the shell that salloc opens is step 0xfffffffa (slurm.h).
SLURM_RESERVED_STEPS = 0xFFFFFFF0
SLURM_ARRAY = ("SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT")
# PBS gives the index of an array element, but not the number of elements.
ARRAY_INDEXES = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX")
# pbsdsh gives each process the index of its node, starting at 0, and a hexadecimal number that is unique in the job. No
# variable gives the number of processes on a node or in the job, so these do not determine the task of a process.
PBS_PROCESS, PBS_NODE, PBS_SCRIPT = "PBS_TASKNUM", "PBS_NODENUM", "1"
# The variables with the number of ranks on this host, set by mpiexec of Open MPI and of MPICH.
RANKS_HERE = {"Open MPI": "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI": "MPI_LOCALNRANKS"}
# Launchers that set these (PMIx, such as PALS on Aurora) give the rank but not the number of ranks.
RANKS_ALONE = ("PALS_RANKID", "PMIX_RANK")


@dataclass(frozen=True)
class Rank:
    """The rank of this process, the number of ranks, and where both were found."""

    rank: int
    world_size: int
    source: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.source})"


def find_rank(environ: Mapping[str, str] | None = None) -> Rank:
    """Find rank and world size from torch.distributed, if initialised, or from a launcher's variables; else 0 of 1.

    Args:
        environ: Environment variables. Default: ``os.environ``.

    Returns:
        Rank: With `rank`, `world_size` and `source`, which names where they were found.

    Raises:
        ValueError: If a variable is not valid; the message names it.

    Example:
        >>> find_rank({"RANK": "3", "WORLD_SIZE": "8"})
        Rank(rank=3, world_size=8, source='torchrun')
    """
    return _initialised() or _launched(os.environ if environ is None else environ) or Rank(0, 1, "no launcher")


@dataclass(frozen=True)
class Task:
    """The task of this process, the number of tasks, and where both were found."""

    task: int
    tasks: int
    source: str

    def __str__(self) -> str:
        return f"task {self.task} of {self.tasks} ({self.source})"


def find_task(tasks: int | None = None, environ: Mapping[str, str] | None = None) -> Task | None:
    """Find the task of this process from the launcher and the job array; None if the work is not split.

    Args:
        tasks: Number of tasks, if the user gave one; PBS has no variable for it. Array elements are then numbered from
            0. An array that has exactly the needed number of elements may have any numbers.
        environ: Environment variables. Default: ``os.environ``.

    Raises:
        ValueError: If a variable is not valid or conflicts with `tasks`; the message names it.
    """
    environ = os.environ if environ is None else environ
    rank = _launched(environ) or Rank(0, 1, "")
    alone = rank.world_size == 1  # for example in an interactive shell of srun
    element = _array_element(environ, wanted=tasks // rank.world_size if tasks else None)
    if element is None:
        if not alone:
            return _task_of_rank(rank, tasks)
        _check_single_task(environ, tasks)
        return None
    index, count, source = element
    total = tasks or count * rank.world_size
    if total % rank.world_size:
        raise ValueError(f"{total} tasks were given, expected a multiple of {rank.world_size}: this is {rank}")
    task = index * rank.world_size + rank.rank
    source = source if alone else f"{source}, {rank}"
    if not 0 <= task < total:
        raise ValueError(f"{source} is task {task}, expected one below {total}; number the array from 0")
    return Task(task, total, source)


def find_idle_hosts(environ: Mapping[str, str] | None = None) -> str | None:
    """Return a warning if too many ranks run on this host of a PBS job while other hosts are idle; otherwise None.

    An mpiexec without PBS support starts all ranks on the first host. Only rank 0 gets the warning, so that it is
    printed once.
    """
    environ = os.environ if environ is None else environ
    try:
        return _idle_hosts(environ)
    except (ValueError, OSError):  # unusual variables must not stop the work because of a warning
        return None


def _idle_hosts(environ: Mapping[str, str]) -> str | None:
    rank = _launched(environ)
    name, nodefile = RANKS_HERE.get(rank.source, "") if rank else "", environ.get("PBS_NODEFILE")
    if rank is None or rank.rank or not environ.get(name) or not nodefile or not Path(nodefile).exists():
        return None  # only the first host of a job has the file
    here, hosts = _number(environ, name), len(set(Path(nodefile).read_text().split()))
    if here * hosts < rank.world_size + hosts:  # this host has at most its share of the ranks, rounded up
        return None
    return (
        f"{here} of {rank.world_size} ranks run on this host, but the PBS job has {hosts} hosts; the others are idle. "
        "If 'mpiexec -n 2 hostname' prints the same name twice, this mpiexec does not support PBS; use one that does "
        "(launch in a site profile), or one node per array element instead of --nodes"
    )


def check_rank(rank: int, world_size: int, rank_name: str = "rank", size_name: str = "world_size") -> None:
    """Raise ValueError unless 0 <= rank < world_size. The message calls them `rank_name` and `size_name`."""
    if not 0 <= rank < world_size:
        raise ValueError(f"{rank_name} is {rank} and {size_name} {world_size}, expected 0 <= {rank_name} < {size_name}")


def _initialised() -> Rank | None:
    # No import here: a program that has not imported torch.distributed has not initialised it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Rank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _launched(environ: Mapping[str, str]) -> Rank | None:
    for launcher in LAUNCHERS:
        names = (launcher.rank, launcher.world_size, launcher.needs or launcher.rank)
        if all(environ.get(name) for name in names) and not _is_reserved(environ, launcher):
            rank, size = (_number(environ, name) for name in (launcher.rank, launcher.world_size))
            check_rank(rank, size, launcher.rank, launcher.world_size)
            return Rank(rank, size, launcher.name)
    for name in RANKS_ALONE:
        if environ.get(name):
            found = f"{name} is {environ[name]}, but no variable gives the number of ranks"
            raise ValueError(f"{found}; set RANK and WORLD_SIZE too")
    return None


def _is_reserved(environ: Mapping[str, str], launcher: Launcher) -> bool:
    return launcher.needs == "SLURM_STEP_ID" and _number(environ, launcher.needs) >= SLURM_RESERVED_STEPS


def _task_of_rank(rank: Rank, tasks: int | None) -> Task:
    if tasks not in (None, rank.world_size):
        raise ValueError(
            f"this process is {rank}, but {tasks} tasks were given; start {tasks} ranks or omit the number"
        )
    return Task(rank.rank, rank.world_size, rank.source)


def _array_element(environ: Mapping[str, str], wanted: int | None) -> tuple[int, int, str] | None:
    """(index, number of elements, where both were found) in a job array; None outside of one."""
    name = next((name for name in ARRAY_INDEXES if environ.get(name)), None)
    if name is None:
        return None
    index = _number(environ, name)
    source = f"{name}={index}"
    if name == ARRAY_INDEXES[0] and all(key in environ for key in SLURM_ARRAY):
        first, last, step, count = (_number(environ, key) for key in SLURM_ARRAY)
        if wanted in (None, count):
            if first + (count - 1) * step != last:  # such as --array=1,5,9, for which Slurm reports a step of 1
                raise ValueError(
                    f"{source} is in an array with gaps ({count} elements from {first} to {last}); "
                    "give the task and the number of tasks"
                )
            return (index - first) // step, count, source
    if wanted is None:
        raise ValueError(f"{source}, but no variable gives the size of the array; give the number of tasks")
    return index, wanted, source


def _check_single_task(environ: Mapping[str, str], tasks: int | None) -> None:
    if tasks in (None, 1):
        return
    if environ.get(PBS_PROCESS, PBS_SCRIPT) != PBS_SCRIPT:
        raise ValueError(
            f"cannot determine which of the {tasks} tasks this is: pbsdsh numbers nodes, not processes; "
            f"start one process per node: pbsdsh -- bash -c 'prep work OUT --task ${PBS_NODE} --tasks NODES'"
        )
    raise ValueError(
        f"cannot determine which of the {tasks} tasks this is: found no launcher or job array; give the task"
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} is {environ[name]!r}, expected a whole number; correct or unset it") from None
