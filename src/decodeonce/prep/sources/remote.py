"""Objects in stores and on web servers, found and read by ranges through fsspec.

A `UrlPath` is the root of a source like any other `Path`. `stat_object` takes the place of os.stat: the version of an
object, a hash of its ETag, is what the mtime is of a file.
"""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import xxhash

from decodeonce.errors import BuildError, Stopped

if TYPE_CHECKING:
    from http.client import HTTPConnection

PAUSES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between attempts; each is made up to 50% longer at random
CONNECTIONS = 64  # per process; s3fs opens 10 by default
SECONDS, SECONDS_PER_BYTE = 60.0, 1e-6  # the longest that a request may take
SIGNED_SECONDS = 1800  # a signed URL is used this long, and is valid twice as long
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp"}
CHECKS = {"s3": "aws s3 ls {}", "gs": "gcloud storage ls {}", "hf": "hf auth whoami"}  # others: curl -I
VERSION_KEYS = ("ETag", "etag", "generation", "blob_id", "Last-Modified", "LastModified", "mtime")
# The errors of the libraries below fsspec that are no OSError, by module. They exist once the library is imported.
PASSING = {
    "aiohttp": "ClientError",
    "asyncio": "TimeoutError",
    "botocore.exceptions": "HTTPClientError ConnectionError",
    "fsspec.exceptions": "FSTimeoutError",
    "httpx": "TransportError",
}
LASTING = {
    "botocore.exceptions": "BotoCoreError",
    "gcsfs.retry": "HttpError",
    "google.auth.exceptions": "GoogleAuthError",
    "httpx": "HTTPError",
}
PASSING_STATUS = {408, 429, *range(500, 600)}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET = re.compile(r"(?<=://)[^/@\s]*@|\?.*")
Result = TypeVar("Result")


class UrlPath(PosixPath):
    """A URL as a path, whose text keeps the two slashes after the scheme."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)


def is_url(text: str | Path) -> bool:
    """Return whether a text is a URL; a `Path` of the standard library never is."""
    return _URL.match(str(text)) is not None


def as_path(text: str) -> Path:
    """Return the path of a file or a URL."""
    return UrlPath(text) if is_url(text) else Path(text)


def absolute(path: Path) -> str:
    """Return the absolute path of a file; a URL is one already."""
    return str(path) if is_url(path) else os.path.abspath(path)


def without_secrets(text: str) -> str:
    """Return a text that starts with a URL without the URL's password and query."""
    return _SECRET.sub("", text) if is_url(text) else text


def check_url(url: str) -> None:
    """Raise BuildError if a URL holds a secret, or may: a store records its source."""
    if _scheme(url) in ("http", "https") and (cut := without_secrets(url)) != url:
        found = f"{cut}: the URL also has a password or a query, which a store would record"
        raise BuildError(f"{found}; put the password into ~/.netrc, or download the file and pass its path")


class ObjectFacts(NamedTuple):
    """The size of an object in bytes, its version as an int64 (0: unknown), and its ETag ("" if it has none)."""

    size: int
    version: int
    etag: str


def stat_object(url: str) -> ObjectFacts:
    """Ask for size and version; raise BuildError if the object is missing or may not be read, Stopped on failure."""
    system, path = _opened(url)
    facts = attempt(url, partial(system.info, path, **_fresh(system)))
    if facts.get("type") == "directory":
        raise BuildError(f"{url}: a folder; expected a file that holds images")
    if facts.get("size") is None:
        raise BuildError(f"{url}: the server does not tell its size; download it, then pass its path")
    version = next((str(facts[key]) for key in VERSION_KEYS if facts.get(key)), "")
    known = xxhash.xxh3_64_intdigest(version.encode()) >> 1 if version else 0
    return ObjectFacts(int(facts["size"]), known, facts.get("ETag", ""))


