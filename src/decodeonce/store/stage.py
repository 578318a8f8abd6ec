"""Staging: copy a range of a store's rows to a node's own disk or memory, as a part that opens like a store.

store.json is written last. Readers refuse a part without it, and `.stage/` records which rows an unfinished part is
going to hold. A resumed call reads the rows that are already there and keeps those with the right checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from decodeonce.errors import StageError, StoreError
from decodeonce.formatting import size_text
from decodeonce.host import allow_open_files, free_space
from decodeonce.store import disk, files
from decodeonce.store.checks import check_file, check_head
from decodeonce.store.hashing import first_wrong_row
from decodeonce.store.layout import StorePaths, damaged
from decodeonce.store.manifest import PIECE_BYTES, Manifest, Shard, parse_manifest, part_bytes, read_part, rows_text
from decodeonce.store.origin import LocalStore, ReadAt, RemoteStore
from decodeonce.store.reader import Store, open_store
from decodeonce.store.sharing import LOCK, locked
from decodeonce.store.writer import copy_small

Origin = LocalStore | RemoteStore
USE_OTHER_FOLDER = "remove it, or choose another folder"


@dataclass(frozen=True)
class Staged:
    """The result of `stage_store`.

    Attributes:
        rows: The rows that the part holds.
        copied: Number of rows that this call copied. The others were already there and have been verified.
        finished: Whether the part was already complete. Then only its file names, sizes and headers were checked.

    Example:
        >>> staged = stage_store(open_store("train.store"), "train.part", rows=range(16))
        >>> staged.copied, staged.finished
        (16, False)
    """

    rows: range
    copied: int
    finished: bool = False


def stage_store(
    source: Store | RemoteStore,
    dest: str | os.PathLike[str],
    *,
    rows: range,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Staged:
    """Copy a range of rows to the folder `dest`, as a part that opens like a store.

    Every row is verified while it is copied. If a call is killed, repeat it to resume. A finished part is not read
    again. If another process stages to the same folder, this call waits for it. Files that were in `dest` before are
    never removed.

    Args:
        source: The store, or a staged part that holds the rows, or a store in an object store.
        dest: A new or empty folder, or a part with the same rows, finished or not.
        rows: Rows to copy, a range of step 1. See `part_rows`.
        threads: Number of pieces (about 4 MiB each) copied at the same time. Default: 8, or 32 from an object store.
        progress: Called with the number of rows since the last call. Default: none.

    Returns:
        Staged: The rows that the part holds, and how many were copied.

    Raises:
        StageError: If `rows` is not a valid range, `dest` holds something else, there is not enough space, or the store
            changes meanwhile.
        StoreError: If the source is damaged or lacks some of the rows, or an object is missing or may not be read.
        Stopped: If a server does not answer. Call the function again to resume.
        OSError: If the file system fails.

    Example:
        >>> store = open_store("train.store")
        >>> stage_store(store, "train.part", rows=part_rows(len(store), part=0, parts=4))
        Staged(rows=range(0, 16), copied=16, finished=False)
        >>> loader = Loader("train.part", batch_size=8, partition="range", rank=0, world_size=4)
    """
    paths, origin = StorePaths(dest), LocalStore(source) if isinstance(source, Store) else source
    threads = threads or origin.threads
    _check_rows(origin, rows)
    if isinstance(source, Store):
        source.images.check_held(rows, "stage from the whole store")
    _make_folder(origin, paths.root)
    with locked(paths.staging, waits_for="another `prep stage`"):
        finished = _is_finished(origin, paths, rows)
        copied = 0 if finished else _make_part(origin, paths, rows, threads, progress or (lambda rows: None))
        # Even if the part is finished: the process that wrote store.json may have been killed.
        files.sync_folder(paths.root)
        with suppress(OSError):  # the part is complete without this
            files.empty_folder(paths.staging, keep=LOCK)
    return Staged(rows, copied, finished)


def _check_rows(source: Origin, rows: range) -> None:
    root, count = source.root, source.manifest.count
    if not rows:
        raise StageError(f"{root}: no rows to stage: there are more parts than rows ({count}); use fewer parts")
    if rows.step != 1 or rows[0] < 0 or rows[-1] >= count:
        raise StageError(f"{root}: cannot stage {rows}, expected a range of step 1 within 0..{count - 1}")


def _make_folder(source: Origin, root: Path) -> None:
    resolved = Path(os.path.realpath(root))
    if resolved.is_relative_to(os.path.realpath(source.root)):
        raise StageError(f"{root}: is inside the store to be staged; choose a folder on the node's own disk")
    if resolved.exists() and not resolved.is_dir():
        raise StageError(f"{root}: a file, expected a new or empty folder")
    files.make_folder(resolved)


def _is_finished(source: Origin, paths: StorePaths, rows: range) -> bool:
    """Whether the part is complete, by names, sizes and headers. Raise StageError if the folder is another store."""
    if not paths.manifest.exists():
        return False
    try:
        found = open_store(paths.root)
    except StoreError as error:
        problem = _without_advice(error)
        raise StageError(f"{paths.root}: a damaged store or part: {problem}; {USE_OTHER_FOLDER}") from None
    expected = f"expected {rows_text(rows)} of {source.root}"
    if found.manifest.digest != source.manifest.digest:
        other = f"holds another store (digest {found.manifest.digest})"
        raise StageError(f"{paths.root}: {other}, {expected}; {USE_OTHER_FOLDER}")
    if found.rows != rows:
        raise StageError(f"{paths.root}: holds {rows_text(found.rows)} of that store, {expected}; {USE_OTHER_FOLDER}")
    return True


def _make_part(source: Origin, paths: StorePaths, rows: range, threads: int, progress: Callable[[int], None]) -> int:
    """Create or complete the part, and return the number of copied rows."""
    manifest, root = source.manifest, source.root
    encoded = part_bytes(manifest.digest, rows)
    resumed = _is_claimed(source, paths, rows)
    _check_space(manifest, paths.root, rows)
    if not resumed:
        files.make_folder(paths.staging)  # fails on a read-only file system, where `locked` does nothing
        files.write_atomic(paths.claim, [encoded])
    files.sync_folder(paths.staging)  # even if the claim is older: the process that wrote it may have been killed

    def make_small(name: str) -> None:
        try:
            check_file(paths.root / name, manifest.files[name])
        except StoreError:  # missing, or damaged since an earlier attempt
            facts = manifest.files[name]
            with source.opened(name, facts.bytes) as read:
                copy_small(root / name, _chunks(read, facts.bytes), paths.root / name, facts, scratch=paths.staging)

    def make_shard(shard: Shard) -> None:
        with source.opened(shard.file, shard.bytes) as read:
            head = b"".join(_chunks(read, shard.data_offset))
        check_head(root / shard.file, head, shard, manifest.container)
        held = shard.held_rows(rows)
        with files.writing(paths.root / shard.file, os.O_RDWR | os.O_CREAT) as fd:
            disk.ftruncate(fd, shard.bytes)  # a sparse file
            if held:
                files.reserve(fd, len(held) * shard.row_bytes, paths.root / shard.file, offset=shard.offset(held.start))
            files.write_at(fd, head, 0)

    # In threads, because these calls wait for the disk, and because tmpfs reserves page by page, 0.25 s per GB.
    small = [partial(make_small, name) for name in manifest.files]
    _in_threads(threads, [*small, *(partial(make_shard, shard) for shard in manifest.shards)])
    copied = _copy_rows(source, paths, rows, threads, progress, resumed=resumed)
    for shard in manifest.shards:
        files.sync_file(paths.root / shard.file)
    files.sync_folder(paths.root)
    _publish(source, paths, encoded)
    return copied


def _in_threads(threads: int, calls: Sequence[Callable[[], None]]) -> None:
    """Run the calls in threads. After an error, start no more of them, and raise it."""
    with ThreadPoolExecutor(threads) as pool:
        try:
            for done in [pool.submit(call) for call in calls]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _chunks(read: ReadAt, nbytes: int) -> Iterator[memoryview]:
    """Yield the first `nbytes` bytes of a file, or all of them if they are fewer."""
    for offset in range(0, nbytes, PIECE_BYTES):
        chunk = memoryview(bytearray(min(PIECE_BYTES, nbytes - offset)))
        yield chunk[: read(chunk, offset)]


def _publish(source: Origin, paths: StorePaths, part: bytes) -> None:
    """Write stage.json, which holds `part`, and then the manifest of the source, which makes the part readable."""
    encoded = source.manifest_bytes()
    if parse_manifest(encoded, source.root / paths.manifest.name).digest != source.manifest.digest:
        what = "the store was replaced while it was being staged"
        raise StageError(f"{source.root}: {what}; remove {paths.root} and stage it again")
    files.write_atomic(paths.part, [part], scratch=paths.staging)
    files.write_atomic(paths.manifest, [encoded], scratch=paths.staging)


def _is_claimed(source: Origin, paths: StorePaths, rows: range) -> bool:
    """Whether the folder is this part, unfinished. Raise StageError if it is another part or holds anything else."""
    try:
        found = read_part(paths.claim, source.manifest)
    except StoreError as error:
        what = f"an unfinished part, not of this store ({_without_advice(error)})"
        raise StageError(f"{paths.root}: {what}; {USE_OTHER_FOLDER}") from None
    if found is not None and found != rows:
        what = f"an unfinished part, {rows_text(found)}, expected {rows_text(rows)}"
        raise StageError(f"{paths.root}: {what}; finish it with the command that began it, or {USE_OTHER_FOLDER}")
    foreign = sorted(set(os.listdir(paths.root)) - {paths.staging.name})
    if found is None and foreign:
        raise StageError(f"{paths.root}: contains {foreign[0]!r}, expected a new or empty folder")
    return found is not None


def _without_advice(error: StoreError) -> str:
    """The error's message without its next step, which does not apply here."""
    return str(error).rpartition("; ")[0] or str(error)


