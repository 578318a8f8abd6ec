"""`--log FILE`: append the events of a command as JSON lines, for programs that watch many jobs."""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from decodeonce import __version__
from decodeonce.cli import events, program, write_error
from decodeonce.formatting import without_secrets


class JsonLines(logging.FileHandler):
    """Appends events to a file. If that fails, it warns once, and the command continues without a log."""

    last_message: object = ""
    pid = os.getpid()  # of the command, and not of the child that runs user code

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event, whose name and facts are those of the record.

        An outcome without a message repeats the last one.
        """
        facts: dict[str, object] = dict(record.args) if isinstance(record.args, dict) else {}
        self.last_message = facts.get("message") or self.last_message
        if "exit_code" in facts:
            facts["message"] = self.last_message
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        who = {"host": platform.node(), "pid": self.pid}  # several processes may share a file
        return json.dumps({"time": now, "event": record.msg, **who, **facts})

    def handleError(self, record: logging.LogRecord) -> None:
        """Warn, and end the log."""
        events.removeHandler(self)
        _warn(self.baseFilename, sys.exception())


def begin(path: str) -> None:
    """Start the log of this command in `path`, or in a new file there if that is a folder or ends in a slash."""
    from decodeonce.launch import JOB_IDS, find_rank, find_task
    from decodeonce.store.files import make_folder

    file = Path(path)
    try:
        if path.endswith("/"):
            make_folder(file)
        if file.is_dir():
            file = file / f"{platform.node()}-{os.getpid()}.jsonl"
        _check_file(file)
        log = JsonLines(file, encoding="utf-8")
    except OSError as error:
        return _warn(path, error)
    events.addHandler(log)
    events.setLevel(logging.INFO)
    command = [program(), *(without_secrets(word, word=True) for word in sys.argv[1:])]
    job = next((os.environ[name] for name in JOB_IDS if os.environ.get(name)), None)
    found = {"launcher": _found(find_rank), "task": _found(find_task), "job": job}
    events.info("start", {"version": __version__, "command": command, **found})


def _check_file(file: Path) -> None:
    """Raise OSError unless events can be appended to a file; end an incomplete line that a full disk left."""
    if file.is_fifo():
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))  # raises an error if it has no reader
    if file.is_file() and file.stat().st_size:
        with file.open("rb+") as written:
            if written.read(2) != b'{"':
                raise OSError(None, "contains something other than JSON lines and was not changed")
            written.seek(-1, os.SEEK_END)
            if written.read(1) != b"\n":
                written.write(b"\n")


def _warn(path: str, error: BaseException | None) -> None:
    why = error.strerror if isinstance(error, OSError) else error
    write_error(f"prep: --log {without_secrets(path, word=True)}: {why}; continuing without a log")


def _found(find: Callable[[], object]) -> str | None:
    """Return what a function finds as text; None if it finds nothing, or needs flags of the command for it."""
    try:
        found = find()
    except ValueError:
        return None
    return str(found) if found else None