def read_object(url: str, facts: ObjectFacts, offset: int, size: int) -> bytes:
    """Read a range of the object with this version; raise BuildError if it has changed."""
    if size == 0:
        return b""
    system, path = _opened(url)
    seconds = {"timeout": SECONDS + size * SECONDS_PER_BYTE} if system.async_impl else {}
    read, strong = partial(system.cat_file, path, start=offset, end=offset + size, **seconds), facts.etag[:1] == '"'
    if strong and _scheme(url) == "s3":
        if (found := _read_signed(url, offset, size, facts.etag)) is not None:
            return found
        from fsspec.asyn import sync

        read = partial(sync, system.loop, _get_from_s3, system, path, offset, size, facts.etag, **seconds)
    elif strong and _scheme(url) in ("http", "https"):
        read = partial(read, headers={"If-Match": facts.etag})
    else:
        strong = False
    data: bytes = attempt(url, read)
    if not strong and stat_object(url)[:2] != facts[:2]:
        raise changed(url)
    if len(data) != size:
        raise BuildError(f"{url}: {len(data)} bytes for a range of {size}; expected a server that answers ranges")
    return data


def find_objects(url: str, suffixes: tuple[str, ...], *, deep: bool) -> list[str]:
    """Return the URLs of the objects that a URL, a pattern with wildcards, or a folder names, sorted."""
    if url.endswith(suffixes) and "*" not in url and "[" not in url:
        return [url]
    system, path = _opened(url)
    if "*" in path or "[" in path:
        names = attempt(url, partial(system.glob, path))
    else:
        names = attempt(url, partial(system.find, path, maxdepth=None if deep else 1))
        if not names:  # `find` does not raise an error for a bucket that is missing
            attempt(url, partial(system.info, path, **_fresh(system)))
    found = (name if is_url(name) else f"{_scheme(url)}://{name.lstrip('/')}" for name in names)
    return sorted((name for name in found if name.endswith(suffixes)), key=os.fsencode)


def attempt(url: str, function: Callable[[], Result]) -> Result:
    """Call a function of fsspec; repeat it with growing pauses if its error may pass.

    Raises:
        BuildError: The object is missing, may not be read or has changed.
        Stopped: The error did not pass.
    """
    for pause in (*PAUSES, None):
        try:
            return function()
        except known_errors() as error:
            failed = _failure(url, error)
            if pause is None or isinstance(failed, BuildError):
                raise failed from None
        time.sleep(pause * random.uniform(1.0, 1.5))
    raise AssertionError("unreachable")


def known_errors() -> tuple[type[BaseException], ...]:
    """Return the classes of errors that fsspec and the libraries below it raise."""
    return (OSError, *_loaded(PASSING), *_loaded(LASTING))


def changed(url: str) -> BuildError:
    """Return the error for an object that is another one than was listed."""
    return BuildError(f"{url}: changed since the plan was made; restore the object, or remove OUT and build again")


def _failure(url: str, error: BaseException) -> BuildError | Stopped:
    status, again = _status(error), "run the same command again"
    check = CHECKS.get(_scheme(url), "curl -I {}").format(url)
    if status == 404:
        return BuildError(f"{url}: no such object or bucket; look for it with `{check}`, then {again}")
    if status in (401, 403):
        return BuildError(f"{url}: access denied ({status}); test your credentials with `{check}`, then {again}")
    if status in (412, 416):
        return changed(url)
    text = f"HTTP status {status}" if status else " ".join(f"{type(error).__name__}: {error}".split())[:200]
    lasting = isinstance(error, _loaded(LASTING)) and not isinstance(error, _loaded(PASSING))
    if status not in PASSING_STATUS and (status or lasting):
        return BuildError(f"{url}: {text}; test the URL and your credentials with `{check}`, then {again}")
    return Stopped(f"{url}: {text}, {len(PAUSES) + 1} times; the server may be down or its address wrong; {again}")


def _status(error: BaseException) -> int:
    """Return the HTTP status of an error or of what caused it; 0 if there is none."""
    cause: BaseException | None = error
    while cause is not None:
        answer = getattr(cause, "response", None)
        found = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(answer, dict) else None
        found = found or getattr(answer, "status_code", None) or getattr(cause, "status", None)
        if isinstance(found, int):
            return found
        cause = cause.__cause__
    return 404 if isinstance(error, FileNotFoundError) else 403 if isinstance(error, PermissionError) else 0


def _loaded(names: dict[str, str]) -> tuple[type[BaseException], ...]:
    every = ((module, name) for module, some in names.items() for name in some.split())
    found = (getattr(sys.modules.get(module), name, None) for module, name in every)
    return tuple(cls for cls in found if cls is not None)


