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
    """The variables that a launcher sets in each of its processes. If `needs` is not empty, it must be set too.

    To add a launcher, add a line to LAUNCHERS.
    """

    name: str
    rank: str
    world_size: str
    needs: str = ""


# The first launcher whose variables are all set is used: a launcher is above those that can start it in their tasks.
LAUNCHERS = (
    # torchrun is first: it starts several ranks inside one task of srun or mpirun, and they inherit its variables. The
    # reverse does not happen: a task that was started inside a torchrun rank is not a rank of the training.
    Launcher("torchrun", "RANK", "WORLD_SIZE"),
    Launcher("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE"),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    Launcher("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    Launcher("PMI", "PMI_RANK", "PMI_SIZE"),
    Launcher("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    # A batch script under `sbatch -n 4` sees SLURM_PROCID=0 and SLURM_NTASKS=4 although it is one process. Only a step
    # of srun has a step id below those that Slurm reserves. A script that was submitted inside a step inherits the id
    # of that step, but also its number of processes, which is 1 for an interactive shell.
    Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", needs="SLURM_STEP_ID"),
    Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", needs="SLURM_STEP_ID"),
    Launcher("AWS Batch", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"),
)
# torchrun sets this in all its ranks. Without it, RANK and WORLD_SIZE were set by hand, maybe long ago.
TORCHRUN_ID = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True)
class Array:
    """The variables that a batch system sets in each element of a job array. To add one, add a line to ARRAYS.

    Args:
        name: Name of the batch system.
        index: Index of the element.
        first: The lowest index of the array. Default: `lowest`.
        last: The highest index of the array.
        step: Distance between indexes.
        count: Number of elements.
        lowest: The lowest index that an array of all tasks has.
        none: Value of `index` outside of an array.
        alone: Whether an array may be one training, whose ranks it numbers. No other variable gives their number.
    """

    name: str
    index: str
    first: str = ""
    last: str = ""
    step: str = ""
    count: str = ""
    lowest: int = 0
    none: str = ""
    alone: bool = False


ARRAYS = (
    Array(
        "Slurm",
        "SLURM_ARRAY_TASK_ID",
        first="SLURM_ARRAY_TASK_MIN",
        last="SLURM_ARRAY_TASK_MAX",
        step="SLURM_ARRAY_TASK_STEP",
        count="SLURM_ARRAY_TASK_COUNT",
    ),
    Array("PBS", "PBS_ARRAY_INDEX"),
    Array("Torque", "PBS_ARRAYID"),
    Array(
        "Grid Engine",
        "SGE_TASK_ID",
        first="SGE_TASK_FIRST",
        last="SGE_TASK_LAST",
        step="SGE_TASK_STEPSIZE",
        lowest=1,
        none="undefined",
    ),
    Array("LSF", "LSB_JOBINDEX", last="LSB_JOBINDEX_END", step="LSB_JOBINDEX_STEP", lowest=1, none="0"),
    Array("AWS Batch", "AWS_BATCH_JOB_ARRAY_INDEX", count="AWS_BATCH_JOB_ARRAY_SIZE"),
    Array("Google Batch", "BATCH_TASK_INDEX", count="BATCH_TASK_COUNT"),
    Array("Kubernetes", "JOB_COMPLETION_INDEX", alone=True),
    Array("Volcano", "VC_TASK_INDEX", alone=True),
)

# If LaunchParameters has use_interactive_step, the shell that salloc opens is step 0xfffffffa (slurm.h).
SLURM_RESERVED_STEPS = 0xFFFFFFF0
# The variables with the id of a job or its array: Slurm (2), PBS, LSF, Flux, AWS Batch, Grid Engine.
JOB_IDS = ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "AWS_BATCH_JOB_ID", "JOB_ID")
# pbsdsh gives each process the index of its node, starting at 0, and a hexadecimal number that is unique in the job. No
# variable gives the number of processes on a node or in the job, so these do not determine the task of a process.
PBS_PROCESS, PBS_NODE, PBS_SCRIPT = "PBS_TASKNUM", "PBS_NODENUM", "1"
# The variables with the number of ranks on this host, set by mpiexec of Open MPI and of MPICH.
RANKS_HERE = {"Open MPI": "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI": "MPI_LOCALNRANKS"}
# Launchers that set these (PMIx, such as PALS on Aurora) give the rank but not the number of ranks.
RANKS_ALONE = ("PALS_RANKID", "PMIX_RANK")
# Arrays whose elements may be the ranks of one training; then, too, the number of ranks is missing.
ARRAYS_ALONE = tuple(array.index for array in ARRAYS if array.alone)


@dataclass(frozen=True)
class Rank:
    """The rank of this process, the number of ranks, and where both were found.

    Example:
        >>> rank = find_rank({"RANK": "3", "WORLD_SIZE": "8"})
        >>> rank.rank, rank.world_size
        (3, 8)
    """

    rank: int
    world_size: int
    source: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.source})"


