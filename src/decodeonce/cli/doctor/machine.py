"""Cores, memory, limits and the launcher's variables of this process."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from decodeonce import launch
from decodeonce.cli.doctor.check import Finding, bad, ok, warn
from decodeonce.formatting import size_text
from decodeonce.host import available_memory, cgroup_cores, cgroup_memory, usable_cores

FEW_CORES = 4
LITTLE_MEMORY, WORKER_MEMORY = 1 << 30, 100 << 20
FEW_FILES = 1024  # a store of 100 GB in small shards, and what else a program has open
PINNED = 1 << 30
NO_LIMIT = 1 << 60  # cgroup v1 has a number for none, a little below 2**63


def cores() -> Finding:
    """Cores by affinity and cgroup, and those of the machine: a login shell often has one of many."""
    usable, whole, quota = usable_cores(), os.cpu_count() or 1, cgroup_cores()
    limits = f"affinity {len(os.sched_getaffinity(0))}, cgroup quota {'none' if quota is None else f'{quota:g}'}"
    found = f"{usable} of {whole} usable ({limits})"
    if usable < min(whole, FEW_CORES):
        return warn(found, "ask the batch system for more (--cpus-per-task), or see taskset -pc $$")
    return ok(found)


def memory() -> Finding:
    """The memory that is available without swapping, and the cgroup's limit."""
    available, limit = available_memory(), cgroup_memory()
    if available is None:
        return ok("unknown: the system does not say")
    limited = "none" if limit is None or limit >= NO_LIMIT else size_text(limit)
    found = f"{size_text(available)} available, cgroup limit {limited}"
    if available < LITTLE_MEMORY + usable_cores() * WORKER_MEMORY:
        return warn(found, "ask the batch system for more (--mem), or build with fewer --workers")
    return ok(found)


def address_space() -> Finding:
    """Limits of ulimit -v and -d: shards are mapped, and an image may need 4 GiB while it is decoded."""
    limits = {"-v": resource.getrlimit(resource.RLIMIT_AS)[0], "-d": resource.getrlimit(resource.RLIMIT_DATA)[0]}
    found = ", ".join(f"ulimit {flag} {_limit(limit, size_text(limit))}" for flag, limit in limits.items())
    if any(limit != resource.RLIM_INFINITY for limit in limits.values()):
        advice = "ulimit -v unlimited -d unlimited, or ask for memory another way: mapped shards count as address space"
        return warn(found, advice)
    return ok(found)


def open_files() -> Finding:
    """How many files may be open; a Loader raises the soft limit to the hard one if it has many shards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft, str(soft))}, up to {_limit(hard, str(hard))}"
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        return warn(found, f"have nofile raised in limits.conf to {FEW_FILES} or more")
    return ok(found)


def locked_memory() -> Finding:
    """The limit of locked memory; AMD's driver counts pinned memory towards it, NVIDIA's does not."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found = f"ulimit -l {_limit(soft, size_text(soft))}"
    if soft != resource.RLIM_INFINITY and soft < PINNED and Path("/dev/kfd").exists():
        return warn(found, "ulimit -l unlimited: batches are pinned, and ROCm pins within this limit")
    return ok(found)


def _limit(limit: int, text: str) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else text


def launcher() -> Finding:
    """The environment variables of launchers that are set here."""
    named = [name for each in launch.LAUNCHERS for name in (each.rank, each.world_size, each.needs) if name]
    named += [*launch.ARRAY_INDEXES, *launch.SLURM_ARRAY, launch.PBS_PROCESS, launch.PBS_NODE, *launch.RANKS_ALONE]
    found = [f"{name}={os.environ[name]}" for name in dict.fromkeys(named) if name in os.environ]
    return ok(" ".join(found) or "no launcher's variables")


def rank() -> Finding:
    """The rank that a Loader would take here."""
    try:
        return ok(str(launch.find_rank()))
    except ValueError as error:
        return bad(f"unknown: {error}", "unset these variables, or start through the launcher")


def task() -> Finding:
    """The share of a build that `prep work` would do here without --task."""
    try:
        return ok(str(launch.find_task() or "none: prep work does all that is not done"))
    except ValueError as error:
        advice = f"prep work needs --task I --tasks N here: {error}"
        return Finding("bad" if rank().level == "bad" else "warn", "unknown", advice)
