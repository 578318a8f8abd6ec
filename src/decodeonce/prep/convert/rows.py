"""Read single rows of a finished store, check each, and convert them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from decodeonce.errors import BuildError, StoreError
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.holders import SourceFiles, source_file
from decodeonce.store.checks import check_file
from decodeonce.store.format import CODECS
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import verify_command
from decodeonce.store.manifest import Manifest
from decodeonce.store.pixels import Yuv420
from decodeonce.store.reader import open_store
from decodeonce.store.table import Sample

DIGEST = re.compile("[0-9a-f]{16}")


class StoreRows:
    """The rows of the finished store at `path`, whose manifest must have this digest.

    Raises BuildError if the store at `path` was replaced.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.store = open_store(path)
        self.manifest = self.store.manifest
        if self.manifest.digest != digest:
            raise BuildError(
                f"{path}: the store was replaced (digest {self.manifest.digest}, expected {digest}); put the original "
                "back, or remove the unfinished output and run the command again"
            )
        self._files = SourceFiles(path, [source_file(path, shard.file) for shard in self.manifest.shards])

    def check_files(self) -> None:
        """Raise StoreError if a small file that is copied to the new store is damaged."""
        paths = self.store.paths
        names = [path.name for path in (paths.samples, paths.rejects, paths.checksums)]
        for name in [*names, *(column.file for column in self.manifest.columns)]:
            check_file(paths.root / name, self.manifest.files[name])
        _ = self.store.columns  # raises StoreError if a file does not have the shape that the manifest states

    def read(self, row: int) -> bytes:
        """Return the bytes of a row; raise StoreError if they do not match its checksum."""
        index = int(self.manifest.shard_indexes(row))
        data = self._files.read(index, self.manifest.shards[index].offset(row), self.manifest.row_bytes)
        if row_checksum(data) != int(self.store.checksums[row]):
            root = self.store.paths.root
            raise StoreError(f"{root}: row {row} does not match its checksum; run {verify_command(root)}")
        return data

    def sample(self, row: int) -> Sample:
        """Return the line of samples.tsv of a row; raise StoreError if its label or digest is invalid."""
        sample = self.store.samples[row]
        if sample.label != int(self.store.labels[row]) or not DIGEST.fullmatch(sample.digest):
            expected = f"label {self.store.labels[row]}, as in labels.npy, and a digest of 16 hexadecimal digits"
            verify = verify_command(self.store.paths.root)
            raise StoreError(f"{self.store.paths.samples}: row {row} is invalid, expected {expected}; run {verify}")
        return sample

    def close(self) -> None:
        """Close the shards; the next read opens them again."""
        self._files.close()


def converted(row: bytes, manifest: Manifest, recipe: Recipe) -> bytes:
    """Return a row of the store with this manifest in the size and pixels of the recipe."""
    if (manifest.shape, manifest.pixels) == (recipe.shape, recipe.pixels):
        return row
    from PIL import Image  # here, so that a missing Pillow is reported like in a build

    made, stored = bytearray(), np.frombuffer(row, np.uint8)
    packed, codec = CODECS[manifest.pixels], CODECS[recipe.pixels]
    if manifest.shape == recipe.shape and isinstance(packed, Yuv420) and isinstance(codec, Yuv420):
        arrays = manifest.views(stored)
        planes = packed.planes(arrays.pop("images"), manifest.shape)
        made += codec.pack_planes(planes, recipe.height, recipe.width)  # unpacking to RGB would change them
    else:
        arrays = manifest.arrays(stored)
    for name, array in arrays.items():
        image = Image.fromarray(array)
        if manifest.shape != recipe.shape:
            filter_ = Image.Resampling.NEAREST if array.ndim == 2 else Image.Resampling[recipe.filter.upper()]
            image = image.resize((recipe.width, recipe.height), filter_)
        made += codec.pack(image) if name == "images" else image.tobytes()
    return bytes(made)


def shape_text(shape: Sequence[int]) -> str:
    """Format a shape: 224x224x3."""
    return "x".join(map(str, shape))
