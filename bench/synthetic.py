"""Stores of random rows, for benchmarks that need gigabytes. They are written without decoding images."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.prep.building.plan import block_rows_for
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import PixelsName, StorePaths, image_bytes
from decodeonce.store.manifest import DATA_OFFSET, ImageClass, Manifest
from decodeonce.store.table import REJECT_COLUMNS, SAMPLE_COLUMNS, line, sample_lines
from decodeonce.store.writer import seal_store, shard_ranges, write_array, write_small

SHAPE = (256, 256, 3)
ROW_BYTES = 256 * 256 * 3
WRITTEN_AT_ONCE = 32 << 20
CLASSES = 1000


def synthetic_store(
    root: Path, rows: int, *, shards: int = 1, sparse: bool = False, pixels: PixelsName = "rgb"
) -> Path:
    """Create a store of `rows` random rows of 256x256 at `root`, unless it exists, and return `root`.

    `sparse`: all pixels are zeros and take no disk space. The checksums are zeros as well, so `prep verify` would
    report every row as damaged.
    """
    if (root / "store.json").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    paths = StorePaths(root)
    shard_rows = -(-rows // shards)
    sums, row_bytes = np.zeros(rows, "<u8"), image_bytes(pixels, SHAPE)
    for index, (first, count) in enumerate(shard_ranges(rows, shard_rows)):
        _write_shard(paths.shard(index, ".npy"), first, sums[first : first + count], row_bytes, sparse=sparse)
    labels = np.arange(rows) % CLASSES
    samples = ((row, int(label), f"{label}", "", 0, 0, "", "0" * 16) for row, label in enumerate(labels))
    files = {
        "labels.npy": write_array(paths.labels, (rows,), np.dtype("<i8"), [labels]),
        "checksums.npy": write_array(paths.checksums, (rows,), np.dtype("<u8"), [sums]),
        "samples.tsv": write_small(paths.samples, [line(SAMPLE_COLUMNS), sample_lines(samples)]),
        "rejects.tsv": write_small(paths.rejects, [line(REJECT_COLUMNS)]),
    }
    draft = Manifest(
        count=rows,
        shape=SHAPE,
        container="npy",
        block_rows=block_rows_for(rows, row_bytes),  # the default of `prep build`
        shards=(),
        classes=tuple(ImageClass(str(label), "") for label in range(CLASSES)),
        pixel_mean=(127.5,) * 3,
        pixel_std=(73.9,) * 3,
        recipe={"size": list(SHAPE[:2])},
        source={"kind": "synthetic", "digest": "0" * 16},
        columns=(),
        files={},
        pixels=pixels,
    )
    seal_store(paths, draft, shard_rows=shard_rows, scratch=root, files=files, labels=[labels])
    return root


def _write_shard(path: Path, first: int, sums: NDArray[np.uint64], row_bytes: int, *, sparse: bool) -> None:
    random, rows = np.random.default_rng(first), len(sums)
    with path.open("wb") as file:
        file.truncate(DATA_OFFSET + rows * row_bytes)
        file.seek(DATA_OFFSET)
        at_once = WRITTEN_AT_ONCE // row_bytes
        for start in range(0, 0 if sparse else rows, at_once):
            block = random.integers(0, 256, (min(at_once, rows - start), row_bytes), np.uint8)
            file.write(block.data)
            sums[start : start + len(block)] = [row_checksum(row) for row in block]
        file.flush()
        os.fsync(file.fileno())
