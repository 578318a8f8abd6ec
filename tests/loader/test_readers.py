"""All readers return the written rows and report damaged shards; and the choice between them."""

import itertools
import mmap
import os
import shutil
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from decodeonce import Loader, StoreError, host, open_store
from decodeonce.loader import readers
from decodeonce.loader.direct import DirectReader
from decodeonce.loader.partition import PartitionKind
from decodeonce.loader.readers import Choice, MmapReader, Reader, ReaderName, choose_reader, make_reader
from tests.loader.conftest import RunForked
from tests.open_files import open_files
from tests.stores import make_store, random_images

KINDS = [name for name in get_args(ReaderName) if name != "auto"]


def read(path: Path, kind: ReaderName, rows: list[int], out: NDArray[np.uint8], threads: int = 1) -> int:
    """Fill `out` with rows; return the number of calls."""
    reader, _ = make_reader(open_store(path), Choice(kind, "requested", 0.5), threads, verify=False)
    try:
        calls = reader.calls(np.array(rows), out)
        for call in calls:
            call()
        return len(calls)
    finally:
        reader.close()


@pytest.mark.parametrize("container", ["npy", "hdf5"])
@pytest.mark.parametrize("reader", KINDS)
@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
def test_images_labels_and_rows_match(
    tmp_path: Path, images: NDArray[np.uint8], container: str, reader: ReaderName, shuffle: str
) -> None:
    path = make_store(tmp_path / "s", images, shard_rows=25, container=container)
    settings: dict[str, Any] = {"batch_size": 7, "tail": "keep", "shuffle": shuffle, "reader": reader, "threads": 3}
    for rank, partition in itertools.product(range(2), get_args(PartitionKind)):
        with Loader(path, rank=rank, world_size=2, partition=partition, **settings) as loader:
            assert loader.stats()["reader"]["name"] == reader
            for batch in loader:
                rows = batch.rows.numpy()
                assert np.array_equal(batch.images.numpy(), images[rows])
                assert np.array_equal(batch.labels.numpy(), rows % 3)
                assert batch.images.is_contiguous()


@pytest.mark.parametrize("kind", KINDS)
@given(rows=st.lists(st.integers(0, 59), min_size=1, max_size=80), threads=st.integers(1, 6))
@settings(max_examples=30)  # the kernel takes long to end a queue of direct reads
def test_any_rows_with_any_number_of_threads(
    store: Path, images: NDArray[np.uint8], kind: ReaderName, rows: list[int], threads: int
) -> None:
    out = np.zeros((len(rows), *images.shape[1:]), np.uint8)
    assert read(store, kind, rows, out, threads) == min(threads, len(rows))
    assert np.array_equal(out, images[rows])


