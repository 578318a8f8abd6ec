"""Checks of this process (cores, memory, limits, launcher) and of the file systems that will hold stores."""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from decodeonce import launch
from decodeonce.cli.doctor.check import Finding, bad, ok, warn
from decodeonce.formatting import size_text
from decodeonce.host import available_memory, cgroup_cores, cgroup_memory, usable_cores
from decodeonce.store import disk

if TYPE_CHECKING:
    from decodeonce.prep.building.free_space import Quota, Storage

FEW_CORES = 4
LITTLE_MEMORY, WORKER_MEMORY = 1 << 30, 100 << 20
FEW_OPEN_FILES = 1024  # enough for a store of 100 GB in small shards and the other files of a program
NO_LIMIT = 1 << 60  # cgroup v1 reports a number just below 2**63 if there is no limit
LITTLE_ROOM, FEW_FILES = 10**9, 1000
# Mount options of NFS and Lustre with which a lock excludes only processes of the same node, or is refused.
LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=flock", "localflock", "noflock"}
# FUSE file systems that leave locks to the kernel of each node.
WITHOUT_LOCKS = {"fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse"}
LOCKS_ADVICE = "do not run two commands on one store from several nodes at once, except `prep build` and `prep work`"


def cores() -> Finding:
    """Compare the usable cores with those of the machine; a login shell can often use only one."""
    usable, whole, quota = usable_cores(), os.cpu_count() or 1, cgroup_cores()
    limits = f"affinity {len(os.sched_getaffinity(0))}, cgroup quota {'none' if quota is None else f'{quota:g}'}"
    found = f"{usable} of {whole} usable ({limits})"
    if usable < min(whole, FEW_CORES):
        return warn(
            found, "request more cores from the batch system (--cpus-per-task), or check the affinity: taskset -pc $$"
        )
    return ok(found)


def memory() -> Finding:
    """Check the memory that is available without swapping, and the cgroup's limit."""
    available, limit = available_memory(), cgroup_memory()
    if available is None:
        return ok("unknown: the system does not report it")
    limited = "none" if limit is None or limit >= NO_LIMIT else size_text(limit)
    found = f"{size_text(available)} available, cgroup limit {limited}"
    if available < LITTLE_MEMORY + usable_cores() * WORKER_MEMORY:
        return warn(found, "request more memory from the batch system (--mem), or build with fewer --workers")
    return ok(found)


def address_space() -> Finding:
    """Check ulimit -v and -d: shards are mapped, and decoding an image may need 4 GiB."""
    limits = {"-v": resource.getrlimit(resource.RLIMIT_AS)[0], "-d": resource.getrlimit(resource.RLIMIT_DATA)[0]}
    found = ", ".join(f"ulimit {flag} {_limit(limit, size_text(limit))}" for flag, limit in limits.items())
    if any(limit != resource.RLIM_INFINITY for limit in limits.values()):
        advice = (
            "run: ulimit -v unlimited -d unlimited; mapped shards count as address space, so limit memory another way"
        )
        return warn(found, advice)
    return ok(found)


def open_files() -> Finding:
    """Check the limit of open files; a Loader with many shards raises the soft limit to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft, str(soft))}, up to {_limit(hard, str(hard))}"
    if hard != resource.RLIM_INFINITY and hard < FEW_OPEN_FILES:
        return warn(found, f"ask your administrator to raise nofile in limits.conf to {FEW_OPEN_FILES} or more")
    return ok(found)


def _limit(limit: int, text: str) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else text


def rank() -> Finding:
    """Find the rank that a Loader would use."""
    try:
        return ok(str(launch.find_rank()))
    except ValueError as error:
        return bad(f"unknown: {error}", "unset these variables, or start the process with the launcher")


def task() -> Finding:
    """Find the task that `prep work` would run without --task."""
    try:
        return ok(str(launch.find_task() or "none: prep work decodes all remaining blocks"))
    except ValueError as error:
        advice = f"pass --task I --tasks N to prep work: {error}"
        return Finding("bad" if rank().level == "bad" else "warn", "unknown", advice)


def file_system(storage: Storage) -> Finding:
    """Report the kind of file system, and the free bytes and files of the disk and of every quota."""
    from decodeonce.prep.building.free_space import describe_storage

    found = "; ".join(describe_storage(storage))
    limits: list[Storage | Quota] = [storage, *storage.quotas]
    for limit in limits:
        nbytes, files = limit.free_bytes, limit.free_files
        if (nbytes is not None and nbytes < LITTLE_ROOM) or (files is not None and files < FEW_FILES):
            return warn(found, "free some space, or choose another folder")
    return ok(found)


def abilities(storage: Storage) -> Finding:
    """Check on a file without a name whether files can be written, mapped and reserved."""
    there = storage.place
    try:
        with TemporaryFile(dir=there) as file:
            disk.pwrite(file.fileno(), bytes(mmap.PAGESIZE), 0)
            can = {
                "mmap": _works(lambda: mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ).close()),
                "fallocate": _works(lambda: disk.fallocate(file.fileno(), 0, 2 * mmap.PAGESIZE)),
            }
    except OSError as error:
        return warn(f"{there}: cannot be written: {error.strerror}", "stores in it can only be read")
    found = f"{there}: " + ", ".join(f"{what} {'yes' if works else 'no'}" for what, works in can.items())
    if not can["mmap"]:
        return warn(found, 'read stores in it with Loader(..., reader="pread")')
    if not can["fallocate"]:
        return warn(found, "space cannot be reserved: make sure that the file system does not fill up during a build")
    return ok(found)


def _works(ability: Callable[[], object]) -> bool:
    try:
        ability()
    except OSError:
        return False
    return True


def locks(storage: Storage, mountinfo: Path = Path("/proc/self/mountinfo")) -> Finding:
    """Check whether locks exclude the processes of other nodes, as far as the mount options tell."""
    place = storage.place
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    except OSError as error:
        return warn(f"{place}: no locks: {error.strerror}", LOCKS_ADVICE)
    finally:
        os.close(fd)
    device = os.stat(place).st_dev
    for line in reversed(mountinfo.read_text(errors="surrogateescape").splitlines()):
        before, _, after = line.partition(" - ")
        if before.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            kind, *_, options = after.split()
            why = sorted(LOCAL_LOCKS & {*options.split(","), *before.split()[5].split(",")})
            if why or kind in WITHOUT_LOCKS:
                how = f" mounted with {why[0]}" if why else ""
                return warn(f"{place}: {kind}{how}: locks do not exclude other nodes", LOCKS_ADVICE)
            return ok(f"{place}: {kind}: no mount option restricts locks to this node")
    return ok(f"{place}: locks work on this node; its mount is not known")
