"""Network file systems whose nodes show each other's changes late, or whose locks exclude nobody."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from decodeonce.errors import CHANGED_ELSEWHERE_ERRORS, DecodeonceError, Stopped
from decodeonce.host import network_file_system
from decodeonce.store.layout import StorePaths

# sshfs caches names and sizes for 20 s, NFS for 60 s at most (acdirmax).
CACHE_SECONDS = 60.0
P = ParamSpec("P")
T = TypeVar("T")


def on_network(path: Path) -> bool:
    """Whether `path`, which may not exist, is on a network file system."""
    for folder in (path.absolute(), *path.absolute().parents):
        try:
            return network_file_system(folder) is not None
        except OSError:
            continue
    return False


class Patience:
    """Pauses between attempts, 10 ms at first and 2 s at most, for `seconds` in total."""

    def __init__(self, seconds: float) -> None:
        self._end, self._pause = time.monotonic() + seconds, 0.01

    def wait(self) -> bool:
        """Sleep and return True, or return False if the time is over."""
        if time.monotonic() > self._end:
            return False
        time.sleep(self._pause)
        self._pause = min(1.5 * self._pause, 2.0)
        return True


def missing_error(path: Path) -> FileNotFoundError:
    """Return the cause of an error about a missing file that `patient` waits for."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def patient(folder: Path, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return call(), repeated as long as a node's cache or a change by another node may be why it fails in `folder`.

    On a local file system, the first error is raised. `call` must be safe to repeat.

    Raises:
        Stopped: If it still fails with an OSError other than EPERM after CACHE_SECONDS.
    """
    patience: Patience | None = None
    while True:
        try:
            return call(*args, **kwargs)
        except (DecodeonceError, OSError) as failed:
            error = _changed_elsewhere(failed, folder)
            if error is None or not on_network(folder):
                raise
            what = f"{os.fsdecode(error.filename)}: {error.strerror}"
            if patience is None:
                patience = Patience(CACHE_SECONDS)
                again = f"trying again for {CACHE_SECONDS:.0f} s"
                logging.getLogger("decodeonce").warning("%s; another node may be changing it; %s", what, again)
            if not patience.wait():
                if isinstance(failed, DecodeonceError) or error.errno == errno.EPERM:
                    raise
                advice = "another node may be changing it, or the file server may be down; run the same command again"
                raise Stopped(f"{what}; {advice}") from None


def patient_if_there(folder: Path, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `patient` if `folder` holds a store or a build; otherwise return call() at once: the path may be wrong."""
    paths = StorePaths(folder)
    if os.path.lexists(paths.manifest) or os.path.lexists(paths.build):
        return patient(folder, call, *args, **kwargs)
    return call(*args, **kwargs)


def _changed_elsewhere(error: BaseException | None, folder: Path) -> OSError | None:
    """Return the OSError that is or caused `error`, if it is about a file of `folder` that another node may change."""
    places = (folder.absolute(), folder.absolute().with_name(f".{folder.name}.export"))
    while error is not None:
        if isinstance(error, OSError) and error.errno in CHANGED_ELSEWHERE_ERRORS and error.filename is not None:
            path = Path(os.fsdecode(error.filename)).absolute()
            if any(path.is_relative_to(place) for place in places):
                return error
        error = error.__cause__ or error.__context__
    return None
