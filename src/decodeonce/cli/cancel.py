"""`prep cancel`: cancel the jobs of a build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodeonce.cli.output import say
from decodeonce.errors import BuildError


def cancel(out: Annotated[Path, typer.Argument(help="Build whose jobs `prep submit` wrote.", metavar="OUT")]) -> None:
    """Cancel a build's queued and running jobs. Completed blocks are kept."""
    from decodeonce.prep.jobs.submitted import submitted_jobs
    from decodeonce.prep.paths import BuildPaths

    jobs = submitted_jobs(out)
    if not jobs:
        raise BuildError(f"{BuildPaths(out).submitted}: no such file; this build was not submitted with `prep submit`")
    queued = [job for job in reversed(jobs) if job.states()]  # PBS deletes jobs that wait for a deleted one
    for job in queued:
        if (problem := job.cancel()) and job.states():
            raise BuildError(f"{job.name} {job.id}: not cancelled: {problem}")
        say(f"{job.name} {job.id}: cancelled")
    if not queued:
        say(f"{out}: all jobs have ended")
