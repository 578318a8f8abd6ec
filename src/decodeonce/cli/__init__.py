"""The command `prep`."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO

from decodeonce.errors import DecodeonceError, Stopped, failure_from
from decodeonce.formatting import without_secrets
from decodeonce.prep import user_code

if TYPE_CHECKING:
    import mmap

EXIT_SECONDS = 2.0  # that threads of imported code may take to end
EXIT_FAILED, EXIT_USAGE, EXIT_STOPPED = 1, 2, 75
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU)
GC_THRESHOLD = 20_000  # with Python's default, 700, importing the modules triggers 60 collections: 20 ms
_started = time.monotonic()
PROGRAMS = ("prep", "decodeonce")  # the package installs the command under both names
LAST_BLOCKS = signal.SIGUSR1  # jobs ask their batch system to send it some time before the time limit
quiet = False  # whether --quiet is given
results: TextIO | None = None  # with --json, the standard output, which is only for the JSON object of the result
outcome: mmap.mmap | None = None  # for the parent of a child that runs user code (apart.py)
# Its records are the name of an event and its facts, for --log FILE. A user's code cannot find and configure it.
events = logging.Logger("decodeonce.events")
events.propagate = False


def main() -> None:
    """Run `prep`. A failure prints one line on standard error and sets the exit code.

    The code is 1 if the command failed, 2 for a usage error, and 75 if it stopped and the same command resumes it.
    """
    for number in STOPPING:
        signal.signal(number, stop)
    signal.signal(LAST_BLOCKS, _stop_after_blocks)
    gc.set_threshold(GC_THRESHOLD)
    logging.getLogger("decodeonce").propagate = False  # a user's module that configures logging would print them again
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # unused here, and its threads spin for 30 ms
    code: int | None = EXIT_FAILED
    try:
        user_code.before_import = lambda name: import_module("decodeonce.cli.apart").before_import(name)
        code = _run()
    finally:
        # Python restores the default handlers when it exits, and a late signal would then change the exit code.
        for number in (*STOPPING, LAST_BLOCKS):
            signal.signal(number, signal.SIG_IGN)
        log_outcome(code or 0)
    try:
        sys.stderr.flush()
    except OSError:  # nobody reads it, or its disk is full; Python would fail again when it exits, with code 120
        drop_output(sys.stderr)
    _set_outcome(code or 0)
    if outcome is not None:
        _limit_exit_time(code or 0)  # without gc.freeze(): a library would print what was not collected
    else:
        gc.freeze()  # otherwise Python scans all imported objects again before it exits: 50 ms
    sys.exit(code)


def _set_outcome(code: int) -> None:
    """Tell the parent of a child that runs user code that the command has completed with this exit code."""
    if outcome is not None:
        outcome[:2] = bytes((True, code))


def _limit_exit_time(code: int) -> None:
    """End this process soon if imported code, such as a dataset, left threads running. Python would wait for them."""

    def leave() -> None:
        write_error("prep: threads of imported code are still running and were ended")
        os._exit(code)

    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        sys.stdout.flush()
        timer = threading.Timer(EXIT_SECONDS, leave)
        timer.daemon = True
        timer.start()


def program() -> str:
    """The name that the command was called by."""
    name = os.path.basename(sys.argv[0])
    return name if name in PROGRAMS else PROGRAMS[0]


def _run() -> int | None:
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # file names may not be UTF-8
    failed: DecodeonceError | OSError | ImportError | MemoryError
    try:
        _refuse_secrets_with_spaces(sys.argv[1:])
        with _first_worker(sys.argv[1:]):
            return _run_command()
    except (DecodeonceError, OSError, ImportError, MemoryError) as error:
        failed = error.with_traceback(None)  # which would keep the memory of the command
    return _print_failure(failed)


def _print_failure(error: DecodeonceError | OSError | ImportError | MemoryError) -> int:
    failure: Exception = error
    if isinstance(error, OSError):
        failure = failure_from(error, "prep")
    elif isinstance(error, ImportError):
        failure = DecodeonceError(f"a package cannot be imported: {error}; run: prep doctor")
    elif isinstance(error, MemoryError):
        failure = Stopped("out of memory; completed work is kept; run the same command again with more memory")
    if isinstance(failure, Stopped):
        return _print_error(f"prep: stopped: {failure}", EXIT_STOPPED)
    return _print_error(f"prep: error: {failure}", EXIT_FAILED)


def _refuse_secrets_with_spaces(words: list[str]) -> None:
    """Raise DecodeonceError if a web address has a secret and a space; messages remove a secret only up to it."""
    for word in words:
        if len(word.split()) > 1 and (cut := without_secrets(word, word=True)) != word:
            problem = "the URL also has a password or a query, and a space"
            raise DecodeonceError(f"{cut}: {problem}; write %20 for the space")


def _run_command() -> int | None:
    from decodeonce.cli.app import app
    from decodeonce.cli.command import USAGE_ERROR, usage_text

    try:
        code: int | None = app(sys.argv[1:] or ["--help"], prog_name=program(), standalone_mode=False)
        return code
    except USAGE_ERROR as error:
        command = error.ctx.command_path if error.ctx else program()
        return _print_error(f"prep: error: {usage_text(error)} (see {command} --help)", EXIT_USAGE)
    except SystemExit as ended:  # click raises it here only for a closed pipe
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        drop_output(sys.stdout)  # `prep ls STORE | head` must not fail
        return None


def drop_output(stream: TextIO) -> None:
    """Drop what is written to a stream from now on, because no process reads it; otherwise Python fails at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _first_worker(arguments: list[str]) -> AbstractContextManager[None]:
    """Start the first worker process of a build early, so that both processes import modules at the same time.

    The imports take 0.2 to 0.3 s in each process. A worker that is not used, such as after a usage error, is killed.
    """
    if arguments[:1] not in (["build"], ["convert"]) or {"dataset", "--help", "-h", "--dry-run"} & {*arguments}:
        return nullcontext()
    from decodeonce.prep.processes.child import BLOCK_WORKER, started_early

    return started_early(BLOCK_WORKER)


