"""Files replaced by another node are opened again, and errors name their file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from decodeonce.store import files
from decodeonce.store.files import open_regular, read_regular, reading, write_atomic


def test_file_that_stays_stale_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(fd: int, size: int, offset: int) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    (tmp_path / "file").write_bytes(b"data")
    monkeypatch.setattr(os, "pread", stale)
    monkeypatch.setattr(files, "NAME_SECONDS", 0.0)
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Stale file handle"):
        open_regular(tmp_path / "file")
    assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_replaced_file_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path, calls, really = tmp_path / "a", [], os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        """Fail once, like a network file system whose client still has the old file under this name."""
        calls.append(fd)
        if len(calls) == 1:
            write_atomic(path, [b"new"])
            raise OSError(code, os.strerror(code))
        return really(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(files, "NAME_SECONDS", 0.0)
    path.write_bytes(b"old")
    assert read_regular(path) == b"new"
    assert len(calls) == 2


def test_error_while_reading_names_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    with pytest.raises(OSError, match="bad state") as held, reading(path):
        raise OSError(errno.EBADFD, os.strerror(errno.EBADFD))
    assert held.value.filename == str(path)
