"""Cores, memory and limits, as this process has them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from decodeonce.cli.doctor.check import Check
from decodeonce.formatting import size_text
from decodeonce.host import available_memory, cgroup_cores, cgroup_memory, usable_cores

FEW_CORES = 4
LITTLE_MEMORY, WORKER_MEMORY = 1 << 30, 100 << 20
FEW_FILES = 1024  # a store of 100 GB in small shards, and what else a program has open
PINNED = 1 << 30
NO_LIMIT = 1 << 60  # cgroup v1 has a number for none, a little below 2**63


def cores() -> Check:
    """Cores by affinity and cgroup, and those of the machine: a login shell often has one of many."""
    usable, whole, quota = usable_cores(), os.cpu_count() or 1, cgroup_cores()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else whole
    limits = f"affinity {affinity}, cgroup quota {'none' if quota is None else f'{quota:g}'}"
    found = f"{usable} of {whole} usable ({limits})"
    if usable < min(whole, FEW_CORES):
        return Check("cores", "warn", found, "ask the batch system for more (--cpus-per-task), or see taskset -pc $$")
    return Check("cores", "ok", found)


def memory() -> Check:
    """What can be taken without swapping, and the cgroup's limit."""
    available, limit = available_memory(), cgroup_memory()
    if available is None:
        return Check("memory", "ok", "unknown: the system does not say")
    limited = "none" if limit is None or limit >= NO_LIMIT else size_text(limit)
    found = f"{size_text(available)} available, cgroup limit {limited}"
    if available < LITTLE_MEMORY + usable_cores() * WORKER_MEMORY:
        return Check("memory", "warn", found, "ask the batch system for more (--mem), or build with fewer --workers")
    return Check("memory", "ok", found)


def address_space() -> Check:
    """Limits of ulimit -v and -d: shards are mapped, and a picture may need 4 GiB while it is decoded."""
    limits = {"-v": resource.getrlimit(resource.RLIMIT_AS)[0], "-d": resource.getrlimit(resource.RLIMIT_DATA)[0]}
    found = ", ".join(f"ulimit {flag} {_limit(limit, size_text(limit))}" for flag, limit in limits.items())
    if any(limit != resource.RLIM_INFINITY for limit in limits.values()):
        advice = "ulimit -v unlimited -d unlimited, or ask for memory another way: mapped shards count as address space"
        return Check("address space", "warn", found, advice)
    return Check("address space", "ok", found)


def open_files() -> Check:
    """How many files may be open; a Loader raises the soft limit to the hard one where it has many shards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft, str(soft))}, up to {_limit(hard, str(hard))}"
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        return Check("open files", "warn", found, f"have nofile raised in limits.conf to {FEW_FILES} or more")
    return Check("open files", "ok", found)


def locked_memory() -> Check:
    """The limit of locked memory, which AMD's driver counts pinned memory in; NVIDIA's does not."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found = f"ulimit -l {_limit(soft, size_text(soft))}"
    if soft != resource.RLIM_INFINITY and soft < PINNED and Path("/dev/kfd").exists():
        advice = "ulimit -l unlimited: batches are pinned, and ROCm pins within this limit"
        return Check("locked memory", "warn", found, advice)
    return Check("locked memory", "ok", found)


def _limit(limit: int, text: str) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else text