def test_consecutive_rows_are_one_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def count(fd: int, out: memoryview, offset: int) -> int:
        sizes.append(out.nbytes)
        return out.nbytes

    monkeypatch.setattr(readers, "read_at", count)
    read(store, "pread", [3, 4, 5, 9, 24, 25, 26, 0], np.empty((8, 8, 6, 3), np.uint8))
    assert [size // (8 * 6 * 3) for size in sizes] == [3, 1, 1, 2, 1]


@pytest.mark.parametrize("reader", KINDS)
def test_shard_truncated_while_reading_is_named(tmp_path: Path, store: Path, reader: ReaderName) -> None:
    copy = shutil.copytree(store, tmp_path / "s")
    with Loader(copy, batch_size=4, shuffle="none", reader=reader, prefetch=1) as loader:
        batches = iter(loader)
        next(batches)
        os.truncate(copy / "images-00001.npy", 4096 + 10)
        with pytest.raises(StoreError, match=r"images-00001\.npy: ends at byte \d+, expected at least \d+") as raised:
            list(batches)
        assert any(str(copy / "images-") in name for name in open_files())
    assert raised.value.__traceback__ is not None  # it refers to the reader, whose files are closed nevertheless
    if reader == "pread":  # a mapping exists until its last reference is gone
        assert not any(str(copy / "images-") in name for name in open_files())


@pytest.mark.parametrize("use", ["Loader", "images"])
def test_shard_truncated_before_it_is_mapped_is_named(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    copy = shutil.copytree(store, tmp_path / "s")
    opened, map_file = open_store(copy), mmap.mmap

    def truncate_and_map(fd: int, *args: Any, **options: Any) -> mmap.mmap:
        if fd >= 0 and "images-" in os.readlink(f"/proc/self/fd/{fd}"):
            os.truncate(f"/proc/self/fd/{fd}", 4096 + 10)
        return map_file(fd, *args, **options)

    monkeypatch.setattr(mmap, "mmap", truncate_and_map)
    with pytest.raises(StoreError, match=r"ends at byte 4106, expected"):
        _ = opened.images[0] if use == "images" else list(Loader(opened, batch_size=4, reader="mmap"))


def test_read_error_names_shard_and_row(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Reading a folder is an error of the operating system.
    monkeypatch.setattr(Reader, "_open", lambda self, shard: os.open(store, os.O_RDONLY))
    with pytest.raises(StoreError, match=r"images-00001\.npy: row 30 cannot be read: Is a directory"):
        read(store, "pread", [30], np.empty((1, 8, 6, 3), np.uint8))


def choose(store: Path, name: ReaderName = "auto") -> tuple[str, str]:
    """The name of the chosen reader, and the reason."""
    opened = open_store(store)
    reader, choice = make_reader(opened, choose_reader(store, 60 * opened.manifest.row_bytes, name), 1, verify=False)
    assert type(reader) is {"pread": Reader, "mmap": MmapReader, "direct": DirectReader}[choice["name"]]
    return choice["name"], choice["why"]


def test_auto_chooses_mmap_unless_rows_exceed_half_the_memory(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, why = choose(store)
    assert (name, "local" in why) == ("mmap", True)
    found = Loader(store, batch_size=4).stats()["reader"]
    assert (found["name"], found["why"]) == (name, why)
    nbytes = 60 * 8 * 6 * 3
    monkeypatch.setattr(readers, "available_memory", lambda: 2 * nbytes)
    assert choose(store)[0] == "mmap"
    monkeypatch.setattr(readers, "available_memory", lambda: 2 * nbytes - 2)
    name, why = choose(store)
    assert (name, "exceed half" in why) == ("direct", True)
    monkeypatch.setattr(readers, "is_in_memory", lambda path: True)
    assert choose(store)[0] == "pread"
    monkeypatch.setattr(readers, "available_memory", lambda: None)
    assert choose(store) == ("mmap", "a local file system, and how much memory is available is unknown")


def test_network_files_are_never_mapped(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "network_file_system", lambda path: "Lustre")
    requested: tuple[ReaderName, ...] = ("auto", "mmap", "direct")
    for name in requested:
        found, why = choose(store, name)
        assert (found, "Lustre" in why) == ("pread", True)
    assert choose(store, "pread") == ("pread", "requested")


def test_network_file_systems_are_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(host.NETWORK_FILE_SYSTEMS, 0x9FA0, "proc")
    assert host.network_file_system(Path("/proc/self")) == "proc"
    assert host.network_file_system(tmp_path) is None
    with pytest.raises(FileNotFoundError, match="nowhere"):
        host.network_file_system(tmp_path / "nowhere")


READ_ALL = """
import resource, sys
from decodeonce import Loader, StoreError, host, open_store
host.OTHER_FILES = 64
for hard in (4096, 128):
    for reader in sys.argv[2:]:
        store = views = None  # closes the files of the reader before
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        try:
            store = open_store(sys.argv[1])
            views = [store.images[row] for row in range(300)]
            with Loader(store, batch_size=50, reader=reader, tail="keep") as loader:
                print(sorted(row for batch in loader for row in batch.rows.tolist()) == list(range(300)))
        except StoreError as error:
            print(error)
"""


def test_more_shards_than_the_soft_and_the_hard_limit_of_open_files(run_forked: RunForked, tmp_path: Path) -> None:
    path = make_store(tmp_path / "s", random_images(300, shape=(2, 2, 1)), shard_rows=1)
    code, printed, errors = run_forked(READ_ALL, path, *KINDS)
    assert (code, errors) == (0, "")
    found = printed.splitlines()
    assert found[: len(KINDS)] == ["True"] * len(KINDS)
    assert len(found) == 2 * len(KINDS)
    for line in found[len(KINDS) :]:
        assert line.startswith(f"{path}/images-00")
        assert line.endswith("cannot be opened: Too many open files; raise the limit with `ulimit -n`")
