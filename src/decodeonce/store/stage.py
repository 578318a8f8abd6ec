"""Staging: a range of a store's rows copied to a node's own disk or memory, as a part that readers open like a store.

A part is unfinished, and readers refuse it, until store.json is there; that is written last. Until then `.stage/` says
what it is to become. What was copied before a kill is found by reading it: rows with the right checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decodeonce.errors import StageError, StoreError
from decodeonce.formatting import size_text
from decodeonce.store import disk
from decodeonce.store.checks import check_file, check_shard
from decodeonce.store.copying import copy_rows
from decodeonce.store.durable import (
    empty_folder,
    make_folder,
    reserve,
    sync_file,
    sync_folder,
    write_at,
    write_atomic,
    writing,
)
from decodeonce.store.layout import StorePaths
from decodeonce.store.locks import LOCK, locked
from decodeonce.store.manifest import Manifest, Shard, parse_manifest
from decodeonce.store.part import Part, read_part, rows_text
from decodeonce.store.reader import Store, open_store
from decodeonce.store.regular_files import read_regular
from decodeonce.store.writer import copy_small

# More than the cores: most of the time they wait for storage, each for one read or write.
THREADS = 8
ELSEWHERE = "remove it, or give another folder"


@dataclass(frozen=True)
class Staged:
    """What `stage_store` did: the part holds `rows`; `copied` of them were copied, the others were there already.

    Those were read and checked, unless the part was `finished` before: such a one is known by its files' names, sizes
    and heads.
    """

    rows: range
    copied: int
    finished: bool = False


def stage_store(
    source: Store,
    dest: str | os.PathLike[str],
    *,
    rows: range,
    threads: int = THREADS,
    progress: Callable[[int], None] | None = None,
) -> Staged:
    """Make the folder `dest` a part of the store `source` that holds `rows` (see part_rows), each checked on its way.

    A call that was killed is resumed by the next one; a finished part is not read again. If another process stages
    there, this one waits, and finds it done. Nothing that lay in `dest` before is removed.

    Args:
        source: The store, or a staged part that holds the rows.
        dest: A new or empty folder, or an unfinished part of the same rows.
        rows: The rows to copy.
        threads: Number of pieces of rows that are copied at the same time.
        progress: Called with the number of rows since its last call.

    Raises:
        StageError: If the rows, the folder, what lies there or too little space forbid it.
        StoreError: If the source is damaged.
        OSError: If the file system fails.
    """
    part, paths = Part(source.manifest.digest, rows.start, len(rows)), StorePaths(Path(dest))
    _check_rows(source, rows)
    _make_folder(source, paths.root)
    with locked(paths.staging, waits_for="another `prep stage`"):
        finished = _is_finished(source, paths, rows)
        copied = 0 if finished else _make_part(source, paths, part, threads, progress or (lambda rows: None))
        sync_folder(paths.root)  # also of a finished part: the process that wrote store.json may have been killed
        with suppress(OSError):  # the part is whole without this
            empty_folder(paths.staging, keep=LOCK)
    return Staged(rows, copied, finished)


def _check_rows(source: Store, rows: range) -> None:
    root = source.paths.root
    if not rows:
        raise StageError(f"{root}: no rows to stage: more parts than its {len(source)} rows; take fewer")
    if rows.step != 1 or rows[0] < 0 or rows[-1] >= len(source):
        raise StageError(f"{root}: {rows} to stage, expected a range of step 1 within 0..{len(source) - 1}")
    source.check_held(rows, "stage from the whole store")


def _make_folder(source: Store, root: Path) -> None:
    whole = Path(os.path.realpath(root))
    if whole.is_relative_to(os.path.realpath(source.paths.root)):
        raise StageError(f"{root}: lies in the store to be staged; give a folder elsewhere, on the node's own disk")
    if whole.exists() and not whole.is_dir():
        raise StageError(f"{root}: a file, expected a new or empty folder")
    make_folder(whole)


def _is_finished(source: Store, paths: StorePaths, rows: range) -> bool:
    """Whether all of this part is there already, by names, sizes and heads; StageError if another store is."""
    if not paths.manifest.exists():
        return False
    try:
        found = open_store(paths.root)
    except StoreError as error:
        raise StageError(f"{paths.root}: a damaged store or part: {_found(error)}; {ELSEWHERE}") from None
    expected = f"expected {rows_text(rows)} of {source.paths.root}"
    if found.manifest.digest != source.manifest.digest:
        raise StageError(f"{paths.root}: holds another store (digest {found.manifest.digest}), {expected}; {ELSEWHERE}")
    if found.rows != rows:
        raise StageError(f"{paths.root}: holds {rows_text(found.rows)} of that store, {expected}; {ELSEWHERE}")
    return True


def _make_part(source: Store, paths: StorePaths, part: Part, threads: int, progress: Callable[[int], None]) -> int:
    """Make the part, or finish it; return the number of rows that were copied."""
    manifest, root = source.manifest, source.paths.root
    resumed = _is_claimed(source, paths, part)
    _check_space(manifest, paths.root, part.held)
    if not resumed:
        make_folder(paths.staging)  # `locked` makes none on a read-only file system, where this is an error
        write_atomic(paths.claim, [part.to_bytes()])
    sync_folder(paths.staging)  # also of an older claim: the process that wrote it may have been killed
    for name, facts in manifest.files.items():
        try:
            check_file(paths.root / name, facts)
        except StoreError:  # missing, or damaged since an earlier attempt
            copy_small(root / name, paths.root / name, facts, scratch=paths.staging)
    for shard in manifest.shards:
        _make_shard(root / shard.file, paths.root / shard.file, manifest, shard, part.held)
    checksums = np.array(Store(paths, manifest).checksums[part.held.start : part.held.stop])
    copied = copy_rows(source, paths.root, part.held, checksums, threads=threads, resumed=resumed, progress=progress)
    for shard in manifest.shards:
        sync_file(paths.root / shard.file)
    sync_folder(paths.root)
    _publish(source, paths, part)
    return copied


def _is_claimed(source: Store, paths: StorePaths, part: Part) -> bool:
    """Whether the folder is to become this part; StageError if it is to become another, or holds anything else."""
    try:
        found = read_part(paths.claim, source.manifest)
    except StoreError as error:
        what = f"an unfinished part, not of this store ({_found(error)})"
        raise StageError(f"{paths.root}: {what}; {ELSEWHERE}") from None
    if found is not None and found != part:
        what = f"an unfinished part, {rows_text(found.held)}, expected {rows_text(part.held)}"
        raise StageError(f"{paths.root}: {what}; finish it with those, or {ELSEWHERE}")
    foreign = sorted(set(os.listdir(paths.root)) - {paths.staging.name})
    if found is None and foreign:
        raise StageError(f"{paths.root}: {foreign[0]!r} is in it; expected a new or empty folder")
    return found is not None


def _found(error: StoreError) -> str:
    """What the error tells, without its next step, which is another one here."""
    return str(error).rpartition("; ")[0] or str(error)


def _check_space(manifest: Manifest, root: Path, rows: range) -> None:
    """Raise StageError if the disk has less room than the missing files take; a quota shows when reserving."""
    needed = len(rows) * manifest.row_bytes
    needed += sum(s.data_offset for s in manifest.shards) + sum(f.bytes for f in manifest.files.values())
    there = sum(entry.stat().st_blocks * 512 for entry in os.scandir(root) if entry.is_file())
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and needed - there > free:  # a tmpfs without a limit has no blocks
        raise StageError(
            f"{root}: {size_text(free)} free, {size_text(needed - there)} needed for {rows_text(rows)} "
            f"of {manifest.count}; make room, or stage less to each node"
        )


def _make_shard(source: Path, dest: Path, manifest: Manifest, shard: Shard, rows: range) -> None:
    """Make a sparse file of the shard's size with its head, and room for those of `rows` that lie in it."""
    head, held = check_shard(source, shard, manifest.container), shard.held_rows(rows)
    with writing(dest, os.O_RDWR | os.O_CREAT) as fd:
        disk.ftruncate(fd, shard.bytes)
        if held:
            reserve(fd, len(held) * shard.row_bytes, dest, offset=shard.offset(held.start))
        write_at(fd, head, 0)


def _publish(source: Store, paths: StorePaths, part: Part) -> None:
    encoded = read_regular(source.paths.manifest)
    if parse_manifest(encoded, source.paths.manifest).digest != part.store:
        what = "became another store while it was staged"
        raise StageError(f"{source.paths.root}: {what}; remove {paths.root}, and stage it again")
    write_atomic(paths.part, [part.to_bytes()], scratch=paths.staging)
    write_atomic(paths.manifest, [encoded], scratch=paths.staging)
