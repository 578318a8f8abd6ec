"""Write the output file of `prep show` and `prep report`."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from decodeonce.errors import DecodeonceError, add_path_to_errors
from decodeonce.store import Store
from decodeonce.store.durable import append, write_atomic


def need_pillow(what: str) -> None:
    """Raise DecodeonceError with the command to run if Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise DecodeonceError(f"Pillow is needed to {what}; run: pip install pillow") from None


def check_out(store: Store, out: Path) -> None:
    """Raise a usage error if `out` is a file of the store: writing it would damage the store."""
    manifest, paths = store.manifest, store.paths
    own = {paths.manifest.name, paths.part.name, *manifest.files, *(shard.file for shard in manifest.shards)}
    target = _target(out)  # writing follows links
    if target.name in own and target.parent == paths.root.resolve():
        raise typer.BadParameter(f"--out {out}: this file is part of the store; choose another name")


def write_out(path: Path, data: bytes) -> None:
    """Write a file atomically. A pipe or a device gets the bytes directly."""
    if path.is_file() or not path.exists():
        try:
            return write_atomic(_target(path), [data])
        except OSError as error:
            error.filename = str(path)  # not the name of the temporary file
            raise
    with add_path_to_errors(path):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            append(fd, data)
        finally:
            os.close(fd)


def _target(path: Path) -> Path:
    """Resolve the links of a path."""
    try:
        return path.resolve()
    except RuntimeError:  # a loop of links, before Python 3.13
        return path.absolute()
