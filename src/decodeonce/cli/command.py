"""What the commands of `prep` share: their classes, the values that they parse, and their common flags.

The classes add examples to the help, suggestions to errors, and the flags --quiet and --log.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from decodeonce import cli
from decodeonce.cli.examples import examples
from decodeonce.errors import DecodeonceError, Stopped
from decodeonce.store.layout import Paired

if TYPE_CHECKING:
    from decodeonce.store import Store
    from decodeonce.store.select import Selection

Click = Any  # an object of click, or of the copy of click in newer versions of Typer
USAGE_ERROR: Click = typer.BadParameter.__base__
QUIET = "Print only errors, warnings and --json output."
LOG = "Append events to FILE as JSON lines. If FILE is a folder (FILE/), each process writes its own file there."
LARGEST = 2**63 - 1
LEAST = 4096  # bytes; a smaller size without a unit is refused


def new_app(**settings: Any) -> typer.Typer:
    """Return a Typer app with plain-text help, because logs of batch jobs are read in editors."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def make_command(function: Callable[..., None], cls: type[Command], **settings: Any) -> Click:
    """Return the command that Typer makes from a function's signature and docstring."""
    app = new_app()
    app.command(cls=cls, **settings)(function)
    return typer.main.get_command(app)


def _format_examples(self: object, ctx: Click, formatter: Click) -> None:
    """Write the examples of a command or group. Each stays on one line, so that it can be pasted."""
    name, _, path = ctx.command_path.partition(" ")
    if lines := examples(path):
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"{'':{formatter.current_indent}}{line.replace('prep ', f'{name} ', 1)}\n")


class _Summarized:
    """A command whose line in a list of commands is the whole first sentence of its help."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the sentence uncut; the list wraps it, where click would cut it to one line."""
        return str(super().get_short_help_str(sys.maxsize))  # type: ignore[misc]


def usage_text(error: Click) -> str:
    """Return one line for a UsageError. If a command is missing, the line lists the commands."""
    text = " ".join(error.format_message().split())  # some messages have line breaks
    for words in ("Value error, ", "Invalid value: "):
        text = text.replace(words, "")
    if error.ctx and text == "Missing command.":
        text += f" Expected one of: {', '.join(error.ctx.command.list_commands(error.ctx))}."
    return text


def parameters(function: Callable[..., object]) -> list[Parameter]:
    """Return the parameters of a function with evaluated annotations."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def with_options(function: Callable[..., None], options: type, more: Iterable[Parameter] = ()) -> Callable[..., None]:
    """Return a function whose signature gives Typer a flag for each field of the dataclass `options`.

    `function` is called with an instance of the dataclass as `options`; a ValueError of the dataclass is a usage error.
    The flags `more` come first in the help.
    """

    def wrapped(**given: Any) -> None:
        with usage_errors():
            made = options(**{field.name: given.pop(field.name) for field in fields(options)})
        function(options=made, **given)

    own = [p for p in parameters(function) if p.name != "options" and p.kind is not Parameter.VAR_KEYWORD]
    wrapped.__signature__ = Signature([*own, *more, *parameters(options)])  # type: ignore[attr-defined]
    return wrapped


class Group(_Summarized, TyperGroup):
    """A group of commands; those in `lazy` are created on first use."""

    format_epilog = _format_examples
    lazy: ClassVar[Mapping[str, Callable[[], Click]]] = {}

    def list_commands(self, ctx: Click) -> list[str]:
        """Return the names in the order of the help."""
        return [*self.lazy, *(name for name in self.commands if name not in self.lazy)]

    def get_command(self, ctx: Click, name: str) -> Click:
        """Return the command; it is created only once."""
        if name in self.lazy and name not in self.commands:
            self.commands[name] = self.lazy[name]()
        return super().get_command(ctx, name)

    def resolve_command(self, ctx: Click, args: list[str]) -> tuple[str | None, Click, list[str]]:
        """Return the command that `args` begin with; a usage error if there is none."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(self.unknown_text(ctx, args))
        found: tuple[str | None, Click, list[str]] = super().resolve_command(ctx, args)
        return found

    def unknown_text(self, ctx: Click, args: list[str]) -> str:
        """Return the error for `args` that do not begin with a command."""
        names = self.list_commands(ctx)
        alike = difflib.get_close_matches(args[0], names, n=1)
        expected = f"did you mean {alike[0]}?" if alike else f"expected one of: {', '.join(names)}"
        return f"there is no command {args[0]!r}; {expected}"


