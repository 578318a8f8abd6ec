"""The Debian packages whose programs these tests run."""

from __future__ import annotations

# A package and the program it is recognised by.
CLUSTER = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurm-client": "sbatch",
    "munge": "munged",
    "slurm-wlm-torque": "qsub",
    "openmpi-bin": "mpiexec.openmpi",
    "mpich": "mpiexec.mpich",
}