def _scheme(url: str) -> str:
    match = _URL.match(url)
    assert match is not None
    return match[1]


def _fresh(system: Any) -> dict[str, Any]:
    """Return the arguments with which `info` asks the server: s3fs would answer from an earlier listing."""
    return {"refresh": True} if "s3" in system.protocol else {}


def _opened(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it."""
    system = _file_system(_scheme(url))
    return system, system._strip_protocol(url)


@lru_cache
def _file_system(scheme: str) -> Any:
    """Return fsspec's file system for a scheme; raise BuildError if a package is missing."""
    try:
        import fsspec
    except ImportError:
        packages = " ".join(filter(None, ("fsspec", PACKAGES.get(scheme))))
        raise BuildError(f"reading {scheme}:// requires fsspec; run: pip install {packages}") from None
    options: dict[str, Any] = {}
    if scheme == "s3":
        own = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        # botocore's own attempts and pauses would multiply with those of `attempt`.
        options = {"config_kwargs": {"max_pool_connections": CONNECTIONS, "retries": {"total_max_attempts": 1}, **own}}
    elif scheme in ("http", "https"):
        options = {"client_kwargs": {"trust_env": True}}  # proxies, and passwords in ~/.netrc
    try:
        system = fsspec.filesystem(scheme, skip_instance_cache=True, **options)
    except ImportError:
        packages = PACKAGES.get(scheme, f"the package of fsspec for {scheme}")
        raise BuildError(f"reading {scheme}:// requires {packages}; run: pip install {packages}") from None
    except ValueError:
        raise BuildError(f"{scheme}://: unknown to fsspec; expected s3, gs, hf or https") from None
    if scheme == "s3":
        system.retries = 1
    return system


def _read_signed(url: str, offset: int, size: int, etag: str) -> bytes | None:
    """Read a range from S3 through a signed URL; None if that fails, so that s3fs finds out why.

    It takes 0.2 ms of processor time per read, s3fs 1.8 ms, and an image is decoded in 2 ms.
    """
    from http.client import HTTPException  # these modules take 30 ms to import
    from urllib.request import getproxies

    if getproxies():
        return None
    address = urlsplit(_signed(url, int(time.monotonic() / SIGNED_SECONDS)))
    connection = _connection(address.scheme, address.netloc)
    headers = {"Range": f"bytes={offset}-{offset + size - 1}", "If-Match": etag}
    try:
        connection.request("GET", f"{address.path}?{address.query}", headers=headers)
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, HTTPException):
        connection.close()
        return None
    return data if answer.status == 206 and len(data) == size else None


@lru_cache(1 << 12)
def _signed(url: str, _period: int) -> str:
    system, path = _opened(url)
    signed: str = attempt(url, partial(system.sign, path, expiration=2 * SIGNED_SECONDS))
    return signed


class _Connections(threading.local):
    """The connections of a thread, by scheme and host."""

    def __init__(self) -> None:
        self.each: dict[tuple[str, str], HTTPConnection] = {}


_connections = _Connections()


def _connection(scheme: str, host: str) -> HTTPConnection:
    """Return this thread's connection to a server."""
    if (scheme, host) not in _connections.each:
        _connections.each[scheme, host] = _connect(scheme, host)
    return _connections.each[scheme, host]


def _connect(scheme: str, host: str) -> HTTPConnection:
    from http.client import HTTPConnection, HTTPSConnection

    if scheme == "http":
        return HTTPConnection(host, timeout=SECONDS)
    import ssl

    from botocore.httpsession import where  # the certificates that s3fs trusts

    context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or where())
    return HTTPSConnection(host, timeout=SECONDS, context=context)


async def _get_from_s3(system: Any, path: str, offset: int, size: int, etag: str) -> bytes:
    """Read a range of the object that has this ETag. s3fs's cat_file cannot ask for one."""
    bucket, key, _ = system.split_path(path)
    span = f"bytes={offset}-{offset + size - 1}"
    answer = await system._call_s3("get_object", system.kwargs, Bucket=bucket, Key=key, Range=span, IfMatch=etag)
    async with answer["Body"] as body:
        data: bytes = await body.read()
    return data
