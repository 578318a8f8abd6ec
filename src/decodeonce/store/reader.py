"""Reading a store: one reader for both containers, since a shard is a file, a data offset and a number of rows."""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from decodeonce.errors import StoreError
from decodeonce.host import allow_open_files
from decodeonce.store.checks import check_file, check_not_replaced, check_size, check_store
from decodeonce.store.class_words import with_words
from decodeonce.store.images import Images, Pixels
from decodeonce.store.layout import StorePaths, verify_command
from decodeonce.store.manifest import BOX_LABELS, Column, ImageClass, Manifest
from decodeonce.store.npy import npy_header
from decodeonce.store.part import Part, rows_text
from decodeonce.store.regular_files import reading
from decodeonce.store.table import Samples


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open the store, or the staged part of one, at `path`: manifest, sizes and heads are checked, no row is read.

    Raises StoreError, which names the file, what was found and what was expected.
    """
    checked = check_store(Path(path))
    allow_open_files(2 * len(checked.manifest.shards))  # a mapping keeps a descriptor, the Loader another
    return Store(checked.paths, checked.manifest, checked.part)


class Store:
    """A finished store, read-only: `images`, `labels` (count,) int64, `classes`, `samples`, `manifest`.

    `rows` are those whose images are here: all, or those of a staged part. Everything else is there for every row.
    """

    def __init__(self, paths: StorePaths, manifest: Manifest, part: Part | None = None) -> None:
        self.paths = paths
        self.manifest = manifest
        self.rows = part.held if part else range(manifest.count)
        self.images = Images(paths, manifest, self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_store, (self.paths.root,)  # another process opens it itself: a pickle holds no rows

    def __len__(self) -> int:
        return self.manifest.count

    def __repr__(self) -> str:
        height, width, channels = self.manifest.shape
        rows = f"{len(self)} x {height}x{width}x{channels} uint8"
        held = "" if len(self.rows) == len(self) else f", {rows_text(self.rows)} here"
        return f"<Store {self.paths.root}: {rows}, {len(self.manifest.classes)} classes{held}>"

    def check_held(self, rows: range, advice: str) -> None:
        """Raise StoreError, which ends with the advice, unless these rows (at least one) are all here."""
        self.images.check_held(rows, advice)

    @cached_property
    def classes(self) -> tuple[ImageClass, ...]:
        """The classes in label order, each with `name` and `description`.

        A class of ILSVRC2012 whose source had no description has the words of its wnid, as "Siberian husky".
        """
        return with_words(self.manifest.classes)

    @property
    def box_classes(self) -> tuple[str, ...]:
        """The class names of the column `box_labels` in label order; empty if no boxes were kept."""
        return self.manifest.box_classes or ()

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """(count,) int64, mapped read-only; checked against their digest when first asked for (1.5 ms a million).

        Raises StoreError if they are not those written, or name a class that does not exist.
        """
        check_file(self.paths.labels, self.manifest.files["labels.npy"])
        labels: NDArray[np.int64] = self._array("labels.npy", "<i8", ())
        if labels.min() < 0 or labels.max() >= len(self.manifest.classes):
            found, last = f"labels from {labels.min()} to {labels.max()}", len(self.manifest.classes) - 1
            raise StoreError(f"{self.paths.labels}: {found}, expected 0 to {last}; build it again")
        return labels

    @cached_property
    def checksums(self) -> NDArray[np.uint64]:
        """The xxh3_64 of each row's bytes, (count,) uint64, mapped read-only."""
        return self._array("checksums.npy", "<u8", ())

    @cached_property
    def samples(self) -> Samples:
        """Where each row came from (class, source, width, height, digest), read from samples.tsv as asked for."""
        return Samples(self.paths.samples, len(self))

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The other per-row arrays by name, each (count, ...), mapped read-only."""
        columns = {column.name: self.column(column) for column in self.manifest.columns}
        if columns:
            check_not_replaced(self.paths.root, self.manifest, self.paths.manifest)
        return columns

    def column(self, column: Column) -> NDArray[Any]:
        """One of them; raises StoreError if its file is no array of this dtype and shape, or holds no box labels."""
        array, names = self._array(column.file, column.dtype, column.shape), self.manifest.box_classes
        if column.name == BOX_LABELS and names is not None and array.size:
            least, most = int(array.min()), int(array.max())
            if least < -1 or most >= len(names):
                found = f"labels from {least} to {most}, expected -1 to {len(names) - 1}"
                raise StoreError(f"{self.paths.root / column.file}: {found}; run {verify_command(self.paths.root)}")
        return array

    def take(self, rows: ArrayLike, out: Pixels | None = None) -> Pixels:
        """Shorthand for `images.take`."""
        return self.images.take(rows, out=out)

    def _array(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Map an npy file whose header is, byte for byte, the only one that this dtype and shape can have."""
        path, whole_shape = self.paths.root / name, (len(self), *shape)
        header = npy_header(whole_shape, dtype)
        with reading(path, buffering=0) as file:
            found = file.read(len(header))
        if found != header:
            raise StoreError(f"{path}: no npy file of {dtype} {whole_shape}; run {verify_command(self.paths.root)}")
        check_size(path, len(header) + np.dtype(dtype).itemsize * math.prod(whole_shape))
        return np.memmap(path, dtype, "r", offset=len(header), shape=whole_shape)
