"""Check that files are those that the manifest describes, and word the errors if they are not."""

from __future__ import annotations

import errno
import stat
from pathlib import Path
from typing import NamedTuple

from decodeonce.errors import PASSING_ERRORS, Stopped, StoreError, again
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.hashing import file_chunks, file_hexdigest, hexdigest
from decodeonce.store.layout import StorePaths, missing_advice, repair_advice
from decodeonce.store.manifest import Manifest, Shard, SmallFile, read_manifest
from decodeonce.store.part import Part, read_part
from decodeonce.store.regular_files import read_regular, reading


class CheckedStore(NamedTuple):
    """The facts of a store, or of a staged part, whose files have the sizes and heads of its manifest."""

    paths: StorePaths
    manifest: Manifest
    part: Part | None

    @property
    def rows(self) -> range:
        """The rows whose images are here."""
        return self.part.held if self.part else range(self.manifest.count)


def check_store(root: Path) -> CheckedStore:
    """Read the manifest of a store, and check the sizes and heads of its files; no row is read. Raises StoreError."""
    paths = StorePaths(root)
    manifest = read_manifest(paths.manifest)
    part = read_part(paths.part, manifest)
    for shard in manifest.shards:
        check_shard(paths.root / shard.file, shard, manifest.container)
    for name, facts in manifest.files.items():
        check_size(paths.root / name, facts.bytes)
    return CheckedStore(paths, manifest, part)


def unreadable_shard_error(path: Path, error: OSError) -> StoreError | Stopped:
    """The error for a shard that the operating system does not open, map or read; Stopped if that may pass."""
    if error.errno in PASSING_ERRORS - {errno.EMFILE, errno.ENFILE}:
        return Stopped(f"{path}: {error.strerror}; {again(error)}")
    advice = "; allow more of them with `ulimit -n`" if error.errno == errno.EMFILE else ""
    return StoreError(f"{path}: cannot be opened: {error.strerror}{advice}")


def damaged_row_error(root: Path, manifest: Manifest, row: int) -> StoreError:
    """The error for a checksum mismatch."""
    path = root / manifest.shard_of(row).file
    return StoreError(f"{path}: row {row} is not what was written; {repair_advice(path)}")


def check_not_replaced(root: Path, manifest: Manifest, opened: Path) -> None:
    """Raise StoreError unless the store of this manifest still lies at `root`, and no other, whose file was `opened`.

    For files opened just now: they stay what they are, whatever is removed, renamed or put there later.
    """
    path = StorePaths(root).manifest
    try:
        found = read_regular(path)
    except OSError as error:
        raise unreadable_shard_error(path if error.errno == errno.ENOENT else opened, error) from error
    # The manifest's own digest, not one of another store's that it holds: those are set in further.
    if b'\n "digest": "%s"' % manifest.digest.encode() not in found:
        raise StoreError(f"{root}: another store has taken the place of the one that was opened; open it again")


def check_size(path: Path, expected: int, *, longer_is_fine: bool = False) -> None:
    """Raise StoreError unless the file has the size its manifest gives."""
    try:
        status = path.stat()
    except FileNotFoundError:
        away = missing_advice(path.parent)
        raise StoreError(f"{path}: missing, expected a file of {expected} bytes; {away}{repair_advice(path)}") from None
    if not stat.S_ISREG(status.st_mode):
        what = f"a folder, pipe or device, expected a file of {expected} bytes"
        raise StoreError(f"{path}: {what}; remove it, then {repair_advice(path)}")
    found = status.st_size
    if found != expected and not (longer_is_fine and found > expected):
        raise StoreError(f"{path}: {found} bytes, expected {expected}; {repair_advice(path)}")


def check_file(path: Path, facts: SmallFile) -> None:
    """Raise StoreError unless a small file has the size and digest of its manifest."""
    check_size(path, facts.bytes)
    if (found := file_hexdigest(file_chunks(path))) != facts.xxh3:
        wrong = f"its bytes are not those written: xxh3_64 {found}, expected {facts.xxh3}"
        raise StoreError(f"{path}: {wrong}; {repair_advice(path)}")


def check_shard(path: Path, shard: Shard, container: str) -> bytes:
    """Return the head of a shard; raise StoreError unless its size, magic and head are as the manifest says."""
    check_size(path, shard.bytes, longer_is_fine=True)
    with reading(path, buffering=0) as file:
        head = file.read(shard.data_offset)
    if not head.startswith(CONTAINERS[container].magic):
        raise StoreError(f"{path}: does not begin as an {container} file does; {repair_advice(path)}")
    if hexdigest(head) != shard.meta_xxh3:
        wrong = f"its first {shard.data_offset} bytes are not those written"
        raise StoreError(f"{path}: {wrong}; {repair_advice(path)}")
    return head
