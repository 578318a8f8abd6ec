"""No file is made, changed or read by a target but those of its own folder: an audit hook says so at once."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from typing import Any

CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
CODE = (sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
# host.py asks which file systems there are, memory_limit.py how much memory this process has; spawn.py gives a process
# /dev/null as its standard input.
_OWN = (tempfile.gettempdir() + "/fuzz-", "/proc/self/mountinfo", "/proc/self/statm", os.devnull)


class OutsideError(BaseException):
    """A path that is none of a target's own; no handler of exceptions takes it."""


class Fence:
    """From here to the end of the process: OutsideError where a file elsewhere is opened, made or removed."""

    def __init__(self) -> None:
        self.up = True
        atexit.register(self.lower)
        sys.addaudithook(self.look)

    def lower(self) -> None:
        """Let the folders be removed."""
        self.up = False

    def look(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What Python asks before it does such a thing."""
        if self.up:
            _look(event, arguments)


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" or event in CHANGES:
        for path in arguments[:1] if event == "open" else arguments[:2]:
            if isinstance(path, str | bytes | os.PathLike) and not _allowed(event, arguments, os.fsdecode(path)):
                raise OutsideError(f"{event}: {path!r}")


def _allowed(event: str, arguments: tuple[Any, ...], path: str) -> bool:
    whole = os.path.abspath(path)
    if whole.startswith(_OWN):
        return True
    flags = arguments[2] if event == "open" else os.O_WRONLY
    code = whole.startswith(CODE) and isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    return code and whole.endswith((".py", ".pyc", ".so"))
