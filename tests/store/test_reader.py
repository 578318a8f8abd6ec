"""store.images behaves like the NumPy array it was made from, for every container and number of shards."""

import os
import pickle
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from decodeonce import StoreError, open_store
from decodeonce.store import ImageClass, Sample, Shard, Store, reader
from decodeonce.store.checks import check_shard
from decodeonce.store.format import CONTAINERS
from decodeonce.store.hashing import file_chunks
from decodeonce.store.select import matching_lines
from decodeonce.store.table import Samples, read_rejects
from tests.stores import make_store, random_images

COUNT, SHAPE = 10, (4, 3, 3)
IMAGES = random_images(COUNT, shape=SHAPE)
LABELS = np.array([2, 0, 1, 1, 0, 2, 2, 1, 0, 0], np.int64)
COLUMNS: dict[str, NDArray[Any]] = {
    "weight": np.linspace(-1, 1, COUNT, dtype="<f4"),
    "box": np.arange(COUNT * 4, dtype="<i2").reshape(COUNT, 4),
}
SHARDINGS = (COUNT, 4, 1)  # rows per shard: one shard, several with a short last one, one per row
CASES = [(container, rows) for container in CONTAINERS for rows in SHARDINGS]

Pixels = NDArray[np.uint8]


@pytest.fixture(scope="module", params=CASES, ids=[f"{c}-{COUNT // r + (COUNT % r > 0)}" for c, r in CASES])
def path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    container, shard_rows = request.param
    root = tmp_path_factory.mktemp("reader") / "tiny.store"
    return make_store(root, IMAGES, LABELS, container=container, shard_rows=shard_rows, columns=COLUMNS)


