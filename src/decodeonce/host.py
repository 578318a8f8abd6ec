"""What this process may use on its machine: cores, memory, open files, packages; and the file system of a path."""

from __future__ import annotations

import ctypes
import math
import os
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Cores and memory of the machine, or of the cgroup of a job.

# The files with the memory limit of a cgroup, v2 and v1.
MEMORY_LIMITS = (("memory.max",), ("memory.limit_in_bytes",))


def usable_cores() -> int:
    """Cores that this process may use: its affinity mask, limited by the cgroup's CPU quota (v2 or v1); at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = cgroup_cores()
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def cgroup_cores(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """The CPU quota in cores: the smallest of the cgroup and its parents; None if there is no quota."""
    files = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    found = _cgroup_numbers("cpu", files, root, own)
    return min((two[0] / two[1] for _, two in found if len(two) == 2 and two[0] > 0), default=None)


def cgroup_memory(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The memory limit in bytes, page cache included: the smallest of the cgroup and its parents; None for no limit."""
    found = _cgroup_numbers("memory", MEMORY_LIMITS, root, own)
    return min((one[0] for _, one in found if len(one) == 1), default=None)


def cgroup_room(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The bytes that are left below the memory limits of the cgroup and its parents; None for no limit.

    Of what they hold, everything counts but the page cache, which makes room for others.
    """
    found = _cgroup_numbers("memory", MEMORY_LIMITS, root, own)
    return min((max(0, limit - _bytes_besides_cache(folder)) for folder, (limit,) in found), default=None)


def _bytes_besides_cache(folder: Path) -> int:
    with suppress(OSError, ValueError):
        stated = {name: int(value) for name, value in map(str.split, (folder / "memory.stat").read_text().splitlines())}
        names = ("anon", "shmem", "slab_unreclaimable") if "anon" in stated else ("total_rss", "total_shmem")
        return sum(stated.get(name, 0) for name in names)
    return 0


def _cgroup_numbers(
    controller: str, files: Iterable[tuple[str, ...]], root: Path, own: Path
) -> Iterator[tuple[Path, list[int]]]:
    """Yield each folder of the cgroup and its parents with the numbers in each set of `files` that it has."""
    for folder in _cgroup_folders(controller, root, own):
        for names in files:
            with suppress(OSError, ValueError):  # a file is missing, or contains "max": no limit at this level
                yield folder, [int(word) for name in names for word in (folder / name).read_text().split()]


def _cgroup_folders(controller: str, root: Path, own: Path) -> list[Path]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    folders = []
    for entry in lines:
        _, controllers, path = entry.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            top = root if controllers == "" else root / controller
            here = top / path.lstrip("/")
            folders += [folder for folder in (here, *here.parents) if folder.is_relative_to(top)]
    return folders


def available_memory() -> int | None:
    """Bytes that this process could use without swapping: MemAvailable, or what is left in the cgroup of its job.

    None if the system reports neither.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    return min((value for value in (available, cgroup_room()) if value is not None), default=None)


# Limits on the memory that one image or table may take, so that none can use up the machine's memory.

# A lossless WebP of 178 Mpixel, the maximum size of an image, took 2.9 GB.
IMAGE_BYTES = 4 << 30
SPARE_BYTES = 1 << 30  # for everything else that the process holds, such as buffers
_DATA_FIELD = 5  # of /proc/PID/statm: private, writable pages

_limits: list[int | None] = []  # limits of the `limited_memory` blocks that are running, the innermost last
_before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@contextmanager
def limited_memory(nbytes: int | None = IMAGE_BYTES) -> Iterator[None]:
    """Limit this process to `nbytes` more memory than it has now, mapped files not counted; None: no limit.

    Allocations beyond the limit raise MemoryError. `can_allocate(nbytes)` then returns True if the limit was the
    reason, and False if the machine has too little memory. A nested block has its own limit, and the memory that it
    keeps does not count for the outer block. A lower limit set by the user stays.
    """
    global _before
    if not _limits:
        _before = resource.getrlimit(resource.RLIMIT_DATA)
    _limits.append(nbytes)
    _set_limit()
    try:
        yield
    finally:
        _limits.pop()
        _set_limit()


def _set_limit() -> None:
    soft, hard = _before
    if _limits and (nbytes := _limits[-1]) is not None:
        pages = int(Path("/proc/self/statm").read_bytes().split()[_DATA_FIELD])
        limit = pages * resource.getpagesize() + nbytes + SPARE_BYTES
        if not any(0 <= other < limit for other in _before):  # -1 is no limit
            soft = limit
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def can_allocate(nbytes: int) -> bool:
    """Return whether this process can allocate `nbytes` more memory."""
    import numpy as np

    try:
        np.empty(nbytes, np.uint8)  # allocated, but never touched
    except MemoryError:
        return False
    return True


# File systems.

# The f_type from statfs(2) of file systems that read pages over a network or through a daemon. The values are from
# linux/magic.h or, if it has none, from the file system's own sources.
NETWORK_FILE_SYSTEMS = {
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x6969: "NFS",
    0x19830326: "BeeGFS",
    0x00C36400: "CephFS",
    0x20030528: "OrangeFS",
    0x5346414F: "AFS",
    0x01021997: "9P",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x65735546: "FUSE",
}
# tmpfs and ramfs.
MEMORY_FILE_SYSTEMS = (0x01021994, 0x858458F6)
# statx(2) in linux/fcntl.h and linux/stat.h.
_AT_FDCWD, _STATX_DIOALIGN = -100, 0x2000
# The default of Linux.
READ_AHEAD = 128 << 10


def network_file_system(path: Path) -> str | None:
    """The name of the network file system that holds `path`; None if it is on no known one."""
    if "://" in str(path):  # a UrlPath: the path of a file has no two slashes
        return "an object store"
    return NETWORK_FILE_SYSTEMS.get(_file_system(path))


def free_space(path: Path) -> tuple[int | None, int | None]:
    """Free bytes, and the number of files that can be created, on the file system of `path`.

    None means that no limit is known: the file system reports a total of 0, or more free than in total. CephFS reports
    -1 free files, and 0 bytes in total before its manager runs.
    """
    status = os.statvfs(path)
    known = ((status.f_bavail, status.f_blocks, status.f_frsize), (status.f_favail, status.f_files, 1))
    nbytes, files = (free * unit if total * unit and 0 <= free <= total else None for free, total, unit in known)
    return nbytes, files


def is_in_memory(path: Path) -> bool:
    """Whether `path` is on a memory file system such as /dev/shm."""
    return _file_system(path) in MEMORY_FILE_SYSTEMS


def _file_system(path: Path) -> int:
    """The f_type from statfs(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    status = (ctypes.c_long * 64)()  # larger than struct statfs, whose first field is f_type, a long
    if libc.statfs(os.fsencode(path), ctypes.byref(status)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    return status[0] & 0xFFFFFFFF


def read_ahead_bytes(path: Path) -> int:
    """The most that the kernel reads for one posix_fadvise(POSIX_FADV_WILLNEED) on the file system of `path`.

    This is read_ahead_kb of the device or mount, usually 128 KiB (force_page_cache_ra in Linux's mm/readahead.c). A
    smaller setting counts as 128 KiB.
    """
    device = path.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    for setting in (f"/sys/class/bdi/{name}/read_ahead_kb", f"/sys/dev/block/{name}/../queue/read_ahead_kb"):
        with suppress(OSError):
            return max(READ_AHEAD, int(Path(setting).read_text()) << 10)
    return READ_AHEAD


def direct_alignment(path: Path) -> int:
    """The bytes to which memory, offset and size of a read with O_DIRECT from this file are aligned; 0: not supported.

    4096, which suits every disk, if statx(2) does not know it, as before Linux 6.1.
    """
    libc, status = ctypes.CDLL(None), (ctypes.c_uint32 * 64)()  # struct statx; the first field says which are known
    known = libc.statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_DIOALIGN, ctypes.byref(status)) == 0
    return max(status[38], status[39]) if known and status[0] & _STATX_DIOALIGN else 4096


# Open files, processes and packages.

# Open files that we leave to the rest of the program.
OTHER_FILES = 512


def allow_open_files(count: int) -> None:
    """Raise this process's soft limit of open files so that `count` files of ours leave enough for other code.

    The hard limit is the most that it can be. Most shells set the soft limit to 1,024 because of select(2), and expect
    programs that open more files to raise it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def process_exists(pid: int) -> bool:
    """Whether this machine has a process with this number. A container sees only its own processes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process belongs to another user
        return True
    return True


def installed_version(distribution: str) -> str | None:
    """The version of an installed package; None if it is not installed. `distribution` is the name that pip uses."""
    from importlib import metadata  # worker processes do not need it, and the import takes 10 to 20 ms

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
