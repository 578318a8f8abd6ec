"""Locks: one process at a time works in a private folder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from decodeonce.store import disk, sharing
from decodeonce.store.sharing import locked


def test_one_process_at_a_time_holds_lock(tmp_path: Path) -> None:
    folder, inside, counts = tmp_path / "store/.build", Counter[str](), []

    def enter(number: int) -> None:
        for _ in range(50):
            with locked(folder):
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
    with locked(tmp_path / ".repair"):
        assert list(tmp_path.iterdir()) == []


def test_lock_that_stays_stale_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(fd: int, operation: int) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(fcntl, "flock", stale)
    monkeypatch.setattr(sharing, "LOCK_SECONDS", 0.05)
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Stale file handle"), locked(tmp_path / ".repair"):
        pass
    assert len(os.listdir("/proc/self/fd")) == opened


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
    with locked(tmp_path / ".repair"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_folder_with_other_files_keeps_lock_file(tmp_path: Path) -> None:
    with locked(tmp_path / ".build"):
        (tmp_path / ".build/plan.json").touch()
    assert sorted(os.listdir(tmp_path / ".build")) == ["lock", "plan.json"]
