"""A file that a looking command writes where its user said."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from decodeonce.store import Store, disk
from decodeonce.store.files import append


def check_out(store: Store, out: Path) -> None:
    """A usage error where `out` is a file of the store itself, which every byte is signed of."""
    manifest, paths = store.manifest, store.paths
    own = {paths.manifest.name, paths.part.name, *manifest.files, *(shard.file for shard in manifest.shards)}
    if out.name in own and out.absolute().parent.resolve() == paths.root.resolve():
        raise typer.BadParameter(f"--out {out}: a file of the store itself; give another name")


def write_out(path: Path, data: bytes) -> None:
    """Write all of a file, in place: it may be a pipe."""
    fd = disk.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        append(fd, data)
    finally:
        os.close(fd)
