"""A test double of `decodeonce.store.disk`: it counts the calls of all processes, and makes one of them go wrong."""

import errno
import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from decodeonce.store import disk

SECTOR = 512
# All functions of the module. open_file with O_CREAT counts as "create", because it needs disk space.
NAMES = [name for name, value in vars(disk).items() if callable(value) and not isinstance(value, type)]
NAMES = [name for name in NAMES if name not in ("close", "contextmanager", "suppress") and not name.startswith("_")]
LABELS = [*NAMES, "create"]
WRITES, READS = {"write", "pwrite"}, {"pread", "preadv"}
# NFS reports a full disk on a flush.
TAKES_ROOM = {*WRITES, "create", "mkdir", "fallocate", "replace", "link", "fsync", "fdatasync"}
KINDS: dict[str, set[str]] = {
    "SIGKILL": set(LABELS),
    "SIGKILL of the parent": set(LABELS),
    "SIGKILL of all": set(LABELS),
    "torn at 512 bytes, SIGKILL": WRITES,
    "EIO": set(LABELS),
    "EIO from then on": set(LABELS),
    "ENOSPC from then on": TAKES_ROOM,
    "EDQUOT": TAKES_ROOM,
    "half the bytes": WRITES | READS,
    "one byte": WRITES | READS,
    "EINTR": {"fallocate"},
}
WORKERS_ONLY = {"SIGKILL of the parent", "SIGKILL of all"}  # in the parent, these equal a plain SIGKILL
KILLS = {kind for kind in KINDS if "SIGKILL" in kind}
HARMLESS = {"half the bytes", "one byte", "EINTR"}


@dataclass(frozen=True)
class Call:
    """A call of the disk module, by the parent or by a worker."""

    label: str
    by_worker: bool

    def accepts(self, kind: str) -> bool:
        """Return whether this kind of fault can happen to this call."""
        return self.label in KINDS[kind] and (self.by_worker or kind not in WORKERS_ONLY)

    def __str__(self) -> str:
        return f"{self.label} by a {'worker' if self.by_worker else 'parent'}"


@dataclass(frozen=True)
class Fault:
    """A fault at call number `call` (counted from 1), or at the first later call that `kind` can happen to."""

    call: int
    kind: str
    seed: int = 0


class Log:
    """A file to which several processes append, each with its own descriptor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = self._pid = -1
        path.write_bytes(b"")

    def append(self, data: bytes) -> int:
        """Append bytes, and return the size of the file then."""
        if self._pid != os.getpid():  # an inherited descriptor may be closed, and would share its position
            self._fd, self._pid = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), os.getpid()
        os.write(self._fd, data)
        return os.lseek(self._fd, 0, os.SEEK_CUR)


class Double:
    """Replaces the disk module after `install`, in this process and in those that it forks later.

    Each call appends a byte to a file in `folder`; the position of the byte is the call's number.
    """

    def __init__(self, folder: Path, fault: Fault | None = None) -> None:
        self._log, self._mark, self.fault = Log(folder / "calls"), folder / "happened", fault
        self._mark.unlink(missing_ok=True)
        self._root = -1
        self._lock = threading.Lock()

    def calls(self) -> list[Call]:
        return [Call(LABELS[byte >> 1], bool(byte & 1)) for byte in self._log.path.read_bytes()]

    def happened(self) -> Call | None:
        """Return the call that the fault happened to, if any."""
        if not self._mark.exists():
            return None
        (byte,) = self._mark.read_bytes()
        return Call(LABELS[byte >> 1], bool(byte & 1))

    def install(self) -> None:
        """Replace the disk module in this process and in those that it forks."""
        self._root = os.getpid()
        for name in NAMES:
            setattr(disk, name, partial(self._call, name, getattr(disk, name)))

    def _call(self, name: str, real: Callable[..., Any], *args: Any) -> Any:
        label = "create" if name == "open_file" and args[1] & os.O_CREAT else name
        call = Call(label, os.getpid() != self._root)
        with self._lock:
            number = self._log.append(_byte(call))
        fault = self.fault
        if fault is None or number < fault.call or not call.accepts(fault.kind):
            return real(*args)
        if self._is_first(call) or fault.kind.endswith("from then on"):
            return self._go_wrong(fault, real, args)
        return real(*args)

    def _is_first(self, call: Call) -> bool:
        try:
            fd = os.open(self._mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        except FileExistsError:
            return False
        os.write(fd, _byte(call))
        os.close(fd)
        return True

    def _go_wrong(self, fault: Fault, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        kind = fault.kind
        if kind.startswith(("EIO", "ENOSPC", "EDQUOT", "EINTR")):
            code = getattr(errno, kind.split()[0])
            raise OSError(code, os.strerror(code), *[str(path) for path in args[:1] if isinstance(path, Path)])
        if kind in HARMLESS:
            return _part(real, args, one=kind == "one byte")
        if kind.startswith("torn"):
            sectors = random.Random(fault.seed).randrange(memoryview(args[1]).nbytes // SECTOR + 1)
            with suppress(OSError):  # fails for direct I/O if the disk has larger sectors
                real(args[0], memoryview(args[1])[: sectors * SECTOR], *args[2:])
        if kind == "SIGKILL of all":
            os.killpg(0, signal.SIGKILL)
        if kind == "SIGKILL of the parent":
            os.kill(self._root, signal.SIGKILL)
            return real(*args)
        os.kill(os.getpid(), signal.SIGKILL)


def _byte(call: Call) -> bytes:
    return bytes([LABELS.index(call.label) << 1 | call.by_worker])


def _part(real: Callable[..., Any], args: tuple[Any, ...], *, one: bool) -> Any:
    """Do half of a read or write, or one byte of it."""
    fd, what, *rest = args
    if isinstance(what, int):  # pread's size
        return real(fd, _less(what, one=one), *rest)
    if isinstance(what, list):  # preadv's buffers
        return real(fd, [what[0][: _less(what[0].nbytes, one=one)]], *rest)
    return real(fd, memoryview(what)[: _less(memoryview(what).nbytes, one=one)], *rest)


def _less(nbytes: int, *, one: bool) -> int:
    return min(nbytes, 1) if one else -(-nbytes // 2)
