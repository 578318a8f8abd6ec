"""File systems on which stores are to lie: their kind, what is free, and what they can do."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from decodeonce.cli.doctor.check import IMPORT_ERRORS, Check
from decodeonce.formatting import size_text

if TYPE_CHECKING:
    from decodeonce.prep.build.free_space import Storage

LITTLE_ROOM, FEW_FILES = 10**9, 1000
MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Place:
    """A path that was asked for; its storage is None, with the error, where it cannot even be looked at."""

    path: Path
    storage: Storage | None
    error: str = ""


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo: where, of what kind, from which device."""

    point: Path
    kind: str
    device: str


def find_place(path: Path) -> Place:
    """What is there for a store at `path`, which need not exist."""
    try:
        from decodeonce.prep.build.free_space import find_storage

        return Place(path, find_storage(path))
    except OSError as error:
        return Place(path, None, error.strerror or str(error))
    except IMPORT_ERRORS as error:
        return Place(path, None, f"cannot be looked at: {error}")


def file_system(place: Place) -> Check:
    """The kind of the file system, network or local, and its mount."""
    if place.storage is None:
        return Check("file system", "bad", f"{place.path}: {place.error}", "choose another path, or mend that")
    there = place.storage.place
    mount = find_mount(there)
    kind = mount.kind if mount else "of unknown kind"
    network = place.storage.kind
    where = f", mounted at {mount.point} from {mount.device}" if mount else ""
    return Check("file system", "ok", f"{there}: {kind}, {f'network ({network})' if network else 'local'}{where}")


def find_mount(path: Path) -> Mount | None:
    """The mount that a path, links resolved, lies on; None where the system does not say."""
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


def room(place: Place) -> Check:
    """Free bytes and files, of the disk and of every quota that a tool tells of."""
    if place.storage is None:
        return Check("room", "bad", f"{place.path}: unknown", "see file system")
    told: list[tuple[str, int | None, int | None]]
    told = [("free", place.storage.free_bytes, place.storage.free_files)]
    told += [(f"in the quota of {quota.whose}", quota.free_bytes, quota.free_files) for quota in place.storage.quotas]
    found = ", ".join(f"{_bytes(nbytes)} and {_files(files)} {what}" for what, nbytes, files in told)
    little = any(nbytes is not None and nbytes < LITTLE_ROOM for _, nbytes, _ in told)
    if little or any(files is not None and files < FEW_FILES for _, _, files in told):
        return Check("room", "warn", f"{place.storage.place}: {found}", "make room, or choose another place")
    return Check("room", "ok", f"{place.storage.place}: {found}")


def _bytes(nbytes: int | None) -> str:
    return "any size" if nbytes is None else size_text(nbytes)


def _files(files: int | None) -> str:
    return "any number of files" if files is None else f"{files} files"


def abilities(place: Place) -> Check:
    """Whether files there can be written, mapped, reserved and read directly, tried on one without a name."""
    if place.storage is None:
        return Check("abilities", "bad", f"{place.path}: unknown", "see file system")
    there = place.storage.place
    try:
        fd = _nameless_file(there)
    except OSError as error:
        return Check(
            "abilities", "warn", f"{there}: cannot be written: {error.strerror}", "stores can only be read there"
        )
    try:
        can = _tried(fd)
    except OSError as error:
        return Check("abilities", "bad", f"{there}: cannot be written: {error.strerror}", "make room, or mend that")
    finally:
        os.close(fd)
    found = f"{there}: " + ", ".join(f"{what} {'yes' if works else 'no'}" for what, works in can.items())
    if not can["mmap"]:
        return Check("abilities", "warn", found, 'stores there are read with Loader(..., reader="pread")')
    if not can["fallocate"]:
        return Check("abilities", "warn", found, "no space is reserved there: look that no one else fills it meanwhile")
    return Check("abilities", "ok", found)


def _nameless_file(folder: Path) -> int:
    from decodeonce.store import disk

    try:
        return disk.open_file(folder, os.O_RDWR | os.O_TMPFILE)
    except (OSError, AttributeError):  # NFS has no such thing
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
        "O_DIRECT": hasattr(os, "O_DIRECT") and _works(lambda: _set_direct(fd)),
    }


def _set_direct(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)


def _works(ability: Callable[[], object]) -> bool:
    try:
        ability()
    except OSError:
        return False
    return True


def stripes(place: Place) -> Check:
    """Whether large files lie on several servers, where that has to be asked for."""
    if place.storage is None:
        return Check("stripes", "bad", f"{place.path}: unknown", "see file system")
    from decodeonce.prep.build.free_space import stripe_advice

    advice = stripe_advice(place.path, place.storage)
    if advice:
        return Check("stripes", "warn", f"{place.storage.place}: one server holds a whole file", advice)
    return Check("stripes", "ok", f"{place.storage.place}: nothing to set")
