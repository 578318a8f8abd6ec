"""`prep submit slurm` and `prep submit pbs`: write a build as a chain of jobs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodeonce.cli import STOPPING, command, program
from decodeonce.cli.build import BuildRequest, kinds_app, say_storage
from decodeonce.cli.command import Command, Group, ResultCommand, option
from decodeonce.cli.examples import examples
from decodeonce.cli.output import print_result, say
from decodeonce.errors import BuildError, Stopped
from decodeonce.formatting import quoted
from decodeonce.prep.jobs import SCHEDULERS
from decodeonce.prep.paths import BuildPaths

if TYPE_CHECKING:
    from decodeonce.prep.jobs.base import Chain, Site

BuildCommand = Annotated[
    list[str],
    typer.Argument(metavar="build KIND SRC OUT [FLAGS]", help="A `prep build` command with any of its flags."),
]

STOPPED_SCRIPT = 130  # the exit status of submit.sh after it cancelled its jobs because of a signal

submit = command.new_app(
    cls=Group, help="Write the job scripts of a build for a batch system: plan, an array of tasks, finish."
)


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The flags of `prep submit`, the same for every batch system."""

    tasks: Annotated[int, option("Run the build as an array of N elements.", "N", min=1)]
    rounds: Annotated[int, option("Submit the array N times; each round resumes the previous one.", "N", min=1)] = 1
    account: Annotated[str | None, option("Charge this project. (default: that of the site)", "NAME")] = None
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            "--partition",
            metavar="NAME",
            help="Submit to this queue, partition or QOS. (default: that of the site)",
        ),
    ] = None
    time: Annotated[
        str | None, option("Limit each job to this time, such as 4:00:00. (default: that of the site)", "H:MM:SS")
    ] = None
    cpus: Annotated[int | None, option("Request N cores per node; required unless the site sets it.", "N", min=1)] = (
        None
    )
    mem: Annotated[
        str | None, option("Request this memory per node, such as 64GiB or 64G. (default: that of the site)", "BYTES")
    ] = None
    nodes: Annotated[int | None, option("Use N nodes per element, with one task each. (default: 1)", "N", min=1)] = None
    site: Annotated[
        str | None, option("Use this site profile, by name or path. (default: generic-slurm or generic-pbs)", "NAME")
    ] = None
    max_running: Annotated[
        int | None, option("Run at most N elements at the same time. (default: no limit)", "N", min=1)
    ] = None
    mail: Annotated[
        str | None, option("Send an email here when the build ends or its plan fails. (default: none)", "ADDRESS")
    ] = None
    then: Annotated[
        Path | None,
        option("Run this job script, with STORE set to OUT, after the build has succeeded. (default: none)", "FILE"),
    ] = None
    directive: Annotated[
        list[str] | None,
        option(
            "Add this option of the batch system to each job, such as --reservation=x. Repeat the flag for more.",
            "TEXT",
        ),
    ] = None
    submit: Annotated[bool, option("Submit the jobs instead of only writing them.", flag="--submit")] = False

    def profile(self, scheduler: str) -> Site:
        """Return the profile of the site."""
        from decodeonce.prep.jobs.site import read_site

        profile = read_site(self.site or f"generic-{scheduler}")
        if profile.scheduler != scheduler:
            advice = f"run: prep submit {profile.scheduler} ..."
            raise typer.BadParameter(f"--site {self.site} uses {profile.scheduler}; {advice}")
        return profile

    def chain(self, site: Site) -> Chain:
        """Return the chain of jobs; flags that were not given take their values from the site."""
        from decodeonce.prep.jobs.base import Chain

        given = {name: value for name, value in vars(self).items() if value is not None}
        settings: dict[str, Any] = {**site.defaults, **given}
        if missing := [name for name in ("cpus", *site.needs) if name not in settings]:
            flag = missing[0].replace("_", "-")
            raise typer.BadParameter(f"--{flag} is required ({site.name}), as in {_example(site.scheduler)}")
        if self.then is not None and not self.then.is_file():
            raise typer.BadParameter(f"--then {self.then}: no such file; expected a job script")
        settings["directives"] = tuple(settings.pop("directive", ()))
        settings |= {"seconds": _seconds(settings.get("time")), "mem": _memory(settings.get("mem"))}
        with command.usage_errors():
            return Chain(**{name: value for name, value in settings.items() if name not in ("time", "site", "submit")})


