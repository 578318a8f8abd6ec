"""Only disk.py creates, changes and removes files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import decodeonce
from decodeonce.store import disk

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
    "prep/processes/isolated.py": {"open", "os.open"},
    "store/containers.py": {"unlink"},
    "cli/__init__.py": {"write", "os.open", "shutil.get_terminal_size"},
    "cli/log.py": {"os.open"},
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


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda path: str(path.relative_to(SRC)))
def test_only_disk_module_changes_files(path: Path) -> None:
    name = str(path.relative_to(SRC))
    assert changing_calls(ast.parse(path.read_bytes())) <= ALLOWED.get(name, set())


def test_checker_finds_calls_that_change_files() -> None:
    source = (
        'os.pwrite(fd, b, 0); os.open(p, os.O_RDWR); shutil.rmtree(p); p.unlink(); open(p, "wb"); disk.write(fd, b)'
    )
    assert changing_calls(ast.parse(source)) == {"pwrite", "os.open", "shutil.rmtree", "unlink", "open"}


def test_modes_are_not_world_writable() -> None:
    assert disk.FILE_MODE & 0o002 == 0
    assert disk.FOLDER_MODE & 0o002 == 0


def test_close_ignores_errors() -> None:
    disk.close(2**20)  # not open
