"""What all commands of `prep` have in common: examples under their help; --quiet and --log where they do work."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from inspect import Parameter, Signature
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from decodeonce.cli import log, output
from decodeonce.cli.examples import examples
from decodeonce.cli.mistakes import did_you_mean

# click's UsageError, or that of the click inside newer Typers
USAGE_ERROR: Any = typer.BadParameter.__base__

QUIET = "Tell errors alone, and what --json asks for."
LOG = "Append what happens as JSON lines; in a folder (FILE/), each process to a file of its own."


def new_app(**settings: Any) -> typer.Typer:
    """A Typer whose help is plain text, since people read logs of batch jobs in editors."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def make_command(function: Callable[..., None], cls: type[Command], **settings: Any) -> Any:
    """The command that Typer makes of a function's signature and docstring."""
    app = new_app()
    app.command(cls=cls, **settings)(function)
    return typer.main.get_command(app)


def _format_examples(self: Any, ctx: Any, formatter: Any) -> None:
    """Write the examples of a command, or of all commands of a group, each on one line as it is pasted."""
    name, _, path = ctx.command_path.partition(" ")
    if lines := examples(path):
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"{'':{formatter.current_indent}}{line.replace('prep ', f'{name} ', 1)}\n")


class _Summarised:
    """A line in a list of commands: the whole first sentence of its help."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """The whole sentence, which the list wraps; click would cut it to one line."""
        return str(super().get_short_help_str(sys.maxsize))  # type: ignore[misc]


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a function, with their annotations evaluated."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def with_options(function: Callable[..., None], options: type, more: Iterable[Parameter] = ()) -> Callable[..., None]:
    """The function for Typer to make a command of: it has a flag for each field of the dataclass `options`.

    `function` gets an instance of the dataclass as `options`. The flags `more` come first in the help.
    """

    def gathered(**given: Any) -> None:
        made = options(**{field.name: given.pop(field.name) for field in fields(options)})
        function(options=made, **given)

    own = [p for p in parameters(function) if p.name != "options" and p.kind is not Parameter.VAR_KEYWORD]
    gathered.__signature__ = Signature([*own, *more, *parameters(options)])  # type: ignore[attr-defined]
    return gathered


class Group(_Summarised, TyperGroup):
    """Commands. Those in `lazy` are made when they are needed. Errors name the commands, or the likeliest one."""

    format_epilog = _format_examples
    member = "command"  # what error messages call one of them
    lazy: ClassVar[Mapping[str, Callable[[], Any]]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """The names in the order of the help."""
        return [*self.lazy, *(name for name in self.commands if name not in self.lazy)]

    def get_command(self, ctx: Any, name: str) -> Any:
        """The command, which is made only once."""
        if name in self.lazy and name not in self.commands:
            self.commands[name] = self.lazy[name]()
        return super().get_command(ctx, name)

    def parse_args(self, ctx: Any, args: Any) -> Any:
        """As click does; the error for a missing command names the commands."""
        if not args and not ctx.resilient_parsing:
            ctx.fail(f"Missing {self.member}{self._expected(ctx)}")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        """As click does, with the same error message in every version of Typer."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not ctx.resilient_parsing:
            ctx.fail(f"No such {self.member} {name!r}{self._expected(ctx)}{did_you_mean(name, known)}")
        return super().resolve_command(ctx, args)

    def _expected(self, ctx: Any) -> str:
        known = self.list_commands(ctx)
        return f", expected one of {', '.join(known)}" if len(known) < 9 else ""


class Command(_Summarised, TyperCommand):
    """A command whose help ends with its examples."""

    format_epilog = _format_examples

    def parse_args(self, ctx: Any, args: Any) -> Any:
        """As click does; every error knows its command, whose --help is named in it."""
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            error.ctx = error.ctx or ctx
            raise


class LoggedCommand(Command):
    """A command that does work: it has --quiet and --log FILE.

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
        with output.quiet_if(quiet=quiet):
            return super().invoke(ctx)


def _habits() -> list[Any]:
    """The options that every working command has, as Typer makes them."""

    def habits(
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help=QUIET)] = False,
        log_file: Annotated[str | None, typer.Option("--log", help=LOG, metavar="FILE")] = None,
    ) -> None: ...

    return list(make_command(habits, Command).params)
