"""Symbolic links below SRC. Nothing outside SRC is read unless the user allows it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from decodeonce.errors import BuildError, failure_from
from decodeonce.prep.sources.safe_open import FLAGS, open_regular

OUTSIDE = "a link that leads out of SRC: build with --follow-links, or let SRC be a folder that holds both"

KEPT_FOLDERS = 1 << 14  # cached answers for folders: more than ImageNet has classes, a few MB


class Links:
    """Decides which links below `root` may be followed.

    Link targets are resolved once per folder, and only for files that are links, so other files cost no system call.

    Args:
        root: The folder that links must stay in. It may be a link itself.
        follow: Whether links may lead anywhere; default False.
    """

    def __init__(self, root: Path, *, follow: bool = False) -> None:
        self.follow = follow
        self._root = root
        self._folders: dict[bytes, bool] = {}

    def leads_outside(self, path: bytes) -> bool:
        """Return whether a path, with all links resolved, is outside `root`. Always False with `follow`."""
        return not self.follow and not self._is_below(os.path.realpath(path))

    def folder_leads_outside(self, folder: bytes) -> bool:
        """Return the same as `leads_outside` for a folder, and cache it."""
        known = self._folders.get(folder)
        if known is None:
            if len(self._folders) == KEPT_FOLDERS:
                self._folders.clear()
            known = self._folders[folder] = self.leads_outside(folder)
        return known

    def open(self, path: bytes) -> int:
        """Open a regular file; raise OSError if it is not one, and OSError with EXDEV if it is outside `root`."""
        if self.follow:
            return open_regular(path)
        try:
            if not self.folder_leads_outside(os.path.dirname(path)):
                return open_regular(path, FLAGS | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            if not self.leads_outside(path):
                return open_regular(path)
        raise OSError(errno.EXDEV, OUTSIDE, path)

    def check(self, path: bytes) -> None:
        """Raise BuildError if a file that holds many images is outside `root`."""
        if self.leads_outside(path):
            raise BuildError(f"{os.fsdecode(path)}: {OUTSIDE}")

    def walk(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield `root` and every folder below it that is not hidden, with its file names, sorted.

        A folder that several links lead to is yielded once. For a folder outside `root`, only its own file names are
        yielded, not its subfolders.
        """
        seen, todo = set[bytes](), [os.fsencode(self._root)]
        while todo:
            folder = todo.pop()
            real = os.path.realpath(folder)
            if real in seen:
                continue
            seen.add(real)
            try:
                with os.scandir(folder) as listing:
                    items = sorted((item.name, item.is_dir()) for item in listing if not item.name.startswith(b"."))
            except OSError as error:
                raise failure_from(error, folder) from None
            yield folder, [name for name, is_folder in items if not is_folder]
            if not self.folder_leads_outside(folder):
                todo += [os.path.join(folder, name) for name, is_folder in reversed(items) if is_folder]

    @cached_property
    def _top(self) -> bytes:
        return os.path.realpath(os.fsencode(self._root))

    def _is_below(self, real: bytes) -> bool:
        return real == self._top or real.startswith(os.path.join(self._top, b""))
