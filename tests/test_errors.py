"""The exceptions and messages for file system errors."""

import errno

import pytest

from decodeonce.errors import BuildError, DecodeonceError, Stopped, failure_from

SMALLER = "raise `ulimit -f`, or choose a smaller --shard-size or another file system"


@pytest.mark.parametrize(
    ("code", "name", "kind", "message"),
    [
        (errno.EIO, "/data/a", Stopped, "/data/a: why; run the same command again"),
        (errno.ESTALE, b"/data/a", Stopped, "/data/a: why; run the same command again"),
        (errno.EBADFD, "/a", Stopped, "/a: why; the file server may be down; run the same command again"),
        (errno.ENOSPC, None, BuildError, "OUT: why; make room and run the same command again"),
        (errno.EFBIG, None, BuildError, f"OUT: why; {SMALLER}, and run the same command again"),
        (errno.EACCES, "/data/a", BuildError, "/data/a: why; change its permissions and run the same command again"),
    ],
)
def test_error_says_what_to_do(code: int, name: str | bytes | None, kind: type[DecodeonceError], message: str) -> None:
    failure = failure_from(OSError(code, "why", name), "OUT")
    assert type(failure) is kind
    assert str(failure) == message


@pytest.mark.parametrize("name", ["ENOTCONN", "ECONNABORTED", "ECONNRESET", "EHOSTDOWN", "ENETUNREACH", "EREMOTEIO"])
def test_lost_file_server_is_transient_error(name: str) -> None:
    failure = failure_from(OSError(getattr(errno, name), "why"), "OUT")
    assert str(failure) == "OUT: why; the file server may be down; run the same command again"
    assert isinstance(failure, Stopped)
