"""store.json, the description of a store. It is validated completely before any other file of the store is used."""

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
from decodeonce.store.containers import npy_header
from decodeonce.store.layout import ContainerName, missing_advice
from decodeonce.store.regular_files import read_regular
from decodeonce.store.signed import MAX_BYTES, parse_signed, sign

FORMAT = "decodeonce"
VERSION = 1
DATA_OFFSET = 4096
MAX_DATA_OFFSET = 1 << 20  # headers are read into memory
BOX_LABELS = "box_labels"  # the column of indexes into box_classes; -1 for none
BOX_COLUMNS = ("boxes", "box_count", BOX_LABELS)  # written by `prep build --keep-boxes`
REBUILD = "remove the store and build it again"
T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """A file of images.

    Attributes:
        file: File name.
        first_row: Number of its first row in the store.
        rows: Number of rows.
        data_offset: Byte at which the first row begins.
        bytes: Size of the file.
        meta_xxh3: Digest of the header, the first `data_offset` bytes.
    """

    file: str
    first_row: int
    rows: int
    data_offset: int
    bytes: int
    meta_xxh3: str

    @property
    def row_bytes(self) -> int:
        """Size of one row in bytes."""
        return (self.bytes - self.data_offset) // self.rows

    def offset(self, row: int) -> int:
        """Return the byte of the file at which a row of the store begins."""
        return self.data_offset + (row - self.first_row) * self.row_bytes

    def held_rows(self, rows: range) -> range:
        """Return those of the store's `rows` that are in this shard."""
        return overlap(rows, range(self.first_row, self.first_row + self.rows))


@dataclass(frozen=True)
class ImageClass:
    """A class of the store.

    Attributes:
        name: Name, such as a wnid or a folder.
        description: Description in words. Default: "".
    """

    name: str
    description: str = ""


@dataclass(frozen=True)
class Column:
    """A further array with one entry per row, stored as an npy file.

    Attributes:
        name: Name, the key in `Store.columns`.
        file: File name.
        dtype: NumPy dtype, such as "<f4".
        shape: Shape of one entry. The array has shape ``(count, *shape)``.
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SmallFile:
    """Size and digest of a file that is not a shard.

    Attributes:
        bytes: Size of the file.
        xxh3: xxh3_64 of the file, 16 hexadecimal digits.
    """

    bytes: int
    xxh3: str


@dataclass(frozen=True)
class Manifest:
    """The contents of store.json, available as `Store.manifest`.

    Attributes:
        count: Number of rows.
        shape: (H, W, C) of an image.
        container: File format of the shards, "npy" or "hdf5".
        block_rows: Rows per block. A build decodes and writes the rows of a block together.
        shards: The shards in row order.
        classes: The classes in label order.
        pixel_mean: Mean of each channel, in 0..255.
        pixel_std: Standard deviation of each channel, in 0..255.
        recipe: The settings, decoders and versions that determine the store's bytes.
        source: Kind of the source and digest of its listing.
        columns: The columns.
        files: Size and digest of every file except shards, by file name.
        box_classes: Class names of the column `box_labels` in label order. None if the manifest has no such key.
        decoder_crashes: Number of images that crashed a decoder during the build.
        dtype: Dtype of the images, always "uint8".
        digest: xxh3_64 of everything else in store.json.
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
        """Size of one row in bytes."""
        return self.shape[0] * self.shape[1] * self.shape[2]

    @property
    def rows_digest(self) -> str:
        """Digest of samples.tsv, which identifies the samples and their order.

        It stays the same in a copy with another image size or container, and when a column is added.
        """
        return self.files["samples.tsv"].xxh3

    @cached_property
    def _first_rows(self) -> NDArray[np.int64]:
        return np.array([shard.first_row for shard in self.shards], np.int64)

    def shard_indexes(self, rows: ArrayLike) -> NDArray[np.int64]:
        """Return the index of the shard of each row, in an array shaped like `rows`."""
        return self._first_rows.searchsorted(rows, side="right") - 1

    def shard_of(self, row: int) -> Shard:
        """Return the shard that contains a row."""
        return self.shards[int(self.shard_indexes(row))]

    def to_bytes(self) -> bytes:
        """Return the bytes of store.json, with the digest filled in."""
        facts = asdict(self)
        if self.box_classes is None:
            del facts["box_classes"]
        return sign({"format": FORMAT, "version": VERSION, **facts})


def overlap(rows: range, others: range) -> range:
    """Return the rows that are in both ranges."""
    start = max(rows.start, others.start)
    return range(start, max(start, min(rows.stop, others.stop)))


