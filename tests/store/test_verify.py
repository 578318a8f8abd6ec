"""verify_store finds every flipped bit of every file, and names the damaged rows and files."""

import errno
import os
import random
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from decodeonce.store import Reject, Report, checks, disk, open_store, stage_store, verify_store
from decodeonce.store.format import CONTAINERS
from decodeonce.store.manifest import DATA_OFFSET
from decodeonce.store.table import REJECT_COLUMNS, line, reject_line
from tests.store.signing import flip, replace_file
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
    """Return a report's facts, and check that it has one sentence for each bad file, which names the file."""
    assert len(report.problems) == len(report.bad_files)
    for name, problem in zip(report.bad_files, report.problems, strict=True):
        assert name in problem
    return report.ok, report.rows, report.bad_rows, report.bad_files


@pytest.fixture(scope="module")
def rich(originals: Originals, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A store with a column and rejects in each container, and a staged part. Together they have every kind of file."""
    folder, stores = tmp_path_factory.mktemp("flips"), []
    rejects = [Reject("train/a\tb.JPEG", "truncated: é", "rejected"), Reject("c.JPEG", "gray", "kept")]
    for name, original in originals.items():
        store = Path(shutil.copytree(original, folder / name))
        replace_file(store, "rejects.tsv", line(REJECT_COLUMNS) + b"".join(map(reject_line, rejects)))
        stores.append(store)
    stage_store(open_store(stores[0]), folder / "part", rows=range(3, 9))
    return [*stores, folder / "part"]


Bit = tuple[Path, int, int]  # a file, a byte in it, a bit


def random_bits(stores: list[Path], rng: random.Random) -> Iterator[Bit]:
    """Yield random bits without end. Every file is equally likely, and so are header and rows of a shard."""
    spans_of = {}
    for store in stores:
        opened = open_store(store)
        for path in sorted(store.iterdir()):
            shard = next((s for s in opened.manifest.shards if s.file == path.name), None)
            spans = [range(path.stat().st_size)]
            if shard is not None:
                held = shard.held_rows(opened.rows)
                first, last = (shard.offset(row) for row in (held.start, held.stop))
                spans = [range(DATA_OFFSET), *([range(first, last)] if held else [])]
            spans_of[path] = spans
    while True:
        path = rng.choice(list(spans_of))
        yield path, rng.choice(rng.choice(spans_of[path])), rng.randrange(8)


def expected_report(path: Path, offset: int) -> tuple[object, ...]:
    """Return the facts of a report on a store with a single flipped bit, at `offset` of a file."""
    store = path.parent
    if path.name in ("store.json", "stage.json"):
        return False, 0, [], [path.name], []
    rows, count = (range(3, 9), 6) if (store / "stage.json").exists() else (range(COUNT), COUNT)
    if path.name.startswith("images-") and offset >= DATA_OFFSET:
        row = int(path.name[7:12]) * SHARD_ROWS + (offset - DATA_OFFSET) // ROW_BYTES
        return False, count, [(row, row)], [], []
    row = (offset - 128) // 8
    unknown = [(row, row)] if path.name == "checksums.npy" and row in rows else []
    return False, count, [], [path.name], unknown


def find_flips(stores: list[Path], flips: int, seed: int) -> None:
    """Flip a random bit, check that verify names it, flip it back, and repeat this `flips` times."""
    for path, offset, bit in islice(random_bits(stores, random.Random(seed)), flips):
        flip(path, offset, bit)
        try:
            report = verify_store(path.parent)
        finally:
            flip(path, offset, bit)
        found = (*facts(report), report.unknown_rows)
        assert found == expected_report(path, offset), f"bit {bit} of byte {offset} of {path}"
    assert all(verify_store(store).ok for store in stores)


def test_flipped_bits_are_found_and_named(rich: list[Path]) -> None:
    find_flips(rich, 300, seed=0)


@pytest.mark.long
def test_ten_thousand_flipped_bits_are_found_and_named(rich: list[Path]) -> None:
    find_flips(rich, 10_000, seed=1)


@pytest.mark.parametrize(
    ("size", "rows"),
    [(DATA_OFFSET + 3 * ROW_BYTES + 35, [(7, 7)]), (DATA_OFFSET + ROW_BYTES, [(5, 7)]), (100, [(4, 7)])],
)
def test_short_shard_is_named_with_rows(store: Path, container: str, size: int, rows: list[tuple[int, int]]) -> None:
    name = SHARDS[container].format(1)
    os.truncate(store / name, size)
    assert facts(verify_store(store)) == damaged(rows=rows, files=[name])


def test_missing_bytes_are_not_taken_for_zeros(tmp_path: Path) -> None:
    store = make_store(tmp_path / "black", np.zeros((3, *SHAPE), np.uint8))
    os.truncate(store / "images-00000.npy", DATA_OFFSET + 3 * ROW_BYTES - 1)
    report = verify_store(store)
    assert (report.bad_rows, report.bad_files) == ([(2, 2)], ["images-00000.npy"])


def test_longer_or_missing_shard_is_named(store: Path, container: str) -> None:
    longer, missing = (SHARDS[container].format(index) for index in (2, 1))
    with open(store / longer, "ab") as file:
        file.write(b"x")
    report = verify_store(str(store))
    assert facts(report) == damaged(files=[longer])
    assert "4205 bytes, expected 4204" in report.problems[0]
    (store / missing).unlink()
    assert facts(verify_store(store)) == damaged(rows=[(4, 7)], files=[missing, longer])


@pytest.mark.parametrize("name", SMALL)
def test_missing_or_short_small_file_is_named(store: Path, name: str) -> None:
    os.truncate(store / name, (store / name).stat().st_size - 1)
    assert facts(verify_store(store)) == damaged(files=[name])
    (store / name).unlink()
    assert facts(verify_store(store)) == damaged(files=[name])


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_progress(store: Path, container: str, threads: int) -> None:
    flip(store / SHARDS[container].format(0), DATA_OFFSET + 2 * ROW_BYTES, 0)
    os.truncate(store / SHARDS[container].format(1), DATA_OFFSET + 2 * ROW_BYTES)
    (store / SHARDS[container].format(2)).unlink()
    counted: list[int] = []
    report = verify_store(store, threads=threads, progress=counted.append)
    files = [SHARDS[container].format(1), SHARDS[container].format(2)]
    assert facts(report) == damaged(rows=[(2, 2), (6, 10)], files=files)
    assert sum(counted) == COUNT


@pytest.mark.parametrize("name", ["images-00001.npy", "labels.npy", "checksums.npy", "store.json", "stage.json"])
def test_pipe_folder_or_device_is_bad_and_does_not_block(originals: Originals, tmp_path: Path, name: str) -> None:
    store = Path(shutil.copytree(originals["npy"], tmp_path / "bad.store"))
    path, checked = store / name, {"store.json": 0, "stage.json": 0}.get(name, COUNT)
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)):
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        make(path)
        report = verify_store(store)
        assert (report.ok, report.rows, report.bad_files) == (False, checked, [name])
        assert report.bad_rows == ([(4, 7)] if name == "images-00001.npy" else [])
        assert report.unknown_rows == ([(0, COUNT - 1)] if name == "checksums.npy" else [])


def test_rows_are_checked_against_rest_of_damaged_checksums(store: Path, container: str) -> None:
    flip(store / SHARDS[container].format(0), DATA_OFFSET, 0)
    os.truncate(store / "checksums.npy", 128 + 8 * 9 + 3)
    os.truncate(store / SHARDS[container].format(2), DATA_OFFSET + 2 * ROW_BYTES)
    report = verify_store(store)
    assert facts(report) == damaged(rows=[(10, 10)], files=["checksums.npy", SHARDS[container].format(2)])
    assert report.unknown_rows == [(0, 0), (9, 9)]
    os.truncate(store / "checksums.npy", 1 << 40)  # verify must not read all of it
    assert verify_store(store).unknown_rows == [(0, 0), (9, 9)]


def bad_sectors(monkeypatch: pytest.MonkeyPatch, path: Path, spans: list[range], code: int = errno.EIO) -> None:
    """Make reads of these bytes of a file fail, as on a damaged disk."""
    inode, real = path.stat().st_ino, disk.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        read = range(offset, offset + sum(buffer.nbytes for buffer in buffers))
        if os.fstat(fd).st_ino == inode and any(max(read[0], s[0]) <= min(read[-1], s[-1]) for s in spans if read):
            raise OSError(code, os.strerror(code))
        return real(fd, buffers, offset, *flags)

    monkeypatch.setattr(disk, "preadv", preadv)


def test_only_rows_that_disk_cannot_read_are_bad(store: Path, container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store / SHARDS[container].format(1)
    first = DATA_OFFSET + ROW_BYTES
    bad_sectors(monkeypatch, path, [range(at, at + 1) for at in (first + 5, first + 2 * ROW_BYTES)])
    assert facts(verify_store(store)) == damaged(rows=[(5, 5), (7, 7)])
    bad_sectors(monkeypatch, path, [range(first, first + 1)], errno.ESTALE)  # a transient error
    with pytest.raises(OSError, match="Stale"):
        verify_store(store)


def test_small_files_that_disk_cannot_read_are_bad(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checks, "file_hexdigest", unreadable)
    report = verify_store(store)
    assert {*SMALL} <= {*report.bad_files}
    assert all("cannot be read: Input/output error" in problem for problem in report.problems)
    assert (report.bad_rows, report.unknown_rows) == ([], [])
    bad_sectors(monkeypatch, store / "store.json", [range(3, 4)])
    report = verify_store(store)
    assert (report.rows, report.bad_files) == (0, ["store.json"])
    assert "cannot be read: Input/output error" in report.problems[0]


@pytest.mark.parametrize("threads", [1, 3])
def test_shard_larger_than_one_read(tmp_path: Path, threads: int) -> None:
    images = random_images(20, shape=(1000, 1000, 1))  # 20 MB, read 4 MiB (4 rows) at a time
    store = make_store(tmp_path / "s", images)
    counted: list[int] = []
    assert verify_store(store, threads=threads, progress=counted.append).ok
    assert sorted(counted) == [4] * 5
    for row in (7, 8, 19):
        flip(store / "images-00000.npy", DATA_OFFSET + row * 1_000_000 + 999_999, 7)
    assert verify_store(store, threads=threads).bad_rows == [(7, 8), (19, 19)]


@pytest.mark.parametrize("name", ["samples.tsv", "rejects.tsv"])
@pytest.mark.parametrize("garbage", [b"header\n\x93garbage\n", b"\0" * 99 + b"\n1\n2", b"header\n0\t1\t2\t3\n"])
def test_signed_table_that_cannot_be_parsed_is_bad(store: Path, name: str, garbage: bytes) -> None:
    replace_file(store, name, garbage)
    report = verify_store(store)
    assert facts(report) == damaged(files=[name])
    assert report.problems[0].endswith("; restore it from a copy of the store, or build the store again")
