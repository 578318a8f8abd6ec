"""The exceptions of decodeonce: a base class, and one subclass for each case that callers handle differently."""

from __future__ import annotations

import errno
import os

# Errors of a network file system whose server or connection is down.
SERVER_DOWN_ERRORS = {errno.ENOTCONN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ESHUTDOWN}
SERVER_DOWN_ERRORS |= {errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET}
SERVER_DOWN_ERRORS |= {errno.ENETUNREACH, errno.ENOLINK, errno.ECOMM, errno.EREMOTEIO, errno.EBADFD, errno.EPROTO}
# Errors that say nothing about an image or a store: the task stops, and the same command resumes it later.
TRANSIENT_ERRORS = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ESTALE}
TRANSIENT_ERRORS |= SERVER_DOWN_ERRORS
# The image is not at fault here either: otherwise the rows of a store would depend on which user builds it.
PERMISSION_ERRORS = {errno.EACCES, errno.EPERM}
# Nothing can be created in the folder. Some servers also report EROFS for reading.
UNWRITABLE_ERRORS = {errno.EROFS, *PERMISSION_ERRORS}
# Another process or node replaced or removed a file or folder, maybe an open one.
REPLACED_ERRORS = {errno.ENOENT, errno.ESTALE}
# The file system cannot reserve space, or has no locks.
UNSUPPORTED_ERRORS = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK}
# The file system cannot flush a folder.
UNFLUSHABLE_ERRORS = {errno.EINVAL, errno.EBADF, errno.EROFS}
# What to do first after other errors.
ADVICE = dict.fromkeys(PERMISSION_ERRORS, "change its permissions")
ADVICE |= {errno.ENOSPC: "make room", errno.EDQUOT: "make room"}
ADVICE[errno.ELOOP] = "replace the link with the file or folder itself"
ADVICE[errno.EFBIG] = "raise `ulimit -f`, or choose a smaller --shard-size or another file system,"


class DecodeonceError(Exception):
    """Base class of all exceptions of decodeonce.

    Most messages name the file, what was found, what was expected and the next step. ``prep`` exits with code 1, or
    with code 75 for ``Stopped``.

    Example:
        >>> try:
        ...     store = open_store("imagenet/val")
        ... except DecodeonceError as error:
        ...     print(error)
        imagenet/val: not a store: it has no store.json; pass the folder that `prep build` created...
    """


class StoreError(DecodeonceError):
    """A store or one of its files does not match its manifest or the format.

    Example:
        >>> try:
        ...     store = open_store("missing.store")
        ... except StoreError as error:
        ...     print(error)
        missing.store: no such folder; expected a store (the folder that `prep build` creates)
    """


class BuildError(DecodeonceError):
    """A build cannot continue because of its source, recipe, decoders, output folder or number of rejects.

    Example:
        >>> try:
        ...     source = open_folder("imagenet")
        ... except BuildError as error:
        ...     print(error)
        imagenet: contains splits instead of classes (train, val): train contains 4 folders...
    """


class StageError(DecodeonceError):
    """A part of a store cannot be staged because of the rows, the target folder or what is already there.

    Example:
        >>> store = open_store("val.store")
        >>> try:
        ...     staged = stage_store(store, "val.part", rows=range(10, 20))
        ... except StageError as error:
        ...     print(error)
        val.store: cannot stage range(10, 20), expected a range of step 1 within 0..15
    """


class Stopped(DecodeonceError):
    """An operation stopped early and can be resumed. Completed work is kept.

    Run the same command or script again to resume. ``prep`` exits with code 75.

    Example:
        >>> try:
        ...     manifest = build(open_folder("imagenet/val"), Path("new.store"), Recipe(height=64, width=64))
        ... except Stopped as error:
        ...     print("Run the script again.", error)
    """


def retry_advice(error: OSError) -> str:
    """The advice for one of TRANSIENT_ERRORS."""
    cause = "the file server may be down; " if error.errno in SERVER_DOWN_ERRORS else ""
    return f"{cause}run the same command again"


def failure_from(error: OSError, at: object) -> BuildError | Stopped:
    """Convert an OSError to Stopped if it may be transient, or to BuildError if the user must act first.

    The message names `at` if the error itself names no file.
    """
    name = error.filename or at
    what = f"{os.fsdecode(name) if isinstance(name, bytes) else name}: {error.strerror or error}"
    if error.errno in TRANSIENT_ERRORS:
        return Stopped(f"{what}; {retry_advice(error)}")
    return BuildError(f"{what}; {ADVICE.get(error.errno or 0, 'fix this')} and run the same command again")


def raise_file_system_failure(error: OSError, at: object) -> None:
    """Raise Stopped or BuildError if the file system fails or denies access; return if the file itself is bad.

    An image is rejected only if its own file is bad.
    """
    if error.errno in TRANSIENT_ERRORS | UNWRITABLE_ERRORS:
        raise failure_from(error, at) from None
