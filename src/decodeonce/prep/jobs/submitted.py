"""The record of a submission, the states of its jobs, and how they ended.

submit.sh writes the ids of the jobs to OUT.jobs/submitted, one job a line. The commands of the jobs write the logs in
OUT.jobs/logs, and the batch system writes what they print to OUT.jobs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.jobs import SCHEDULERS, Scheduler
from decodeonce.prep.paths import BuildPaths
from decodeonce.store.layout import Json

LOGS = "logs"  # the folder in OUT.jobs with a log of each process
KILLED, NO_LOG = "ended without a message", "ended without a log"
WITHOUT_MESSAGE = (KILLED, NO_LOG)
JOB_ID = re.compile(r"\d[\w.\[\]-]*")


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
    def number(self) -> str:
        """The digits of the id: those of the array for its elements."""
        return _number(self.id)

    def printed(self, out: Path) -> list[Path]:
        """Return the files with what the job or its elements printed, oldest first."""
        folder, names = BuildPaths(out).jobs, [name.format(number=self.number) for name in self._system.logs]
        paths = (path for name in names for path in folder.glob(name) if path.is_file())
        return sorted(paths, key=lambda path: path.stat().st_mtime)

    @property
    def _system(self) -> Scheduler:
        return SCHEDULERS[self.scheduler]

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "SLURM_CLUSTERS": self.cluster} if self.cluster else None
        words = [*command.split(), self.id]
        return subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def submitted_jobs(out: Path) -> list[SubmittedJob]:
    """Return the jobs of the last submission of a build, in their order; none if it was not submitted."""
    path = BuildPaths(out).submitted
    try:
        lines = path.read_text("utf-8", "surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    jobs = [line.split("\t") for line in lines]
    if not all(len(words) == 4 and words[2] in SCHEDULERS and JOB_ID.fullmatch(words[1]) for words in jobs):
        raise BuildError(f"{path}: damaged; see the jobs in your queue, and remove the file")
    return [SubmittedJob(*words) for words in jobs]


@dataclass(frozen=True)
class JobStates:
    """How many elements of a submitted job are in which state.

    Args:
        queued: Elements in the queue by their state.
        ended: Otherwise, elements by how they ended, such as "finished" or "failed: " and the error.
    """

    queued: Counter[str]
    ended: Counter[str]


def job_states(out: Path) -> dict[str, JobStates]:
    """Return the states of each submitted job.

    Example:
        {"plan 1234": JobStates({}, {"finished": 1}), "array 1235": JobStates({"running": 3, "pending": 13}, {})}
    """
    jobs = submitted_jobs(out)
    ends = _ends(BuildPaths(out).jobs / LOGS) if jobs else {}
    found = {}
    for job in jobs:
        queued = Counter(job.states())
        found[f"{job.name} {job.id}"] = JobStates(queued, Counter() if queued else _ended(job, out, ends))
    return found


def _ended(job: SubmittedJob, out: Path, ends: Mapping[str, list[str]]) -> Counter[str]:
    """Return how the elements of a job ended that is not in the queue, with the last line of one that does not say."""
    if job.name == "then":
        return Counter(["ended"])  # a script of the user, which can print its own log elsewhere
    printed, known = job.printed(out), ends.get(job.number, [])
    ended = Counter([*known, *[KILLED] * (len(printed) - len(known))] or [NO_LOG])
    if last := _last_line(printed):
        ended = Counter(f"{end}: {last}" if end in WITHOUT_MESSAGE else end for end in ended.elements())
    return ended


def _ends(folder: Path) -> dict[str, list[str]]:
    """Return how each process ended that wrote a log, by the number of its job; only the last one of each task."""
    ends: dict[tuple[str, str], str] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        key = "", ""
        for event in filter(None, map(_event, path.read_bytes().splitlines())):
            if event["event"] == "start":  # of one process; several can write to the same file, one after another
                key = _number(str(event.get("job"))), str(event.get("task"))
                ends[key] = KILLED
            elif "exit_code" in event:
                message = f": {event.get('message', '')}" if event["event"] != "finished" else ""
                ends[key] = f"{event['event']}{message}"
    found: dict[str, list[str]] = {}
    for (number, _), text in ends.items():
        found.setdefault(number, []).append(text)
    return found


def _event(line: bytes) -> Json | None:
    """Return the event of a line of a log; None if a full disk or a kill left only a part of it."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _last_line(paths: Sequence[Path]) -> str:
    """Return the last line of the newest file that is not empty."""
    for path in reversed(paths):
        lines = path.read_text("utf-8", "replace").split("\n")
        if text := next((line.strip() for line in reversed(lines) if line.strip()), ""):
            return text
    return ""


def _number(job: str) -> str:
    return re.split(r"\D", job, maxsplit=1)[0]