class Command(_Summarized, TyperCommand):
    """A command whose help ends with its examples."""

    format_epilog = _format_examples

    def parse_args(self, ctx: Click, args: list[str]) -> list[str]:
        """Parse as click does, and attach the context to every error, so that the message names the right --help."""
        given = bool(args)
        try:
            if not ctx.resilient_parsing:  # which completes a line
                self._refuse_repeated(ctx, args)
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            self._explain(error, ctx, given)
            raise

    def _explain(self, error: Click, ctx: Click, given: bool) -> None:
        error.ctx = error.ctx or ctx
        if param := getattr(error, "param", None):
            error.message = _expected_number(param) or error.message
            if given and getattr(param, "nargs", 1) == -1:
                # `prep convert a.store`: click gives the only path to OUT, and reports that IN is missing.
                error.param = [param for param in self.params if param.param_type_name == "argument"][-1]

    def _refuse_repeated(self, ctx: Click, args: list[str]) -> None:
        """Raise a usage error if a flag that takes one value is repeated: click would use the last in silence."""
        order: list[Click] = self.make_parser(ctx).parse_args(args=list(args))[2]
        for param in order:
            takes_one = param.param_type_name == "option" and not (param.multiple or param.is_flag)
            if takes_one and order.count(param) > 1:
                raise typer.BadParameter(f"{param.opts[0]} is given {order.count(param)} times, but takes one value")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Name the arguments as messages do: SRC, IN..., [PATH]. Typer would write {SRC}."""
        pieces = ["[OPTIONS]"]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                name = f"{param.metavar or param.name.upper()}{'...' if param.nargs != 1 else ''}"
                pieces.append(name if param.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments without their Python types, then the flags below their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                name, text = record
                text = re.sub(r" *\[\S*\bx[<>]=\S+\]$", "", text)  # the range, as no other text writes it
                heading = getattr(param, "rich_help_panel", None) or "Options"
                if param.param_type_name == "argument":
                    heading, name = "Arguments", name.partition(" <")[0]
                sections.setdefault(heading, []).append((name, text))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class LoggedCommand(Command):
    """A command with --quiet and --log FILE.

    Its function does not take them: `output.say` and `output.count_bar` obey them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params += make_command(_quiet_and_log, Command).params

    def invoke(self, ctx: Click) -> object:
        """Run the command with the requested output and log."""
        cli.quiet = ctx.params.pop("quiet")
        if (file := ctx.params.pop("log_file")) is not None:
            from decodeonce.cli.log import begin

            begin(file)
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would end the command as if it were complete
            cli.drop_output(cli.results or sys.stdout)
            what = "the program that read the output has ended; completed work is kept"
            raise Stopped(f"{what}; run the same command again to resume") from None


class JsonCommand(Command):
    """A command with --json.

    Its function does not take it: `output.print_result` obeys it, and everything else is printed to standard error.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params += make_command(_json, Command).params

    def invoke(self, ctx: Click) -> object:
        """Run the command with the standard output for its result, or for its text."""
        cli.results = sys.stdout if ctx.params.pop("as_json") else None
        with redirect_stdout(sys.stderr) if cli.results else nullcontext():  # also what user code prints
            return super().invoke(ctx)


class ResultCommand(JsonCommand, LoggedCommand):
    """A command with --json, --quiet and --log FILE."""


def _quiet_and_log(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help=QUIET)] = False,
    log_file: Annotated[str | None, typer.Option("--log", help=LOG, metavar="FILE")] = None,
) -> None:
    """Define the flags of every `LoggedCommand`."""


def _expected_number(param: Click) -> str:
    """Return what a flag of numbers expects; "" for another. Newer versions of Typer would say it as pydantic does."""
    bounds = param if hasattr(param, "min") else param.type
    low, high = getattr(bounds, "min", None), getattr(bounds, "max", None)
    if low is None:
        return ""
    return f"expected a whole number from {low} to {high:,}" if high else f"expected a whole number of {low} or more"


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError into a usage error."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_size(text: str) -> tuple[int, int]:
    """Return (height, width) for "256" or "192x256"."""
    match = re.fullmatch(r"([0-9]{1,6})(?:x([0-9]{1,6}))?", text.strip().lower())
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (1 <= height <= 16384 and 1 <= width <= 16384):
        raise typer.BadParameter(f"--size {text}: expected pixels, 1 to 16384, such as 256 or 192x256 (HxW)")
    return height, width


def parse_bytes(text: str, flag: str = "--shard-size") -> int:
    """Return the bytes of "32GiB", "1.5TB" or "65536". A few bytes without a unit are refused: the unit is missing."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(?:([KMGT])(I?))?(B?)", text.strip().upper())
    number, prefix, binary, unit = match.groups() if match else ("0", "", "", "")
    size = int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix or " "))
    cut = prefix and not unit  # such as 32G or 32Gi
    if cut or not 1 <= size <= LARGEST:
        hint = f"; did you mean {number}{prefix}iB?" if cut else ""
        raise typer.BadParameter(f"{flag} {text}: expected a size such as 32GiB, 10GB or 500MiB{hint}")
    if size < LEAST and not unit:
        raise typer.BadParameter(f"{flag} {text}: {size} bytes cannot hold an image; did you mean {number}GiB?")
    return size


