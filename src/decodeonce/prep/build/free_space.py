"""What the storage of a store to be offers: room, files, quotas; and what its kind asks for before the first byte."""

from __future__ import annotations

import math
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.formatting import counted, quoted, size_text
from decodeonce.host import network_file_system
from decodeonce.prep.build.plan import Plan

# Beside its shards: those of the finished store, and the plan's.
OTHER_FILES = 12
QUOTA_SECONDS = 20
# What lfs prints below a quota that is the file system's default, or of which some servers told nothing.
REMARK = re.compile(r"\s*([ugp]id \S+ is using default|Some errors happened)")
# A shard is read by many nodes at once, a stripe by one server: eight of them give a few GB/s.
STRIPES, STRIPE_SIZE = 8, "16M"


@dataclass(frozen=True)
class Need:
    """What a build will write."""

    rows: int
    bytes: int
    files: int


@dataclass(frozen=True)
class Quota:
    """What `whose` quota leaves, in bytes and files; None is no limit."""

    whose: str
    free_bytes: int | None
    free_files: int | None


@dataclass(frozen=True)
class Storage:
    """The file system of the folder `place`; `kind` is a network's, files None where there is no limit."""

    place: Path
    kind: str | None
    free_bytes: int
    free_files: int | None
    quotas: tuple[Quota, ...]


def find_storage(out: Path) -> Storage:
    """What is there for a store at `out`, whose folder need not exist."""
    whole = Path(os.path.realpath(out))  # a link may lead to another file system, or to itself
    place = next(path for path in (whole, *whole.parents) if path.exists())
    disk = os.statvfs(place)
    kind = network_file_system(place)
    files = disk.f_favail if disk.f_files else None  # some file systems make as many as are asked for
    return Storage(place, kind, disk.f_bavail * disk.f_frsize, files, tuple(_quotas(place, kind)))


def check_free_space(out: Path, storage: Storage, need: Need) -> None:
    """Raise BuildError where disk or quota has less than is needed."""
    limits: list[tuple[str, int | None, int | None]] = [("", storage.free_bytes, storage.free_files)]
    limits += [(f" within the quota of {quota.whose}", quota.free_bytes, quota.free_files) for quota in storage.quotas]
    for where, free_bytes, free_files in limits:
        if free_bytes is not None and need.bytes > free_bytes:
            raise BuildError(
                f"{out}: {size_text(free_bytes)} free{where}, {size_text(need.bytes)} needed "
                f"for {counted(need.rows, 'row')}; make room, choose another OUT, or a smaller --size"
            )
        if free_files is not None and need.files > free_files:
            raise BuildError(
                f"{out}: {free_files} more files allowed{where}, {need.files} needed; remove some, choose "
                "another OUT, or a larger --shard-size"
            )


def describe_storage(storage: Storage) -> list[str]:
    """What a person should know before writing there."""
    return [text for text, _, _ in _limits(storage)]


def describe_free_space(storage: Storage, need: Need) -> list[str]:
    """The same, each with whether that is enough."""
    told = []
    for text, free_bytes, free_files in _limits(storage):
        short = [size_text(need.bytes)] if free_bytes is not None and need.bytes > free_bytes else []
        short += [f"{need.files} files"] if free_files is not None and need.files > free_files else []
        told.append(f"{text}: {'not enough, ' + ' and '.join(short) + ' needed' if short else 'enough'}")
    return told


def _limits(storage: Storage) -> list[tuple[str, int | None, int | None]]:
    """Of the file system and of each quota a sentence, the bytes and the files that are left; None is no limit."""
    files = "" if storage.free_files is None else f" and {storage.free_files} files"
    kind = storage.kind or "a local file system"
    place = f"{storage.place}: {kind}, room for {size_text(storage.free_bytes)}{files}"
    limits: list[tuple[str, int | None, int | None]] = [(place, storage.free_bytes, storage.free_files)]
    for quota in storage.quotas:
        room = "any size" if quota.free_bytes is None else size_text(quota.free_bytes)
        more = "any number of" if quota.free_files is None else quota.free_files
        told = f"the quota of {quota.whose} leaves {room} and {more} files"
        limits.append((told, quota.free_bytes, quota.free_files))
    return limits


def stripe_advice(out: Path, storage: Storage) -> str | None:
    """What to do on Lustre before anything is written; None elsewhere, or where the folder's layout sees to it."""
    if storage.kind != "Lustre":
        return None
    layout = _output("lfs", "getstripe", "-d", str(storage.place))
    if not layout or "lcm_" in layout:  # progressive layouts stripe large files by themselves
        return None
    folder = quoted(str(out))
    return (
        f"on Lustre, have each shard lie on several servers, before it is written: mkdir -p {folder} && "
        f"lfs setstripe -c {STRIPES} -S {STRIPE_SIZE} {folder}"
    )


def _quotas(place: Path, kind: str | None) -> list[Quota]:
    """The quotas that a tool of the system tells of; none where there is no such tool, or it says nothing."""
    if kind == "Lustre":
        flags = {"user": ("-u", str(os.getuid())), "group": ("-g", str(place.stat().st_gid))}
        project = (_output("lfs", "project", "-d", str(place)) or "").split()
        if project and project[0] not in ("", "0"):
            flags["project"] = ("-p", project[0])
        told = {f"{who} {flag[1]}": _output("lfs", "quota", "-q", *flag, str(place)) for who, flag in flags.items()}
    else:
        mount = next(path for path in (place, *place.parents) if path.is_mount())  # quota(1) takes nothing below it
        told = {f"user {os.getuid()}": _output("quota", "--no-wrap", "--raw-grace", f"--filesystem={mount}")}
    return [quota for whose, text in told.items() if text and (quota := _parsed(whose, text))]


def _parsed(whose: str, text: str) -> Quota | None:
    """The last numbers: KiB used, soft limit, hard limit, grace, and the same of files; 0 is no limit."""
    told = [line for line in text.splitlines() if not REMARK.match(line)]
    fields = [field.strip("*[]") for field in " ".join(told).split()[-8:]]
    try:
        used, soft, hard, files, soft_files, hard_files = (int(fields[index]) for index in (0, 1, 2, 4, 5, 6))
    except (ValueError, IndexError):
        return None
    limit, most = hard or soft, hard_files or soft_files
    if not limit and not most:
        return None
    return Quota(whose, max(0, limit - used) << 10 if limit else None, max(0, most - files) if most else None)


def _output(*command: str) -> str | None:
    """What a command prints, whatever its exit code: quota(1) has one for a quota that is used up.

    None where it is not there, or hangs, as tools of a file system in trouble do.
    """
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=QUOTA_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None


def space_needed(plan: Plan) -> Need:
    """What a plan's build will write: rows, plan and journals (some 200 bytes a row, 60 a box), and files."""
    shards = plan.blocks.place(plan.count - 1)[0] + 1
    numbers = sum(int(column.dtype[2:]) * math.prod(column.shape) for column in plan.columns)
    other_bytes = 200 + 60 * plan.recipe.boxes_per_row + 2 * numbers  # the plan's and the store's
    files = shards + OTHER_FILES + 2 * len(plan.columns)
    return Need(plan.count, plan.count * (plan.recipe.row_bytes + other_bytes), files)
