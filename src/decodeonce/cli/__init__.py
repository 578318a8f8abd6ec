"""The command `prep`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from types import FrameType

from decodeonce.errors import DecodeonceError, Stopped, failure_from

EXIT_FAILED, EXIT_USAGE, EXIT_STOPPED = 1, 2, 75
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU)
GC_THRESHOLD = 20_000  # Python's 700 collects 60 times while modules are imported: 20 ms
PROGRAMS = ("prep", "decodeonce")  # the package installs the command under both names
LAST_BLOCKS = signal.SIGUSR1  # what a job asks its batch system to send some time before its limit


def main() -> None:
    """Run `prep`; a failure is one line on standard error and an exit code: 1 failed, 2 usage, 75 go on later."""
    for number in STOPPING:
        signal.signal(number, _stop)
    signal.signal(LAST_BLOCKS, _end_with_blocks)
    gc.set_threshold(GC_THRESHOLD)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads, unused here, spin for 30 ms once imported
    code: int | None = EXIT_FAILED
    try:
        code = _run()
    finally:
        # The outcome stands: Python at its end puts the defaults back, and a late signal would kill.
        for number in (*STOPPING, LAST_BLOCKS):
            signal.signal(number, signal.SIG_IGN)
        _end_log(code or 0)
    gc.freeze()  # else Python looks through everything that was imported once more before it exits: 50 ms
    sys.exit(code)


def program() -> str:
    """The name that the command was called by."""
    name = os.path.basename(sys.argv[0])
    return name if name in PROGRAMS else PROGRAMS[0]


def _run() -> int | None:
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names need not be UTF-8
    try:
        with _worker_started(sys.argv[1:]):
            return _run_command()
    except DecodeonceError as error:
        return _print_failure(error)
    except OSError as error:
        return _print_failure(failure_from(error, "prep"))
    except MemoryError:
        return _print_failure(Stopped("out of memory; what is done is kept: run the same command again with more"))


def _run_command() -> int | None:
    from decodeonce.cli.app import app
    from decodeonce.cli.command import USAGE_ERROR
    from decodeonce.cli.mistakes import usage_text

    try:
        code: int | None = app(sys.argv[1:] or ["--help"], prog_name=program(), standalone_mode=False)
        return code
    except USAGE_ERROR as error:
        command = error.ctx.command_path if error.ctx else program()
        return _print_error(f"prep: error: {usage_text(error)} (see {command} --help)", EXIT_USAGE)
    except SystemExit as ended:  # which click makes of a closed pipe, and of nothing else here
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `prep ls STORE | head` is no failure
        return None


def _worker_started(arguments: list[str]) -> AbstractContextManager[None]:
    """For a build, start a worker process before anything else: both processes then import at the same time.

    That takes 0.2 to 0.3 s of each. A worker that is not used, as of a wrong command line, is killed.
    """
    if arguments[:1] not in (["build"], ["convert"]) or {"--help", "-h", "--dry-run"} & {*arguments}:
        return nullcontext()
    from decodeonce.prep.processes.child import started_early

    return started_early("decodeonce.prep.build.worker")


def _open_streams() -> None:
    """Where a standard stream is closed, have /dev/null: else the next file to be opened would be taken for it."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def _stop(number: int, frame: FrameType | None) -> None:
    """End here and now: a build may be killed at any moment, and an exception raised from a signal can be swallowed

    (by a finaliser, by an import) or come out of a library as another one.
    """
    for later in STOPPING:
        signal.signal(later, signal.SIG_DFL)
    _call_imported("prep.processes.child", "kill_children")
    _call_imported("cli.bench.trial", "remove_scratch")
    told = f"prep: stopped: {signal.Signals(number).name}; what is done is kept: run the same command again to go on"
    _end_log(EXIT_STOPPED, told)
    write_error(f"{chr(10) if os.isatty(2) else ''}{told}")
    os._exit(EXIT_STOPPED)


def _end_with_blocks(number: int, frame: FrameType | None) -> None:
    """Begin no further block; where no pool can be, end as with the other signals."""
    if not _call_imported("prep.build.worker_pool", "end_with_blocks"):
        _stop(number, frame)


def _call_imported(module: str, name: str, *arguments: object) -> bool:
    """Call a function of a module, unless the module is not imported yet, or only in part, when a signal arrives."""
    function = getattr(sys.modules.get(f"decodeonce.{module}"), name, None)
    if function is not None:
        function(*arguments)
    return function is not None


def _print_failure(error: DecodeonceError) -> int:
    if isinstance(error, Stopped):
        return _print_error(f"prep: stopped: {error}", EXIT_STOPPED)
    return _print_error(f"prep: error: {error}", EXIT_FAILED)


def _print_error(message: str, code: int) -> int:
    line = " ".join(message.splitlines())
    print(printable(line), file=sys.stderr)
    _call_imported("cli.log", "message", line)
    return code


def _end_log(code: int, message: str = "") -> None:
    """Have the outcome in the file of --log; without a message it is the last that was told."""
    _call_imported("cli.log", "end", code, message)


def write_error(line: str) -> None:
    """Print a line on standard error, from anywhere, a signal's handler as well."""
    os.write(2, f"{line}\n".encode("utf-8", "backslashreplace"))


def printable(text: str) -> str:
    """The text with escapes for what a terminal would not show, or would obey: names may hold such."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
