"""What launchers and job arrays say of this process."""

from __future__ import annotations

import os

from decodeonce import launch
from decodeonce.cli.doctor.check import Check


def variables() -> Check:
    """The environment variables of launchers that are set here."""
    named = [name for each in launch.LAUNCHERS for name in (each.rank, each.world_size, each.needs) if name]
    named += [*launch.ARRAY_INDEXES, *launch.SLURM_ARRAY, launch.PBS_PROCESS, launch.PBS_NODE, *launch.RANKS_ALONE]
    found = [f"{name}={os.environ[name]}" for name in dict.fromkeys(named) if name in os.environ]
    return Check("launcher", "ok", " ".join(found) or "no launcher's variables")


def rank() -> Check:
    """The rank a Loader would take here."""
    try:
        return Check("rank", "ok", str(launch.find_rank()))
    except ValueError as error:
        return Check("rank", "bad", f"unknown: {error}", "unset these variables, or start through the launcher")


def task() -> Check:
    """The share of a build that `prep work` would do here without being told."""
    try:
        return Check("task", "ok", str(launch.find_task() or "none: prep work does all that is not done"))
    except ValueError as error:
        return Check(
            "task",
            "bad" if rank().level == "bad" else "warn",
            "unknown",
            f"prep work needs --task I --tasks N here: {error}",
        )
