"""`prep submit slurm` and `prep submit pbs`: a build as a chain of jobs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodeonce.cli import build, parse
from decodeonce.cli.command import Group, Working
from decodeonce.cli.output import say
from decodeonce.formatting import quoted

if TYPE_CHECKING:
    from decodeonce.prep.jobs import Chain, Site

EXAMPLE = "prep submit {} build imagenet SRC OUT --tasks 16 --cpus 32 --time 4:00:00"
Words = Annotated[
    list[str],
    typer.Argument(metavar="build KIND SRC OUT [FLAGS]", help="A whole `prep build` command, with any of its flags."),
]
Tasks = Annotated[int, typer.Option(metavar="N", min=1, help="Elements of the array.")]
Rounds = Annotated[
    int, typer.Option(metavar="N", min=1, help="How often the array is sent: what is done is skipped in seconds.")
]
Account = Annotated[str | None, typer.Option(metavar="NAME", help="The project that is charged.")]
Queue = Annotated[str | None, typer.Option("--queue", "--partition", metavar="NAME", help="Queue, partition, or QOS.")]
Time = Annotated[str | None, typer.Option(metavar="H:MM:SS", help="Limit of each job, as 4:00:00.")]
Cpus = Annotated[int | None, typer.Option(metavar="N", min=1, help="Cores a node.")]
Mem = Annotated[str | None, typer.Option(metavar="BYTES", help="Memory a node, as 64GiB, or 64G as batch systems say.")]
Nodes = Annotated[int | None, typer.Option(metavar="N", min=1, help="Nodes of an element, a task each. (default: 1)")]
SiteOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="A site's profile, by name, or the path of your own.")
]
Throttle = Annotated[int | None, typer.Option(metavar="N", min=1, help="Elements that run at a time.")]
Then = Annotated[Path | None, typer.Option(metavar="FILE", help="A job script for after a good finish; $STORE is OUT.")]
Submit = Annotated[bool, typer.Option("--submit", help="Submit them, too.")]

app = typer.Typer(cls=Group, help="Write the jobs of a build for a batch system, as a chain: plan, an array, finish.")


def command(scheduler: str) -> Callable[..., None]:
    """The command line of `prep submit SCHEDULER`."""

    def parsed(
        words: Words,
        tasks: Tasks,
        rounds: Rounds = 1,
        account: Account = None,
        queue: Queue = None,
        time: Time = None,
        cpus: Cpus = None,
        mem: Mem = None,
        nodes: Nodes = None,
        site: SiteOption = None,
        throttle: Throttle = None,
        then: Then = None,
        submit: Submit = False,
    ) -> None:
        """Write the jobs of a build into OUT.jobs: plan, an array of tasks, finish, and a script that submits them."""
        from decodeonce.prep.jobs import read_site

        profile = read_site(site or f"generic-{scheduler}")
        if profile.scheduler != scheduler:
            raise typer.BadParameter(f"--site {site} is of {profile.scheduler}: prep submit {profile.scheduler} ...")
        flags = {"account": account, "queue": queue, "time": time, "cpus": cpus, "mem": _memory(mem), "nodes": nodes}
        flags["throttle"] = throttle
        given = {name: value for name, value in flags.items() if value is not None}
        chain = _chain(profile, {**profile.defaults, **given}, tasks=tasks, rounds=rounds, then=then)
        _parse_build(words, lambda job: _write(job, words[1:], profile, chain, submit=submit), scheduler)

    return parsed


def _chain(site: Site, flags: dict[str, Any], **others: Any) -> Chain:
    from decodeonce.prep.jobs import Chain

    if missing := [name for name in ("cpus", *site.needs) if name not in flags]:
        raise typer.BadParameter(f"--{missing[0]} is needed ({site.name}); as in {EXAMPLE.format(site.scheduler)}")
    seconds = _seconds(flags.pop("time", None))
    try:
        chain = Chain(seconds=seconds, **flags, **others)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if chain.then is not None and not chain.then.is_file():
        raise typer.BadParameter(f"--then {chain.then}: no such file; expected a job script")
    return chain


def _seconds(text: str | None) -> int | None:
    """Seconds of "4:00:00" or "1-12:00:00"."""
    if text is None:
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", text)
    if match is None:
        raise typer.BadParameter(f"--time {text}: expected H:MM:SS, as 4:00:00, or D-HH:MM:SS")
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _memory(text: str | None) -> str | None:
    """A size as batch systems read it: "64G" as it is, "64GiB" or "64GB" in whole MiB; a number alone is refused."""
    if text is None or re.fullmatch("[0-9]+[KMGT]?", text):
        return text
    return f"{max(1, parse.byte_size(text, '--mem') >> 20)}M"


def _parse_build(words: Sequence[str], then: Callable[[build.Job], None], scheduler: str) -> None:
    """Read the words as `prep build` does, and hand on what it would do."""
    if not words or words[0] != "build":
        raise typer.BadParameter(f"expected the words of a build, as in {EXAMPLE.format(scheduler)}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(build.command(then))
    typer.main.get_command(app)(list(words[1:]), prog_name="prep build", standalone_mode=False)


def _write(job: build.Job, words: Sequence[str], site: Site, chain: Chain, *, submit: bool) -> None:
    from decodeonce.prep.jobs import write_scripts

    if job.dry_run:
        from decodeonce.cli.dryrun import InJobs

        build.say_found(job)
        return build.say_dry_run(job, InJobs(chain, job.work.workers or chain.cpus))
    script = write_scripts(job.out, site, chain, _commands(job, words, chain), Path.cwd())
    build.say_storage(job.out)
    for sentence in site.advice:
        say(f"{site.name}: {sentence}")
    say(f"{script.parent}: plan, array of {chain.tasks} (round 1 of {chain.rounds}), finish; logs come here, too")
    if submit:
        say(f"submitted: {_submitted(script)}; follow it with: prep status {quoted(str(job.out))}")
    else:
        say(f"submit them with: bash {quoted(str(script))}")


def _commands(job: build.Job, words: Sequence[str], chain: Chain) -> list[list[str]]:
    """What plan, array and finish run."""
    from decodeonce.prep.jobs import no_option
    from decodeonce.store import StorePaths

    prep, out = _prep(), no_option(job.out)
    log = ["--log", f"{StorePaths(job.out).jobs}/logs/"]
    allowed = ["--max-bad", job.work.max_bad]
    work = [*prep, "work", out, "--tasks", str(chain.processes), *allowed, "--on-bad", job.work.on_bad]
    # Named, since not every batch system keeps a task from seeing cores that are not its own.
    work += ["--workers", str(job.work.workers or chain.cpus)]
    return [[*prep, "plan", *log, *words], [*work, *log], [*prep, "finish", out, *allowed, *log]]


def _prep() -> list[str]:
    """How a job calls this very prep: by its script beside Python, else by its module."""
    script = Path(sys.executable).with_name("prep")
    return [str(script)] if script.exists() else [sys.executable, "-m", "decodeonce.cli"]


def _submitted(script: Path) -> str:
    """Run the script that submits; returns the ids it printed."""
    from decodeonce.errors import BuildError

    done = subprocess.run(["bash", str(script)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        told = " ".join((done.stderr or done.stdout).split()) or f"exit status {done.returncode}"
        raise BuildError(f"{script}: not submitted: {told}; mend that and run: bash {quoted(str(script))}")
    return done.stdout.strip()


for _scheduler in ("slurm", "pbs"):
    app.command(_scheduler, cls=Working, context_settings={"ignore_unknown_options": True})(command(_scheduler))
