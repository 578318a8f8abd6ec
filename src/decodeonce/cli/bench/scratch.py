"""A folder for trial writes on the file system in question, removed at the end, also after a signal."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from decodeonce.store.files import make_folder, remove_tree

_made: list[Path] = []


@contextmanager
def scratch_folder(above: Path) -> Iterator[Path]:
    """A new folder in `above`, `.prep-bench-…`, which SIGKILL alone leaves there."""
    folder = above / f".prep-bench-{os.getpid()}-{secrets.token_hex(4)}"
    _made.append(folder)
    try:
        make_folder(folder)
        yield folder
    finally:
        remove_tree(folder)
        _made.remove(folder)


def remove_scratch() -> None:
    """Remove what is there; for a signal handler that then ends the process."""
    for folder in _made:
        with suppress(OSError):
            remove_tree(folder)
