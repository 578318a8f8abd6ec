"""Which rank this process is, of how many: torch.distributed, else a launcher's variables, else 0 of 1."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass


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
    # of srun has a step id.
    Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", needs="SLURM_STEP_ID"),
)


@dataclass(frozen=True)
class Rank:
    """This process's place among the ranks, and who said so."""

    rank: int
    world_size: int
    source: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.source})"


def find_rank(environ: Mapping[str, str] | None = None) -> Rank:
    """Rank and world size as torch.distributed (where initialised) or a launcher's variables give them, else 0 of 1.

    `environ` defaults to os.environ. Raises ValueError, which names the variable, where one makes no sense.
    """
    return _initialised() or _launched(os.environ if environ is None else environ) or Rank(0, 1, "no launcher")


def check_rank(rank: int, world_size: int, rank_name: str = "rank", size_name: str = "world_size") -> None:
    """Raise ValueError unless 0 <= rank < world_size; the names are those the user knows the numbers by."""
    if not 0 <= rank < world_size:
        raise ValueError(f"{rank_name} is {rank} and {size_name} {world_size}, expected 0 <= {rank_name} < {size_name}")


def _initialised() -> Rank | None:
    # Not imported here: where nobody has imported torch.distributed, nobody has initialised it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Rank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _launched(environ: Mapping[str, str]) -> Rank | None:
    for launcher in LAUNCHERS:
        names = (launcher.rank, launcher.world_size, launcher.needs or launcher.rank)
        if all(name in environ for name in names):
            rank, size = (_number(environ, name) for name in (launcher.rank, launcher.world_size))
            check_rank(rank, size, launcher.rank, launcher.world_size)
            return Rank(rank, size, launcher.name)
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} is {environ[name]!r}, expected a whole number; unset it or mend it") from None
