"""The Debian packages whose programs these tests run."""

from __future__ import annotations

# Each package, and a program by which it is recognised.
CLUSTER = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurm-client": "sbatch",
    "munge": "munged",
    "slurm-wlm-torque": "qsub",
    "openmpi-bin": "mpiexec.openmpi",
    "mpich": "mpiexec.mpich",
}
