"""A file that a looking command writes where its user said."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from decodeonce.errors import naming
from decodeonce.store import Store
from decodeonce.store.durable import append, write_atomic


def check_out(store: Store, out: Path) -> None:
    """A usage error where `out` is a file of the store itself, which every byte is signed of."""
    manifest, paths = store.manifest, store.paths
    own = {paths.manifest.name, paths.part.name, *manifest.files, *(shard.file for shard in manifest.shards)}
    target = _target(out)  # what a link leads to is what would be written
    if target.name in own and target.parent == paths.root.resolve():
        raise typer.BadParameter(f"--out {out}: a file of the store itself; give another name")


def write_out(path: Path, data: bytes) -> None:
    """Make the file hold the bytes, whole or not at all; a pipe or a device takes them as they come."""
    if path.is_file() or not path.exists():
        try:
            return write_atomic(_target(path), [data])
        except OSError as error:
            error.filename = str(path)  # and not that of its temporary file
            raise
    with naming(path):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            append(fd, data)
        finally:
            os.close(fd)


def _target(path: Path) -> Path:
    """Where the links on the way to a path lead."""
    try:
        return path.resolve()
    except RuntimeError:  # in a circle, as Pythons before 3.13 say
        return path.absolute()
