"""An audit hook that raises an error if a target creates, changes or reads a file outside its own folder."""

import atexit
import os
import sys
import tempfile
from typing import Any

CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
CODE = (sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
# host.py reads the list of file systems and the memory of this process, and child.py opens /dev/null as
# the standard input of a process.
_ALLOWED = (tempfile.gettempdir() + "/fuzz-", "/proc/self/mountinfo", "/proc/self/statm", os.devnull)


class OutsideError(BaseException):
    """A path outside the target's folder. It is a BaseException so that handlers of Exception do not catch it."""


def build_fence() -> None:
    """From now on, raise OutsideError if a file outside is opened, created, changed or removed."""
    active = [True]
    atexit.register(active.clear)  # when the process ends, the folders are removed
    sys.addaudithook(lambda event, arguments: _check(event, arguments) if active else None)


def _check(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" or event in CHANGES:
        for path in arguments[:1] if event == "open" else arguments[:2]:
            if isinstance(path, str | bytes | os.PathLike) and not _is_allowed(event, arguments, os.fsdecode(path)):
                raise OutsideError(f"{event}: {path!r}")


def _is_allowed(event: str, arguments: tuple[Any, ...], path: str) -> bool:
    path = os.path.abspath(path)
    if path.startswith(_ALLOWED):
        return True
    flags = arguments[2] if event == "open" else os.O_WRONLY
    reads = isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    return reads and path.startswith(CODE) and path.endswith((".py", ".pyc", ".so"))
