"""The chain of jobs of a build: plan, one or more rounds of an array, finish, and an optional job of the user."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.formatting import quoted
from decodeonce.launch import launch_variables
from decodeonce.prep.jobs import SCHEDULERS
from decodeonce.prep.jobs.base import Chain, Job, Site
from decodeonce.prep.jobs.submitted import LOGS, job_states
from decodeonce.prep.paths import BuildPaths
from decodeonce.store.files import make_folder, write_atomic

# Plan and finish are one process each, which mostly waits for the file system. On sites that allot memory by cores,
# this many cores bring enough memory for a plan of tens of millions of samples.
FEW_CPUS = 4

COMMANDS = ("submit", "hold", "release", "show", "cancel", "states")  # of a Scheduler, as submit.sh uses them


def write_scripts(out: Path, site: Site, chain: Chain, commands: Sequence[Sequence[str]], folder: Path) -> Path:
    """Write the scripts that run the commands (plan, work, finish) in `folder` to OUT.jobs; return that of submit.sh.

    Raises BuildError if the batch system forbids a character in the path of OUT.jobs or `chain.then`.
    """
    paths, scheduler = BuildPaths(out), SCHEDULERS[site.scheduler]
    if found := set(scheduler.forbidden) & set(str(paths.jobs)):
        what = f"{site.scheduler} treats {found.pop()!r} in the path of a log specially"
        raise BuildError(f"{paths.jobs}: {what}; choose another OUT")
    if chain.then is not None and set(scheduler.forbidden_in_script) & set(str(chain.then)):
        raise BuildError(f"{chain.then}: {site.scheduler} refuses spaces and quotes in the path of a script; rename it")
    for path in (paths.jobs / LOGS, paths.submitted):
        if path.is_symlink():
            raise BuildError(f"{path}: is a link, through which the jobs would write elsewhere; remove it")
    plan, work, finish = commands
    few = min(FEW_CPUS, chain.cpus)
    # Variables of the shell that submits the jobs. The batch system replaces its own, except those of a step of srun.
    own = f"{site.scheduler.upper()}_"
    stale = [name for name in launch_variables() if not name.startswith(own) or "_STEP_" in name]
    unset = textwrap.wrap(f"unset {' '.join(stale)}", 110)
    store = re.sub(r"[^\w.-]", "_", out.absolute().name)[:40]
    store = store if store[0].isalpha() else f"store-{store}"  # PBS wants a letter first
    jobs = [
        Job("plan", f"{store}-plan", plan, nodes=1, cpus=few),
        Job("array", f"{store}-array", work, nodes=chain.nodes, cpus=chain.cpus, array=True),
        Job("finish", f"{store}-finish", finish, nodes=1, cpus=few),
    ]
    texts = {}
    for job in jobs:
        command = " ".join(map(quoted, job.command))
        if job.array:
            command = scheduler.with_signal(command, chain)
        if job.nodes > 1:
            command = site.launch_command(command, nodes=job.nodes, cpus=job.cpus)
        lines = [
            "#!/bin/bash",
            *scheduler.head(job, site, chain),
            f"cd -- {quoted(folder)} || exit",
            " \\\n  ".join(unset),
            *site.setup,
            f"exec {command}",
        ]
        texts[f"{job.name}{scheduler.suffix}"] = "".join(f"{line}\n" for line in lines)
    texts[paths.submit.name] = f"{_submission(paths, site, chain, folder)}\n"
    _write(paths, {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()})
    return paths.submit


def _submission(paths: BuildPaths, site: Site, chain: Chain, folder: Path) -> str:
    """Return the text of submit.sh: the file of this name in this package, with the words in @...@ filled in."""
    scheduler = SCHEDULERS[site.scheduler]
    array, finish = f"array{scheduler.suffix}", f"finish{scheduler.suffix}"
    later, last = (scheduler.after(f"afterok:$plan,{kind}:$rounds") for kind in (scheduler.again, "afterany"))
    others = [f"submit array {scheduler.after('afterok:$plan')} {array}", "rounds=$id"]
    for number in range(2, chain.rounds + 1):
        others += [f"submit 'round {number}' {later} {array}  # finished blocks are skipped", "rounds+=:$id"]
    others += [f"submit finish {last} {finish}"]
    if chain.then is not None:
        others += [f"cd -- {quoted(folder)}", f"export STORE={quoted(paths.root.absolute())}"]
        others += [f"submit then {scheduler.after('afterok:$id')} {scheduler.with_store}{quoted(chain.then)}"]
    words = {
        "JOBS": quoted(paths.jobs.absolute()),
        "OUT": quoted(quoted(paths.root)),
        "SCHEDULER": site.scheduler,
        "PLAN": f"plan{scheduler.suffix}",
        "OTHER_JOBS": "\n".join(others),
        "UNKNOWN_JOB": quoted(scheduler.unknown_job),
        **{name.upper(): getattr(scheduler, name) for name in COMMANDS},
    }
    template = Path(__file__).with_name("submit.sh").read_text("utf-8")
    return re.sub("@([A-Z_]+)@", lambda word: words[word[1]], template.rstrip("\n"))


def _write(paths: BuildPaths, texts: Mapping[str, bytes]) -> None:
    """Write the scripts, unless others are there whose jobs may still run them."""
    there = {name: path.read_bytes() for name in texts if (path := paths.jobs / name).exists()}
    if there and there != texts:
        for name, states in job_states(paths.root).items():
            if states.queued:
                what = f"{name} of another submission may be in the queue ({next(iter(states.queued))})"
                advice = f"wait for its jobs, or run: prep cancel {quoted(paths.root)}"
                raise BuildError(f"{paths.jobs}: {what}; {advice}")
    make_folder(paths.jobs)
    for name, text in texts.items():
        write_atomic(paths.jobs / name, [text])
