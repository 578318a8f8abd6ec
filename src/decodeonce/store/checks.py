"""Check files against the manifest, and build the errors for files that do not match it."""

from __future__ import annotations

import errno
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from decodeonce.errors import TRANSIENT_ERRORS, Stopped, StoreError, retry_advice
from decodeonce.formatting import argument, quoted
from decodeonce.store.files import read_regular, reading
from decodeonce.store.format import CONTAINERS
from decodeonce.store.hashing import file_hexdigest, hexdigest
from decodeonce.store.layout import BUILT_ARRAY, UPLOAD, StorePaths, missing_advice
from decodeonce.store.manifest import BOX_COLUMNS, WITH_PAIRED, Manifest, Shard, SmallFile, read_manifest


def unreadable_shard_error(path: Path, error: OSError) -> StoreError | Stopped:
    """Convert an OSError from opening, mapping or reading a shard. Stopped means that a retry may succeed."""
    if error.errno in TRANSIENT_ERRORS - {errno.EMFILE, errno.ENFILE}:
        return Stopped(f"{path}: {error.strerror}; {retry_advice(error)}")
    advice = "; raise the limit with `ulimit -n`" if error.errno == errno.EMFILE else ""
    return StoreError(f"{path}: cannot be opened: {error.strerror}{advice}")


def repair_advice(path: Path) -> str:
    """The next step for a damaged file of a store or staged part. `prep repair` can only copy an added column."""
    store = quoted(path.parent)
    if "://" in store:
        return UPLOAD
    copied = f"run `prep repair {store} --from COPY`, where COPY is a copy of the store"
    if path.suffix == ".npy" and not BUILT_ARRAY.fullmatch(path.name):
        return f"{copied}, or add its numbers again: `prep column add {store} {argument(path.stem)} FILE.npy`"
    if path.suffix == ".tsv" or path.stem in BOX_COLUMNS:
        return copied
    manifest, source = path.with_name("store.json"), "SRC`"
    with suppress(StoreError, OSError):  # another error reports a damaged manifest
        source = _repair_source(manifest, manifest.stat().st_mtime_ns)
    return f"run `prep repair {store} --from {source}"


@lru_cache(1)  # each missing shard of a store has a message
def _repair_source(manifest: Path, mtime_ns: int) -> str:
    """Return the rest of a command after --from, and what its words stand for; SRC is that of the build."""
    found = read_manifest(manifest)
    kind = str(found.source.get("kind"))
    if kind == "store" or found.recipe.keys() & {"resized_from", "unpacked_from"}:
        return "STORE`, where STORE is another store with these rows"
    folders = "".join(f" --paired {one.name}=DIR" for one in found.paired) if WITH_PAIRED in kind else ""
    if kind.partition("+")[0] == "list":
        return f"ROOT{folders}`, where ROOT is the --root of the build, or the folder of the list"
    return f"SRC{folders}`"


def damaged_row_error(root: Path, manifest: Manifest, row: int) -> StoreError:
    """The error for a checksum mismatch."""
    path = root / manifest.shard_of(row).file
    return StoreError(f"{path}: row {row} does not match its checksum; {repair_advice(path)}")


def check_not_replaced(root: Path, manifest: Manifest, opened: Path) -> None:
    """Raise StoreError if another store has replaced the one at `root`, so that `opened` may belong to the other store.

    Call this right after a file was opened. An open file does not change when its name is removed or replaced later.
    """
    path = StorePaths(root).manifest
    try:
        found = read_regular(path)
    except OSError as error:
        raise unreadable_shard_error(path if error.errno == errno.ENOENT else opened, error) from error
    # With this indent it is the manifest's own digest. Digests of other stores are indented further.
    if b'\n "digest": "%s"' % manifest.digest.encode() not in found:
        raise StoreError(f"{root}: the store was replaced after it was opened; open it again")


def check_size(path: Path, expected: int, *, longer_is_fine: bool = False) -> None:
    """Raise StoreError unless the file has the size that the manifest states."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise _no_file(path, "missing", expected, missing_advice(path.parent)) from None
    if not stat.S_ISREG(status.st_mode):
        raise _no_file(path, "a folder, pipe or device", expected, "remove it, then ")
    found = status.st_size
    if found != expected and not (longer_is_fine and found > expected):
        raise StoreError(f"{path}: {found} bytes, expected {expected}; {repair_advice(path)}")


def _no_file(path: Path, found: str, expected: int, advice: str) -> StoreError:
    return StoreError(f"{path}: {found}, expected a file of {expected} bytes; {advice}{repair_advice(path)}")


def check_file(path: Path, facts: SmallFile) -> None:
    """Raise StoreError unless a small file has the size and digest that the manifest states."""
    check_size(path, facts.bytes)
    if (found := file_hexdigest(path)) != facts.xxh3:
        raise StoreError(f"{path}: damaged: xxh3_64 is {found}, expected {facts.xxh3}; {repair_advice(path)}")


def check_shard(path: Path, shard: Shard, container: str) -> bytes:
    """Return a shard's header. Raise StoreError unless its size, magic bytes and header match the manifest."""
    check_size(path, shard.bytes, longer_is_fine=True)
    with reading(path, buffering=0) as file:
        head = file.read(shard.data_offset)
    check_head(path, head, shard, container)
    return head


def check_head(path: Path, head: bytes, shard: Shard, container: str) -> None:
    """Raise StoreError unless a shard's magic bytes and header match the manifest."""
    if not head.startswith(CONTAINERS[container].magic):
        raise StoreError(f"{path}: does not begin like an {container} file; {repair_advice(path)}")
    if hexdigest(head) != shard.meta_xxh3:
        raise StoreError(f"{path}: its header (first {shard.data_offset} bytes) is damaged; {repair_advice(path)}")
