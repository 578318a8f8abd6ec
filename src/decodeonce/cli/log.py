"""`--log FILE`: what a command does, a JSON object a line, for who watches many jobs at once."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from decodeonce.cli import EXIT_STOPPED, program, write_error

PROGRESS_SECONDS = 30.0
BEGINNING = b'{"'  # of each line
OUTCOMES = {0: "finished", EXIT_STOPPED: "stopped"}  # all else is "failed"


class JsonLog:
    """Appends events to a file, each in one write; where that fails it says so once, and the command goes on."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._who = {"host": platform.node(), "pid": os.getpid()}  # several processes may share a file
        self._fd: int | None = None
        self._started = time.monotonic()
        self._written_at = self._started
        self._pending: Mapping[str, Any] | None = None
        self._last_message = ""
        try:
            self._fd = _open(path)
        except OSError as error:
            self._give_up(error)

    def write(self, event: str, **facts: Any) -> None:
        """Append a line."""
        from decodeonce.store import disk

        if self._fd is None:
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **self._who, **facts}).encode() + b"\n"
        try:
            if disk.write(self._fd, line) < len(line):
                raise OSError(None, "only part of a line could be written")
        except OSError as error:
            self._give_up(error)

    def message(self, text: str) -> None:
        """Append what a person was told, after how far it was then."""
        self._flush()
        self._last_message = text
        self.write("message", message=text)

    def progress(self, facts: Mapping[str, Any]) -> None:
        """Append how far it is, every 30 s; of those in between the last is kept for the end."""
        self._pending = facts
        if time.monotonic() - self._written_at >= PROGRESS_SECONDS:
            self._flush()

    def end(self, code: int, message: str) -> None:
        """Append the last progress and the outcome; nothing is written after it."""
        self._flush()
        seconds = round(time.monotonic() - self._started, 3)
        told = message or self._last_message
        self.write(OUTCOMES.get(code, "failed"), exit_code=code, message=told, seconds=seconds)
        self._fd = None

    def _flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._written_at = time.monotonic()
            self.write("progress", **pending)

    def _give_up(self, error: OSError) -> None:
        self._fd = None
        write_error(f"prep: --log {self._path}: {error.strerror or error}; going on without it")


_log: JsonLog | None = None


def begin(path: str) -> None:
    """Log this command from now on, in `path`; in a folder (`path` ends in a slash, or is one) in a file of its own."""
    from decodeonce import __version__
    from decodeonce.launch import find_rank, find_task

    global _log
    _log = JsonLog(path)
    command = [program(), *sys.argv[1:]]
    launcher, task = _described(find_rank), _described(find_task)
    _log.write("start", version=__version__, command=command, launcher=launcher, task=task)


def message(text: str) -> None:
    """Log what a person is told; nothing without --log, as with all of these."""
    if _log is not None:
        _log.message(text)


def progress(facts: Mapping[str, Any]) -> None:
    """Log how far the command is: rows, total_rows, rows_per_s, bytes_per_s, rejects, seconds_left."""
    if _log is not None:
        _log.progress(facts)


def end(code: int, message: str) -> None:
    """Log the outcome; without a message it is the last that was told. From a signal's handler, too."""
    if _log is not None:
        _log.end(code, message)


def _open(path: str) -> int:
    """A descriptor that appends to the file, or to this process's own in the folder, beginning on a line of its own."""
    from decodeonce.store import disk
    from decodeonce.store.durable import make_folder

    file = Path(path)
    if path.endswith("/"):
        make_folder(file)
    if file.is_dir():
        file = file / f"{platform.node()}-{os.getpid()}.jsonl"
    # Nor is a pipe that nobody empties waited for.
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, disk.FILE_MODE)
    size = os.fstat(fd).st_size
    if size and not BEGINNING.startswith(disk.pread(fd, len(BEGINNING), 0)):
        os.close(fd)
        raise OSError(None, "holds something else than JSON lines, and is left as it is")
    if size and disk.pread(fd, 1, size - 1) != b"\n":  # as a full disk leaves it
        disk.write(fd, b"\n")
    return fd


def _described(find: Callable[[], object]) -> str | None:
    """What a function finds, or why it finds nothing."""
    try:
        found = find()
    except ValueError as error:
        return str(error)
    return str(found) if found else None
