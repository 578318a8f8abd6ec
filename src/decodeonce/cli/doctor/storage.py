"""The file systems that are to hold stores: their kind, what is free, and what they can do."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decodeonce.cli.doctor.check import IMPORT_ERRORS, Finding, bad, ok, warn
from decodeonce.formatting import size_text

if TYPE_CHECKING:
    from decodeonce.prep.build.free_space import Storage

LITTLE_ROOM, FEW_FILES = 10**9, 1000
MOUNTINFO = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """A line of mountinfo."""

    point: Path
    kind: str
    device: str


def check_path(path: Path) -> dict[str, Finding]:
    """Check the file system that is to hold a store at `path`, which need not exist."""
    try:
        from decodeonce.prep.build.free_space import find_storage

        found = find_storage(path)
    except OSError as error:
        return unusable(path, error.strerror or str(error))
    except IMPORT_ERRORS as error:
        return unusable(path, f"cannot be looked at: {error}")
    return {
        "file system": file_system(found),
        "room": room(found),
        "abilities": abilities(found),
        "stripes": stripes(found, path),
    }


def unusable(path: Path, error: str) -> dict[str, Finding]:
    """The findings for a path that cannot be looked at."""
    unknown = dict.fromkeys(("room", "abilities", "stripes"), bad(f"{path}: unknown", "see file system"))
    return {"file system": bad(f"{path}: {error}", "choose another path, or mend that"), **unknown}


def file_system(storage: Storage) -> Finding:
    """The kind of the file system, network or local, and its mount."""
    mount = find_mount(storage.place)
    where = f"{mount.kind}, {{}}, mounted at {mount.point} from {mount.device}" if mount else "of unknown kind, {}"
    return ok(f"{storage.place}: {where.format(f'network ({storage.kind})' if storage.kind else 'local')}")


def find_mount(path: Path) -> Mount | None:
    """The mount that holds a path whose links are resolved; None if the system does not say."""
    try:
        lines = MOUNTINFO.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    mounts = [mount for mount in map(_mount, lines) if mount.point in (path, *path.parents)]
    return max(reversed(mounts), key=lambda mount: len(mount.point.parts), default=None)  # the last is on top


def _mount(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
    kind, device = after.split()[:2]
    return Mount(Path(point), kind, device)


def room(storage: Storage) -> Finding:
    """Free bytes and files, of the disk and of every quota."""
    told: list[tuple[str, int | None, int | None]]
    told = [("free", storage.free_bytes, storage.free_files)]
    told += [(f"in the quota of {quota.whose}", quota.free_bytes, quota.free_files) for quota in storage.quotas]
    found = ", ".join(f"{_bytes(nbytes)} and {_files(files)} {what}" for what, nbytes, files in told)
    little = any(nbytes is not None and nbytes < LITTLE_ROOM for _, nbytes, _ in told)
    if little or any(files is not None and files < FEW_FILES for _, _, files in told):
        return warn(f"{storage.place}: {found}", "make room, or choose another place")
    return ok(f"{storage.place}: {found}")


def _bytes(nbytes: int | None) -> str:
    return "any size" if nbytes is None else size_text(nbytes)


def _files(files: int | None) -> str:
    return "any number of files" if files is None else f"{files} files"


def abilities(storage: Storage) -> Finding:
    """Whether files there can be written, mapped, reserved and read directly, tried on one without a name."""
    there = storage.place
    try:
        fd = _nameless_file(there)
    except OSError as error:
        return warn(f"{there}: cannot be written: {error.strerror}", "stores can only be read there")
    try:
        can = _tried(fd)
    except OSError as error:
        return bad(f"{there}: cannot be written: {error.strerror}", "make room, or mend that")
    finally:
        os.close(fd)
    found = f"{there}: " + ", ".join(f"{what} {'yes' if works else 'no'}" for what, works in can.items())
    if not can["mmap"]:
        return warn(found, 'stores there are read with Loader(..., reader="pread")')
    if not can["fallocate"]:
        return warn(found, "no space is reserved there: look that no one else fills it meanwhile")
    return ok(found)


def _nameless_file(folder: Path) -> int:
    from decodeonce.store import disk

    try:
        return disk.open_file(folder, os.O_RDWR | os.O_TMPFILE)
    except OSError:  # NFS has no such thing
        named = folder / f".prep-doctor-{os.getpid()}"
        fd = disk.open_file(named, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        disk.unlink(named)
        return fd


def _tried(fd: int) -> dict[str, bool]:
    from decodeonce.store import disk

    disk.pwrite(fd, bytes(mmap.PAGESIZE), 0)
    return {
        "mmap": _works(lambda: mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ).close()),
        "fallocate": _works(lambda: disk.fallocate(fd, 0, 2 * mmap.PAGESIZE)),
        "O_DIRECT": _works(lambda: fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)),
    }


def _works(ability: Callable[[], object]) -> bool:
    try:
        ability()
    except OSError:
        return False
    return True


def stripes(storage: Storage, path: Path) -> Finding:
    """Whether large files lie on several servers, on file systems that do so only on request."""
    from decodeonce.prep.build.free_space import stripe_advice

    if advice := stripe_advice(path, storage):
        return warn(f"{storage.place}: one server holds a whole file", advice)
    return ok(f"{storage.place}: nothing to set")
