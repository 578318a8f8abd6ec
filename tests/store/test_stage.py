"""A staged part holds exactly its rows, even after kills, and never returns other rows."""

import errno
import fcntl
import json
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from decodeonce.errors import StageError, StoreError
from decodeonce.store import Report, StorePaths, files, open_store, part_rows, stage_store, verify_store
from decodeonce.store.files import PAGE, reserve
from decodeonce.store.format import CONTAINERS
from decodeonce.store.manifest import DATA_OFFSET, Shard, part_bytes
from tests import disks
from tests.open_files import open_files
from tests.store.signing import flip, sign
from tests.stores import make_store, random_images

COUNT, SHARD_ROWS = 60, 25
HELD = range(20, 40)  # begins and ends in the middle of two shards
IMAGES = random_images(COUNT)
MIB = 1 << 20
# Rows of 1 MiB: four rows per piece, three pieces per shard.
LARGE = random_images(24, shape=(512, 512, 4), seed=1)
LARGE_HELD = range(3, 23)


@pytest.fixture(scope="module", params=tuple(CONTAINERS))
def whole(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    columns = {"weight": np.linspace(-1, 1, COUNT, dtype="<f4")}
    root = tmp_path_factory.mktemp("whole") / "s"
    return make_store(root, IMAGES, shard_rows=SHARD_ROWS, container=request.param, columns=columns)


@pytest.fixture(scope="module")
def part(whole: Path) -> Path:
    staged = whole.parent / "part"
    stage_store(open_store(whole), staged, rows=HELD)
    return staged


@pytest.fixture(scope="module")
def large_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("large") / "s", LARGE, shard_rows=12)


@pytest.fixture
def large(large_original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(large_original, tmp_path / "large"))


def assert_part(path: Path, source: Path, images: NDArray[np.uint8], rows: range) -> None:
    """Check that manifest and small files match the source, and that shards hold `rows` of `images` and zeros."""
    store = open_store(path)
    assert store.rows == rows
    np.testing.assert_array_equal(store.images[rows.start : rows.stop], images[rows.start : rows.stop])
    assert verify_store(path) == Report(True, len(rows), [], [], [])
    names = {"stage.json", *(entry.name for entry in source.iterdir())}
    assert {entry.name for entry in path.iterdir()} == names
    for name in ("store.json", *store.manifest.files):
        assert (path / name).read_bytes() == (source / name).read_bytes()
    expected = np.zeros_like(images)
    expected[rows.start : rows.stop] = images[rows.start : rows.stop]
    for shard in store.manifest.shards:
        encoded = (path / shard.file).read_bytes()
        assert encoded[:DATA_OFFSET] == (source / shard.file).read_bytes()[:DATA_OFFSET]
        assert encoded[DATA_OFFSET:] == expected[shard.first_row : shard.first_row + shard.rows].tobytes()


# --- parts


@given(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(0, n - 1), st.integers(1, n))
    ),
    st.sampled_from(tuple(CONTAINERS)),
    st.sampled_from([(8, 6, 3), (64, 64, 1), (61, 67, 3)]),
)
@settings(max_examples=12)
def test_any_range_with_any_shards_can_be_staged(
    sizes: tuple[int, int, int, int], container: str, shape: tuple[int, int, int]
) -> None:
    count, shard_rows, first, rows = sizes
    images, held = random_images(count, shape=shape), range(first, min(first + rows, count))
    with tempfile.TemporaryDirectory() as folder:
        source = make_store(Path(folder) / "s", images, shard_rows=shard_rows, container=container)
        staged = stage_store(open_store(source), Path(folder) / "p", rows=held, threads=2)
        assert (staged.rows, staged.copied) == (held, len(held))
        assert_part(Path(folder) / "p", source, images, held)


@given(st.integers(1, 10**7), st.integers(1, 300), st.integers(1, 16))
def test_parts_are_consecutive_and_contain_their_ranks(count: int, nodes: int, ranks: int) -> None:
    parts = [part_rows(count, node, nodes) for node in range(nodes)]
    assert (parts[0].start, parts[-1].stop) == (0, count)
    assert all(a.stop == b.start for a, b in pairwise(parts))
    for node, rows in enumerate(parts):
        own = [part_rows(count, rank, nodes * ranks) for rank in range(node * ranks, (node + 1) * ranks)]
        assert (own[0].start, own[-1].stop) == (rows.start, rows.stop)