def _check_space(manifest: Manifest, root: Path, rows: range) -> None:
    """Raise StageError if the disk lacks space for the missing files. A quota shows only when space is reserved."""
    needed = len(rows) * manifest.row_bytes
    needed += sum(s.data_offset for s in manifest.shards) + sum(f.bytes for f in manifest.files.values())
    present = sum(entry.stat().st_blocks * 512 for entry in os.scandir(root) if entry.is_file())
    free, _ = free_space(root)
    if free is not None and needed - present > free:
        raise StageError(
            f"{root}: {size_text(free)} free, {size_text(needed - present)} needed for {rows_text(rows)} "
            f"of {manifest.count}; make room, or stage fewer rows on each node"
        )


def _copy_rows(
    source: Origin, dest: StorePaths, held: range, threads: int, progress: Callable[[int], None], *, resumed: bool
) -> int:
    """Copy the rows `held` into the shards of a part, which already have their full size. Verify each row in memory.

    With `resumed`, an earlier attempt may have copied some rows: pieces that are already right are skipped.

    Returns:
        The number of copied rows.
    """
    manifest, root, row_bytes, total = source.manifest, source.root, source.manifest.row_bytes, 0
    checksums = np.array(Store(dest, manifest).checksums)
    shards = [shard for shard in manifest.shards if shard.held_rows(held)]
    allow_open_files(3 * len(shards))
    opened_files: dict[str, tuple[ReadAt, files.ShardFile]] = {}
    buffers: SimpleQueue[memoryview] = SimpleQueue()
    for _ in range(threads):
        buffers.put(files.page_aligned_buffer(manifest.rows_per_piece * row_bytes))

    def copy(piece: tuple[Shard, range]) -> int:
        (shard, rows), buffer = piece, buffers.get()
        path, (read, target) = root / shard.file, opened_files[shard.file]
        data, offset = buffer[: len(rows) * row_bytes], shard.offset(rows.start)
        expected = checksums[rows.start : rows.stop].tolist()
        try:
            is_there = resumed and target.read(data, offset) == len(data)
            if is_there and first_wrong_row(data, row_bytes, expected) is None:
                return 0
            with files.add_path_to_errors(path):
                got = read(data, offset)
            if got < len(data):
                raise damaged(path, f"ends at byte {offset + got}, expected {shard.bytes}")
            if (wrong := first_wrong_row(data, row_bytes, expected)) is not None:
                raise damaged(path, f"row {rows[wrong]} does not match its checksum")
            target.write(data, offset)
            return len(rows)
        finally:
            buffers.put(buffer)

    with ExitStack() as opened, ThreadPoolExecutor(threads) as pool:
        for shard in shards:
            read = opened.enter_context(source.opened(shard.file, shard.bytes))
            opened_files[shard.file] = read, opened.enter_context(files.ShardFile(dest.root / shard.file))
        try:
            todo = list(manifest.pieces(held))
            for (_, rows), copied in zip(todo, pool.map(copy, todo), strict=True):
                total += copied
                progress(len(rows))
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, each thread stops at the end of its piece
    return total
