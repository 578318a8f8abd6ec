"""Read a store. One reader serves both containers: a shard is a file, a data offset and a number of rows."""

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
from decodeonce.store.containers import npy_header
from decodeonce.store.images import Images, Pixels
from decodeonce.store.layout import StorePaths, verify_command
from decodeonce.store.manifest import BOX_LABELS, Column, ImageClass, Manifest
from decodeonce.store.part import Part, rows_text
from decodeonce.store.regular_files import reading
from decodeonce.store.table import Samples


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
        >>> store = open_store("train.store")
        >>> store.images[0], store.labels[0], store.samples[0].source
    """
    checked = check_store(Path(path))
    allow_open_files(2 * len(checked.manifest.shards))  # a mapping keeps one descriptor open, the Loader another
    return Store(checked.paths, checked.manifest, checked.part)


class Store:
    """A finished store or staged part, opened read-only by `open_store`.

    `len(store)` is the number of rows. A Store can be pickled: the other process opens the files again.

    Attributes:
        images: Images, an array-like uint8 (count, H, W, C). Rows are read from disk when you index it.
        rows: The rows whose images this folder holds: all of them, or the range of a staged part. Labels, samples and
            columns exist for every row.
        manifest: The contents of store.json.
        paths: Paths of the store's files.

    Example:
        >>> store = open_store("train.store")
        >>> store.images[:64].shape
        (64, 224, 224, 3)
        >>> store.classes[store.labels[0]].name
        'n01440764'
    """

    def __init__(self, paths: StorePaths, manifest: Manifest, part: Part | None = None) -> None:
        self.paths = paths
        self.manifest = manifest
        self.rows = part.held if part else range(manifest.count)
        self.images = Images(paths, manifest, self.rows)

    def __reduce__(self) -> tuple[object, ...]:
        return open_store, (self.paths.root,)  # a pickle holds no rows; the other process opens the store again

    def __len__(self) -> int:
        return self.manifest.count

    def __repr__(self) -> str:
        height, width, channels = self.manifest.shape
        rows = f"{len(self)} x {height}x{width}x{channels} uint8"
        held = "" if len(self.rows) == len(self) else f", holds {rows_text(self.rows)}"
        return f"<Store {self.paths.root}: {rows}, {len(self.manifest.classes)} classes{held}>"

    def check_held(self, rows: range, advice: str) -> None:
        """Raise StoreError, ending with `advice`, unless this folder holds all of `rows` (at least one)."""
        self.images.check_held(rows, advice)

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

        The first access verifies their digest, which takes 1.5 ms per million rows.

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
        """The `Sample` of each row: class, source, width, height, digest. Read from samples.tsv on access."""
        return Samples(self.paths.samples, len(self))

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Columns by name, each an array (count, ...), memory-mapped read-only."""
        columns = {column.name: self.column(column) for column in self.manifest.columns}
        if columns:
            check_not_replaced(self.paths.root, self.manifest, self.paths.manifest)
        return columns

    def column(self, column: Column) -> NDArray[Any]:
        """Map one column, an array (count, ...).

        Args:
            column: An entry of `manifest.columns`.

        Raises:
            StoreError: If the file has another dtype or shape, or contains box labels without a class.
        """
        array, names = self._array(column.file, column.dtype, column.shape), self.manifest.box_classes
        if column.name == BOX_LABELS and names is not None and array.size:
            least, most = int(array.min()), int(array.max())
            if least < -1 or most >= len(names):
                found = f"labels from {least} to {most}, expected -1 to {len(names) - 1}"
                raise StoreError(f"{self.paths.root / column.file}: {found}; run {verify_command(self.paths.root)}")
        return array

    def take(self, rows: ArrayLike, out: Pixels | None = None) -> Pixels:
        """Copy rows into an array. The same as `images.take`."""
        return self.images.take(rows, out=out)

    def _array(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Map an npy file. Its header must be exactly the one that `npy_header` writes for this dtype and shape."""
        path, whole_shape = self.paths.root / name, (len(self), *shape)
        header = npy_header(whole_shape, dtype)
        with reading(path, buffering=0) as file:
            found = file.read(len(header))
        if found != header:
            what = f"not an npy file of dtype {dtype} and shape {whole_shape}"
            raise StoreError(f"{path}: {what}; run {verify_command(self.paths.root)}")
        check_size(path, len(header) + np.dtype(dtype).itemsize * math.prod(whole_shape))
        return np.memmap(path, dtype, "r", offset=len(header), shape=whole_shape)