@pytest.mark.parametrize("shape", [(256, 256, 3), (224, 224, 3), (61, 67, 3), (4096, 4096, 1)])
def test_pieces_are_whole_pages_if_possible(whole: Path, shape: tuple[int, int, int]) -> None:
    size = shape[0] * shape[1] * shape[2]
    shard = Shard("a", 0, 1000, DATA_OFFSET, DATA_OFFSET + 1000 * size, "")
    manifest = replace(open_store(whole).manifest, count=1000, shape=shape, shards=(shard,))
    found = [rows for _, rows in manifest.pieces(range(3, 901))]
    assert [row for rows in found for row in rows] == [*range(3, 901)]
    assert max(map(len, found)) * size <= max(17 * MIB, size)
    assert shape[0] == 61 or all(shard.offset(rows.start) % PAGE == 0 for rows in found[1:])


def test_rows_outside_take_no_disk_space(large: Path, tmp_path: Path) -> None:
    stage_store(open_store(large), tmp_path / "p", rows=range(10, 13))
    used = [path.stat().st_blocks * 512 for path in sorted((tmp_path / "p").glob("images-*"))]
    assert 2 * MIB <= used[0] <= 2.1 * MIB
    assert MIB <= used[1] <= 1.1 * MIB
    assert_part(tmp_path / "p", large, LARGE, range(10, 13))


def test_part_of_part_can_be_staged(part: Path, whole: Path, tmp_path: Path) -> None:
    stage_store(open_store(part), tmp_path / "p", rows=range(24, 30))
    assert_part(tmp_path / "p", whole, IMAGES, range(24, 30))
    with pytest.raises(StoreError, match=r"holds rows 20\.\.39 of 60; asked for rows 30\.\.40: stage from the whole"):
        stage_store(open_store(part), tmp_path / "q", rows=range(30, 41))
    assert not (tmp_path / "q").exists()


# --- reading a part

OUTSIDE: list[Any] = [19, 40, -1, 0, np.int32(19), ..., (), (19, 0), (slice(0, 30), 1), ([20, 40], 0)]
OUTSIDE += [slice(*ends) for ends in ((None,), (19, 21), (39, 41), (0, 3), (None, None, -1), (10, 50, 25))]
OUTSIDE += [[19], [20, 21, 40], [-20, -21, -61 + 20], [[20, 21], [3, 22]], np.arange(COUNT) == 59]


@pytest.mark.parametrize("index", OUTSIDE, ids=[str(index).replace("\n", " ") for index in OUTSIDE])
def test_rows_outside_part_raise_and_are_never_zeros(part: Path, index: Any) -> None:
    with pytest.raises(StoreError, match=r"part: a staged part that holds rows 20\.\.39 of 60; asked for row"):
        _ = open_store(part).images[index]


def test_every_way_to_read_rows_outside_part_raises(part: Path) -> None:
    store = open_store(part)
    out = np.full((2, 8, 6, 3), 7, np.uint8)
    ways: list[Callable[[], object]] = [
        lambda: store.take([20, 19]),
        lambda: store.take([39, 40], out=out),
        lambda: store.take([-1]),
        lambda: list(store.images),
        lambda: np.asarray(store.images),
        lambda: pickle.loads(pickle.dumps(store)).images[19],
        lambda: pickle.loads(pickle.dumps(store.images))[19],
    ]
    for way in ways:
        with pytest.raises(StoreError, match=r"holds rows 20\.\.39 of 60; asked for"):
            way()
    assert (out == 7).all()
    with pytest.raises(IndexError):
        _ = store.images[COUNT]


