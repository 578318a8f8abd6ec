"""Read a store. One reader serves both containers: a shard is a file, a data offset and a number of rows."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from decodeonce.errors import StoreError
from decodeonce.host import allow_open_files
from decodeonce.store import disk
from decodeonce.store.checks import check_file, check_not_replaced, check_shard, check_size, unreadable_shard_error
from decodeonce.store.class_words import with_words
from decodeonce.store.files import reading
from decodeonce.store.format import npy_header
from decodeonce.store.layout import StorePaths, damaged, verify_command
from decodeonce.store.manifest import BOX_LABELS, ImageClass, Manifest, Shard, read_manifest, read_part, rows_text
from decodeonce.store.pixels import Pixels
from decodeonce.store.table import Samples

Mapped = dict[int, dict[str, Pixels]]  # arrays by name in each mapped shard, as they are stored


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open a store, or a staged part of one.

    Checks the manifest, all file sizes and the headers of the shards. Reads no images; to check those, use
    `verify_store`.

    Args:
        path: Folder of the store or staged part.

    Returns:
        Store: Read-only access to images, labels and everything else in the store.

    Raises:
        StoreError: If `path` is not a store, is unfinished, or a check fails. The message names the file, what was
            found and what was expected.

    Example:
        >>> store = open_store("val.store")
        >>> store
        <Store val.store: 16 x 256x256x3 uint8, 4 classes>
        >>> store.labels[:8].tolist(), store.samples[0].source
        ([0, 0, 0, 0, 1, 1, 1, 1], 'val/n01440764/n01440764_0.JPEG')
    """
    paths = StorePaths(path)
    manifest = read_manifest(paths.manifest)
    held = read_part(paths.part, manifest)
    for shard in manifest.shards:
        check_shard(paths.root / shard.file, shard, manifest.container)
    for name, facts in manifest.files.items():
        check_size(paths.root / name, facts.bytes)
    allow_open_files(3 * len(manifest.shards))  # a Loader opens and maps each shard, and `images` maps it again
    return Store(paths, manifest, held)


