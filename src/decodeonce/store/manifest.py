"""store.json: what a store holds, checked whole before anything else of the store is believed."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from decodeonce.errors import StoreError
from decodeonce.store.layout import ContainerName, missing_advice
from decodeonce.store.npy import npy_header
from decodeonce.store.regular_files import read_regular
from decodeonce.store.signed import MAX_BYTES, parse_signed, sign

FORMAT = "decodeonce"
VERSION = 1
DATA_OFFSET = 4096
MAX_DATA_OFFSET = 1 << 20  # a head is read whole
BOX_LABELS = "box_labels"  # the column whose values are indexes into box_classes, or -1
BOX_COLUMNS = ("boxes", "box_count", BOX_LABELS)  # what `prep build --keep-boxes` writes
REBUILD = "remove the store and build it again"
T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One image file: rows [first_row, first_row + rows) from byte `data_offset`; `bytes` is the file's size.

    `meta_xxh3` is the digest of all bytes outside the rows, that is, of the first `data_offset` bytes.
    """

    file: str
    first_row: int
    rows: int
    data_offset: int
    bytes: int
    meta_xxh3: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return (self.bytes - self.data_offset) // self.rows

    def offset(self, row: int) -> int:
        """The byte of the file at which a row of the store begins."""
        return self.data_offset + (row - self.first_row) * self.row_bytes

    def held_rows(self, rows: range) -> range:
        """Which of a store's `rows` lie in this shard."""
        return overlap(rows, range(self.first_row, self.first_row + self.rows))


@dataclass(frozen=True)
class ImageClass:
    """A label's name (a wnid, a folder) and its description ("" if there is none)."""

    name: str
    description: str = ""


