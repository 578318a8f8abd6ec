"""The command `prep`."""

from __future__ import annotations

import errno
import os
import signal
import sys
from types import FrameType

from decodeonce.errors import DecodeonceError, Stopped

EXIT_FAILED, EXIT_USAGE, EXIT_STOPPED = 1, 2, 75
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU)


def main() -> None:
    """Run `prep`; a failure is one line on standard error and an exit code: 1 failed, 2 usage, 75 go on later."""
    for number in STOPPING:
        signal.signal(number, _stop)
    code = _run()
    for (
        number
    ) in STOPPING:  # the outcome stands: Python at its end puts the defaults back, and a late signal would kill
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _run() -> int | None:
    from decodeonce.cli.app import USAGE_ERROR, app

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names need not be UTF-8
    try:
        code: int | None = app(sys.argv[1:] or ["--help"], prog_name="prep", standalone_mode=False)
        return code
    except USAGE_ERROR as error:
        command = error.ctx.command_path if error.ctx else "prep"
        return _told(f"prep: error: {error.format_message()} (see {command} --help)", EXIT_USAGE)
    except Stopped as error:
        return _told(f"prep: stopped: {error}", EXIT_STOPPED)
    except DecodeonceError as error:
        return _told(f"prep: error: {error}", EXIT_FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `prep ls STORE | head` is no failure
        return None
    except OSError as error:
        return _os_error_told(error)
    except MemoryError:
        what = "out of memory; what is done is kept: run the same command again with more"
        return _told(f"prep: stopped: {what}", EXIT_STOPPED)


def _stop(number: int, frame: FrameType | None) -> None:
    """End here and now: a build may be killed at any moment, and an exception raised from a signal can be swallowed

    (by a finaliser, by an import) or come out of a library as another one.
    """
    for later in STOPPING:
        signal.signal(later, signal.SIG_DFL)
    # No such module yet, or one that is still being imported: then there are no workers.
    kill_workers = getattr(sys.modules.get("decodeonce.prep.pool"), "kill_workers", None)
    if kill_workers is not None:
        kill_workers()
    told = f"prep: stopped: {signal.Signals(number).name}; what is done is kept: run the same command again to go on"
    os.write(2, f"{chr(10) if os.isatty(2) else ''}{told}{chr(10)}".encode())
    os._exit(EXIT_STOPPED)


def _os_error_told(error: OSError) -> int:
    from decodeonce.prep.sources.base import PASSING_ERRORS

    what = f"{error.filename or 'prep'}: {error.strerror or error}"
    if error.errno in PASSING_ERRORS:
        return _told(f"prep: stopped: {what}; run the same command again", EXIT_STOPPED)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    next_step = "make room" if full else "mend that"
    return _told(f"prep: error: {what}; {next_step} and run the same command again", EXIT_FAILED)


def _told(message: str, code: int) -> int:
    print(" ".join(message.splitlines()), file=sys.stderr)
    return code