def find_rank(environ: Mapping[str, str] | None = None) -> Rank:
    """Find the rank of this process and the number of ranks.

    Both come from torch.distributed if it is initialized, and otherwise from the environment variables of a launcher.
    Without a launcher, the rank is 0 of 1.

    Args:
        environ: Environment variables. Default: ``os.environ``.

    Returns:
        Rank: With `rank`, `world_size` and `source`, which names where they were found.

    Raises:
        ValueError: If a variable is not valid, launchers contradict each other, or the number of ranks is missing; the
            message names the variables.

    Example:
        >>> find_rank({"RANK": "3", "WORLD_SIZE": "8"})
        Rank(rank=3, world_size=8, source='torchrun')
    """
    environ = os.environ if environ is None else environ
    return distributed_rank() or _launched(environ, (*RANKS_ALONE, *ARRAYS_ALONE)) or Rank(0, 1, "no launcher")


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
            if tasks not in (None, rank.world_size):
                advice = f"start {tasks} ranks or omit the number"
                raise ValueError(f"this process is {rank}, but {tasks} tasks were given; {advice}")
            return Task(rank.rank, rank.world_size, rank.source)
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
        rank = _launched(environ)
        name, nodefile = RANKS_HERE.get(rank.source, "") if rank else "", environ.get("PBS_NODEFILE")
        if rank is None or rank.rank or not environ.get(name) or not nodefile:
            return None
        here, hosts = _number(environ, name), len(set(Path(nodefile).read_text().split()))
    except (ValueError, OSError):  # unusual variables must not stop the work; only the first host has the file
        return None
    if here * hosts < rank.world_size + hosts:  # this host has at most its share of the ranks, rounded up
        return None
    return (
        f"{here} of {rank.world_size} ranks run on this host, but the PBS job has {hosts} hosts; the others are idle. "
        "If 'mpiexec -n 2 hostname' prints the same name twice, this mpiexec does not support PBS; use one that does "
        "(launch in a site profile), or one node per array element instead of --nodes"
    )


def launch_variables() -> list[str]:
    """Return the variables that name a rank or an array element, without duplicates."""
    ranks = [name for line in LAUNCHERS for name in (line.rank, line.world_size, line.needs) if name]
    return list(dict.fromkeys([*ranks, TORCHRUN_ID, *RANKS_ALONE, *(array.index for array in ARRAYS)]))


def check_rank(rank: int, world_size: int, rank_name: str = "rank", size_name: str = "world_size") -> None:
    """Raise ValueError unless 0 <= rank < world_size. The message calls them `rank_name` and `size_name`."""
    if not 0 <= rank < world_size:
        raise ValueError(f"{rank_name} is {rank} and {size_name} {world_size}, expected 0 <= {rank_name} < {size_name}")


def distributed_rank() -> Rank | None:
    """Return the rank of torch.distributed; None if it is not initialized."""
    # No import here: a program that has not imported torch.distributed has not initialized it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Rank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _launched(environ: Mapping[str, str], ranks_alone: tuple[str, ...] = RANKS_ALONE) -> Rank | None:
    """Return the rank that a launcher gives; None without one. An array is only a rank to a Loader, not to a task."""
    launchers = [launcher for launcher in LAUNCHERS if _is_running(environ, launcher)]
    if launchers:
        return _rank_under(environ, launchers)
    for name in ranks_alone:
        if environ.get(name):
            raise _missing_world_size(environ, name)
    return None


def _is_running(environ: Mapping[str, str], launcher: Launcher) -> bool:
    names = (launcher.rank, launcher.world_size, launcher.needs or launcher.rank)
    if not all(map(environ.get, names)):
        return False
    return launcher.needs != "SLURM_STEP_ID" or _number(environ, launcher.needs) < SLURM_RESERVED_STEPS


