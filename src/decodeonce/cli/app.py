"""The commands of `prep`. A command's module is imported when the command runs or when the help lists all commands.

Help and shell completion must be fast. At its top, a command's module therefore imports only what needs neither NumPy
nor Pillow nor torch; its functions import the rest.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from typing import Annotated, ClassVar

import typer

import decodeonce
from decodeonce.cli.command import Click, Command, Group, JsonCommand, LoggedCommand, ResultCommand, make_command
from decodeonce.cli.output import say

# The commands below the headings of the help, each with its module in this package, whose function or group it is.
COMMANDS = {
    "Build": {"build": "build", "plan": "build", "work": "build", "finish": "build"},
    "Jobs": {"submit": "submit", "status": "inspect", "logs": "inspect", "cancel": "cancel"},
    "Look": {"info": "inspect", "ls": "inspect", "show": "inspect", "report": "report"},
    "Change": {"convert": "convert", "column": "column", "stage": "stage"},
    "Check": {"verify": "inspect", "repair": "repair", "doctor": "doctor"},
}
# The classes of commands that are not a LoggedCommand.
CLASSES = {
    **dict.fromkeys(("logs", "ls"), Command),
    **dict.fromkeys(("status", "info", "doctor"), JsonCommand),
    **dict.fromkeys(("finish", "convert", "stage", "verify", "repair"), ResultCommand),
}


def _print_version(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        say(f"{ctx.info_name} {decodeonce.__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
]


def _flags_of_all(version: Version = False) -> None:
    """Define the flags of `prep` itself."""


def _make(name: str, module: str) -> Click:
    command = getattr(import_module(f"decodeonce.cli.{module}"), name)
    if isinstance(command, typer.Typer):
        return typer.main.get_command(command)
    return make_command(command, CLASSES.get(name, LoggedCommand))


class Prep(Group):
    """The group of all commands."""

    lazy: ClassVar = {
        name: partial(_make, name, module) for group in COMMANDS.values() for name, module in group.items()
    }

    def format_commands(self, ctx: Click, formatter: Click) -> None:
        """Write the commands below their headings."""
        for heading, group in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.get_command(ctx, name).get_short_help_str()) for name in group])


app = typer.Typer(
    cls=Prep,
    help="Decode images once into fixed-shape arrays, and inspect, convert and repair the stores of these arrays.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": sys.maxsize,  # use the full width of the terminal; click stops at 80 columns
    },
)
app.callback()(_flags_of_all)