class Store:
    """A finished store or staged part, opened read-only by `open_store`.

    `len(store)` is the number of rows. A Store can be pickled. The process that unpickles it opens the files again.

    Attributes:
        rows: The rows with images in this folder, which are all rows or the range of a staged part. Labels, samples and
            columns exist for every row.
        manifest: The contents of store.json.
        paths: Paths of the store's files.

    Example:
        >>> store = open_store("val.store")
        >>> store.images[:8].shape, store.labels.shape
        ((8, 256, 256, 3), (16,))
        >>> store.classes[3].name, store.classes[3].description
        ('n02123045', 'tabby, tabby cat')
    """

    def __init__(self, paths: StorePaths, manifest: Manifest, held: range | None = None) -> None:
        self.paths = paths
        self.manifest = manifest
        self.rows = held or range(manifest.count)
        self._mapped: Mapped = {}  # of `images` and `paired`, also if two threads make these at once

    def __reduce__(self) -> tuple[object, ...]:
        return open_store, (self.paths.root,)  # a pickle holds no rows; the other process opens the store again

    def __len__(self) -> int:
        return self.manifest.count

    def __repr__(self) -> str:
        height, width, channels = self.manifest.shape
        paired = "".join(f" with {one.name}" for one in self.manifest.paired)
        rows = f"{len(self)} x {height}x{width}x{channels} uint8{paired}"
        held = "" if len(self.rows) == len(self) else f", holds {rows_text(self.rows)}"
        return f"<Store {self.paths.root}: {rows}, {len(self.manifest.classes)} classes{held}>"

    @cached_property
    def _arrays(self) -> dict[str, Images]:
        return {name: Images(self.paths, self.manifest, self.rows, name, self._mapped) for name in self.manifest.shapes}

    @property
    def images(self) -> Images:
        """Images, an array-like uint8 (count, H, W, C). Rows are read from disk when you index it."""
        return self._arrays["images"]

    @cached_property
    def paired(self) -> dict[str, Images]:
        """The masks and second images of `prep build --paired` by name.

        They are array-likes uint8 (count, H, W) or (count, H, W, 3) that work like `images`.
        """
        return {name: self._arrays[name] for name in self.manifest.shapes if name != "images"}

    @cached_property
    def classes(self) -> tuple[ImageClass, ...]:
        """Classes in label order, each with `name` and `description`.

        If the source had no descriptions, classes of ILSVRC2012 get the words of their wnid, such as "Siberian husky".
        """
        return with_words(self.manifest.classes)

    @property
    def box_classes(self) -> tuple[str, ...]:
        """Class names of the column `box_labels` in label order. Empty if the store has no such column."""
        return self.manifest.box_classes or ()

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Labels, int64 (count,), memory-mapped read-only.

        The first access verifies their digest.

        Raises:
            StoreError: If the file is damaged, or a label has no class.
        """
        check_file(self.paths.labels, self.manifest.files["labels.npy"])
        labels: NDArray[np.int64] = self._array("labels.npy", "<i8", ())
        if labels.min() < 0 or labels.max() >= len(self.manifest.classes):
            found, last = f"labels from {labels.min()} to {labels.max()}", len(self.manifest.classes) - 1
            raise StoreError(f"{self.paths.labels}: {found}, expected 0 to {last}; build the store again")
        return labels

    @cached_property
    def checksums(self) -> NDArray[np.uint64]:
        """xxh3_64 of each row's bytes, uint64 (count,), memory-mapped read-only."""
        return self._array("checksums.npy", "<u8", ())

    @cached_property
    def samples(self) -> Samples:
        """The origin of each row as a `Sample`, read from samples.tsv on access."""
        return Samples(self.paths.samples, len(self))

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Columns by name, each an array (count, ...), memory-mapped read-only."""
        return {column.name: self.column(column.name) for column in self.manifest.columns}

    def column(self, name: str) -> np.ndarray:
        """Return one column, an array (count, ...), memory-mapped read-only.

        Args:
            name: Name of the column.

        Raises:
            StoreError: If the store has no such column, or its file has another dtype or shape, or contains box labels
                without a class.
        """
        found = {column.name: column for column in self.manifest.columns}
        if name not in found:
            expected = f"expected one of its columns: {', '.join([*found, *self.paired]) or 'none'}"
            raise StoreError(f"{self.paths.root}: no column {name!r}, {expected}")
        column, names = found[name], self.manifest.box_classes
        array = self._array(column.file, column.dtype, column.shape)
        check_not_replaced(self.paths.root, self.manifest, self.paths.manifest)
        if column.name == BOX_LABELS and names is not None and array.size:
            least, most = int(array.min()), int(array.max())
            if least < -1 or most >= len(names):
                what = f"labels from {least} to {most}, expected -1 to {len(names) - 1}"
                raise damaged(self.paths.root / column.file, what)
        return array

    def take(self, rows: ArrayLike, out: Pixels | None = None) -> Pixels:
        """Copy rows into an array. The same as `images.take`."""
        return self.images.take(rows, out=out)

    def _array(self, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Map an npy file. Its header must be exactly the one that `npy_header` writes for this dtype and shape."""
        path, whole_shape = self.paths.root / name, (len(self), *shape)
        header = npy_header(whole_shape, dtype)
        with reading(path, buffering=0) as file:
            found = file.read(len(header))
        if found != header:
            raise damaged(path, f"not an npy file of dtype {dtype} and shape {whole_shape}")
        check_size(path, len(header) + np.dtype(dtype).itemsize * math.prod(whole_shape))
        return np.memmap(path, dtype, "r", offset=len(header), shape=whole_shape)