def _open_streams() -> None:
    """Open /dev/null for closed standard streams; otherwise the next opened file would get their descriptor."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """End the process immediately, without an exception.

    A build can be killed at any moment without loss. An exception raised in a signal handler can be swallowed by a
    finaliser or an import, or leave a library as a different one.
    """
    for later in STOPPING:
        signal.signal(later, signal.SIG_DFL)
    signal.signal(LAST_BLOCKS, signal.SIG_IGN)  # a child may get it twice: from its job and from its parent
    _call_imported("prep.processes.child", "kill_children")
    name = signal.Signals(number).name
    message = f"prep: stopped: {name}; run the same command again; builds and staging then resume"
    log_outcome(EXIT_STOPPED, message)
    write_error(f"{chr(10) if os.isatty(2) else ''}{message}")
    _set_outcome(EXIT_STOPPED)
    os._exit(EXIT_STOPPED)


def _stop_after_blocks(number: int, frame: FrameType | None) -> None:
    """Finish the blocks in progress and start no others; without worker processes, stop as for the other signals."""
    if not _call_imported("prep.building.pool", "stop_after_blocks"):
        stop(number, frame)


def _call_imported(module: str, name: str) -> bool:
    """Call a function of a module if the module is imported; a signal may arrive before or during its import."""
    function = getattr(sys.modules.get(f"decodeonce.{module}"), name, None)
    if function is not None:
        function()
    return function is not None


def _print_error(message: str, code: int) -> int:
    line = without_secrets(" ".join(message.splitlines()))
    shown = fitted(line, sys.stderr)
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb":
        shown = re.sub(r"(?<=^prep: )\w+:", "\x1b[1m\\g<0>\x1b[0m", shown, count=1)  # in bold
    print(shown, file=sys.stderr)
    events.info("message", {"message": line})
    return code


def log_outcome(code: int, message: str = "") -> None:
    """Log how the command ended, with `message` or the last one, and end the log."""
    outcome = {0: "finished", EXIT_STOPPED: "stopped"}.get(code, "failed")
    seconds = round(time.monotonic() - _started, 3)
    events.info(outcome, {"exit_code": code, "message": message, "seconds": seconds})
    events.handlers.clear()


def write_error(line: str) -> None:
    """Write a line to standard error; safe to call in a signal handler."""
    os.write(2, f"{line}\n".encode("utf-8", "backslashreplace"))


def fitted(text: str, stream: TextIO) -> str:
    """Escape a message as `printable` does. For a terminal, wrap it at its width between words."""
    text = printable(text)
    return _wrapped(text) if stream.isatty() else text


def _wrapped(text: str) -> str:
    """Wrap a message at the width of the terminal.

    Further lines start below the last column; two spaces separate columns. Commands, which follow "run: ",
    "next: " or "with: " or are in backticks, and paths are not broken, so that they can be copied.
    """
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns
    columns = re.match(r".*\s{2}", text[: 2 * width // 3])
    commands = r"(?i)(?<=\brun: )[^;]*|(?<=\b(?:next|with): )[^;]*|`[^`]*`"
    text = re.sub(commands, lambda command: command[0].replace(" ", "\0"), text)
    indent = " " * (columns.end() if columns else 2)
    fill = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).fill
    return fill(text).replace("\0", " ")


def printable(text: str) -> str:
    """Escape characters that a terminal would not show or would act on; names may contain them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
