"""Checks of the file systems that will hold stores: their kind, free space and abilities."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decodeonce.cli.doctor.check import IMPORT_ERRORS, Finding, bad, ok, warn
from decodeonce.cli.doctor.locks import locks
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
    """Check the file system for a store at `path`, which may not exist yet."""
    try:
        from decodeonce.prep.build.free_space import find_storage

        found = find_storage(path)
    except OSError as error:
        return unusable(path, error.strerror or str(error))
    except IMPORT_ERRORS as error:
        return unusable(path, f"cannot be checked: {error}")
    return {
        "file system": file_system(found),
        "room": room(found),
        "abilities": abilities(found),
        "locks": locks(found.place),
        "stripes": stripes(found, path),
    }


def unusable(path: Path, error: str) -> dict[str, Finding]:
    """Return the findings for a path that cannot be checked."""
    unknown = dict.fromkeys(("room", "abilities", "locks", "stripes"), bad(f"{path}: unknown", 'see "file system"'))
    return {"file system": bad(f"{path}: {error}", "choose another path, or fix this"), **unknown}


def file_system(storage: Storage) -> Finding:
    """Report the kind of the file system, whether it is a network or local one, and its mount."""
    mount = find_mount(storage.place)
    where = f"{mount.kind}, {{}}, mounted at {mount.point} from {mount.device}" if mount else "of unknown kind, {}"
    return ok(f"{storage.place}: {where.format(f'network ({storage.kind})' if storage.kind else 'local')}")


def find_mount(path: Path) -> Mount | None:
    """Return the mount of a path whose links are resolved; None if the system does not report it."""
    try:
        lines = MOUNTINFO.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    mounts = [mount for mount in map(_mount, lines) if mount.point in (path, *path.parents)]
    return max(
        reversed(mounts), key=lambda mount: len(mount.point.parts), default=None
    )  # the last mount of a folder hides earlier ones


def _mount(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
    kind, device = after.split()[:2]
    return Mount(Path(point), kind, device)


def room(storage: Storage) -> Finding:
    """Report free bytes and files of the disk and of every quota."""
    limits: list[tuple[str, int | None, int | None]]
    limits = [("free", storage.free_bytes, storage.free_files)]
    limits += [(f"in the quota of {quota.whose}", quota.free_bytes, quota.free_files) for quota in storage.quotas]
    found = ", ".join(f"{_bytes(nbytes)} and {_files(files)} {what}" for what, nbytes, files in limits)
    little = any(nbytes is not None and nbytes < LITTLE_ROOM for _, nbytes, _ in limits)
    if little or any(files is not None and files < FEW_FILES for _, _, files in limits):
        return warn(f"{storage.place}: {found}", "free some space, or choose another folder")
    return ok(f"{storage.place}: {found}")


def _bytes(nbytes: int | None) -> str:
    return "unlimited bytes" if nbytes is None else size_text(nbytes)


def _files(files: int | None) -> str:
    return "unlimited files" if files is None else f"{files} files"


def abilities(storage: Storage) -> Finding:
    """Check on a file without a name whether files can be written, mapped, reserved and read directly."""
    there = storage.place
    try:
        fd = _nameless_file(there)
    except OSError as error:
        return warn(f"{there}: cannot be written: {error.strerror}", "stores in it can only be read")
    try:
        can = _tried(fd)
    except OSError as error:
        return bad(f"{there}: cannot be written: {error.strerror}", "free some space, or fix this")
    finally:
        os.close(fd)
    found = f"{there}: " + ", ".join(f"{what} {'yes' if works else 'no'}" for what, works in can.items())
    if not can["mmap"]:
        return warn(found, 'read stores in it with Loader(..., reader="pread")')
    if not can["fallocate"]:
        return warn(found, "space cannot be reserved: make sure that the file system does not fill up during a build")
    return ok(found)


def _nameless_file(folder: Path) -> int:
    from decodeonce.store import disk

    try:
        return disk.open_file(folder, os.O_RDWR | os.O_TMPFILE)
    except OSError:  # NFS does not support it
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
    """Check whether large files are striped over several servers, on file systems that do so only on request."""
    from decodeonce.prep.build.free_space import stripe_advice

    if advice := stripe_advice(path, storage):
        return warn(f"{storage.place}: each file is on a single server", advice)
    return ok(f"{storage.place}: no setting needed")