class Images:
    """The images of a store as one read-only array, uint8 (count, H, W, C).

    Index it like a NumPy array. An integer, or a slice of step 1 or ``...`` within one shard, returns a view of the
    memory-mapped shard, unless the store holds its images in another form than RGB; every other index returns a new
    array. The first index must not be None or a mask of more than one dimension. A shard is mapped when it is first
    used.

    Attributes:
        shape: (count, H, W, C).
        dtype: uint8.

    Raises:
        IndexError: If a row number is out of range.
        StoreError: If a staged part does not hold a requested row, or a shard is damaged.

    Example:
        >>> images = open_store("train.store").images
        >>> images[0].shape  # a view of one image
        (256, 256, 3)
        >>> images[[5, 3, 8], 16:-16, 16:-16].shape  # a copy of the centers of three images
        (3, 224, 224, 3)
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, paths: StorePaths, manifest: Manifest, held: range, name: str, mapped: Mapped) -> None:
        self.shape: tuple[int, ...] = (manifest.count, *manifest.shapes[name])
        self._root, self._manifest, self._held = paths.root, manifest, held
        self._name, self._mapped = name, mapped
        self._packed = name == "images" and manifest.pixels != "rgb"

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Images {self._name} of {self._root}: {'x'.join(map(str, self.shape))} uint8>"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_mapped": {}}  # a pickle holds no rows; the other process maps the shards again

    def __iter__(self) -> Iterator[Pixels]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, index: Any) -> Pixels:
        """Return rows. The first index is resolved here; NumPy applies the others, and pairs lists with lists."""
        first, *rest = (index or (...,)) if isinstance(index, tuple) else (index,)
        if isinstance(first, int | np.integer) and not isinstance(first, bool):
            shard, first = self._locate(int(first))
            rows = self._mapping(shard)
            if self._packed:
                rows, first = self._manifest.unpack(rows[first : first + 1]), 0
        elif first is Ellipsis:
            rows = self._slice(0, len(self), 1)
        elif isinstance(first, slice):
            rows, first = self._slice(*first.indices(len(self))), slice(None)
        else:
            numbers = _row_numbers(first, len(self))
            rows = self.take(numbers)
            if not rest:
                return rows.reshape(*numbers.shape, *self.shape[1:])
            first = np.arange(numbers.size).reshape(numbers.shape)
        picked: Pixels = rows[(first, *rest)]
        return picked

    def take(self, rows: ArrayLike, out: Pixels | None = None) -> Pixels:
        """Copy rows, in the given order, into `out` or a new array.

        Args:
            rows: Row numbers, or a mask of shape (count,). Negative numbers count from the end.
            out: C-contiguous uint8 array (len(rows), H, W, C) to fill. Default: a new array. RGB rows are copied
                directly into it, unless the store has paired arrays.

        Returns:
            `out` or the new array, uint8 (len(rows), H, W, C).

        Raises:
            IndexError: If a number is out of range or not an integer.
            ValueError: If `out` has the wrong dtype, shape or memory layout.
            StoreError: If a staged part does not hold one of the rows, or a shard is damaged.
        """
        numbers = _row_numbers(rows, len(self)).reshape(-1)
        shape = (len(numbers), *self.shape[1:])
        if out is None:
            out = np.empty(shape, np.uint8)
        elif out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
            raise ValueError(f"out is {out.dtype} {out.shape}, expected C-contiguous uint8 {shape}")
        if not len(numbers):
            return out
        if len(self._held) < len(self):
            self.check_held(range(int(numbers.min()), int(numbers.max()) + 1))
        shards = self._manifest.shard_indexes(numbers)
        for start, end in runs(shards[1:] != shards[:-1]):
            shard = int(shards[start])
            local = numbers[start:end] - self._manifest.shards[shard].first_row
            if self._packed:
                self._manifest.unpack(self._mapping(shard)[local], out=out[start:end])
                continue
            if self._manifest.paired:  # np.take would copy the shard first
                out[start:end] = self._mapping(shard)[local]
                continue
            # mode="clip" writes directly into out; the default "raise" buffers all of it (see NumPy's documentation).
            np.take(self._mapping(shard), local, axis=0, out=out[start:end], mode="clip")
        return out

    def check_held(self, rows: range, advice: str = "stage those, or open the whole store") -> None:
        """Raise StoreError, ending with `advice`, unless this folder holds all of `rows` (at least one)."""
        if rows[0] not in self._held or rows[-1] not in self._held:
            what = f"a staged part that holds {rows_text(self._held)} of {len(self)}"
            raise StoreError(f"{self._root}: {what}; asked for {rows_text(rows)}: {advice}")

    def _mapping(self, index: int) -> Pixels:
        if index not in self._mapped:
            shard = self._manifest.shards[index]
            fd = open_shard(self._root, self._manifest, shard)
            try:
                rows = map_rows(fd, self._root / shard.file, shard)
            finally:
                disk.close(fd)
            # If another thread has mapped it meanwhile, its mapping stays and this one is dropped. A lock would prevent
            # the second one, but a process that is forked while a thread maps a shard would wait for it forever.
            self._mapped.setdefault(index, self._manifest.views(rows))
        return self._mapped[index][self._name]

    def _locate(self, row: int) -> tuple[int, int]:
        given, row = row, row + len(self) if row < 0 else row
        if not 0 <= row < len(self):
            raise IndexError(f"row {given} is out of range for a store with {len(self)} rows")
        self.check_held(range(row, row + 1))
        shard = int(self._manifest.shard_indexes(row))
        return shard, row - self._manifest.shards[shard].first_row

    def _slice(self, start: int, stop: int, step: int) -> Pixels:
        if step == 1 and start < stop:
            (first, a), (last, b) = self._locate(start), self._locate(stop - 1)
            if first == last and not self._packed:
                return self._mapping(first)[a : b + 1]
        return self.take(np.arange(start, stop, step))


def open_shard(root: Path, manifest: Manifest, shard: Shard) -> int:
    """Open a shard and return its descriptor. Raise Stopped if a retry may succeed.

    Raises StoreError if the file differs from the manifest; it may have changed since the store was opened.
    """
    path = root / shard.file
    try:
        check_shard(path, shard, manifest.container)
        with reading(path, buffering=0) as file:
            check_not_replaced(root, manifest, path)
            return os.dup(file.fileno())
    except OSError as error:
        raise unreadable_shard_error(path, error) from error


def map_rows(fd: int, path: Path, shard: Shard) -> Pixels:
    """Map the rows of an open shard, uint8 (rows, row_bytes). Raise StoreError if its file is too short."""
    try:
        mapping = mmap.mmap(fd, shard.bytes, prot=mmap.PROT_READ)
    except ValueError:  # truncated after its size was checked
        raise ends_early(path, os.fstat(fd).st_size, shard.bytes) from None
    except OSError as error:
        raise unreadable_shard_error(path, error) from error
    return np.frombuffer(mapping, np.uint8, offset=shard.data_offset).reshape(shard.rows, -1)


def ends_early(path: Path, found: int, expected: int) -> StoreError:
    """The error for a truncated shard."""
    command = verify_command(path.parent)
    return StoreError(f"{path}: ends at byte {found}, expected at least {expected}; run {command}")


def runs(breaks: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the runs [a, b) of equal items among len(breaks) + 1 items. `breaks[i]`: item i + 1 differs from item i."""
    return pairwise([0, *(np.flatnonzero(breaks) + 1).tolist(), len(breaks) + 1])


def _row_numbers(index: ArrayLike, count: int) -> NDArray[np.int64]:
    """Convert a list, array or mask to row numbers in 0..count-1, of the same shape (a mask: one dimension)."""
    numbers = np.asarray(index)
    if numbers.dtype == np.bool_:
        if numbers.shape != (count,):
            raise IndexError(f"a mask of shape {numbers.shape}, expected ({count},)")
        return np.flatnonzero(numbers)
    if not numbers.size:
        return numbers.astype(np.int64)
    if not np.issubdtype(numbers.dtype, np.integer):
        raise IndexError(f"row numbers must be integers, got {numbers.dtype}")
    first, last = int(numbers.min()), int(numbers.max())
    if first < -count or last >= count:
        raise IndexError(f"rows {first}..{last} are out of range for a store with {count} rows")
    numbers = numbers.astype(np.int64)
    return np.where(numbers < 0, numbers + count, numbers)
