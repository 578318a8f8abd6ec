"""Checks of cores, memory, limits and launcher variables of this process."""

from __future__ import annotations

import os
import resource

from decodeonce import launch
from decodeonce.cli.doctor.check import Finding, bad, ok, warn
from decodeonce.formatting import size_text
from decodeonce.host import available_memory, cgroup_cores, cgroup_memory, usable_cores

FEW_CORES = 4
LITTLE_MEMORY, WORKER_MEMORY = 1 << 30, 100 << 20
FEW_FILES = 1024  # enough for a store of 100 GB in small shards and the other files of a program
NO_LIMIT = 1 << 60  # cgroup v1 reports a number just below 2**63 if there is no limit


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
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        return warn(found, f"ask your administrator to raise nofile in limits.conf to {FEW_FILES} or more")
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