@dataclass(frozen=True)
class Column:
    """A per-row array next to images and labels: `file` is an npy of dtype `dtype` and shape `(count, *shape)`."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SmallFile:
    """Size and digest of a file that is not a shard."""

    bytes: int
    xxh3: str


@dataclass(frozen=True)
class Manifest:
    """The facts of store.json; `shape` is (H, W, C) of a row, mean and std are per channel in 0..255.

    `box_classes` are the class names of the column `box_labels` in label order; None if the manifest has no such key.
    """

    count: int
    shape: tuple[int, int, int]
    container: ContainerName
    block_rows: int
    shards: tuple[Shard, ...]
    classes: tuple[ImageClass, ...]
    pixel_mean: tuple[float, ...]
    pixel_std: tuple[float, ...]
    recipe: dict[str, Any]
    source: dict[str, Any]
    columns: tuple[Column, ...]
    files: dict[str, SmallFile]
    box_classes: tuple[str, ...] | None = None
    decoder_crashes: int = 0
    dtype: str = "uint8"
    digest: str = field(default="", compare=False)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.shape[0] * self.shape[1] * self.shape[2]

    @property
    def rows_digest(self) -> str:
        """Names what the rows are, in their order: the digest of samples.tsv.

        A copy at another size or in another container has the same one, and so has a store with a further column.
        """
        return self.files["samples.tsv"].xxh3

    @cached_property
    def _first_rows(self) -> NDArray[np.int64]:
        return np.array([shard.first_row for shard in self.shards], np.int64)

    def shard_indexes(self, rows: ArrayLike) -> NDArray[np.int64]:
        """The numbers, from 0, of the shards that rows lie in; an array like `rows`."""
        return self._first_rows.searchsorted(rows, side="right") - 1

    def shard_of(self, row: int) -> Shard:
        """The shard that a row lies in."""
        return self.shards[int(self.shard_indexes(row))]

    def to_bytes(self) -> bytes:
        """store.json for these facts, with the digest filled in."""
        facts = asdict(self)
        if self.box_classes is None:
            del facts["box_classes"]
        return sign({"format": FORMAT, "version": VERSION, **facts})


def overlap(rows: range, others: range) -> range:
    """The rows that are in both ranges."""
    start = max(rows.start, others.start)
    return range(start, max(start, min(rows.stop, others.stop)))


def read_manifest(path: Path) -> Manifest:
    """The manifest in `path`, checked: StoreError names what was found and what was expected."""
    try:
        encoded = read_regular(path, most=MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise _no_manifest(path) from None
    return parse_manifest(encoded, path)


def _no_manifest(path: Path) -> StoreError:
    folder = path.parent
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such folder"
        return StoreError(f"{folder}: {found}; expected a store (the folder that `prep build` makes)")
    if (folder / ".build").exists():
        return StoreError(
            f"{folder}: an unfinished store (no {path.name}); run the same `prep build` again to resume it"
        )
    if (folder / ".stage").exists():
        return StoreError(
            f"{folder}: an unfinished part (no {path.name}); run the same `prep stage` again to resume it"
        )
    what = f"not a store: it has no {path.name}; expected the folder that `prep build` makes"
    advice = f"{missing_advice(folder)}give that, or restore {path.name} from a copy of the store"
    return StoreError(f"{folder}: {what}: {advice}")


def parse_manifest(encoded: bytes, path: Path) -> Manifest:
    """The manifest of these bytes; `path` only names it in errors."""
    facts = parse_signed(encoded, path, form=FORMAT, version=VERSION, advice=f"restore it from a copy, or {REBUILD}")
    try:
        manifest = _from_facts(facts)
        _check_counts(manifest)
        _check_names(manifest)
        _check_columns(manifest)
        return manifest
    except KeyError as error:
        raise StoreError(f"{path}: a wrong manifest: no key {error}, expected one; {REBUILD}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{path}: a wrong manifest: {error}; {REBUILD}") from None


def _from_facts(facts: dict[str, Any]) -> Manifest:
    height, width, channels = (_whole(n, "shape") for n in _items(facts["shape"], "shape", 3))
    return Manifest(
        count=_whole(facts["count"], "count"),
        shape=(height, width, channels),
        dtype=_one_of(facts["dtype"], ("uint8",), "dtype"),
        container=_one_of(facts["container"], get_args(ContainerName), "container"),
        block_rows=_whole(facts["block_rows"], "block_rows"),
        shards=tuple(_shard(shard) for shard in facts["shards"]),
        classes=tuple(_class(entry) for entry in facts["classes"]),
        pixel_mean=tuple(_number(x, "pixel_mean") for x in _items(facts["pixel_mean"], "pixel_mean", channels)),
        pixel_std=tuple(_number(x, "pixel_std") for x in _items(facts["pixel_std"], "pixel_std", channels)),
        recipe=dict(facts["recipe"]),
        source=dict(facts["source"]),
        columns=tuple(_column(column) for column in facts["columns"]),
        files={_plain(name): _small_file(f, name) for name, f in _of(dict, facts["files"], "files").items()},
        box_classes=_box_classes(facts["box_classes"]) if "box_classes" in facts else None,
        decoder_crashes=_whole(facts.get("decoder_crashes", 0), "decoder_crashes"),
        digest=str(facts["digest"]),
    )


def _shard(facts: dict[str, Any]) -> Shard:
    numbers = {key: _whole(facts[key], key) for key in ("first_row", "rows", "data_offset", "bytes")}
    return Shard(file=_plain(facts["file"]), meta_xxh3=str(facts["meta_xxh3"]), **numbers)


def _column(facts: dict[str, Any]) -> Column:
    shape = tuple(_whole(n, "shape") for n in facts["shape"])
    dtype = str(facts["dtype"])
    if not re.fullmatch(r"\|[biu]1|<[iuf][248]", dtype):
        raise ValueError(f"dtype is {dtype!r}, expected a number's, as <f4")
    return Column(str(facts["name"]), _plain(facts["file"]), dtype, shape)


def _class(facts: dict[str, Any]) -> ImageClass:
    return ImageClass(_of(str, facts["name"], "a class name"), _of(str, facts["description"], "a description"))


def _box_classes(names: Any) -> tuple[str, ...]:
    return tuple(_of(str, name, "a box class") for name in _of(list, names, "box_classes"))


def _small_file(facts: dict[str, Any], name: str) -> SmallFile:
    return SmallFile(_whole(facts["bytes"], name), str(facts["xxh3"]))


def _of(kind: type[T], value: Any, name: str) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}, expected {kind.__name__}")
    return value


def _items(value: Any, name: str, length: int) -> list[Any]:
    if len(_of(list, value, name)) != length:
        raise ValueError(f"{name} is {value!r}, expected {length} numbers")
    return list(value)


def _number(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} has {value!r}, expected a number")
    return float(value)


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {value!r}, expected a whole number below 2**63")
    return value


def _one_of(value: Any, allowed: tuple[T, ...], name: str) -> T:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(str, allowed))}")
    return allowed[allowed.index(value)]


def _plain(name: Any) -> str:
    """A name of a file in the store's own folder; one that is not printable could also garble a terminal."""
    if not isinstance(name, str) or not name.isprintable() or "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} names a file outside the store, expected a plain file name")
    if len(name.encode()) > 255:
        raise ValueError(f"a file name of {len(name.encode())} bytes, expected at most 255")
    return name