def _submit_command(scheduler: str) -> Callable[..., None]:
    def submit_build(words: BuildCommand, options: JobOptions) -> None:
        words = _build_words(words, scheduler)
        profile = options.profile(scheduler)
        chain = options.chain(profile)
        build = kinds_app(lambda request: _write(request, words, profile, chain, submit=options.submit), "", Command)
        build(words, prog_name="prep build", standalone_mode=False)

    return command.with_options(submit_build, JobOptions)


def _build_words(words: Sequence[str], scheduler: str) -> list[str]:
    """Return the words after "build". They go into job scripts, so URLs with a password or a query are refused."""
    from decodeonce.remote import check_url

    if words[0] != "build":
        raise typer.BadParameter(f"expected a build command, as in {_example(scheduler)}")
    for word in words:
        check_url(word)
    return list(words[1:])


def _example(scheduler: str) -> str:
    return examples(f"submit {scheduler}")[0]


def _seconds(text: str | None) -> int | None:
    """Return the seconds of "4:00:00" or "1-12:00:00"."""
    if text is None:
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", text)
    if match is None:
        raise typer.BadParameter(f"--time {text}: expected H:MM:SS, such as 4:00:00, or D-HH:MM:SS")
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _memory(text: str | None) -> str | None:
    """Return a size for batch systems: "64G" as it is, "64GiB" in MiB."""
    if text is None or re.fullmatch("[0-9]+[KMGT]", text):
        return text
    return f"{max(1, command.parse_bytes(text, '--mem') >> 20)}M"


def _write(request: BuildRequest, words: Sequence[str], site: Site, chain: Chain, *, submit: bool) -> None:
    from decodeonce.prep.jobs.chain import write_scripts

    script = write_scripts(request.out, site, chain, _commands(request, words, chain), Path.cwd())
    say_storage(request.out)
    for sentence in site.advice:
        say(f"{site.name}: {sentence}")
    jobs = f"plan, array of {chain.tasks} (round 1 of {chain.rounds}) and finish"
    say(f"{script.parent}: wrote scripts for {jobs}; logs will be here, too")
    ids = _run_submit_script(script) if submit else ""
    if submit:
        say(f"submitted: {ids}; to see its progress, run: prep status {quoted(request.out)}")
    else:
        say(f"to submit them, run: bash {quoted(script)}")
    print_result({"out": str(request.out), "script": str(script), "job_ids": ids.split()})


def _commands(request: BuildRequest, words: Sequence[str], chain: Chain) -> list[list[str]]:
    """Return the commands of plan, array and finish."""
    from decodeonce.formatting import no_option

    prep, out = _program_command(), no_option(request.out)
    log = ["--log", f"{BuildPaths(request.out).jobs}/logs/"]
    allowed = ["--max-bad", request.how.max_bad]
    work = [*prep, "work", out, "--tasks", str(chain.processes), *allowed, "--on-bad", request.how.on_bad]
    # Not every batch system hides the cores of other jobs, so the default number of workers could be too high.
    work += ["--workers", str(request.how.workers or chain.cpus)]
    return [[*prep, "plan", *words, *log], [*work, *log], [*prep, "finish", out, *allowed, *log]]


def _program_command() -> list[str]:
    """The command line that starts this command in a job: its script next to Python, or its module."""
    script = Path(sys.executable).with_name(program())
    return [str(script)] if script.exists() else [sys.executable, "-m", "decodeonce.cli"]


def _run_submit_script(script: Path) -> str:
    """Run the submit script; return the job ids that it printed. On Ctrl-C or SIGTERM, let it cancel its jobs."""
    pipe = subprocess.PIPE
    running = subprocess.Popen(
        ["bash", script], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )

    def stop_script(number: int, frame: object) -> None:
        running.terminate()

    before = {number: signal.signal(number, stop_script) for number in STOPPING}
    try:
        output, errors = running.communicate()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    problem = " ".join((errors or output).split()) or f"exit status {running.returncode}"
    if running.returncode == STOPPED_SCRIPT:
        raise Stopped(f"{script}: {problem}; run the same command again")
    if running.returncode:
        raise BuildError(f"{script}: not submitted: {problem}; fix this and run: bash {quoted(script)}")
    return output.strip()


for _scheduler in SCHEDULERS:
    submit.command(
        _scheduler,
        cls=ResultCommand,
        context_settings={"ignore_unknown_options": True},
        help="Write the jobs of a build into OUT.jobs: plan, array, finish, and a script that submits them.",
    )(_submit_command(_scheduler))
