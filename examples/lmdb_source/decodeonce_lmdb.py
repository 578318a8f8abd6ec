"""A package that adds a source to decodeonce: LMDB databases of images, one per class, as LSUN is distributed.

    pip install ./examples/lmdb_source
    prep build lmdb lsun train.store --split train

`lsun` holds the folders bedroom_train_lmdb, church_outdoor_train_lmdb and so on. The values are encoded images.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from decodeonce import BuildError
from decodeonce.sources import (
    Entry,
    Links,
    Registered,
    Scan,
    Source,
    SourceFiles,
    check_no_duplicates,
    expecting,
    size_problem,
    source_file,
)
from decodeonce.store import ImageClass

# The entry point in pyproject.toml names this.
REGISTERED = Registered(f"{__name__}:LmdbSource", f"{__name__}:open_lmdb")


class LmdbSource(Source):
    """Images in LMDB databases. A sample is named CLASS/KEY.

    Args:
        root: The folder of the databases.
        split: The part of the folders' names between class and "lmdb".
        classes: Class names in label order.
        files: Name, size and mtime of each database's file, in the order of the classes.
    """

    kind = "lmdb"
    files: SourceFiles

    def __init__(self, root: Path, *, split: str, classes: Sequence[str], files: Sequence[Any]) -> None:
        super().__init__(root)
        self._split, self._names, self.files = split, list(classes), SourceFiles(root, files)
        self._open: tuple[int, Any] | None = None  # the database that was read last, and a transaction

    def arguments(self) -> dict[str, Any]:
        return {"split": self._split, "classes": self._names, "files": self.files.facts()}

    def fingerprint(self) -> Any:
        return self.arguments()

    def options(self) -> dict[str, Any]:
        return {"split": self._split}

    @property
    def keeps_order(self) -> bool:
        return self._split != "train"

    def scan(self) -> Scan:
        return Scan(self._entries(), tuple(map(ImageClass, self._names)))

    def _entries(self) -> Iterator[Entry]:
        for number, name in enumerate(self._names):
            version = self.files.files[number].mtime_ns
            with _lmdb_errors(self._path(number)), self._transaction(number).cursor() as cursor:
                for key, value in cursor:
                    problem = size_problem(len(value))
                    yield Entry(name.encode() + b"/" + bytes(key), number, len(value), version, problem, unit=number)

    def read(self, entry: Entry) -> list[bytes]:
        with _lmdb_errors(self._path(entry.unit)):
            value = self._transaction(entry.unit).get(entry.name.partition(b"/")[2])
        if value is None:
            raise BuildError(f"{self._path(entry.unit)}: has no {entry.text}; copy the database again")
        return [bytes(value)]

    def find(self, names: Collection[bytes]) -> Iterator[Entry]:
        numbers = {name.encode(): number for number, name in enumerate(self._names)}
        for name in sorted(names):
            holder, _, key = name.partition(b"/")
            number = numbers.get(holder)
            if number is not None and self._transaction(number).get(key) is not None:
                yield Entry(name, number, 0, 0, unit=number)

    def _path(self, number: int) -> str:
        return self.files.path(number).decode("utf-8", "surrogateescape")

    def _transaction(self, number: int) -> Any:
        """Return a transaction in a database; raise BuildError if the file has changed since it was listed."""
        if self._open is None or self._open[0] != number:
            self.files.holder(number)  # checks size and mtime
            self._open = (number, _open(self._path(number)))
        return self._open[1]


def open_lmdb(
    src: str | Path,
    *,
    split: Annotated[Literal["train", "val", "test"], "Split to read."] = "train",
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> LmdbSource:
    """Read LMDB databases of images, one per class. SRC holds <class>_<split>_lmdb/data.mdb."""
    root, end = Path(src), f"_{split}_lmdb"
    with expecting(root, "expected a folder of LMDB databases"):
        found = sorted(path.name.removesuffix(end) for path in root.iterdir() if path.name.endswith(end))
    if not found:
        raise BuildError(f"{root}: no folder *{end}; expected a folder per class, such as bedroom{end}")
    names = list(found if classes is None else classes)
    check_no_duplicates(names)
    links = Links(root, follow=follow_links)
    files = [source_file(root, f"{name}{end}/data.mdb", links) for name in names]
    return LmdbSource(root, split=split, classes=names, files=files)


@cache  # LMDB allows a process to open a database only once
def _open(path: str) -> Any:
    import lmdb

    with _lmdb_errors(path):
        return lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False).begin(buffers=True)


@contextmanager
def _lmdb_errors(path: str) -> Iterator[None]:
    import lmdb

    try:
        yield
    except lmdb.Error as error:
        raise BuildError(f"{path}: {error}; expected an LMDB database; copy or download it again") from None
