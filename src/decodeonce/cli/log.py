"""`--log FILE`: append the events of a command as JSON lines, for programs that watch many jobs."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from decodeonce import __version__, cli
from decodeonce.cli import EXIT_STOPPED, program, write_error
from decodeonce.formatting import without_secrets

PROGRESS_SECONDS = 30.0
LINE_START = b'{"'  # of each line
OUTCOMES = {0: "finished", EXIT_STOPPED: "stopped"}  # other exit codes mean "failed"


class JsonLog:
    """Append events to a file, or to a new file in `path` if that is a folder or ends in a slash; each in one write.

    If a write fails, a warning is printed once and logging ends.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None
        self._started = self._written_at = time.monotonic()
        self._pending: Mapping[str, object] | None = None
        self._last_message = ""
        try:
            self._fd = _open(path)
        except OSError as error:
            self._give_up(error)

    def write(self, event: str, **facts: object) -> None:
        """Append an event."""
        if self._fd is None:
            return
        from decodeonce.store import disk

        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        who = {"host": platform.node(), "pid": os.getpid()}  # several processes may share a file
        line = json.dumps({"time": now, "event": event, **who, **facts}).encode() + b"\n"
        try:
            if disk.write(self._fd, line) < len(line):
                raise OSError(None, "only part of a line could be written")
        except OSError as error:
            self._give_up(error)

    def message(self, text: str) -> None:
        """Append the pending progress and a printed message."""
        self._flush()
        self._last_message = text
        self.write("message", message=text)

    def progress(self, facts: Mapping[str, object]) -> None:
        """Append progress every 30 s, and keep the latest for the end.

        Its keys are rows, total_rows, rows_per_s, bytes_per_s, rejects and seconds_left.
        """
        self._pending = facts
        if time.monotonic() - self._written_at >= PROGRESS_SECONDS:
            self._flush()

    def end(self, code: int, message: str = "") -> None:
        """Append the last progress and the outcome, with `message` or the last one, then close the log."""
        self._flush()
        seconds = round(time.monotonic() - self._started, 3)
        outcome = OUTCOMES.get(code, "failed")
        self.write(outcome, exit_code=code, message=message or self._last_message, seconds=seconds)
        self._fd = None

    def _flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._written_at = time.monotonic()
            self.write("progress", **pending)

    def _give_up(self, error: OSError) -> None:
        self._fd = None
        write_error(
            f"prep: --log {without_secrets(self._path, word=True)}: {error.strerror or error}; continuing without a log"
        )


def begin(path: str) -> None:
    """Start the log of this command in `path`."""
    from decodeonce.launch import JOB_IDS, find_rank, find_task

    cli.json_log = log = JsonLog(path)
    command = [program(), *(without_secrets(word, word=True) for word in sys.argv[1:])]
    job = next((os.environ[name] for name in JOB_IDS if os.environ.get(name)), None)
    log.write(
        "start", version=__version__, command=command, launcher=_found(find_rank), task=_found(find_task), job=job
    )


def _open(path: str) -> int:
    """Open the log file, or this process's own file in a folder, for appending at the start of a line."""
    from decodeonce.store import disk
    from decodeonce.store.files import make_folder

    file = Path(path)
    if path.endswith("/"):
        make_folder(file)
    if file.is_dir():
        file = file / f"{platform.node()}-{os.getpid()}.jsonl"
    # O_NONBLOCK: do not wait for the reader of a pipe.
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, disk.FILE_MODE)
    size = os.fstat(fd).st_size
    if size and not LINE_START.startswith(disk.pread(fd, len(LINE_START), 0)):
        os.close(fd)
        raise OSError(None, "contains something other than JSON lines and was not changed")
    if size and disk.pread(fd, 1, size - 1) != b"\n":  # a full disk left an incomplete line
        disk.write(fd, b"\n")
    return fd


def _found(find: Callable[[], object]) -> str | None:
    """Return what a function finds as text; None if it finds nothing, or needs flags of the command for it."""
    try:
        found = find()
    except ValueError:
        return None
    return str(found) if found else None
