"""Checks of the file systems that will hold stores: their kind, free space and abilities."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from decodeonce.cli.doctor.check import Finding, ok, warn
from decodeonce.formatting import size_text
from decodeonce.store import disk

if TYPE_CHECKING:
    from decodeonce.prep.building.free_space import Quota, Storage

LITTLE_ROOM, FEW_FILES = 10**9, 1000


def file_system(storage: Storage) -> Finding:
    """Report whether the file system is a local or a network one."""
    return ok(f"{storage.place}: {f'network ({storage.kind})' if storage.kind else 'local'}")


def free_room(storage: Storage) -> Finding:
    """Report free bytes and files of the disk and of every quota."""
    limits: list[tuple[str, Storage | Quota]] = [("free", storage)]
    limits += [(f"in the quota of {quota.whose}", quota) for quota in storage.quotas]
    found, little = [], False
    for what, limit in limits:
        nbytes, files = limit.free_bytes, limit.free_files
        room = "unlimited bytes" if nbytes is None else size_text(nbytes)
        found.append(f"{room} and {'unlimited' if files is None else files} files {what}")
        little |= (nbytes is not None and nbytes < LITTLE_ROOM) or (files is not None and files < FEW_FILES)
    if little:
        return warn(f"{storage.place}: {', '.join(found)}", "free some space, or choose another folder")
    return ok(f"{storage.place}: {', '.join(found)}")


def abilities(storage: Storage) -> Finding:
    """Check on a file without a name whether files can be written, mapped and reserved."""
    there = storage.place
    try:
        fd = _nameless_file(there)
    except OSError as error:
        return warn(f"{there}: cannot be written: {error.strerror}", "stores in it can only be read")
    try:
        can = _tried(fd)
    finally:
        os.close(fd)
    found = f"{there}: " + ", ".join(f"{what} {'yes' if works else 'no'}" for what, works in can.items())
    if not can["mmap"]:
        return warn(found, 'read stores in it with Loader(..., reader="pread")')
    if not can["fallocate"]:
        return warn(found, "space cannot be reserved: make sure that the file system does not fill up during a build")
    return ok(found)


def _nameless_file(folder: Path) -> int:
    try:
        return disk.open_file(folder, os.O_RDWR | os.O_TMPFILE)
    except OSError:  # NFS does not support it
        named = folder / f".prep-doctor-{os.getpid()}"
        fd = disk.open_file(named, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        disk.unlink(named)
        return fd


def _tried(fd: int) -> dict[str, bool]:
    disk.pwrite(fd, bytes(mmap.PAGESIZE), 0)
    return {
        "mmap": _works(lambda: mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ).close()),
        "fallocate": _works(lambda: disk.fallocate(fd, 0, 2 * mmap.PAGESIZE)),
    }


def _works(ability: Callable[[], object]) -> bool:
    try:
        ability()
    except OSError:
        return False
    return True


def stripes(storage: Storage) -> Finding:
    """Check whether large files are striped over several servers, on file systems that do so only on request."""
    from decodeonce.prep.building.free_space import stripe_advice

    if advice := stripe_advice(storage.place, storage):
        return warn(f"{storage.place}: each file is on a single server", advice)
    return ok(f"{storage.place}: no setting needed")