def test_rows_in_part_read_as_in_store(whole: Path, part: Path) -> None:
    assert_part(part, whole, IMAGES, HELD)
    store, other = open_store(part), open_store(whole)
    indexes: list[Any] = [20, 39, -40, slice(20, 40), slice(26, 38), slice(39, 19, -3), slice(5, 5), [20, 39, 25]]
    indexes += [(21, 3), [], np.zeros(COUNT, bool), np.arange(COUNT) == 30, (slice(22, 24), ..., 1)]
    for index in indexes:
        np.testing.assert_array_equal(store.images[index], IMAGES[index], strict=True)
    assert np.shares_memory(store.images[26:38], store.images[30])
    assert (len(store), store.rows, other.rows) == (COUNT, HELD, range(COUNT))
    np.testing.assert_array_equal(store.labels, other.labels)
    np.testing.assert_array_equal(store.columns["weight"], other.columns["weight"])
    assert list(store.samples) == list(other.samples)
    assert "holds rows 20..39" in repr(store)
    assert "holds" not in repr(other)


# --- stage.json

GOLDEN = b"""{
 "digest": "ba81021f6aa919fb",
 "first_row": 20,
 "format": "decodeonce-part",
 "rows": 20,
 "store": "0123456789abcdef",
 "version": 1
}
"""


def test_bytes_of_stage_json() -> None:
    assert part_bytes("0123456789abcdef", range(20, 40)) == GOLDEN


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("rows", 0), ("rows", True), ("first_row", -1), ("first_row", 41), ("store", "0" * 16), ("format", "decodeonce")],
)
def test_signed_but_wrong_stage_json_is_refused(part: Path, tmp_path: Path, key: str, wrong: Any) -> None:
    copy = Path(shutil.copytree(part, tmp_path / "p"))
    facts = json.loads((copy / "stage.json").read_bytes())
    del facts["digest"]
    (copy / "stage.json").write_bytes(sign({**facts, "from_later_version": 1}))
    assert open_store(copy).rows == HELD
    (copy / "stage.json").write_bytes(sign({**facts, key: wrong}))
    with pytest.raises(StoreError, match=r"stage\.json: "):
        open_store(copy)


# --- verify


def test_verify_reports_row_numbers_of_store(part: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(part, tmp_path / "p"))
    second = next(copy.glob("images-00001.*"))
    flip(second, DATA_OFFSET + (31 - 25) * 144 + 7)
    flip(second, DATA_OFFSET + (45 - 25) * 144)  # not in the part
    flip(copy / "samples.tsv", 50)
    report = verify_store(copy, threads=2)
    assert (report.ok, report.rows, report.bad_rows, report.bad_files) == (False, 20, [(31, 31)], ["samples.tsv"])


def test_part_without_stage_json_has_bad_rows(part: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(part, tmp_path / "p"))
    (copy / "stage.json").unlink()
    assert verify_store(copy).bad_rows == [(0, 19), (40, 59)]


# --- damage to the source or to an unfinished part


@pytest.fixture
def unfinished(large: Path, tmp_path: Path) -> Path:
    """An unfinished part: the damaged row 20 of the source stopped it, and has been repaired since."""
    shard = large / "images-00001.npy"
    flip(shard, DATA_OFFSET + 8 * MIB + 5)
    with pytest.raises(StoreError, match=rf"{shard}: row 20 does not match its checksum; run `prep verify {large}`"):
        stage_store(open_store(large), tmp_path / "p", rows=LARGE_HELD, threads=1)
    flip(shard, DATA_OFFSET + 8 * MIB + 5)
    return tmp_path / "p"


def test_damaged_source_row_stops_stage_until_repaired(large: Path, unfinished: Path) -> None:
    with pytest.raises(StoreError, match=r"an unfinished part .*; run the same `prep stage` again"):
        open_store(unfinished)
    assert not (unfinished / "stage.json").exists()
    assert stage_store(open_store(large), unfinished, rows=LARGE_HELD).copied == 3  # only the last piece
    assert_part(unfinished, large, LARGE, LARGE_HELD)


@pytest.mark.parametrize("name", ["samples.tsv", "checksums.npy"])
def test_damaged_small_file_stops_stage(whole: Path, tmp_path: Path, name: str) -> None:
    source = Path(shutil.copytree(whole, tmp_path / "s"))
    flip(source / name, 150)
    with pytest.raises(StoreError, match=rf"{name}: damaged: its contents do not match store.json; run `prep verify"):
        stage_store(open_store(source), tmp_path / "p", rows=HELD)
    assert not (tmp_path / "p/store.json").exists()
    assert not (tmp_path / "p" / name).exists()


