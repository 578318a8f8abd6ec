"""Files are whole or not there, positioned writes land where they should, and a full disk is an error, not a signal."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import resource
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodeonce.store import disk, locks, regular_files
from decodeonce.store.durable import remove_file, remove_tree, reserve, write_at, write_atomic
from decodeonce.store.locks import locked
from decodeonce.store.regular_files import open_regular, read_at, read_regular, reading
from decodeonce.store.shard_file import PAGE, ShardFile, page_aligned_buffer
from tests import disks

MIB = 1 << 20


# --- page_aligned_buffer


@pytest.mark.parametrize("nbytes", [1, 17, PAGE - 1, PAGE, PAGE + 1, 10**6])
def test_buffers_begin_on_pages(nbytes: int) -> None:
    buffers = [page_aligned_buffer(nbytes) for _ in range(3)]
    for buffer in buffers:
        assert np.frombuffer(buffer, np.uint8).ctypes.data % PAGE == 0
        assert buffer.nbytes == nbytes
        assert bytes(buffer) == bytes(nbytes)
        buffer[-1] = 255


def test_a_buffer_of_nothing() -> None:
    assert page_aligned_buffer(0).nbytes == 0


def test_a_buffer_lives_as_long_as_its_last_view() -> None:
    buffer = page_aligned_buffer(PAGE)
    assert isinstance(buffer.obj, mmap.mmap)
    memory = weakref.ref(buffer.obj)
    view = np.frombuffer(buffer, np.uint8)
    del buffer
    gc.collect()
    assert memory() is not None
    del view
    gc.collect()
    assert memory() is None


# --- write_atomic


def test_a_file_holds_its_chunks(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, [b"one ", memoryview(b"two "), b"", page_aligned_buffer(2)])
    assert path.read_bytes() == b"one two \0\0"
    write_atomic(path, iter([b"another"]))
    assert path.read_bytes() == b"another"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, OSError])
@pytest.mark.parametrize("old", [None, b"the old content"])
def test_what_was_there_stays_whole_when_chunks_raise(
    tmp_path: Path, error: type[BaseException], old: bytes | None
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    before = list(tmp_path.iterdir())

    def chunks() -> Iterator[bytes]:
        yield b"new" * 100_000
        raise error

    with pytest.raises(error):
        write_atomic(path, chunks())
    assert list(tmp_path.iterdir()) == before
    assert old is None or path.read_bytes() == old


def test_nobody_sees_a_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    seen = []

    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            seen.append(path.read_bytes())
            yield b"x" * MIB

    with open(path, "rb") as reader:  # one that opened the old file goes on reading the old file
        write_atomic(path, chunks())
        assert reader.read() == b"old"
    assert seen == [b"old"] * 3
    assert path.stat().st_size == 3 * MIB


def test_the_temporary_file_lies_where_asked(tmp_path: Path) -> None:
    path, scratch = tmp_path / "out" / "file", tmp_path / "scratch"
    path.parent.mkdir()
    scratch.mkdir()
    seen = []

    def chunks() -> Iterator[bytes]:
        yield b"x"
        seen.append((len(list(path.parent.iterdir())), len(list(scratch.iterdir()))))

    write_atomic(path, chunks(), scratch=scratch)
    assert seen == [(0, 1)]
    assert path.read_bytes() == b"x"
    assert list(scratch.iterdir()) == []


def test_the_files_mode_is_the_users(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_atomic(tmp_path / "file", [b"x"])
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "gone" / "file", [b"x"])


# --- positioned reads and writes


def test_reading_past_the_end_says_how_much_there_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    fd = os.open(path, os.O_RDWR)
    try:
        buffer = bytearray(b"." * 6)
        assert read_at(fd, memoryview(buffer), 7) == 3
        assert buffer == b"789..."
        assert read_at(fd, memoryview(buffer), 10) == 0
        assert read_at(fd, memoryview(buffer), 2) == 6
        write_at(fd, memoryview(b"ab"), 9)
        write_at(fd, memoryview(b""), 100)
    finally:
        os.close(fd)
    assert path.read_bytes() == b"012345678ab"


def test_a_short_write_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path, limit = tmp_path / "file", 1 << 30
    data = np.random.default_rng(0).bytes(3000)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))  # the kernel writes up to it, then it is EFBIG
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_at(fd, memoryview(data), limit - 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        written = os.pread(fd, 3000, limit - 1000)
        os.close(fd)
    assert caught.value.errno == errno.EFBIG
    assert written == data[:1000]


PIECES = st.lists(
    st.tuples(
        st.sampled_from([0, PAGE, 2 * PAGE, 5 * PAGE]) | st.integers(0, 5 * PAGE),
        st.sampled_from([0, PAGE, 3 * PAGE]) | st.integers(0, 3 * PAGE),
        st.sampled_from(["pages", "shifted", "read-only"]),
    ),
    max_size=8,
)


@given(pieces=PIECES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_direct_and_buffered_writes_give_the_same_bytes(tmp_path: Path, pieces: list[tuple[int, int, str]]) -> None:
    path, model, noise = tmp_path / "shard", bytearray(8 * PAGE), np.random.default_rng(0)
    path.write_bytes(model)
    with ShardFile(path) as shard:
        for offset, nbytes, kind in pieces:
            content = noise.bytes(nbytes)
            data = memoryview(content)
            if kind != "read-only":
                shift = 0 if kind == "pages" else 16
                data = page_aligned_buffer(nbytes + shift)[shift:]
                data[:] = content
            shard.write(data, offset)
            model[offset : offset + nbytes] = content
            back = page_aligned_buffer(nbytes)
            assert shard.read(back, offset) == nbytes
            assert bytes(back) == content
        shard.sync()
    assert path.read_bytes() == model


def test_a_shard_must_be_there_and_closes_twice(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ShardFile(tmp_path / "gone")
    (tmp_path / "shard").write_bytes(b"")
    before = len(os.listdir("/proc/self/fd"))
    shard = ShardFile(tmp_path / "shard")
    assert len(os.listdir("/proc/self/fd")) > before
    shard.close()
    shard.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        shard.write(memoryview(b"late"), 0)


# --- space


def test_reserved_space_is_there_and_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"head")
    fd = os.open(path, os.O_RDWR)
    try:
        if not reserve(fd, 3 * MIB, path):
            assert path.stat().st_size == 4
            pytest.skip("the file system of the temporary folder has no fallocate")
        assert reserve(fd, MIB, path)
    finally:
        os.close(fd)
    assert path.stat().st_size == 3 * MIB
    assert path.stat().st_blocks * 512 >= 3 * MIB
    assert path.read_bytes() == b"head".ljust(3 * MIB, b"\0")


def test_space_is_reserved_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, 16 * MIB)
        if not reserve(fd, 3 * MIB, path, offset=5 * MIB):
            pytest.skip("the file system of the temporary folder has no fallocate")
        assert 3 * MIB <= os.fstat(fd).st_blocks * 512 < 4 * MIB
    finally:
        os.close(fd)


def test_reserving_in_a_file_open_for_reading_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"")
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=f"'{path}'") as caught:
            reserve(fd, MIB, path)
    finally:
        os.close(fd)
    assert caught.value.errno == errno.EBADF


def test_one_process_at_a_time_has_a_folder_and_it_is_gone_after_the_last(tmp_path: Path) -> None:
    folder, inside, most = tmp_path / "store/.build", Counter[str](), []

    def enter(number: int) -> None:
        for _ in range(50):
            with locked(folder):
                inside["now"] += 1
                most.append(inside["now"])
                (folder / f"file{number}").touch()
                (folder / f"file{number}").unlink()
                inside["now"] -= 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(enter, range(4)))
    assert (len(most), max(most)) == (200, 1)
    assert list((tmp_path / "store").iterdir()) == []


def test_a_lock_of_a_place_that_is_read_only_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(disk, "mkdir", read_only)
    with locked(tmp_path / ".repair"):
        assert list(tmp_path.iterdir()) == []


def test_a_lock_that_stays_stale_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(fd: int, operation: int) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(fcntl, "flock", stale)
    monkeypatch.setattr(locks, "LOCK_TRIES", 3)
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Stale file handle"), locked(tmp_path / ".repair"):
        pass
    assert len(os.listdir("/proc/self/fd")) == opened


def test_the_lock_file_is_closed_before_its_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = disk.unlink

    def as_nfs_does(path: Path) -> None:  # it keeps a name for a removed file that is open
        assert any(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd"))
        unlink(path)
        renamed.append(path.with_name(".nfs1"))
        renamed[0].touch()

    def close(fd: int) -> None:
        os.close(fd)
        while renamed:
            renamed.pop().unlink()

    renamed: list[Path] = []
    monkeypatch.setattr(disk, "unlink", as_nfs_does)
    monkeypatch.setattr(disk, "close", close)
    with locked(tmp_path / ".repair"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_stays_stale_is_an_error_and_no_descriptor_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(fd: int, size: int, offset: int) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    (tmp_path / "file").write_bytes(b"data")
    monkeypatch.setattr(os, "pread", stale)
    monkeypatch.setattr(regular_files, "NAME_SECONDS", 0.0)
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Stale file handle"):
        open_regular(tmp_path / "file")
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_folder_with_other_files_keeps_its_lock_file(tmp_path: Path) -> None:
    with locked(tmp_path / ".build"):
        (tmp_path / ".build/plan.json").touch()
    assert sorted(os.listdir(tmp_path / ".build")) == ["lock", "plan.json"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    with disks.small_disk(tmp_path, "1m") as disk:
        yield disk


@pytest.mark.parametrize("nbytes", [64 * PAGE, 64 * PAGE - 1], ids=["pages", "unaligned"])
def test_a_full_disk_is_an_error_at_the_write(small_disk: Path, nbytes: int) -> None:
    path, data = small_disk / "shard", page_aligned_buffer(nbytes)
    data[:] = b"\xaa" * nbytes
    path.touch()
    os.truncate(path, 4 * MIB)  # as where fallocate is missing: the size is there, the space is not
    written = []

    def fill(shard: ShardFile) -> None:
        for offset in range(0, 4 * MIB, 64 * PAGE):
            shard.write(data, offset)
            written.append(offset)

    with ShardFile(path) as shard, pytest.raises(OSError, match="No space left") as caught:
        fill(shard)
    assert caught.value.errno == errno.ENOSPC
    assert 0 < len(written) <= 4
    content = path.read_bytes()
    for offset in written:  # what was written before stays
        assert content[offset : offset + nbytes] == bytes(data)


def test_a_full_disk_is_an_error_when_space_is_reserved(small_disk: Path) -> None:
    path = small_disk / "shard"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(OSError, match=f"No space left.*'{path}'") as caught:
            reserve(fd, 2 * MIB, path)
    finally:
        os.close(fd)
    assert caught.value.errno == errno.ENOSPC


def test_a_full_disk_leaves_the_old_file_and_no_other(small_disk: Path) -> None:
    path = small_disk / "store.json"
    write_atomic(path, [b"old"])
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(path, (b"\xaa" * 100_000 for _ in range(20)))
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert list(small_disk.iterdir()) == [path]


# --- files that another node replaces


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_a_file_that_was_replaced_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path, calls, really = tmp_path / "a", [], os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        """What a network file system does whose client still has the old file under this name."""
        calls.append(fd)
        if len(calls) == 1:
            write_atomic(path, [b"new"])
            raise OSError(code, os.strerror(code))
        return really(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(regular_files, "NAME_SECONDS", 0.0)
    path.write_bytes(b"old")
    assert read_regular(path) == b"new"
    assert len(calls) == 2


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_what_another_node_has_removed_need_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def gone(path: Path) -> None:
        raise OSError(code, os.strerror(code), str(path))

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").touch()
    monkeypatch.setattr(disk, "unlink", gone)
    monkeypatch.setattr(disk, "rmdir", gone)
    remove_file(tmp_path / "folder/file")
    remove_tree(tmp_path / "folder")


def test_an_error_while_reading_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    with pytest.raises(OSError, match="bad state") as held, reading(path):
        raise OSError(errno.EBADFD, os.strerror(errno.EBADFD))
    assert held.value.filename == str(path)


def test_closing_hides_no_error() -> None:
    disk.close(2**20)  # not open
