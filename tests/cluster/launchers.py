"""Commands that launch several ranks of a program, and the variables that the ranks get."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests import packages

# The command line that starts N ranks, without N.
MPIEXEC = {"Open MPI": ("mpiexec.openmpi", "--oversubscribe", "-n"), "MPICH": ("mpiexec.mpich", "-n")}
# Without both variables, mpiexec of Open MPI refuses to run as root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Variables of an allocation or a launcher around the test run, which must not reach the launchers under test.
FOREIGN = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SCANCEL|SGE|PBS|OMPI|PMI|PMIX|MPI|HYDRA)_|(RANK|WORLD_SIZE)$")


def environ() -> dict[str, str]:
    """Return the environment of this test run without the variables of launchers."""
    kept = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    return {**kept, **AS_ROOT, "PATH": packages.PATH}


def mpiexec(mpi: str, ranks: int, *command: str) -> None:
    """Run a command with `ranks` ranks on this host."""
    subprocess.run([*MPIEXEC[mpi], str(ranks), *command], env=environ(), check=True, timeout=60)


def recorder(folder: Path) -> list[str]:
    """Return a command that writes its environment to a new file in this folder."""
    folder.mkdir()
    return ["sh", "-c", 'env -0 > "$0/$$"', str(folder)]


def recorded(folder: Path) -> list[dict[str, str]]:
    """Return the environments that `recorder` wrote, in the order of their array indexes and ranks."""
    texts = [path.read_text(errors="replace").rstrip("\0").split("\0") for path in folder.iterdir()]
    return sorted((dict(line.split("=", 1) for line in lines) for lines in texts), key=_numbers)


def _numbers(environ: Mapping[str, str]) -> list[int]:
    names = ("SLURM_ARRAY_TASK_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return [int(environ.get(name, -1)) for name in names]
