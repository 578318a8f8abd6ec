"""Who this process is among those that were started together, as launchers and job arrays tell it.

`find_rank` is for training: torch.distributed, else a launcher's variables, else 0 of 1. `find_task` is for work that
is shared out over a job array, too: the array's element times the ranks within it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Launcher:
    """The environment variables that a launcher gives each of its processes; `needs` must be set too, if not empty."""

    name: str
    rank: str
    world_size: str
    needs: str = ""


# The first launcher whose variables are all set is believed.
LAUNCHERS = (
    # Before the rest: torchrun starts several ranks inside one task of srun or mpirun, whose variables they inherit.
    # The other way round does not happen: a task started from within a torchrun rank is no rank of the training.
    Launcher("torchrun", "RANK", "WORLD_SIZE"),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("PMI", "PMI_RANK", "PMI_SIZE"),
    # A batch script under `sbatch -n 4` sees SLURM_PROCID=0 and SLURM_NTASKS=4, though it is one process; only a step
    # of srun has a step id below those that Slurm reserves. One that was sent from within a step inherits that id, but
    # with it the number of processes of that step, 1 for an interactive shell.
    Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", needs="SLURM_STEP_ID"),
    Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", needs="SLURM_STEP_ID"),
)

# The shell that salloc opens where LaunchParameters has use_interactive_step is step 0xfffffffa (slurm.h).
SLURM_RESERVED_STEPS = 0xFFFFFFF0
SLURM_ARRAY = ("SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT")
# PBS says which element of an array this is, not how many there are.
ARRAY_INDEXES = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX")
# pbsdsh gives each process the index of its node, from 0 on, and a hexadecimal number that is unique in the job. No
# variable says how many processes there are on a node, or in all, so these do not tell which task a process is.
PBS_PROCESS, PBS_NODE, PBS_SCRIPT = "PBS_TASKNUM", "PBS_NODENUM", "1"
# The number of ranks on this host, as mpiexec of Open MPI and of MPICH say it.
RANKS_HERE = {"Open MPI": "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI": "MPI_LOCALNRANKS"}
# Launchers of these (PMIx, as PALS on Aurora has it) tell a rank but not how many there are.
RANKS_ALONE = ("PALS_RANKID", "PMIX_RANK")


@dataclass(frozen=True)
class Rank:
    """This process's rank among all, and what said so."""

    rank: int
    world_size: int
    source: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.source})"


def find_rank(environ: Mapping[str, str] | None = None) -> Rank:
    """Rank and world size as torch.distributed (where initialised) or a launcher's variables give them, else 0 of 1.

    `environ` defaults to os.environ. Raises ValueError, which names the variable, if one makes no sense.
    """
    return _initialised() or _launched(os.environ if environ is None else environ) or Rank(0, 1, "no launcher")


@dataclass(frozen=True)
class Task:
    """This process's share of the work, of how many, and what said so."""

    task: int
    tasks: int
    source: str

    def __str__(self) -> str:
        return f"task {self.task} of {self.tasks} ({self.source})"


