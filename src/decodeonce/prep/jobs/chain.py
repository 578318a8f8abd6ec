"""The chain of jobs of a build: plan, one or more rounds of an array, finish, and an optional job of the user."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.formatting import quoted
from decodeonce.launch import launch_variables
from decodeonce.prep.jobs.base import Chain, Job, Scheduler, no_option
from decodeonce.prep.jobs.pbs import PBS
from decodeonce.prep.jobs.site import Site
from decodeonce.prep.jobs.slurm import Slurm
from decodeonce.store import StorePaths
from decodeonce.store.durable import make_folder, write_atomic

# Plan and finish are one process each, which mostly waits for the file system. On sites that allot memory by cores,
# this many cores bring enough memory for a plan of tens of millions of samples.
FEW_CPUS = 4

SCHEDULERS: dict[str, Scheduler] = {"slurm": Slurm(), "pbs": PBS()}


def write_scripts(out: Path, site: Site, chain: Chain, commands: Sequence[Sequence[str]], folder: Path) -> Path:
    """Write the job scripts of plan, array and finish, and a script that submits them, to OUT.jobs.

    Args:
        out: Path of the store to build.
        site: Profile of the site.
        chain: Number of jobs and their resources.
        commands: Command lines of plan, work and finish, each as a list of words.
        folder: Folder in which the commands run, so that relative paths keep their meaning.

    Returns:
        The path of submit.sh, the script that submits the jobs.

    Raises:
        BuildError: If the path of OUT.jobs has a character that the batch system forbids in paths of logs.
    """
    paths, scheduler = StorePaths(out), SCHEDULERS[site.scheduler]
    if found := set(scheduler.forbidden) & set(str(paths.jobs)):
        raise BuildError(
            f"{paths.jobs}: {site.scheduler} treats {found.pop()!r} in the path of a log specially; choose another OUT"
        )
    make_folder(paths.jobs)
    plan, work, finish = commands
    few = min(FEW_CPUS, chain.cpus)
    # Variables of the shell that submits the jobs. The batch system replaces its own.
    stale = [name for name in launch_variables() if not name.startswith(f"{site.scheduler.upper()}_")]
    unset = textwrap.wrap(f"unset {' '.join(stale)}", 110)
    jobs = [
        Job("plan", plan, nodes=1, cpus=few),
        Job("array", work, nodes=chain.nodes, cpus=chain.cpus, array=True),
        Job("finish", finish, nodes=1, cpus=few),
    ]
    for job in jobs:
        command = " ".join(map(quoted, job.command))
        if job.array:
            command = scheduler.with_signal(command, chain)
        if job.nodes > 1:
            command = site.launch_command(command, nodes=job.nodes, cpus=job.cpus)
        lines = [
            "#!/bin/bash",
            *scheduler.head(job, site, chain),
            f"cd -- {quoted(str(folder))} || exit",
            " \\\n  ".join(unset),
            *site.setup,
            f"exec {command}",
        ]
        _write(paths.jobs / f"{job.name}{scheduler.suffix}", lines)
    _write(paths.submit, _submission(paths, scheduler, chain, folder))
    return paths.submit


def _submission(paths: StorePaths, scheduler: Scheduler, chain: Chain, folder: Path) -> list[str]:
    array, finish = f"array{scheduler.suffix}", f"finish{scheduler.suffix}"
    later = scheduler.after("afterok:$plan,afterany:$id")
    lines = [
        "#!/bin/bash",
        "# Submits the jobs as a chain, each after the previous one. If one is refused, all are cancelled.",
        "set -Eeuo pipefail",
        f"cd -- {quoted(str(paths.jobs.absolute()))}",
        "jobs=()",
        "undo() { # starts with the last job, because PBS deletes jobs that wait for a deleted one",
        "  for ((i = ${#jobs[@]} - 1; i >= 0; i--)); do",
        f'    {scheduler.cancel} "${{jobs[i]}}" || echo "could not cancel ${{jobs[i]}}" >&2',
        "  done",
        "}",
        "trap undo ERR",
        "trap 'undo; exit 130' INT TERM HUP",
        "submit() { # [OPTION...] SCRIPT",
        f'  id=$(trap - ERR; {scheduler.submit} "$@")',
        '  [[ $id != *";"* ]] || export SLURM_CLUSTERS="${id#*;}"  # with several clusters, Slurm prints ID;CLUSTER',
        "  id=${id%%;*}",
        '  jobs+=("$id")',
        "}",
        "# The plan is held until the chain is complete, because PBS may drop a job that waits for an ended one.",
        f"submit {scheduler.hold} plan{scheduler.suffix}",
        "plan=$id",
        f"submit {scheduler.after('afterok:$plan')} {array}",
        *[f"submit {later} {array}  # finished blocks are skipped" for _ in range(chain.rounds - 1)],
        f"submit {later} {finish}",
    ]
    if chain.then is not None:
        lines += [f"cd -- {quoted(str(folder))}", f"export STORE={quoted(str(paths.root.absolute()))}"]
        lines += [f"submit {scheduler.after('afterok:$id')} {scheduler.with_store}{quoted(no_option(chain.then))}"]
    return [
        *lines,
        'for id in "${jobs[@]}"; do',
        f'  {scheduler.show} "$id" > /dev/null || {{',
        '    echo "job $id was accepted but is not in the queue; the other jobs of the chain are cancelled" >&2',
        "    false",
        "  }",
        "done",
        f'{scheduler.release} "$plan"',
        'echo "${jobs[*]}"',
    ]


def _write(path: Path, lines: Sequence[str]) -> None:
    write_atomic(path, [f"{line}\n".encode("utf-8", "surrogateescape") for line in lines])
