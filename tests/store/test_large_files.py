"""Every reader finds the right rows past 2^32 and 2^36 bytes of a file. The files are sparse."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from decodeonce import open_store
from decodeonce.build import Conversion, Selection, convert
from decodeonce.prep.paths import BuildPaths
from decodeonce.store import stage_store, verify_store
from decodeonce.store.format import CONTAINERS
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import ContainerName
from decodeonce.store.manifest import DATA_OFFSET
from decodeonce.store.writer import shard_ranges
from tests.packages import needs_torch
from tests.store.signing import flip_row
from tests.stores import seal

SHAPE = (1024, 1024, 3)
ROW_BYTES = 3 << 20  # does not divide a power of two, so rows cross the boundaries
COUNT = (66 << 30) // ROW_BYTES
CLASSES = 7
# One file of 66 GiB, and shards of 32 GiB, the size that `prep build` would use.
SHARD_ROWS = {"one file of 66 GiB": COUNT, "shards of 32 GiB": (32 << 30) // ROW_BYTES}


class Large(NamedTuple):
    """A sparse store. `images` are the images of `rows`; all other rows are zeros."""

    root: Path
    rows: list[int]
    images: NDArray[np.uint8]


FORMS = [("npy", "one file of 66 GiB"), ("hdf5", "shards of 32 GiB")]
MORE = [("npy", "shards of 32 GiB"), ("hdf5", "one file of 66 GiB")]


@pytest.fixture(
    scope="module", params=[*FORMS, *(pytest.param(form, marks=pytest.mark.long) for form in MORE)], ids=" in ".join
)
def large(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Large]:
    container, shards = request.param
    root = tmp_path_factory.mktemp("large") / "s"
    root.mkdir()
    skip_unless_sparse(root)
    yield make_large_store(root, container, SHARD_ROWS[shards])
    shutil.rmtree(root)


def skip_unless_sparse(folder: Path) -> None:
    """Skip the test if a sparse file takes up its full size here."""
    with open(folder / "probe", "wb") as file:
        os.truncate(file.fileno(), 8 << 20)
        used = os.fstat(file.fileno()).st_blocks * 512
    (folder / "probe").unlink()
    if used > 1 << 20:
        pytest.skip(f"a sparse file of 8 MiB takes {used} bytes in {folder}")


def make_large_store(root: Path, container: ContainerName, shard_rows: int) -> Large:
    """Write the rows around every boundary, and the first and last row."""
    shards = list(shard_ranges(COUNT, shard_rows))
    starts = {first + (1 << 32) // ROW_BYTES for first, _ in shards} | {first for first, _ in shards}
    near = {start + step for start in starts | {(1 << 36) // ROW_BYTES, COUNT} for step in (-1, 0, 1)}
    numbers = sorted(row for row in near if 0 <= row < COUNT)
    images = np.random.default_rng(0).integers(0, 256, (len(numbers), *SHAPE), np.uint8)
    paths = BuildPaths(root)
    sums = np.full(COUNT, row_checksum(bytes(ROW_BYTES)), np.uint64)
    for index, (first, count) in enumerate(shards):
        with open(paths.shard(index, CONTAINERS[container].suffix), "wb", buffering=0) as file:
            file.truncate(DATA_OFFSET + count * ROW_BYTES)
            for row, image in zip(numbers, images, strict=True):
                if first <= row < first + count:
                    file.seek(DATA_OFFSET + (row - first) * ROW_BYTES)
                    file.write(image.data)
                    sums[row] = row_checksum(image.data)
    labels = np.arange(COUNT) % CLASSES
    facts: dict[str, Any] = {
        "shape": SHAPE,
        "container": container,
        "block_rows": 8,
        "pixel_mean": (1.0,) * 3,
        "pixel_std": (1.0,) * 3,
    }
    seal(root, labels, sums, shard_rows=shard_rows, classes=CLASSES, **facts)
    return Large(root, numbers, images)


def test_store_reads_right_rows(large: Large) -> None:
    store = open_store(large.root)
    assert np.array_equal(store.take(large.rows), large.images)
    for row, image in zip(large.rows, large.images, strict=True):
        assert np.array_equal(store.images[row], image)
        assert np.array_equal(store.images[row : row + 1], image[None])
        assert store.labels[row] == row % CLASSES
        assert store.samples[row].source == f"class{row % CLASSES}/{row}.jpg"


@needs_torch
@pytest.mark.parametrize("reader", ["pread", "mmap"])
def test_loader_reads_right_rows(large: Large, reader: Literal["pread", "mmap"]) -> None:
    from decodeonce import Loader

    for shuffle, verify in (("none", False), ("full", False), ("window", True)):
        options: dict[str, Any] = {"reader": reader, "shuffle": shuffle, "verify": verify, "tail": "keep"}
        with Loader(large.root, rows=large.rows, batch_size=4, **options) as loader:
            images = np.concatenate([batch.images.numpy().copy() for batch in loader])
        # Compare in any order: the rows are random bytes, so checksums identify them.
        assert sorted(map(row_checksum, images)) == sorted(map(row_checksum, large.images))
        if shuffle == "none":
            assert np.array_equal(images, large.images)


@pytest.mark.parametrize("boundary", [1 << 32, 1 << 36])
def test_staged_rows_are_verified(large: Large, tmp_path: Path, boundary: int) -> None:
    row = boundary // ROW_BYTES
    part, held = tmp_path / "part", range(row - 1, row + 2)
    stage_store(open_store(large.root), part, rows=held)
    assert verify_store(part).ok
    flip_row(part, row, ROW_BYTES // 2)
    report = verify_store(part)
    assert (report.rows, report.bad_rows, report.bad_files) == (3, [(row, row)], [])


def test_rows_past_boundary_are_converted(large: Large, tmp_path: Path) -> None:
    rows = [row for row in large.rows if row >= (1 << 36) // ROW_BYTES - 1][:3]
    selection = Selection(rows=(rows[0], rows[-1] + 1))
    convert([large.root], tmp_path / "out", Conversion(selection=selection), workers=1)
    store = open_store(tmp_path / "out")
    assert np.array_equal(store.images[:], large.images[[large.rows.index(row) for row in rows]])
    assert [sample.source for sample in store.samples] == [f"class{row % CLASSES}/{row}.jpg" for row in rows]