def find_task(tasks: int | None = None, environ: Mapping[str, str] | None = None) -> Task | None:
    """The task that launcher and job array give this process, None if the work is not shared.

    `tasks` is how many there are, if the user says so: PBS does not tell. Elements of an array are then counted from
    0, unless the array has just as many as it takes, whatever their numbers. `environ` defaults to os.environ. Raises
    ValueError, which names the variable, if what was found makes no sense.
    """
    environ = os.environ if environ is None else environ
    rank = _launched(environ) or Rank(0, 1, "")
    alone = rank.world_size == 1  # as in an interactive shell of srun's
    element = _array_element(environ, wanted=tasks // rank.world_size if tasks else None)
    if element is None:
        if not alone:
            return _of_ranks(rank, tasks)
        _check_alone(environ, tasks)
        return None
    index, count, source = element
    whole = tasks or count * rank.world_size
    if whole % rank.world_size:
        raise ValueError(f"{whole} tasks do not make whole elements of {rank}; name a multiple of {rank.world_size}")
    task = index * rank.world_size + rank.rank
    source = source if alone else f"{source}, {rank}"
    if not 0 <= task < whole:
        raise ValueError(f"{source} is task {task}, expected one below {whole}; number the array from 0")
    return Task(task, whole, source)


def find_idle_hosts(environ: Mapping[str, str] | None = None) -> str | None:
    """Describe how ranks crowd on this host of a PBS job while its other hosts idle; None if they do not, or unknown.

    An mpiexec that does not know PBS starts all ranks on the first host. Only rank 0 gets the text, so it appears once.
    """
    environ = os.environ if environ is None else environ
    try:
        return _idle_hosts(environ)
    except (ValueError, OSError):  # odd variables must not end the work for the sake of a warning
        return None


def _idle_hosts(environ: Mapping[str, str]) -> str | None:
    rank = _launched(environ)
    name, nodefile = RANKS_HERE.get(rank.source, "") if rank else "", environ.get("PBS_NODEFILE")
    if rank is None or rank.rank or not environ.get(name) or not nodefile or not Path(nodefile).exists():
        return None  # only the first host of a job has the file
    here, hosts = _number(environ, name), len(set(Path(nodefile).read_text().split()))
    if here * hosts < rank.world_size + hosts:  # at most the share of each host, rounded up
        return None
    return (
        f"{here} of {rank.world_size} ranks run on this host, but the PBS job has {hosts} hosts: others idle. "
        "If 'mpiexec -n 2 hostname' prints one name twice, this mpiexec does not know PBS; use one that does "
        "(launch in a site profile), or one node per element instead of --nodes"
    )


def check_rank(rank: int, world_size: int, rank_name: str = "rank", size_name: str = "world_size") -> None:
    """Raise ValueError unless 0 <= rank < world_size; the names are those the user knows the numbers by."""
    if not 0 <= rank < world_size:
        raise ValueError(f"{rank_name} is {rank} and {size_name} {world_size}, expected 0 <= {rank_name} < {size_name}")


def _initialised() -> Rank | None:
    # Not imported here: a program that has not imported torch.distributed has not initialised it.
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
            raise ValueError(f"{name} is {environ[name]}, but nobody says of how many; set RANK and WORLD_SIZE, too")
    return None


def _is_reserved(environ: Mapping[str, str], launcher: Launcher) -> bool:
    return launcher.needs == "SLURM_STEP_ID" and _number(environ, launcher.needs) >= SLURM_RESERVED_STEPS


def _of_ranks(rank: Rank, tasks: int | None) -> Task:
    if tasks not in (None, rank.world_size):
        raise ValueError(f"{rank}, but {tasks} tasks were named; start as many ranks, or do not name the number")
    return Task(rank.rank, rank.world_size, rank.source)


def _array_element(environ: Mapping[str, str], wanted: int | None) -> tuple[int, int, str] | None:
    """(index, elements, what said so) in a job array; None outside of one."""
    name = next((name for name in ARRAY_INDEXES if environ.get(name)), None)
    if name is None:
        return None
    index = _number(environ, name)
    source = f"{name}={index}"
    if name == ARRAY_INDEXES[0] and all(key in environ for key in SLURM_ARRAY):
        first, last, step, count = (_number(environ, key) for key in SLURM_ARRAY)
        if wanted in (None, count):
            if first + (count - 1) * step != last:  # --array=1,5,9, of which Slurm says that its step is 1
                raise ValueError(
                    f"{source} in an array with gaps ({count} from {first} to {last}); name task and tasks"
                )
            return (index - first) // step, count, source
    if wanted is None:
        raise ValueError(f"{source}, but nobody says how many there are; name the number of tasks")
    return index, wanted, source


def _check_alone(environ: Mapping[str, str], tasks: int | None) -> None:
    if tasks in (None, 1):
        return
    if environ.get(PBS_PROCESS, PBS_SCRIPT) != PBS_SCRIPT:
        raise ValueError(
            f"cannot tell which of the {tasks} tasks this is: pbsdsh numbers the nodes of a job, not its processes; "
            f"start one process per node: pbsdsh -- bash -c 'prep work OUT --task ${PBS_NODE} --tasks NODES'"
        )
    raise ValueError(f"which of the {tasks} tasks this is nobody says, neither a launcher nor an array; name it")


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} is {environ[name]!r}, expected a whole number; unset it or mend it") from None