def read_manifest(path: Path) -> Manifest:
    """Read and validate the manifest `path`. Raise StoreError if it is missing or invalid."""
    try:
        encoded = read_regular(path, most=MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise _no_manifest(path) from None
    return parse_manifest(encoded, path)


def _no_manifest(path: Path) -> StoreError:
    folder = path.parent
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such folder"
        return StoreError(f"{folder}: {found}; expected a store (the folder that `prep build` creates)")
    if (folder / ".build").exists():
        return StoreError(
            f"{folder}: an unfinished store (no {path.name}); run the same `prep build` again to resume it"
        )
    if (folder / ".stage").exists():
        return StoreError(
            f"{folder}: an unfinished part (no {path.name}); run the same `prep stage` again to resume it"
        )
    advice = f"pass the folder that `prep build` created, or restore {path.name} from a copy of the store"
    return StoreError(f"{folder}: not a store: it has no {path.name}; {missing_advice(folder)}{advice}")


def parse_manifest(encoded: bytes, path: Path) -> Manifest:
    """Parse and validate the bytes of a manifest. Errors name `path`."""
    facts = parse_signed(encoded, path, form=FORMAT, version=VERSION, advice=f"restore it from a copy, or {REBUILD}")
    try:
        manifest = _from_facts(facts)
        _check_counts(manifest)
        _check_names(manifest)
        _check_columns(manifest)
        return manifest
    except KeyError as error:
        raise StoreError(f"{path}: invalid manifest: the key {error} is missing; {REBUILD}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{path}: invalid manifest: {error}; {REBUILD}") from None


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
        files={_file_name(name): _small_file(f, name) for name, f in _checked(dict, facts["files"], "files").items()},
        box_classes=_box_classes(facts["box_classes"]) if "box_classes" in facts else None,
        decoder_crashes=_whole(facts.get("decoder_crashes", 0), "decoder_crashes"),
        digest=str(facts["digest"]),
    )


def _shard(facts: dict[str, object]) -> Shard:
    numbers = {key: _whole(facts[key], key) for key in ("first_row", "rows", "data_offset", "bytes")}
    return Shard(file=_file_name(facts["file"]), meta_xxh3=str(facts["meta_xxh3"]), **numbers)


def _column(facts: dict[str, Any]) -> Column:
    shape = tuple(_whole(n, "shape") for n in facts["shape"])
    dtype = str(facts["dtype"])
    if not re.fullmatch(r"\|[biu]1|<[iuf][248]", dtype):
        raise ValueError(f"dtype is {dtype!r}, expected a number type such as <f4")
    return Column(str(facts["name"]), _file_name(facts["file"]), dtype, shape)


def _class(facts: dict[str, object]) -> ImageClass:
    return ImageClass(
        _checked(str, facts["name"], "a class name"), _checked(str, facts["description"], "a description")
    )


def _box_classes(names: object) -> tuple[str, ...]:
    return tuple(_checked(str, name, "a box class") for name in _checked(list, names, "box_classes"))


def _small_file(facts: dict[str, object], name: str) -> SmallFile:
    return SmallFile(_whole(facts["bytes"], name), str(facts["xxh3"]))


def _checked(kind: type[T], value: object, name: str) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}, expected {kind.__name__}")
    return value


def _items(value: object, name: str, length: int) -> list[object]:
    items: list[object] = _checked(list, value, name)
    if len(items) != length:
        raise ValueError(f"{name} is {value!r}, expected {length} numbers")
    return items


def _number(value: object, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} contains {value!r}, expected a number")
    return float(value)


def _whole(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {value!r}, expected an integer from 0 to 2**63 - 1")
    return value


def _one_of(value: object, allowed: tuple[T, ...], name: str) -> T:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(str, allowed))}")
    return allowed[allowed.index(value)]


def _file_name(name: object) -> str:
    """Check the name of a file in the store's folder. An unprintable name could garble a terminal."""
    if not isinstance(name, str) or not name.isprintable() or "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not a file name, expected printable characters without '/'")
    if len(name.encode()) > 255:
        raise ValueError(f"a file name has {len(name.encode())} bytes, expected at most 255")
    return name


def _check_counts(manifest: Manifest) -> None:
    if 0 in manifest.shape or not manifest.count or not manifest.block_rows or not manifest.classes:
        found = f"{manifest.count} rows of shape {manifest.shape}, {len(manifest.classes)} classes"
        raise ValueError(f"{found}, blocks of {manifest.block_rows} rows: expected at least 1 of each")
    next_row = 0
    for shard in manifest.shards:
        if shard.first_row != next_row or not shard.rows:
            found = f"{shard.file} has {shard.rows} rows from row {shard.first_row}"
            raise ValueError(f"{found}, expected at least 1 row from row {next_row}")
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
    names = [shard.file for shard in manifest.shards] + list(manifest.files)
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"{repeated[0]} is listed more than once, expected each file once")
    for name in ("labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv", *(c.file for c in manifest.columns)):
        if name not in manifest.files:
            raise ValueError(f'"files" does not list {name}')


def _check_columns(manifest: Manifest) -> None:
    """Refuse columns that cannot be an npy file or an array. NumPy would raise its own error when reading one."""
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
        raise ValueError(f'"box_classes" requires a column {BOX_LABELS} of dtype <i4 with one label per box')
