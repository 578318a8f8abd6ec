"""Where `stage_store` reads the files of a store: in a local folder, or in an object store by ranges."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from decodeonce.errors import BuildError, StageError, StoreError
from decodeonce.remote import ChangedObject, ObjectFacts, read_object, source_path, stat_object
from decodeonce.store.checks import check_size
from decodeonce.store.files import read_at, read_regular, reading
from decodeonce.store.hashing import MAX_SIGNED_BYTES
from decodeonce.store.layout import damaged
from decodeonce.store.manifest import parse_manifest
from decodeonce.store.reader import Store

MANIFEST = "store.json"
ReadAt = Callable[[memoryview, int], int]  # fills a buffer from an offset, and returns the number of bytes read
P = ParamSpec("P")
T = TypeVar("T")


class LocalStore:
    """The folder of an open `Store`."""

    threads = 8  # more than cores: most of the time they wait for storage, each for one read or write

    def __init__(self, store: Store) -> None:
        self.root = store.paths.root
        self.manifest = store.manifest

    def manifest_bytes(self) -> bytes:
        """Read store.json, which may have changed."""
        return read_regular(self.root / MANIFEST)

    @contextmanager
    def opened(self, name: str, nbytes: int) -> Iterator[ReadAt]:
        """Open a file of `nbytes` bytes or more."""
        path = self.root / name
        check_size(path, nbytes, longer_is_fine=True)
        with reading(path, buffering=0) as file:
            # The kernel reads far ahead, and evicts these pages before those of others (NOREUSE: Linux 6.3). GB/s with
            # eight threads and a cold cache: 0.8 to 1.3 without advice, 1.5 to 1.9 with SEQUENTIAL, 1.1 to 1.4 with
            # WILLNEED per piece.
            for advice in (os.POSIX_FADV_SEQUENTIAL, os.POSIX_FADV_NOREUSE):
                os.posix_fadvise(file.fileno(), 0, 0, advice)
            yield partial(read_at, file.fileno())


class RemoteStore:
    """A finished store in an object store or on a web server. Use it with `stage_store`, which copies rows by ranges.

    `len(store)` is the number of rows. Only store.json is read when you open it.

    Args:
        url: URL of the store, such as "s3://bucket/train.store".

    Attributes:
        root: The URL as a path, without its query.
        manifest: The contents of store.json.

    Raises:
        StoreError: If it is not a store, may not be read, or a package is missing.
        Stopped: If the server does not answer.

    Example:
        >>> store = RemoteStore(f"file://{Path.cwd()}/train.store")  # or s3://bucket/train.store
        >>> stage_store(store, "train.part", rows=part_rows(len(store), part=0, parts=4))
        Staged(rows=range(0, 16), copied=16, finished=False)
    """

    # MB/s from a server that answers after 50 ms: 374 with 8 threads, 545 with 32, 471 with 64.
    threads = 32

    def __init__(self, url: str | Path) -> None:
        self.root = _ask(source_path, url)
        self._facts: dict[str, ObjectFacts] = {}
        self.manifest = parse_manifest(self.manifest_bytes(), self.root / MANIFEST)

    def __len__(self) -> int:
        return self.manifest.count

    def manifest_bytes(self) -> bytes:
        """Read store.json, which may have changed."""
        url = f"{self.root}/{MANIFEST}"
        facts = _ask(stat_object, url)
        if facts.size > MAX_SIGNED_BYTES:
            raise damaged(self.root / MANIFEST, f"{facts.size} bytes, expected at most {MAX_SIGNED_BYTES}")
        return _ask(read_object, url, facts, 0, facts.size)

    def opened(self, name: str, nbytes: int) -> AbstractContextManager[ReadAt]:
        """Open an object of `nbytes` bytes or more. All its bytes are read from the version that was found first."""
        url = f"{self.root}/{name}"
        facts = self._facts.get(name) or self._facts.setdefault(name, _ask(stat_object, url))
        if facts.size < nbytes:
            raise damaged(self.root / name, f"{facts.size} bytes, expected {nbytes}")

        def read(out: memoryview, offset: int) -> int:
            out[:] = _ask(read_object, url, facts, offset, out.nbytes)
            return out.nbytes

        return nullcontext(read)


def _ask(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of `decodeonce.remote`, whose errors are those of builds."""
    try:
        return function(*args, **kwargs)
    except ChangedObject:
        what = "changed while the store was being staged"
        raise StageError(f"{args[0]}: {what}; run the same command again") from None
    except BuildError as error:
        raise StoreError(str(error)) from None
