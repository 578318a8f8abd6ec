"""Files are written completely or not at all, and the error for a full disk names its file."""

import errno
import fcntl
import os
import resource
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from decodeonce.store import disk, sharing
from decodeonce.store.files import remove_file, remove_tree, reserve, write_at, write_atomic
from decodeonce.store.sharing import locked
from tests.open_files import open_files

MIB = 1 << 20


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, OSError])
@pytest.mark.parametrize("old", [None, b"the old content"])
def test_old_file_stays_if_chunks_raise(tmp_path: Path, error: type[BaseException], old: bytes | None) -> None:
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


def test_readers_never_see_partial_file(tmp_path: Path) -> None:
    path, scratch, seen = tmp_path / "out/file", tmp_path / "scratch", []
    path.parent.mkdir()
    scratch.mkdir()
    path.write_bytes(b"old")

    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            yield b"x" * MIB
            seen.append((path.read_bytes(), len(os.listdir(path.parent)), len(os.listdir(scratch))))

    with open(path, "rb") as reader:  # keeps reading the old file
        write_atomic(path, chunks(), scratch=scratch)
        assert reader.read() == b"old"
    assert seen == [(b"old", 1, 1)] * 3
    assert path.stat().st_size == 3 * MIB
    assert os.listdir(scratch) == []


def test_short_write_is_continued(tmp_path: Path) -> None:
    path, limit = tmp_path / "file", 1 << 30
    data = np.random.default_rng(0).bytes(3000)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))  # the kernel writes up to the limit, then raises EFBIG
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_at(fd, memoryview(data), limit - 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        written = os.pread(fd, 3000, limit - 1000)
        os.close(fd)
    assert caught.value.errno == errno.EFBIG
    assert written == data[:1000]


def test_reserving_space_at_an_offset_keeps_content(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"head")
    fd = os.open(path, os.O_RDWR)
    try:
        if not reserve(fd, 3 * MIB, path, offset=5 * MIB):
            assert path.stat().st_size == 4
            pytest.skip("the file system of the temporary folder has no fallocate")
        assert reserve(fd, MIB, path, offset=5 * MIB)
    finally:
        os.close(fd)
    assert 3 * MIB <= path.stat().st_blocks * 512 < 4 * MIB
    assert path.read_bytes() == b"head".ljust(8 * MIB, b"\0")


def test_reserving_space_on_full_disk_is_an_error(small_disk: Path) -> None:
    path = small_disk / "shard"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(OSError, match=f"No space left.*'{path}'") as caught:
            reserve(fd, 2 * MIB, path)
    finally:
        os.close(fd)
    assert caught.value.errno == errno.ENOSPC


def test_full_disk_leaves_only_old_file(small_disk: Path) -> None:
    path = small_disk / "store.json"
    write_atomic(path, [b"old"])
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(path, (b"\xaa" * 100_000 for _ in range(20)))
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert list(small_disk.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_removing_a_removed_file_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def gone(path: Path) -> None:
        raise OSError(code, os.strerror(code), str(path))

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").touch()
    monkeypatch.setattr(disk, "unlink", gone)
    monkeypatch.setattr(disk, "rmdir", gone)
    remove_file(tmp_path / "folder/file")
    remove_tree(tmp_path / "folder")


# ---- Locks: one process at a time works in a private folder


def test_one_process_at_a_time_holds_lock(tmp_path: Path) -> None:
    folder, inside, counts = tmp_path / "store/.repair", Counter[str](), []

    def enter(number: int) -> None:
        for _ in range(50):
            with locked(folder, waits_for="a test"):
                inside["now"] += 1
                counts.append(inside["now"])
                (folder / f"file{number}").touch()
                (folder / f"file{number}").unlink()
                inside["now"] -= 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(enter, range(4)))
    assert (len(counts), max(counts)) == (200, 1)
    assert list((tmp_path / "store").iterdir()) == []


def test_read_only_folder_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(disk, "mkdir", read_only)
    with locked(tmp_path / ".repair", waits_for="a test"):
        assert list(tmp_path.iterdir()) == []


def test_lock_that_stays_stale_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(fd: int, operation: int) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(fcntl, "flock", stale)
    monkeypatch.setattr(sharing, "LOCK_SECONDS", 0.05)
    opened = len(open_files())
    with pytest.raises(OSError, match="Stale file handle"), locked(tmp_path / ".repair", waits_for="a test"):
        pass
    assert len(open_files()) == opened


def test_lock_file_is_closed_before_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = disk.unlink

    def unlink_on_nfs(path: Path) -> None:  # keeps a name for a removed file that is open
        assert any(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd"))
        unlink(path)
        renamed.append(path.with_name(".nfs1"))
        renamed[0].touch()

    def close(fd: int) -> None:
        os.close(fd)
        while renamed:
            renamed.pop().unlink()

    renamed: list[Path] = []
    monkeypatch.setattr(disk, "unlink", unlink_on_nfs)
    monkeypatch.setattr(disk, "close", close)
    with locked(tmp_path / ".repair", waits_for="a test"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_folder_with_other_files_keeps_lock_file(tmp_path: Path) -> None:
    with locked(tmp_path / ".repair", waits_for="a test"):
        (tmp_path / ".repair/store.json").touch()
    assert sorted(os.listdir(tmp_path / ".repair")) == ["lock", "store.json"]
