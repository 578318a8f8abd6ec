"""Write the jobs of a build for a batch system, and follow them. `SCHEDULERS` has the batch systems by name."""

from __future__ import annotations

from decodeonce.prep.jobs.pbs import PBS
from decodeonce.prep.jobs.slurm import Slurm

Scheduler = Slurm | PBS
SCHEDULERS: dict[str, Scheduler] = {"slurm": Slurm(), "pbs": PBS()}