def _check_counts(manifest: Manifest) -> None:
    if 0 in manifest.shape or not manifest.count or not manifest.block_rows or not manifest.classes:
        found = f"{manifest.count} rows of shape {manifest.shape}, {len(manifest.classes)} classes"
        raise ValueError(f"{found}, blocks of {manifest.block_rows} rows: expected at least 1 of each")
    next_row = 0
    for shard in manifest.shards:
        if shard.first_row != next_row or not shard.rows:
            found = f"{shard.file} has {shard.rows} rows from row {shard.first_row}"
            raise ValueError(f"{found}, expected some from {next_row}")
        if shard.data_offset % DATA_OFFSET or not 0 < shard.data_offset <= MAX_DATA_OFFSET:
            expected = f"expected a multiple of {DATA_OFFSET} up to {MAX_DATA_OFFSET}"
            raise ValueError(f"the rows of {shard.file} begin at byte {shard.data_offset}, {expected}")
        size = shard.data_offset + shard.rows * manifest.row_bytes
        if shard.bytes != size:
            raise ValueError(f"{shard.file} has {shard.rows} rows in {shard.bytes} bytes, expected {size}")
        next_row += shard.rows
    if next_row != manifest.count:
        raise ValueError(f"the shards hold {next_row} rows, expected count {manifest.count}")


def _check_names(manifest: Manifest) -> None:
    named = [shard.file for shard in manifest.shards] + list(manifest.files)
    if twice := [name for name, times in Counter(named).items() if times > 1]:
        raise ValueError(f"names {twice[0]} more than once, expected each file once")
    for name in ("labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv", *(c.file for c in manifest.columns)):
        if name not in manifest.files:
            raise ValueError(f'"files" does not list {name}')


def _check_columns(manifest: Manifest) -> None:
    """Refuse columns that no npy file, or no array, can be; NumPy would raise its own error when one is read."""
    for column in manifest.columns:
        shape = (manifest.count, *column.shape)
        try:
            npy_header(shape, column.dtype)
        except ValueError as error:
            raise ValueError(f"column {column.name!r:.80}: {error}") from None
        if int(column.dtype[2:]) * math.prod(max(n, 1) for n in shape) >= 2**63:
            raise ValueError(f"column {column.name!r:.80} of shape {shape}: more than 2**63 bytes")
    named = [(column.dtype, len(column.shape)) for column in manifest.columns if column.name == BOX_LABELS]
    if manifest.box_classes is not None and named != [("<i4", 1)]:
        raise ValueError(f'"box_classes" without a column {BOX_LABELS} of dtype <i4 with one label per box')