def _rank_under(environ: Mapping[str, str], launchers: list[Launcher]) -> Rank:
    """The rank that the first of these launchers gives, which the others must be able to start."""
    found: dict[str, tuple[Rank, str]] = {}
    for launcher in launchers:
        if launcher.name not in found:
            rank, size = (_number(environ, name) for name in (launcher.rank, launcher.world_size))
            check_rank(rank, size, launcher.rank, launcher.world_size)
            values = f"{launcher.rank}={rank} and {launcher.world_size}={size} ({launcher.name})"
            found[launcher.name] = Rank(rank, size, launcher.name), values
    (inner, values), *others = found.values()
    by_hand = inner.source == "torchrun" and not environ.get(TORCHRUN_ID)
    for outer, outer_values in others:
        if not _can_start(outer, inner, in_order=by_hand):
            advice = "unset those of the launcher that did not start this process"
            raise ValueError(f"{values} contradict {outer_values}; {advice}")
    return inner


def _can_start(outer: Rank, inner: Rank, *, in_order: bool) -> bool:
    """Return whether every rank of `outer` can start the same number of ranks of `inner`, this one in this one.

    If `in_order` is True, each rank of `outer` starts consecutive ranks, or every n-th. Launchers may use any order.
    """
    each, rest = divmod(inner.world_size, outer.world_size)
    if not in_order:
        return each > 0
    return each > 0 and rest == 0 and outer.rank in (inner.rank // each, inner.rank % outer.world_size)


def _missing_world_size(environ: Mapping[str, str], name: str) -> ValueError:
    found = f"{name} is {environ[name]}, but no variable gives the number of ranks"
    return ValueError(f"{found}; set RANK and WORLD_SIZE too")


def _array_element(environ: Mapping[str, str], wanted: int | None) -> tuple[int, int, str] | None:
    """(index, number of elements, where both were found) in a job array; None outside of one."""
    found = [array for array in ARRAYS if environ.get(array.index, array.none) not in ("", array.none)]
    if not found:
        return None
    if len({environ[array.index] for array in found}) > 1:
        values = " and ".join(f"{array.index}={environ[array.index]} ({array.name})" for array in found)
        raise ValueError(f"{values} contradict each other; unset those of the array that this process is not in")
    array = found[0]
    index = _number(environ, array.index)
    source = f"{array.index}={index}"
    if size := _array_size(environ, array):
        first, step, count, gaps = size
        if wanted in (None, count):
            if gaps or (index - first) % step:  # such as --array=1,5,9, for which Slurm reports a step of 1
                advice = "give the task and the number of tasks"
                raise ValueError(f"{source} is in an array with gaps ({array.name}); {advice}")
            return (index - first) // step, count, source
    if wanted is None:
        raise ValueError(f"{source}, but no variable gives the size of the array; give the number of tasks")
    return index - array.lowest, wanted, source


def _array_size(environ: Mapping[str, str], array: Array) -> tuple[int, int, int, bool] | None:
    """(first index, step, number of elements, whether numbers are missing); None if no variables give them."""
    names = [name for name in (array.first, array.last, array.step, array.count) if name]
    if not names or not all(environ.get(name) for name in names):
        return None
    first = _number(environ, array.first) if array.first else array.lowest
    step = _number(environ, array.step) if array.step else 1
    if not array.last:
        return first, step, _number(environ, array.count), False
    last = _number(environ, array.last)
    count = _number(environ, array.count) if array.count else (last - first) // step + 1
    return first, step, count, bool(array.count) and first + (count - 1) * step != last


def _check_single_task(environ: Mapping[str, str], tasks: int | None) -> None:
    if tasks in (None, 1):
        return
    why = "found no launcher or job array; give the task"
    if environ.get(PBS_PROCESS, PBS_SCRIPT) != PBS_SCRIPT:
        command = f"pbsdsh -- bash -c 'prep work OUT --task ${PBS_NODE} --tasks NODES'"
        why = f"pbsdsh numbers nodes, not processes; start one process per node: {command}"
    raise ValueError(f"cannot determine which of the {tasks} tasks this is: {why}")


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} is {environ[name]!r}, expected a whole number; correct or unset it") from None
