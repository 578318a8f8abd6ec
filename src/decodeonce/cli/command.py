"""What all commands of `prep` have in common: examples under their help; --quiet and --log where they do work."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from decodeonce.cli import log, output
from decodeonce.cli.examples import EXAMPLES
from decodeonce.cli.mistakes import did_you_mean

# click's UsageError, or that of the click inside newer Typers
USAGE_ERROR: Any = typer.BadParameter.__base__

QUIET = "Tell errors alone, and what --json asks for."
LOG = "Append what happens as JSON lines; in a folder (FILE/), each process to a file of its own."


class Group(TyperGroup):
    """Commands, of which the likeliest is named where none has the name that was typed."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        """As click does, in words of our own: some Typers guess, others do not."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            hint = did_you_mean(args[0], self.commands)
            few = f", expected {' or '.join(self.commands)}" if len(self.commands) < 4 else ""
            ctx.fail(f"No such command {args[0]!r}{hint or few}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A command whose help ends with its lines of `EXAMPLES`, each on a line of its own, as it is pasted."""

    def parse_args(self, ctx: Any, args: Any) -> Any:
        """As click does; every error knows its command, whose --help is named in it."""
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            error.ctx = error.ctx or ctx
            raise

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples below the options."""
        lines = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
        if lines:
            with formatter.section("Examples"):
                for line in lines:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Working(Command):
    """A command that does work: `app.command("name", cls=Working)(function)` gives it --quiet and --log FILE.

    The function takes neither; what it prints with `output.say` and counts with `progress.count_bar` follows them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params += _habits()

    def invoke(self, ctx: Any) -> Any:
        """Run the command, told and logged as asked."""
        quiet, file = ctx.params.pop("quiet"), ctx.params.pop("log_file")
        if file is not None:
            log.begin(file)
        with output.told_as_asked(quiet=quiet):
            return super().invoke(ctx)


def _habits() -> list[Any]:
    """The options that every working command has, as Typer makes them."""

    def habits(
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help=QUIET)] = False,
        log_file: Annotated[str | None, typer.Option("--log", help=LOG, metavar="FILE")] = None,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(habits)
    return list(typer.main.get_command(app).params)
