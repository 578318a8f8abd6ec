"""The record of a submission: the ids of its jobs, in OUT.jobs/submitted. submit.sh writes it, one job a line."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.jobs.chain import SCHEDULERS, Scheduler
from decodeonce.store import StorePaths


@dataclass(frozen=True)
class SubmittedJob:
    """A submitted job.

    Args:
        name: "plan", "array", "finish" or "then".
        id: The id that the batch system printed.
        scheduler: Name of the batch system.
        cluster: With several Slurm clusters, the one of the job.
    """

    name: str
    id: str
    scheduler: str
    cluster: str = ""

    def states(self) -> list[str]:
        """Return "waiting", "pending", "running" or another state for each element that has not ended.

        The state is "unknown" if the batch system does not answer.
        """
        try:
            done = self._run(self._system.states)
        except OSError:  # this machine has no commands of the batch system
            return ["unknown"]
        if done.returncode:
            return [] if re.search(self._system.unknown_job, done.stderr) else ["unknown"]
        return self._system.parse_states(done.stdout)

    def cancel(self) -> str:
        """Cancel the job; return what the batch system printed if it refused."""
        try:
            done = self._run(self._system.cancel)
        except OSError as error:
            return f"{error.filename}: {error.strerror}; run this on a node with the commands of {self.scheduler}"
        return (done.stderr or done.stdout).strip() if done.returncode else ""

    @property
    def _system(self) -> Scheduler:
        return SCHEDULERS[self.scheduler]

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "SLURM_CLUSTERS": self.cluster} if self.cluster else None
        words = [*command.split(), self.id]
        return subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def submitted_jobs(out: Path) -> list[SubmittedJob]:
    """Return the jobs of the last submission of a build, in their order; none if it was not submitted."""
    path = StorePaths(out).submitted
    try:
        lines = path.read_text("utf-8", "surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    try:
        return [SubmittedJob(*line.split("\t")) for line in lines]
    except TypeError:
        raise BuildError(f"{path}: damaged; see the jobs in your queue, and remove the file") from None


def job_states(out: Path) -> dict[str, Counter[str]]:
    """Return how many elements of each submitted job are in which state; none for a job that has ended.

    Example:
        {"plan 1234": {}, "array 1235": {"running": 3, "pending": 13}, "finish 1236": {"waiting": 1}}
    """
    return {f"{job.name} {job.id}": Counter(job.states()) for job in submitted_jobs(out)}
