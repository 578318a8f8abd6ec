"""The exceptions of decodeonce: one base, and a kind for each thing a caller does differently."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Errors of a network file system whose server or connection is away.
SERVER_AWAY = {errno.ENOTCONN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ESHUTDOWN}
SERVER_AWAY |= {errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET}
SERVER_AWAY |= {errno.ENETUNREACH, errno.ENOLINK, errno.ECOMM, errno.EREMOTEIO, errno.EBADFD, errno.EPROTO}
# Errors that say nothing about a picture or a store: the task stops, and the same command resumes it later.
PASSING_ERRORS = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ESTALE, *SERVER_AWAY}
# Not the picture's fault either, or the rows of a store would depend on who builds it.
FORBIDDEN_ERRORS = {errno.EACCES, errno.EPERM}


class DecodeonceError(Exception):
    """Base of all; its text names the file, what was found, what was expected, and the next step (exit code 1)."""


class StoreError(DecodeonceError):
    """A store, or a file in it, is not what its manifest or the format says."""


class BuildError(DecodeonceError):
    """A build cannot go on as asked: the source, the recipe, the decoders, the place or the rejects forbid it."""


class StageError(DecodeonceError):
    """A part of a store cannot be staged as asked: the rows, the place or what lies there forbid it."""


class Stopped(DecodeonceError):
    """A build stopped early with all that is done kept: run the same command again (exit code 75)."""


def again(error: OSError) -> str:
    """The advice for one of PASSING_ERRORS."""
    away = "its file server may be away; " if error.errno in SERVER_AWAY else ""
    return f"{away}run the same command again"


def failure_from(error: OSError, at: object) -> BuildError | Stopped:
    """What an OSError means for a command: Stopped if it may pass, BuildError if the user must act first.

    `at` is named if the error itself names no file.
    """
    name = error.filename or at
    what = f"{os.fsdecode(name) if isinstance(name, bytes) else name}: {error.strerror or error}"
    if error.errno in PASSING_ERRORS:
        return Stopped(f"{what}; {again(error)}")
    advice = "mend that"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "make room"
    elif error.errno == errno.ELOOP:
        advice = "put the file or folder itself there"
    elif error.errno in FORBIDDEN_ERRORS:
        advice = "change its permissions"
    elif error.errno == errno.EFBIG:
        advice = "choose a smaller --shard-size, or another file system,"
    return BuildError(f"{what}; {advice} and run the same command again")


def raise_unless_its_own(error: OSError, at: object) -> None:
    """Raise Stopped if the file system fails, BuildError if it forbids access; return if the fault is the file's own.

    Only such a fault may make a picture a reject.
    """
    if error.errno in PASSING_ERRORS | FORBIDDEN_ERRORS:
        raise failure_from(error, at) from None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an OSError that names no file, as those of descriptors, name this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
