"""Check free space, file limits and quotas before a build, and advise on Lustre striping."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.formatting import counted, quoted, size_text
from decodeonce.host import free_space, network_file_system
from decodeonce.prep.building.plan import Plan

OTHER_FILES = 12  # of the finished store and of the plan, without the shards
PALETTE_BYTES = 256 * 160  # of a mask in the line of a block
QUOTA_SECONDS = 20
# Lines that lfs prints for a default quota, or if some servers did not answer.
REMARK = re.compile(r"\s*([ugp]id \S+ is using default|Some errors happened)")
# Many nodes read a shard at once, but one server serves a stripe: eight stripes give a few GB/s.
STRIPES, STRIPE_SIZE = 8, "16M"


@dataclass(frozen=True)
class Need:
    """The rows, bytes and files that a build will write."""

    rows: int
    bytes: int
    files: int


@dataclass(frozen=True)
class Quota:
    """Free bytes and files within a quota; None means no limit. `whose` is such as "user 1000"."""

    whose: str
    free_bytes: int | None
    free_files: int | None


@dataclass(frozen=True)
class Storage:
    """The file system of a folder.

    Args:
        place: The folder.
        kind: Name of a network file system; None for a local one.
        free_bytes: Free bytes; None for no known limit.
        free_files: Number of files that can be created; None for no limit.
        quotas: The quotas that apply.
    """

    place: Path
    kind: str | None
    free_bytes: int | None
    free_files: int | None
    quotas: tuple[Quota, ...]


def find_storage(out: Path) -> Storage:
    """Return the storage of a store at `out`, which need not exist yet. Quotas come from the commands lfs or quota."""
    resolved = Path(os.path.realpath(out))  # a link may lead to another file system, or to itself
    place = next(path for path in (resolved, *resolved.parents) if path.exists())
    kind = network_file_system(place)
    return Storage(place, kind, *free_space(place), tuple(_quotas(place, kind)))


def check_free_space(out: Path, storage: Storage, need: Need) -> None:
    """Raise BuildError if the disk or a quota has less space or fewer files than needed."""
    limits: list[Storage | Quota] = [storage, *storage.quotas]
    for limit in limits:
        if limit.free_bytes is not None and need.bytes > limit.free_bytes:
            found = f"{size_text(limit.free_bytes)} free{_quota_of(limit)}, {size_text(need.bytes)} needed"
            advice = "make room, choose another OUT, or pass a smaller --size"
            raise BuildError(f"{out}: {found} for {counted(need.rows, 'row')}; {advice}")
        if limit.free_files is not None and need.files > limit.free_files:
            found = f"{limit.free_files} more files allowed{_quota_of(limit)}, {need.files} needed"
            raise BuildError(f"{out}: {found}; remove some, choose another OUT, or pass a larger --shard-size")


def _quota_of(limit: Storage | Quota) -> str:
    return f" within the quota of {limit.whose}" if isinstance(limit, Quota) else ""


def describe_storage(storage: Storage) -> list[str]:
    """Describe the storage and each quota, one sentence each."""
    files = "" if storage.free_files is None else f" and {storage.free_files} files"
    room = "unlimited bytes" if storage.free_bytes is None else size_text(storage.free_bytes)
    texts = [f"{storage.place}: {storage.kind or 'a local file system'}, {room}{files} free"]
    for quota in storage.quotas:
        room = "any size" if quota.free_bytes is None else size_text(quota.free_bytes)
        more = "any number of" if quota.free_files is None else quota.free_files
        texts.append(f"the quota of {quota.whose} leaves {room} and {more} files")
    return texts


def stripe_advice(out: Path, storage: Storage) -> list[str]:
    """Return the command that stripes the shards on Lustre; none elsewhere or with a progressive layout."""
    layout = _output("lfs", "getstripe", "-d", str(storage.place)) if storage.kind == "Lustre" else None
    if not layout or "lcm_" in layout:  # progressive layouts stripe large files automatically
        return []
    command = f"mkdir -p {quoted(out)} && lfs setstripe -c {STRIPES} -S {STRIPE_SIZE} {quoted(out)}"
    return [f"on Lustre, spread each shard over several servers before you build: {command}"]


def _quotas(place: Path, kind: str | None) -> list[Quota]:
    """Return the quotas that lfs or quota report; empty if the tool is missing or reports none."""
    if kind == "Lustre":
        outputs = _lustre_quotas(place)
    else:
        mount = next(path for path in (place, *place.parents) if path.is_mount())  # quota(1) accepts only mount points
        outputs = {f"user {os.getuid()}": _output("quota", "--no-wrap", "--raw-grace", f"--filesystem={mount}")}
    return [quota for whose, text in outputs.items() if text and (quota := _parse_quota(whose, text))]


def _lustre_quotas(place: Path) -> dict[str, str | None]:
    """Return what lfs prints for each owner of a quota."""
    flags = {"user": ("-u", str(os.getuid())), "group": ("-g", str(place.stat().st_gid))}
    project = (_output("lfs", "project", "-d", str(place)) or "").split()
    if project and project[0] not in ("", "0"):
        flags["project"] = ("-p", project[0])
    return {f"{kind} {flag[1]}": _output("lfs", "quota", "-q", *flag, str(place)) for kind, flag in flags.items()}


def _parse_quota(whose: str, text: str) -> Quota | None:
    """Parse the last 8 fields: KiB used, soft limit, hard limit and grace, and the same for files; 0 is no limit."""
    lines = [line for line in text.splitlines() if not REMARK.match(line)]
    fields = [field.strip("*[]") for field in " ".join(lines).split()[-8:]]
    try:
        used, soft, hard, files, soft_files, hard_files = (int(fields[index]) for index in (0, 1, 2, 4, 5, 6))
    except (ValueError, IndexError):
        return None
    limit, most = hard or soft, hard_files or soft_files
    if not limit and not most:
        return None
    return Quota(whose, max(0, limit - used) << 10 if limit else None, max(0, most - files) if most else None)


def _output(*command: str) -> str | None:
    """Return the standard output of a command; None if the command is missing or hangs.

    The exit code is ignored: quota(1) fails if a quota is used up.
    """
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=QUOTA_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None


def space_needed(plan: Plan) -> Need:
    """Return what a build will write: shards, plan and journals (about 200 bytes per row), and files.

    For each block, a journal also has up to two colors of each of the 256 indexes of a mask with a palette.
    """
    number_bytes = [size for _, size in plan.content["number_bytes"]]
    other_bytes = 200 + 2 * sum(number_bytes)  # numbers are in the plan and in the store
    files = plan.blocks.shards + OTHER_FILES + 2 * len(number_bytes)
    palettes = PALETTE_BYTES * len(plan.blocks) * sum(one.channels == 1 for one in plan.recipe.paired)
    return Need(plan.count, plan.blocks.shard_bytes + plan.count * other_bytes + palettes, files)