@pytest.fixture(scope="module")
def opened(path: Path) -> Store:
    return open_store(path)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with shards of rows 0..3, 4..7 and 8..9."""
    return open_store(make_store(tmp_path_factory.mktemp("reader") / "several.store", IMAGES, LABELS, shard_rows=4))


def assert_same(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)


# --- indexing


@pytest.mark.parametrize(
    ("index", "message"),
    [
        *((index, ".") for index in (1.0, None, "1", np.bool_(True), True, ["a"], object())),
        *((row, f"row {row} is out of range for a store with {COUNT} rows") for row in (COUNT, -COUNT - 1, 2**63)),
        ((np.int64(COUNT), 0), f"row {COUNT} is out of range for a store with {COUNT} rows"),
        ([0.5], "row numbers must be integers, got float64"),
        ([3, -11], r"rows -11\.\.3 are out of range for a store with 10 rows"),
        (np.ones(COUNT - 1, bool), r"a mask of shape \(9,\), expected \(10,\)"),
    ],
)
def test_invalid_index_is_index_error(opened: Store, index: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        _ = opened.images[index]


INDEXES: list[Any] = [-1, np.int32(3), slice(None), ..., (), (...,), (..., 0), (..., slice(0, 2), 1), (3, ...)]
INDEXES += [(3, ..., 1), (slice(2, 9, 3), ..., 2), (slice(1, 3), None, 0), [[0, 9], [3, 3]], ([[1], [8]], [0, 1])]
INDEXES += [np.array(3), np.array([9, 0], np.uint8), np.array([9, 0], np.uint64), range(2, 7)]
INDEXES += [LABELS == 1, (LABELS == 1).tolist(), (LABELS == 1, 0)]


@pytest.mark.parametrize("index", INDEXES, ids=[str(index).replace("\n", " ") for index in INDEXES])
def test_index_works_as_in_numpy(opened: Store, index: Any) -> None:
    assert_same(opened.images[index], IMAGES[index])


ROWS = st.integers(-COUNT - 1, COUNT)
ROW_LISTS = st.lists(ROWS, max_size=6) | hnp.arrays(np.int16, hnp.array_shapes(max_dims=2, max_side=3), elements=ROWS)
MASKS = hnp.arrays(np.bool_, st.sampled_from([COUNT, COUNT, COUNT - 1]))
MORE_INDEXES = st.lists(st.integers(-4, 4) | st.slices(4) | st.just([0, 2]) | st.just([1]), max_size=4)


@given((ROWS | st.slices(COUNT) | ROW_LISTS | MASKS), MORE_INDEXES)
@settings(max_examples=40)
def test_any_index_gives_same_array_or_error_as_numpy(opened: Store, first: Any, more: list[Any]) -> None:
    index = (first, *more) if more else first
    try:
        with warnings.catch_warnings():  # NumPy 2.2 only warns of an index out of range if the result is empty
            warnings.simplefilter("error", DeprecationWarning)
            expected = IMAGES[index]
    except (IndexError, DeprecationWarning):
        with pytest.raises(IndexError):
            _ = opened.images[index]
    else:
        assert_same(opened.images[index], expected)


# --- views and copies


def test_rows_and_slices_within_a_shard_are_views_and_others_are_copies(several: Store) -> None:
    shards = [several.images[first : min(first + 4, COUNT)] for first in range(0, COUNT, 4)]
    assert [shard.shape for shard in shards] == [(4, *SHAPE), (4, *SHAPE), (2, *SHAPE)]
    assert np.shares_memory(several.images[5], shards[1])
    assert np.shares_memory(several.images[4:8], shards[1])
    assert np.shares_memory(several.images[-1], shards[2])
    assert np.shares_memory(several.images[5:7, 1:], shards[1])
    assert several.images[5].ctypes.data == shards[1][1].ctypes.data
    for index in (slice(3, 5), slice(None), [5], LABELS == 2):
        copy = several.images[index]
        assert not any(np.shares_memory(copy, shard) for shard in shards)
        copy[:] = 0
    assert_same(several.images[:], IMAGES)


def test_views_are_read_only(opened: Store) -> None:
    for view in (opened.images[0], opened.images[0:1], opened.labels, opened.columns["weight"]):
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0


# --- take


TAKEN = st.lists(st.integers(-COUNT, COUNT - 1), max_size=40)


@given(TAKEN | hnp.arrays(np.bool_, COUNT) | hnp.arrays(np.uint8, 3, elements=st.integers(0, COUNT - 1)))
@settings(max_examples=40)
def test_take_works_as_in_numpy(opened: Store, rows: Any) -> None:
    expected = IMAGES[np.asarray(rows) if len(rows) else np.empty(0, np.int64)]
    assert_same(opened.images.take(rows), expected)
    out = np.full(expected.shape, 7, np.uint8)
    assert opened.take(rows, out=out) is out
    assert_same(out, expected)


@pytest.mark.parametrize("rows", [[0, COUNT], [-COUNT - 1], [2**70], np.array([2**64 - 1], np.uint64), [0.5], [1.0]])
def test_take_out_of_range_writes_nothing(opened: Store, rows: Any) -> None:
    out = np.full((len(rows), *SHAPE), 7, np.uint8)
    with pytest.raises((IndexError, OverflowError)):
        opened.take(rows, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    "out",
    [np.empty((3, *SHAPE), np.uint8), np.empty((2, *SHAPE), np.int8), np.empty((4, *SHAPE), np.uint8)[::2]],
    ids=["rows", "dtype", "strides"],
)
def test_take_refuses_wrong_out(opened: Store, out: Pixels) -> None:
    with pytest.raises(ValueError, match=r"expected C-contiguous uint8 \(2, 4, 3, 3\)"):
        opened.take([0, 1], out=out)


def test_take_needs_no_memory_except_out(tmp_path: Path) -> None:
    images = random_images(8, shape=(256, 256, 4))
    store = open_store(make_store(tmp_path / "s", images, shard_rows=4))
    out = np.empty_like(images)
    tracemalloc.start()
    try:
        store.take(range(8), out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert_same(out, images)
    assert peak < images.nbytes // 8, peak


# --- everything except images


def test_length_shape_and_iteration(opened: Store) -> None:
    assert len(opened) == len(opened.images) == COUNT
    assert (opened.images.shape, opened.images.dtype) == ((COUNT, *SHAPE), np.dtype(np.uint8))
    rows = list(opened.images)
    assert len(rows) == COUNT
    for row, image in enumerate(rows):
        assert_same(image, IMAGES[row])
    assert_same(np.asarray(opened.images), IMAGES)
    assert f"{COUNT} x 4x3x3 uint8, 3 classes" in repr(opened)


def test_labels_classes_and_columns(opened: Store) -> None:
    assert_same(opened.labels, LABELS)
    assert opened.classes == tuple(ImageClass(f"class{k}", f"the class {k}") for k in range(3))
    assert opened.classes != tuple(map(ImageClass, ("class0", "class1", "class2")))
    assert (opened.classes[1] == "class1", opened.classes[1] == "class2", opened.classes.index("class1")) == (1, 0, 1)
    assert ({*opened.classes} == {"class0", "class1", "class2"}, str(opened.classes[2])) == (True, "class2")
    assert repr(opened.images) == f"<Images images of {opened.paths.root}: {len(opened)}x4x3x3 uint8>"
    assert repr(opened.samples) == f"<Samples of {opened.paths.samples}: {len(opened)} rows>"
    assert opened.columns.keys() == COLUMNS.keys()
    for name, column in COLUMNS.items():
        assert_same(opened.columns[name], column)
        assert_same(opened.column(name), column)
    with pytest.raises(StoreError, match=f"no column 'boxes', expected one of its columns: {', '.join(COLUMNS)}"):
        opened.column("boxes")


def test_samples_are_a_sequence(opened: Store) -> None:
    expected = [
        Sample(row, int(label), f"class{label}", f"class{label}/{row}.jpg", 9, 9, "", f"{row:016x}")
        for row, label in enumerate(LABELS)
    ]
    samples = opened.samples
    assert len(samples) == COUNT
    assert [samples[row] for row in range(-COUNT, COUNT)] == expected + expected
    assert samples[np.int64(4)] == expected[4]  # type: ignore[call-overload]  # NumPy calls it no int
    assert list(samples) == expected
    assert list(reversed(samples)) == expected[::-1]
    for index in (slice(None), slice(2, 7), slice(-2, None), slice(8, 1, -3), slice(4, 4), slice(-100, 100)):
        assert samples[index] == expected[index]
    assert expected[3] in samples
    assert samples.index(expected[7]) == 7
    for row in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError, match=f"sample {row} is out of range for {COUNT} samples"):
            _ = samples[row]


def test_bytes_after_the_last_row_are_ignored(tmp_path: Path) -> None:
    for container in CONTAINERS:
        path = make_store(tmp_path / container, IMAGES, LABELS, container=container, shard_rows=4)
        for shard in path.glob("images-*"):
            with open(shard, "ab") as file:
                file.write(b"\xaa" * 5000)
        assert_same(open_store(path).images[:], IMAGES)


def test_shard_truncated_after_opening_is_refused(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s", IMAGES, shard_rows=4)
    store = open_store(path)
    os.truncate(path / "images-00001.npy", 4096 + 143)
    assert_same(store.images[3], IMAGES[3])
    with pytest.raises(StoreError, match=r"images-00001\.npy: 4239 bytes, expected 4240"):
        _ = store.images[4]


def test_threads_that_use_a_shard_at_once_share_its_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(make_store(tmp_path / "s", IMAGES))
    images, map_rows, meanwhile = store.images, reader.map_rows, list[Pixels]()

    def map_after_another_thread(fd: int, path: Path, shard: Shard) -> Pixels:
        monkeypatch.undo()
        with ThreadPoolExecutor(1) as pool:
            meanwhile.append(pool.submit(images.__getitem__, 0).result())
        return map_rows(fd, path, shard)

    monkeypatch.setattr(reader, "map_rows", map_after_another_thread)
    assert np.shares_memory(images[0], meanwhile[0])
    del store.__dict__["_arrays"]  # two threads can also make it at once; then the second one stays
    assert np.shares_memory(store.images[0], meanwhile[0])


def test_pickled_store_contains_no_rows(tmp_path: Path) -> None:
    images = random_images(4, shape=(64, 64, 4))
    store = open_store(make_store(tmp_path / "s", images))
    assert_same(store.images[:], images)
    pickled = pickle.dumps(store)
    assert len(pickled) < images.nbytes // 8
    assert_same(pickle.loads(pickled).images[:], images)


UNREADABLE = Path("/proc/self/mem")  # opens, but reading its first bytes raises EIO
READS: list[Callable[[], Any]] = [
    lambda: file_chunks(UNREADABLE),
    lambda: [check_shard(UNREADABLE, Shard("", 0, 0, 4096, 0, ""), "npy")],
    lambda: read_rejects(UNREADABLE),
    lambda: Samples(UNREADABLE, 1),
    lambda: matching_lines(UNREADABLE, range(1)),
]


@pytest.mark.parametrize("read", READS)
def test_read_errors_name_the_file(read: Callable[[], Any]) -> None:
    with pytest.raises(OSError, match=str(UNREADABLE)):
        list(read())
