"""Run a command on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping
from pathlib import Path


class Terminal:
    """A command that runs on a pseudo-terminal. A context manager."""

    def __init__(self, *command: str | Path, cwd: Path, columns: int = 80, environ: Mapping[str, str] = {}) -> None:
        self._fd, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        unset = ("COLUMNS", "LINES", "NO_COLOR", "TERM")
        environment = {name: value for name, value in os.environ.items() if name not in unset} | {**environ}
        self._process = subprocess.Popen(
            # A session of its own, with this terminal: Ctrl-C reaches all of its processes.
            ["setsid", "--ctty", "--wait", *command],
            cwd=cwd,
            env=environment,
            stdin=child,
            stdout=child,
            stderr=child,
        )
        os.close(child)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._fd)  # the processes get SIGHUP
        self._process.wait()

    def write(self, data: bytes) -> None:
        os.write(self._fd, data)

    def read_until(self, text: str | None) -> str:
        """Return the output up to and with `text`, or all of it if that is None."""
        read = b""
        while text is None or text.encode() not in read:
            try:
                read += os.read(self._fd, 1 << 16)
            except OSError:  # the last process has closed the terminal
                assert text is None, read
                break
        return read.decode()
