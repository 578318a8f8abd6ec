"""What starts several processes of a program, and what they are told about themselves."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests import packages

# How to start so many ranks of a command.
MPIEXEC = {"Open MPI": ("mpiexec.openmpi", "--oversubscribe", "-n"), "MPICH": ("mpiexec.mpich", "-n")}
# Without both, mpiexec of Open MPI does nothing for root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# What an allocation or a launcher around the test run says is not meant for those within.
FOREIGN = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SCANCEL|PBS|OMPI|PMI|PMIX|MPI|HYDRA)_|(RANK|WORLD_SIZE)$")


def environ() -> dict[str, str]:
    """The environment of this test run, as if nothing had launched it."""
    own = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    return {**own, **AS_ROOT, "PATH": packages.PATH}


def mpiexec(mpi: str, ranks: int, *command: str) -> None:
    """Run a command in so many ranks, on this host."""
    subprocess.run([*MPIEXEC[mpi], str(ranks), *command], env=environ(), check=True, timeout=60)


def recorder(folder: Path) -> list[str]:
    """A command that leaves its environment in a file of its own in this folder."""
    folder.mkdir()
    return ["sh", "-c", 'env -0 > "$0/$$"', str(folder)]


def recorded(folder: Path) -> list[dict[str, str]]:
    """The environments that `recorder` left, ordered by what tells them apart."""
    texts = [path.read_text(errors="replace").rstrip("\0").split("\0") for path in folder.iterdir()]
    return sorted((dict(line.split("=", 1) for line in lines) for lines in texts), key=_numbers)


def _numbers(environ: Mapping[str, str]) -> list[int]:
    names = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return [int(environ.get(name, -1)) for name in names]