def test_shard_truncated_after_opening_stops_stage(whole: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(whole, tmp_path / "s"))
    store = open_store(source)
    shard = next(source.glob("images-00001.*"))
    for size in (DATA_OFFSET + 100, 100):
        os.truncate(shard, size)
        with pytest.raises(StoreError, match=rf"images-00001\.(npy|h5): {size} bytes, expected"):
            stage_store(store, tmp_path / "p", rows=HELD)


def damage_what_is_not_copied(part: Path) -> None:
    flip(part / "images-00000.npy", 9)
    flip(part / "samples.tsv", 60)
    os.truncate(part / "checksums.npy", 100)
    (part / "labels.npy").unlink()
    (part / ".stage/.labels.npy.17-abcd.tmp").touch()


@pytest.mark.parametrize(
    ("damage", "copied"),
    [
        (lambda part: flip(part / "images-00000.npy", DATA_OFFSET + 5 * MIB), 3 + 4),
        (lambda part: (part / "images-00001.npy").unlink(), 11),
        (lambda part: os.truncate(part / "images-00000.npy", DATA_OFFSET + 9 * MIB + 77), 3 + 4),
        (damage_what_is_not_copied, 3),
    ],
    ids=["row", "missing shard", "short shard", "header and small files"],
)
def test_damage_before_resuming_is_repaired(
    large: Path, unfinished: Path, damage: Callable[[Path], object], copied: int
) -> None:
    damage(unfinished)
    assert stage_store(open_store(large), unfinished, rows=LARGE_HELD).copied == copied
    assert_part(unfinished, large, LARGE, LARGE_HELD)


# --- folders that are refused


def test_finished_part_is_not_changed(part: Path, whole: Path) -> None:
    def facts() -> list[tuple[Path, int, int]]:
        return sorted((path, path.stat().st_mtime_ns, path.stat().st_ino) for path in part.iterdir())

    before = facts()
    staged = stage_store(open_store(whole), part, rows=HELD)
    assert (staged.rows, staged.copied, staged.finished) == (HELD, 0, True)
    assert facts() == before


def test_damaged_finished_part_is_refused(part: Path, whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(part, tmp_path / "p"))
    os.truncate(next(copy.glob("images-00001.*")), DATA_OFFSET + 1000)
    with pytest.raises(StageError, match=r"p: a damaged store or part: .*5096 bytes, expected 7696; remove it, or "):
        stage_store(open_store(whole), copy, rows=HELD)
    (copy / "stage.json").write_bytes(b"{}")
    with pytest.raises(StageError, match=r'stage.json: not .*: "format" is not "decodeonce-part"; remove it, or'):
        stage_store(open_store(whole), copy, rows=HELD)


def test_staging_into_store_is_refused(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(whole)
    before = sorted(whole.iterdir())
    for dest in (whole, whole / "p/q", tmp_path / "link/p"):
        with pytest.raises(StageError, match="is inside the store to be staged"):
            stage_store(open_store(whole), dest, rows=HELD)
    assert sorted(whole.iterdir()) == before


def test_other_files_and_stores_are_not_touched(whole: Path, part: Path, tmp_path: Path) -> None:
    store = open_store(whole)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StageError, match="file: a file, expected a new or empty folder"):
        stage_store(store, tmp_path / "file", rows=HELD)
    with pytest.raises(StageError, match="contains 'file', expected a new or empty folder"):
        stage_store(store, tmp_path, rows=HELD)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(StageError, match=r"holds rows 20\.\.39 of that store, expected rows 20\.\.40"):
        stage_store(store, part, rows=range(20, 41))
    other = make_store(tmp_path / "other", random_images(COUNT, seed=5))
    with pytest.raises(StageError, match=r"other: holds another store \(digest .*\), expected rows 20\.\.39"):
        stage_store(store, other, rows=HELD)
    with pytest.raises(StageError, match=r"contains '.*', expected a new or empty folder"):
        stage_store(store, whole.parent, rows=HELD)  # the folder that contains the store


