"""Emulate qsub, qrls, qstat, qdel and pbsdsh of OpenPBS with job history disabled.

Measured on a real OpenPBS: qsub accepts a dependency on a job that has ended, prints an id, returns 0 and drops the new
job. pbsdsh starts a process per `mpiprocs` of each node, numbers them by PBS_NODENUM and a hexadecimal PBS_TASKNUM, and
returns 0 for any exit status. According to its source, processes start in the home folder, without the variables of the
batch script. Jobs run with umask 077, unless they ask for another.

The server is as fast and qsub as slow as possible: every job that can run ends before qsub and qrls return.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

PROGRAMS = ("qsub", "qrls", "qstat", "qdel", "pbsdsh")
UNKNOWN_JOB = 153  # exit status of PBS commands

Job = dict[str, Any]


def install(folder: Path) -> dict[str, str]:
    """Write the programs to a folder; return the environment of a shell that finds them."""
    (folder / "bin").mkdir(parents=True)
    (folder / "home").mkdir()
    (folder / "queue.json").write_text('{"last": 0, "jobs": []}')
    for name in PROGRAMS:
        program = folder / "bin" / name
        command = shlex.join([sys.executable, "-SE", __file__, str(folder), name])
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)
    return {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder / "home")}


def queued(folder: Path) -> list[str]:
    """Return the names of the jobs in the queue."""
    return [job["name"] for job in json.loads((folder / "queue.json").read_text())["jobs"]]


class Server:
    """A queue that is kept in a file between commands."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / "queue.json"
        queue = json.loads(self._file.read_text())
        self._last: int = queue["last"]
        self._jobs: list[Job] = queue["jobs"]

    def save(self) -> None:
        self._file.write_text(json.dumps({"last": self._last, "jobs": self._jobs}))

    def qsub(self, *words: str) -> int:
        """Run `qsub [-h] [-W depend=...] [-v STORE] SCRIPT`."""
        *options, script = words
        self._run_all()
        if gate := os.environ.get("PBS_GATE"):  # a slow qsub: it waits until somebody opens and closes this pipe
            Path(gate).read_text()
        text = Path(script).read_text(errors="surrogateescape")
        directives = re.findall("^#PBS (-.) ?(.*)$", text, re.MULTILINE)
        given = dict(directives)
        chunks = re.findall(r"select=(\d+):.*mpiprocs=(\d+)", text)
        array = re.match(r"0-(\d+)", given.get("-J", ""))
        self._last += 1
        job: Job = {
            "id": f"{self._last}{'[]' if array else ''}.pbs",
            "name": given.get("-N", Path(script).name),
            "script": text,
            "folder": os.getcwd(),
            "held": "-h" in options,
            "waits": {},
            "elements": int(array[1]) + 1 if array else None,
            "umask": int(umask[1], 8) if (umask := re.search(r"^#PBS -W umask=(\d+)$", text, re.MULTILINE)) else 0o077,
            "nodes": list(map(int, chunks[0])) if chunks else [1, 1],
            "variables": {name: os.environ[name] for flag, name in pairwise(options) if flag == "-v"},
        }
        for option in options:
            for kind, ids in re.findall(r"(after\w+):([^,]+)", option):
                job["waits"].update(dict.fromkeys(ids.split(":"), kind))
        known = {other["id"] for other in self._jobs}
        if job["name"] not in os.environ.get("PBS_DROPS", "").split() and known.issuperset(job["waits"]):
            self._jobs.append(job)
        print(job["id"])
        return 0

    def qrls(self, *ids: str) -> int:
        status = self.qstat(*ids)
        for job in self._jobs:
            job["held"] = job["held"] and job["id"] not in ids
        self._run_all()
        return status

    def qstat(self, *ids: str) -> int:
        if ids[0] == "-t":
            return self._print_elements(ids[1])
        if unknown := set(ids) - {job["id"] for job in self._jobs}:
            print(f"qstat: Unknown Job Id {min(unknown)}", file=sys.stderr)
        return UNKNOWN_JOB if unknown else 0

    def _print_elements(self, name: str) -> int:
        status = self.qstat(name)
        for job in self._jobs:
            if job["id"] == name:
                state = "H" if job["held"] or job["waits"] else "Q"
                elements = [name.replace("[]", f"[{index}]") for index in range(job["elements"] or 0)]
                print("Job id            Name             User              Time Use S Queue\n" + "-" * 70)
                print("\n".join(f"{one} {job['name']} user 0 {state} workq" for one in [name, *elements]))
        return status

    def qdel(self, *ids: str) -> int:
        status = self.qstat(*ids)
        for name in ids:
            self._end(name, status=1)
        return status

    def _run_all(self) -> None:
        """Run jobs until none is ready."""
        while ready := [job for job in self._jobs if not job["held"] and not job["waits"]]:
            self._end(ready[0]["id"], self._run(ready[0]))

    def _end(self, name: str, status: int) -> None:
        """Remove a job from the queue, and release or delete the jobs that wait for it."""
        self._jobs = [job for job in self._jobs if job["id"] != name]
        for job in list(self._jobs):
            kind = job["waits"].pop(name, None)
            if kind == "afterok" and status:
                self._end(job["id"], status=1)
        self.save()

    def _run(self, job: Job) -> int:
        status = 0
        number = job["id"].partition("[")[0].partition(".")[0]
        for index in range(job["elements"] or 1):
            subjob = job["id"].replace("[]", f"[{index}]")
            log = f"{job['name']}.o{number}" + (f".{index}" if job["elements"] else "")
            variables = {"PBS_JOBID": subjob, "PBS_O_WORKDIR": job["folder"], **job["variables"]}
            if job["elements"]:
                variables["PBS_ARRAY_INDEX"] = str(index)
            scratch = self._folder / f"job-{subjob}"
            scratch.mkdir()
            nodes, procs = job["nodes"]
            (scratch / "nodes").write_text("".join(f"host{node}\n" * procs for node in range(nodes)))
            (scratch / "job.json").write_text(json.dumps({"nodes": nodes, "procs": procs, "variables": variables}))
            (scratch / "script").write_text(job["script"], errors="surrogateescape")
            script_variables = {"PBS_NODENUM": "0", "PBS_TASKNUM": "1", "PBS_NODEFILE": str(scratch / "nodes")}
            with (Path(job["folder"]) / log).open("ab") as output:
                done = subprocess.run(
                    ["bash", scratch / "script"],
                    cwd=os.environ["HOME"],
                    env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **variables, **script_variables},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    umask=job["umask"],
                )
            status = status or done.returncode
        return status


def pbsdsh(folder: Path, *words: str) -> int:
    """Run `pbsdsh [--] PROGRAM ARGUMENT...`."""
    scratch = folder / f"job-{os.environ['PBS_JOBID']}"
    job = json.loads((scratch / "job.json").read_text())
    count = job["nodes"] * job["procs"]
    started = Counter({int(node): number for node, number in job.get("started", {"0": 1}).items()})
    running = []
    for process in range(count):
        node = process // job["procs"]
        started[node] += 1
        numbers = {"PBS_NODENUM": str(node), "PBS_TASKNUM": f"{node << (32 - count.bit_length()) | started[node]:08X}"}
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **job["variables"], **numbers}
        program = words[1:] if words[0] == "--" else words
        running.append(subprocess.Popen(program, cwd=os.environ["HOME"], env=environ))
    for started_process in running:
        started_process.wait()
    (scratch / "job.json").write_text(json.dumps({**job, "started": started}))
    return 0


def main(folder: str, program: str, *words: str) -> int:
    if program == "pbsdsh":
        return pbsdsh(Path(folder), *words)
    server = Server(Path(folder))
    status: int = getattr(server, program)(*words)
    server.save()
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