def parse_paired(texts: list[str]) -> dict[str, str]:
    """Return the folders of "mask=masks" and "target:rgb=targets" by "mask" and "target:rgb"."""
    found = dict(text.split("=", 1) for text in texts if "=" in text)
    with usage_errors():
        names = {Paired.parse(name).name for name in found}
    if len(names) < len(texts) or not all(found.values()):
        raise typer.BadParameter(f"--paired {' '.join(texts)}: expected NAME=DIR, such as mask=masks, each name once")
    return found


def parse_seed(text: str) -> int | None:
    """Return a seed, or None for "none"."""
    if text.strip().lower() == "none":
        return None
    if not re.fullmatch("[0-9]{1,19}", text.strip()) or int(text) > LARGEST:
        raise typer.BadParameter(f"--shuffle-seed {text}: expected an integer up to {LARGEST}, or none")
    return int(text)


def option(help_text: str, metavar: str | None = None, *, flag: str = "", **others: Any) -> Any:
    """Return a Typer option named `flag`, or like its parameter. A bool without `flag` would also get --no-X."""
    return typer.Option(*filter(None, [flag]), help=help_text, metavar=metavar, **others)


Out = Annotated[Path, typer.Argument(metavar="OUT", help="Store to create, or to resume if its build was stopped.")]
StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Finished store.")]
Workers = Annotated[int | None, option("Run N workers at the same time. (default: usable cores)", "N", min=1)]
DryRun = Annotated[bool, option("Print what would be written, and write nothing to OUT.", flag="--dry-run")]


def _json(
    as_json: Annotated[bool, option("Print one JSON object; text goes to standard error.", flag="--json")] = False,
) -> None:
    """Define the flag of every `JsonCommand`."""


def _class_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete --class with the classes of the first store on the command line."""
    from decodeonce import open_store

    with suppress(DecodeonceError, OSError):  # the words so far name no store
        return [one.name for one in open_store([*ctx.args, ""][0]).classes if one.name.startswith(incomplete)]
    return []


ClassOption = Annotated[
    list[str] | None,
    option(
        "Select rows of this class. Repeat the flag for more classes. (default: all)",
        "NAME",
        flag="--class",
        autocompletion=_class_names,
    ),
]
MatchOption = Annotated[
    str | None, option("Select rows whose source matches a pattern such as 'train/n01440764/*'. (default: all)", "GLOB")
]
RowsOption = Annotated[
    str | None, option("Select rows by a Python slice such as 0:1000 or -500:. (default: all)", "A:B")
]


def selection(names: list[str] | None, match: str | None, rows: str | None) -> Selection:
    """Return the selection of --class, --match and --rows."""
    from decodeonce.store.select import Selection, row_range

    with usage_errors():
        return Selection(tuple(names or ()), match, row_range(rows) if rows is not None else (None, None))


def selected_lines(
    store: Store, names: list[str] | None, match: str | None, rows: str | None
) -> Iterator[tuple[int, bytes]]:
    """Yield the rows that --class, --match and --rows select, each with its line of samples.tsv."""
    from decodeonce.store.select import select_lines

    with usage_errors():
        return select_lines(store, selection(names, match, rows))
