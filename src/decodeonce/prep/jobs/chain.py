"""The chain of a build's jobs: plan, rounds of one array, finish, and what the user wants done then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.formatting import quoted
from decodeonce.prep.jobs.base import Chain, Job, Scheduler, no_option
from decodeonce.prep.jobs.pbs import PBS
from decodeonce.prep.jobs.site import Site
from decodeonce.prep.jobs.slurm import Slurm
from decodeonce.store import StorePaths
from decodeonce.store.durable import make_folder, write_atomic

# plan and finish are one process each, which waits for the file system more than it computes; where memory comes with
# cores, so many bring what a plan of tens of millions needs.
FEW_CPUS = 4

SCHEDULERS: dict[str, Scheduler] = {"slurm": Slurm(), "pbs": PBS()}


def write_scripts(out: Path, site: Site, chain: Chain, commands: Sequence[Sequence[str]], folder: Path) -> Path:
    """Write the scripts of plan, array and finish, and one that submits them, into OUT.jobs; returns the latter's path.

    `commands` are what the three run, in `folder`, so that relative paths mean what they meant there.
    """
    paths, scheduler = StorePaths(out), SCHEDULERS[site.scheduler]
    if found := set(scheduler.unfit) & set(str(paths.jobs)):
        raise BuildError(
            f"{paths.jobs}: {site.scheduler} gives {found.pop()!r} in a log's path a meaning of its own; "
            "choose another OUT"
        )
    make_folder(paths.jobs)
    plan, work, finish = commands
    few = min(FEW_CPUS, chain.cpus)
    jobs = [
        Job("plan", plan, nodes=1, cpus=few),
        Job("array", work, nodes=chain.nodes, cpus=chain.cpus, array=True),
        Job("finish", finish, nodes=1, cpus=few),
    ]
    for job in jobs:
        command = " ".join(map(quoted, job.command))
        if job.array:
            command = scheduler.warned(command, chain)
        if job.nodes > 1:
            command = site.launched(command, nodes=job.nodes, cpus=job.cpus)
        lines = [
            "#!/bin/bash",
            *scheduler.head(job, site, chain),
            f"cd -- {quoted(str(folder))} || exit",
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
        "# Submits the jobs as a chain, each after the one before: all of them, or none.",
        "set -Eeuo pipefail",
        f"cd -- {quoted(str(paths.jobs.absolute()))}",
        "jobs=()",
        "undo() { # the last job first: PBS deletes the jobs that wait for a deleted one",
        "  for ((i = ${#jobs[@]} - 1; i >= 0; i--)); do",
        f'    {scheduler.cancel} "${{jobs[i]}}" || echo "could not cancel ${{jobs[i]}}" >&2',
        "  done",
        "}",
        "trap undo ERR",
        "trap 'undo; exit 130' INT TERM HUP",
        "submit() { # [OPTION...] SCRIPT",
        f'  id=$(trap - ERR; {scheduler.submit} "$@")',
        '  [[ $id != *";"* ]] || export SLURM_CLUSTERS="${id#*;}"  # Slurm prints ID;CLUSTER if there are several',
        "  id=${id%%;*}",
        '  jobs+=("$id")',
        "}",
        "# The plan is held until the chain is complete: PBS may drop a job that waits for one that has ended already.",
        f"submit {scheduler.hold} plan{scheduler.suffix}",
        "plan=$id",
        f"submit {scheduler.after('afterok:$plan')} {array}",
        *[f"submit {later} {array}  # what is done is skipped" for _ in range(chain.rounds - 1)],
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
