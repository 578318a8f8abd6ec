"""verify_store finds every flipped bit of every file and names the rows and files that have one."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.store import Manifest, Report, verify_store
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.manifest import DATA_OFFSET, read_manifest
from tests.stores import make_store, random_images

COUNT, SHARD_ROWS, SHAPE = 11, 4, (4, 3, 3)
ROW_BYTES = 36
SHARDS = {"npy": "images-0000{}.npy", "hdf5": "images-0000{}.h5"}
SMALL = ("labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv", "weights.npy")

Originals = dict[str, Path]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    folder, images = tmp_path_factory.mktemp("verify"), random_images(COUNT, shape=SHAPE)
    columns = {"weights": np.arange(COUNT, dtype="<f4")}
    return {
        name: make_store(folder / name, images, container=name, shard_rows=SHARD_ROWS, columns=columns)
        for name in CONTAINERS
    }


@pytest.fixture(params=tuple(CONTAINERS))
def container(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(originals: Originals, container: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals[container], tmp_path / "tiny.store"))


def damaged(*, rows: list[tuple[int, int]] | None = None, files: list[str] | None = None) -> tuple[object, ...]:
    return False, COUNT, rows or [], files or []


def facts(report: Report) -> tuple[object, ...]:
    """All of a report but its sentences, of which there is one for each bad file, naming it."""
    assert len(report.problems) == len(report.bad_files)
    for name, problem in zip(report.bad_files, report.problems, strict=True):
        assert name in problem
    return report.ok, report.rows, report.bad_rows, report.bad_files


def flip(path: Path, offset: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def test_a_whole_store_is_whole(store: Path) -> None:
    assert verify_store(store) == Report(True, COUNT, [], [], [])
    assert verify_store(str(store)).ok


def row_of(manifest: Manifest, name: str, offset: int) -> int | None:
    """The row in whose bytes `offset` of the file `name` lies."""
    for shard in manifest.shards:
        if shard.file == name and offset >= shard.data_offset:
            return shard.first_row + (offset - shard.data_offset) // manifest.row_bytes
    return None


@given(st.data())
def test_every_flipped_bit_is_found_and_named(originals: Originals, data: st.DataObject) -> None:
    store = originals[data.draw(st.sampled_from(tuple(CONTAINERS)))]
    manifest = read_manifest(store / "store.json")
    path = data.draw(st.sampled_from(sorted(store.iterdir())))
    rows_or_head = st.integers(DATA_OFFSET, max(path.stat().st_size, DATA_OFFSET + 1) - 1)
    offset = data.draw(rows_or_head | st.integers(0, path.stat().st_size - 1)) % path.stat().st_size
    bit = data.draw(st.integers(0, 7))
    row = row_of(manifest, path.name, offset)
    flip(path, offset, bit)
    try:
        report = facts(verify_store(store))
    finally:
        flip(path, offset, bit)
    if path.name == "store.json":
        assert report == (False, 0, [], ["store.json"])
    elif row is None:
        assert report == damaged(files=[path.name])
    else:
        assert report == damaged(rows=[(row, row)])
    assert verify_store(store).ok


def test_every_byte_of_two_rows_and_both_their_neighbours(store: Path, container: str) -> None:
    path = store / SHARDS[container].format(1)
    for offset in range(ROW_BYTES - 1, 3 * ROW_BYTES + 1):
        row = SHARD_ROWS + offset // ROW_BYTES
        flip(path, DATA_OFFSET + offset, offset % 8)
        assert facts(verify_store(store)) == damaged(rows=[(row, row)])
        flip(path, DATA_OFFSET + offset, offset % 8)


def test_bad_rows_come_as_ranges_across_shards(store: Path, container: str) -> None:
    for row in (0, 2, 3, 4, 5, 10):
        flip(store / SHARDS[container].format(row // SHARD_ROWS), DATA_OFFSET + row % SHARD_ROWS * ROW_BYTES, 3)
    assert facts(verify_store(store)) == damaged(rows=[(0, 0), (2, 5), (10, 10)])


def test_two_rows_exchanged_are_both_bad(store: Path, container: str) -> None:
    path = store / SHARDS[container].format(0)
    content = path.read_bytes()
    first, second = content[4096 : 4096 + ROW_BYTES], content[4096 + ROW_BYTES : 4096 + 2 * ROW_BYTES]
    path.write_bytes(content[:4096] + second + first + content[4096 + 2 * ROW_BYTES :])
    assert facts(verify_store(store)) == damaged(rows=[(0, 1)])


def test_two_shards_exchanged(store: Path, container: str) -> None:
    first, second = (store / SHARDS[container].format(index) for index in (0, 1))
    spare = first.rename(store / "spare")
    second.rename(first)
    spare.rename(second)
    assert facts(verify_store(store)) == damaged(rows=[(0, 7)])


@pytest.mark.parametrize(
    ("size", "rows"),
    [
        (DATA_OFFSET + 3 * ROW_BYTES + 35, [(7, 7)]),
        (DATA_OFFSET + ROW_BYTES, [(5, 7)]),
        (DATA_OFFSET, [(4, 7)]),
        (100, [(4, 7)]),
        (0, [(4, 7)]),
    ],
)
def test_a_short_shard_is_named_with_the_rows_it_lacks(
    store: Path, container: str, size: int, rows: list[tuple[int, int]]
) -> None:
    name = SHARDS[container].format(1)
    os.truncate(store / name, size)
    assert facts(verify_store(store)) == damaged(rows=rows, files=[name])


def test_zeros_that_are_not_there_are_not_taken_for_zeros(tmp_path: Path) -> None:
    store = make_store(tmp_path / "black", np.zeros((3, *SHAPE), np.uint8))
    os.truncate(store / "images-00000.npy", DATA_OFFSET + 3 * ROW_BYTES - 1)
    report = verify_store(store)
    assert (report.bad_rows, report.bad_files) == ([(2, 2)], ["images-00000.npy"])


def test_bytes_past_the_last_row_are_a_bad_file(store: Path, container: str) -> None:
    name = SHARDS[container].format(2)
    with open(store / name, "ab") as file:
        file.write(b"x")
    report = verify_store(store)
    assert facts(report) == damaged(files=[name])
    assert "4205 bytes, expected 4204" in report.problems[0]


def test_a_missing_shard_is_named_with_its_rows(store: Path, container: str) -> None:
    name = SHARDS[container].format(1)
    (store / name).unlink()
    assert facts(verify_store(store)) == damaged(rows=[(4, 7)], files=[name])
    (store / name).mkdir()
    assert facts(verify_store(store)) == damaged(rows=[(4, 7)], files=[name])


@pytest.mark.parametrize("name", SMALL)
def test_a_missing_or_short_small_file_is_named(store: Path, name: str) -> None:
    os.truncate(store / name, (store / name).stat().st_size - 1)
    assert facts(verify_store(store)) == damaged(files=[name])
    (store / name).unlink()
    assert facts(verify_store(store)) == damaged(files=[name])


def test_several_troubles_at_once(store: Path, container: str) -> None:
    (store / "labels.npy").unlink()
    flip(store / "samples.tsv", 9, 1)
    flip(store / SHARDS[container].format(0), 4000, 0)
    flip(store / SHARDS[container].format(2), DATA_OFFSET, 0)
    files = sorted([SHARDS[container].format(0), "labels.npy", "samples.tsv"])
    assert facts(verify_store(store)) == damaged(rows=[(8, 8)], files=files)


def test_no_store_at_all(tmp_path: Path) -> None:
    report = verify_store(tmp_path / "gone")
    assert (report.ok, report.rows, report.bad_files) == (False, 0, ["store.json"])
    assert "gone: no such folder" in report.problems[0]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_progress(store: Path, container: str, threads: int) -> None:
    flip(store / SHARDS[container].format(0), DATA_OFFSET + 2 * ROW_BYTES, 0)
    os.truncate(store / SHARDS[container].format(1), DATA_OFFSET + 2 * ROW_BYTES)
    (store / SHARDS[container].format(2)).unlink()
    counted: list[int] = []
    lock = threading.Lock()

    def progress(rows: int) -> None:
        with lock:
            counted.append(rows)

    report = verify_store(store, threads=threads, progress=progress)
    files = [SHARDS[container].format(1), SHARDS[container].format(2)]
    assert facts(report) == damaged(rows=[(2, 2), (6, 10)], files=files)
    assert sum(counted) == COUNT


@pytest.mark.parametrize("threads", [1, 3])
def test_a_shard_of_several_reads(tmp_path: Path, threads: int) -> None:
    images = random_images(20, shape=(1000, 1000, 1))  # 20 MB, read 8 MiB, that is 8 rows, at a time
    store = make_store(tmp_path / "s", images)
    counted: list[int] = []
    assert verify_store(store, threads=threads, progress=counted.append).ok
    assert sorted(counted) == [4, 8, 8]
    for row in (7, 8, 19):
        flip(store / "images-00000.npy", DATA_OFFSET + row * 1_000_000 + 999_999, 7)
    assert verify_store(store, threads=threads).bad_rows == [(7, 8), (19, 19)]
