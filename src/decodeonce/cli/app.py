"""The commands of `prep`, by name; their modules import numpy, Pillow and h5py only when a command runs."""

from __future__ import annotations

from typing import Any

import typer

from decodeonce.cli import build, convert, doctor, export, inspect, repair, sample, stage, submit

# click's UsageError, or that of the click inside newer Typers
USAGE_ERROR: Any = typer.BadParameter.__base__

app = typer.Typer(
    help="Decode pictures once into fixed-shape arrays, and look after the stores that makes.",
    rich_markup_mode=None,  # plain text: logs of batch jobs are read in editors
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("build", help="Plan, decode and finish: pictures to a store.")(build.command(build.run_build))
app.command("plan", help="The first step of a build alone, with the same flags.")(build.command(build.run_plan))
app.command("work")(build.work)
app.command("finish")(build.finish)
app.add_typer(submit.app, name="submit")
app.command("status")(inspect.status)
app.command("info")(inspect.info)
app.command("verify")(inspect.verify)
app.command("repair")(repair.repair)
app.command("ls")(inspect.ls)
app.command("show")(inspect.show)
app.command("convert")(convert.convert)
app.command("stage")(stage.stage)
app.command("export")(export.export)
app.command("sample")(sample.sample)
app.command("doctor")(doctor.doctor)
