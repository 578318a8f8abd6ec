"""Commands that launch several ranks of a program, and the variables that the ranks get."""

import os
import re
import subprocess

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
