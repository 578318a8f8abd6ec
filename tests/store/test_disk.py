"""Only disk.py creates, changes and removes files."""

import ast
import errno
import os
from pathlib import Path

import pytest

import decodeonce
from decodeonce.store import disk, files
from decodeonce.store.files import open_regular, read_regular, reading, write_atomic
from tests.open_files import open_files

SRC = Path(decodeonce.__file__).parent
CALLS = {"write", "pwrite", "pwritev", "writev", "sendfile", "copy_file_range", "fsync", "fdatasync", "truncate"}
CALLS |= {"ftruncate", "posix_fallocate", "replace", "rename", "renames", "unlink", "remove", "rmdir", "removedirs"}
CALLS |= {"mkdir", "makedirs", "mkfifo", "mknod", "link", "symlink", "chmod", "chown", "utime"}
METHODS = {"write_bytes", "write_text", "mkdir", "unlink", "rmdir", "rename", "touch", "hardlink_to", "symlink_to"}
METHODS |= {"chmod", "tofile"}
# Exceptions: replies and messages go to pipes and terminals, the heartbeat is in memory, libhdf5 writes its own scratch
# file, and a log or an --out may be the user's own link or device.
ALLOWED = {
    "store/disk.py": CALLS | {"os.open"},
    "prep/processes/child.py": {"truncate"},
    "store/format.py": {"unlink"},
    "cli/log.py": {"os.open"},  # of a named pipe
    "cli/__init__.py": {"write", "os.open", "shutil.get_terminal_size"},
    "cli/output.py": {"open"},
}


def changing_calls(tree: ast.AST) -> set[str]:
    """Return the names of calls in a module that could create, change or remove a file."""
    found = set()
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        arguments = " ".join(ast.unparse(argument) for argument in [*call.args, *(k.value for k in call.keywords)])
        match call.func:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in CALLS:
                found.add(name)
            case ast.Attribute(value=ast.Name(id="os"), attr="open"):
                if any(flag in arguments for flag in ("O_CREAT", "O_WRONLY", "O_RDWR", "O_APPEND")):
                    found.add("os.open")
            case ast.Attribute(value=ast.Name(id="shutil"), attr=name):
                found.add(f"shutil.{name}")
            case ast.Attribute(value=ast.Name(id="disk")):
                pass
            case ast.Attribute(attr=name) if name in METHODS:
                found.add(name)
            case ast.Name(id="open") if any(mode in arguments for mode in ("'w", "'x", "'a", "+b'")):
                found.add("open")
    return found


def test_only_disk_module_changes_files() -> None:
    for path in SRC.rglob("*.py"):
        name = str(path.relative_to(SRC))
        assert changing_calls(ast.parse(path.read_bytes())) <= ALLOWED.get(name, set()), name


def test_checker_finds_calls_that_change_files() -> None:
    source = (
        'os.pwrite(fd, b, 0); os.open(p, os.O_RDWR); shutil.rmtree(p); p.unlink(); open(p, "wb"); disk.write(fd, b)'
    )
    assert changing_calls(ast.parse(source)) == {"pwrite", "os.open", "shutil.rmtree", "unlink", "open"}


# ---- Files replaced by another node are opened again, and errors name their file


def test_file_that_stays_stale_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(fd: int, size: int, offset: int) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    (tmp_path / "file").write_bytes(b"data")
    monkeypatch.setattr(os, "pread", stale)
    monkeypatch.setattr(files, "NAME_SECONDS", 0.0)
    opened = len(open_files())
    with pytest.raises(OSError, match="Stale file handle"):
        open_regular(tmp_path / "file")
    assert len(open_files()) == opened


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


def test_error_about_two_files_names_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    for call in (disk.replace, disk.link):
        with pytest.raises(OSError, match=f"^\\[Errno 20\\] Not a directory: '{tmp_path}/a/b'$"):
            call(tmp_path / "a", tmp_path / "a/b")