def test_unfinished_part_of_other_rows_is_refused(large: Path, unfinished: Path, whole: Path) -> None:
    with pytest.raises(
        StageError, match=r"an unfinished part, rows 3\.\.22, expected rows 3\.\.23; finish it with the"
    ):
        stage_store(open_store(large), unfinished, rows=range(3, 24))
    with pytest.raises(StageError, match="an unfinished part, not of this store"):
        stage_store(open_store(whole), unfinished, rows=HELD)
    (unfinished / ".stage/stage.json").write_bytes(b"")
    with pytest.raises(StageError, match=r"an unfinished part, not of this store \([^;]*\); remove it, or choose"):
        stage_store(open_store(large), unfinished, rows=LARGE_HELD)


@pytest.mark.parametrize("rows", [range(5, 5), range(0, COUNT + 1), range(-1, 3), range(0, 9, 2)])
def test_invalid_ranges_are_refused(whole: Path, tmp_path: Path, rows: range) -> None:
    with pytest.raises(StageError, match=r"no rows to stage|expected a range of step 1 within 0\.\.59"):
        stage_store(open_store(whole), tmp_path / "p", rows=rows)
    assert list(tmp_path.iterdir()) == []


# --- concurrent calls


@pytest.mark.parametrize("locks", [True, False])
def test_concurrent_stages_make_one_part(
    large: Path, tmp_path: Path, locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    def stage(number: int) -> int | None:
        try:
            return stage_store(open_store(large), tmp_path / "p", rows=LARGE_HELD, threads=2).copied
        except FileNotFoundError:
            assert not locks  # the other call removed its folder for temporary files
            return None

    if not locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    with ThreadPoolExecutor(2) as pool:
        copied = {*pool.map(stage, range(2))}
    assert not locks or copied == {0, len(LARGE_HELD)}
    stage_store(open_store(large), tmp_path / "p", rows=LARGE_HELD)
    assert_part(tmp_path / "p", large, LARGE, LARGE_HELD)


# --- space


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 22 MiB. The part takes a little more than 20 MiB."""
    with disks.small_disk(tmp_path, "22m") as disk:
        yield disk


def test_lack_of_space_is_reported_before_copying(large: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(3 * MIB))
    with pytest.raises(StageError, match=r"19\.\d\d MB free, 20\.\d\d MB needed for rows 3\.\.22 of 24; make room"):
        stage_store(open_store(large), small_disk / "p", rows=LARGE_HELD)
    assert list((small_disk / "p").iterdir()) == []
    (small_disk / "filler").unlink()
    stage_store(open_store(large), small_disk / "p", rows=LARGE_HELD)
    assert_part(small_disk / "p", large, LARGE, LARGE_HELD)


def test_stage_resumes_after_full_disk(large: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filler = small_disk / "filler"

    def no_fallocate(fd: int, nbytes: int, path: Path, *, offset: int = 0) -> bool:
        filler.write_bytes(bytes(9 * MIB))  # written by another job, after the check
        return False

    with monkeypatch.context() as patch:
        patch.setattr(files, "reserve", no_fallocate)
        with pytest.raises(OSError, match=r"No space left.*p/images-0000\d\.npy") as caught:
            stage_store(open_store(large), small_disk / "p", rows=LARGE_HELD)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(StoreError, match="an unfinished part"):
        open_store(small_disk / "p")
    filler.unlink()
    assert 0 < stage_store(open_store(large), small_disk / "p", rows=LARGE_HELD).copied < len(LARGE_HELD)
    assert_part(small_disk / "p", large, LARGE, LARGE_HELD)


def test_shards_are_reserved_at_the_same_time(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, copied, reserved = threading.Barrier(2, timeout=30), list[int](), list[Path]()

    def reserve_together(fd: int, nbytes: int, path: Path, *, offset: int = 0) -> bool:
        both.wait()
        assert copied == []
        reserved.append(path)
        return reserve(fd, nbytes, path, offset=offset)

    monkeypatch.setattr(files, "reserve", reserve_together)
    stage_store(open_store(large), tmp_path / "p", rows=LARGE_HELD, threads=2, progress=copied.append)
    assert (sum(copied), len(reserved)) == (len(LARGE_HELD), 2)
    assert_part(tmp_path / "p", large, LARGE, LARGE_HELD)


def test_stage_leaves_no_open_files(whole: Path, tmp_path: Path) -> None:
    before = len(open_files())
    stage_store(open_store(whole), tmp_path / "p", rows=HELD)
    assert len(open_files()) == before
    assert not StorePaths(tmp_path / "p").staging.exists()
