"""The commands of `prep`, by name; their modules import numpy, Pillow and h5py only when a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

import decodeonce
from decodeonce.cli import build, convert, doctor, export, inspect, repair, sample, stage, submit
from decodeonce.cli.bench import commands as bench
from decodeonce.cli.command import Command, Group, Working
from decodeonce.cli.output import colour_wanted, say
from decodeonce.cli.report import command as report

PLAN = "The first step of a build alone, with the same flags."

app = typer.Typer(
    cls=Group,
    help="Decode pictures once into fixed-shape arrays, and look after the stores that makes.",
    rich_markup_mode=None,  # plain text: logs of batch jobs are read in editors
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "color": colour_wanted()},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        say(f"prep {decodeonce.__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version and exit.")
]


@app.callback()
def _flags_of_all(version: Version = False) -> None:
    """What `prep` takes before a command's name."""


app.command("build", cls=Working, help="Plan, decode and finish: pictures to a store.")(build.command(build.run_build))
app.command("plan", cls=Working, help=PLAN)(build.command(build.run_plan))
app.command("work", cls=Working)(build.work)
app.command("finish", cls=Working)(build.finish)
app.add_typer(submit.app, name="submit")
app.add_typer(bench.app, name="bench")
app.command("status", cls=Command)(inspect.status)
app.command("info", cls=Command)(inspect.info)
app.command("verify", cls=Working)(inspect.verify)
app.command("repair", cls=Working)(repair.repair)
app.command("ls", cls=Command)(inspect.ls)
app.command("show", cls=Working)(inspect.show)
app.command("report", cls=Working)(report.report)
app.command("convert", cls=Working)(convert.convert)
app.command("stage", cls=Working)(stage.stage)
app.command("export", cls=Working)(export.export)
app.command("sample", cls=Working)(sample.sample)
app.command("doctor", cls=Command)(doctor.doctor)
