"""Objects in stores and on web servers, found and read by ranges through fsspec.

A `UrlPath` is the root of a source like any other `Path`. `stat_object` takes the place of os.stat: the version of an
object, a hash of its ETag, is what the mtime is of a file. Ranges are read with http.client where that is possible, and
through fsspec otherwise, which also finds out what is wrong.
"""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import xxhash

from decodeonce.errors import BuildError, Stopped

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPMessage

PAUSES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between attempts; each is made up to 50% longer at random
CONNECTIONS = 64  # per process; s3fs opens 10 by default
SECONDS, SECONDS_PER_BYTE = 60.0, 1e-6  # the longest that a request may take
SIGNED_SECONDS = 1800  # a signed URL is used this long, and is valid twice as long
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp"}
CHECKS = {"s3": "aws s3 ls {}", "gs": "gcloud storage ls {}", "hf": "hf auth whoami"}  # others: curl -I
WEB = ("http", "https")
QUERY = "DECODEONCE_URL_QUERY"  # an environment variable: a host, a space, and the query for it; also for workers
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
_WITHOUT_SLASH = re.compile(rf"^({'|'.join(PACKAGES)}):/(?!/)")  # what Path makes of a URL
_SECRET = re.compile(r"(https?://)(?:[^/@\s]*@)?([^\s?]*)(?:\?\S*)?", re.IGNORECASE)
SAFE = "%/:=&?~#+!$,;'@()*[]"  # characters of a web address that stay as they are
Result = TypeVar("Result")


class UrlPath(PosixPath):
    """A URL as a path, whose text keeps the two slashes after the scheme."""

    def __str__(self) -> str:
        scheme, _, rest = super().__str__().partition(":")
        return f"{scheme}://{rest.lstrip('/')}"

    def absolute(self) -> UrlPath:
        """Return the path itself: a URL is absolute."""
        return self

    def is_file(self) -> bool:
        """Return whether the URL is an object that can be read."""
        return _kind(str(self)) == "file"

    def is_dir(self) -> bool:
        """Return whether the URL is a folder that can be listed."""
        return _kind(str(self)) == "directory"


def is_url(text: str | Path) -> bool:
    """Return whether a text or a path is a URL; a `Path` of the standard library never is."""
    return isinstance(text, UrlPath) if isinstance(text, Path) else bool(_scheme(text))


def as_path(text: str) -> Path:
    """Return the path of a file or a URL."""
    return UrlPath(text) if is_url(text) else Path(text)


def source_path(src: str | Path) -> Path:
    """Return the path of SRC, as `source_text` does."""
    return as_path(source_text(_WITHOUT_SLASH.sub(r"\1://", str(src)) if isinstance(src, Path) else src))


def source_text(src: str) -> str:
    """Return SRC without the query of a web address, which may be a secret that no store or message may contain.

    This process and its workers send the query to the same host. Raise BuildError if the address has a password.
    """
    src = src.removeprefix("file://")
    if _scheme(src) in WEB:
        src, _, query = src.partition("?")
        check_url(src)
        if query:
            os.environ[QUERY] = f"{urlsplit(src).netloc} {query}"
    return src


def absolute(path: Path) -> str:
    """Return the absolute path of a file; a URL is one already."""
    return str(path) if is_url(path) else os.path.abspath(path)


def without_secrets(text: str) -> str:
    """Return a text without the passwords and queries of the web addresses in it."""
    return _SECRET.sub(r"\1\2", text)


def check_url(url: str) -> None:
    """Raise BuildError if a text is a web address with a password or a query, which may be a secret."""
    if (cut := without_secrets(url)) != url:
        found = f"{cut}: the URL also has a password or a query, which would be recorded"
        raise BuildError(f"{found}; put the password into ~/.netrc, or download the file and pass its path")


class ObjectFacts(NamedTuple):
    """The size of an object in bytes, and its version as an int64 (0: unknown)."""

    size: int
    version: int


class MissingObject(BuildError):
    """There is no such object or bucket."""


def stat_object(url: str) -> ObjectFacts:
    """Ask for size and version; raise BuildError if the object is missing or may not be read, Stopped on failure."""
    if found := _get(url, 0, 1):
        return found[1]
    system, path = _opened(url)
    facts = attempt(url, partial(system.info, path))
    if facts.get("type") == "directory":
        raise MissingObject(f"{url}: a folder; expected a file that holds images")
    if facts.get("size") is None:
        raise BuildError(f"{url}: the server does not tell its size; download it, then pass its path")
    return ObjectFacts(int(facts["size"]), _version(facts))


def read_object(url: str, facts: ObjectFacts, offset: int, size: int) -> bytes:
    """Read a range of the object with this version; raise BuildError if it has changed."""
    if size == 0:
        return b""
    found = _get(url, offset, size)
    if found is None:
        system, path = _opened(url)
        seconds = {"timeout": SECONDS + size * SECONDS_PER_BYTE} if system.async_impl else {}
        read = partial(system.cat_file, path, start=offset, end=offset + size, **seconds)
        found = attempt(url, read), stat_object(url)
    data, now = found
    if now != facts:
        raise changed(url)
    if len(data) != size:
        raise BuildError(f"{url}: {len(data)} bytes for a range of {size}; expected a server that answers ranges")
    return data


def list_folder(url: str) -> list[tuple[str, bool]]:
    """Return the names in a folder, and whether each is a folder; raise BuildError if it is missing."""
    system, path = _opened(url)
    listed = attempt(url, partial(system.ls, path, detail=True))
    found = [(item["name"], item["type"] == "directory") for item in listed]
    # An object whose name ends with a slash marks an empty folder.
    return [(name.rstrip("/").rpartition("/")[2], folder) for name, folder in found if folder or name[-1] != "/"]


def list_objects(url: str) -> Iterator[tuple[str, ObjectFacts]]:
    """Yield the objects below a folder: their paths in it, and their facts. Most stores list 1,000 per request."""
    system, path = _opened(url)
    for name, facts in attempt(url, partial(system.find, path, detail=True)).items():
        if (inner := name[len(path) + 1 :]) and inner[-1] != "/":
            known = facts.get("size") is not None
            yield inner, ObjectFacts(facts["size"], _version(facts)) if known else stat_object(f"{url}/{inner}")


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
            attempt(url, partial(system.info, path))
    found = [name if is_url(name) else f"{_scheme(url)}://{name.lstrip('/')}" for name in names]
    for name in found:
        check_url(name)  # a page of links may repeat the query of its own address
    return sorted((name for name in found if name.endswith(suffixes)), key=os.fsencode)


def attempt(url: str, function: Callable[[], Result]) -> Result:
    """Call a function of fsspec; repeat it with growing pauses if its error may pass.

    Raises:
        BuildError: The object is missing (`MissingObject`), may not be read or has changed.
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


class ChangedObject(BuildError):
    """The object is another one than was listed."""


def changed(url: str) -> ChangedObject:
    """Return the error for an object that is another one than was listed."""
    return ChangedObject(f"{url}: changed since the plan was made; restore the object, or remove OUT and build again")


def _failure(url: str, error: BaseException) -> BuildError | Stopped:
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, known_errors()):
        error = error.__cause__  # fsspec says that a file is missing if its web server is
    status, again = _status(error), "run the same command again"
    check = CHECKS.get(_scheme(url), "curl -I {}").format(url)
    if status == 404:
        return MissingObject(f"{url}: no such object or bucket; look for it with `{check}`, then {again}")
    if status in (401, 403):
        return BuildError(f"{url}: access denied ({status}); test your credentials with `{check}`, then {again}")
    if status in (412, 416):
        return changed(url)
    found = without_secrets(" ".join(f"{type(error).__name__}: {error}".split()))
    text = f"HTTP status {status}" if status else found[:200]
    lasting = isinstance(error, _loaded(LASTING)) and not isinstance(error, _loaded(PASSING))
    if status not in PASSING_STATUS and (status or lasting or "CERTIFICATE_VERIFY_FAILED" in found):
        return BuildError(f"{url}: {text}; test the URL and your credentials with `{check}`, then {again}")
    return Stopped(f"{url}: {text}, {len(PAUSES) + 1} times; the server may be down or its address wrong; {again}")


def _status(error: BaseException) -> int:
    """Return the HTTP status of an error or of what caused it; 0 if there is none."""
    cause: BaseException | None = error
    while cause is not None:
        answer = getattr(cause, "response", None)
        found = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(answer, dict) else None
        found = found or getattr(answer, "status_code", None) or getattr(cause, "status", None)
        found = found or getattr(cause, "code", None)  # gcsfs
        if isinstance(found, int):
            return found
        cause = cause.__cause__
    return 404 if isinstance(error, FileNotFoundError) else 403 if isinstance(error, PermissionError) else 0


def _loaded(names: dict[str, str]) -> tuple[type[BaseException], ...]:
    every = ((module, name) for module, some in names.items() for name in some.split())
    found = (getattr(sys.modules.get(module), name, None) for module, name in every)
    return tuple(cls for cls in found if cls is not None)


def _scheme(url: str) -> str:
    """Return the scheme of a URL; "" for other texts."""
    match = _URL.match(url)
    return match[1] if match else ""


def _kind(url: str) -> str:
    """Return "file" or "directory", or "" if a URL names nothing that can be read."""
    try:
        system, path = _opened(url)
        found = attempt(url, partial(system.info, path)) if urlsplit(url).netloc else {"type": ""}
        # A web server answers with a page of links for a folder.
        return "directory" if found.get("mimetype") == "text/html" else str(found["type"])
    except BuildError:
        return ""


def _version(facts: Mapping[str, Any] | HTTPMessage) -> int:
    found = next((str(found) for key in VERSION_KEYS if (found := facts.get(key))), "")
    return xxhash.xxh3_64_intdigest(found.encode()) >> 1 if found else 0


def _address(url: str) -> str:
    """Return a web address with the query for its host."""
    host, _, query = os.environ.get(QUERY, "").partition(" ")
    return f"{url}?{query}" if query and urlsplit(url).netloc == host else url


def _opened(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it."""
    system = _file_system(_scheme(url))
    return system, system._strip_protocol(_address(url))


@lru_cache
def _file_system(scheme: str) -> Any:
    """Return fsspec's file system for a scheme; raise BuildError if a package is missing."""
    try:
        import fsspec
    except ImportError:
        packages = " ".join(filter(None, ("fsspec", PACKAGES.get(scheme))))
        raise BuildError(f"reading {scheme}:// requires fsspec; run: pip install {packages}") from None
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "s3":
        own = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        # botocore's own attempts and pauses would multiply with those of `attempt`.
        # AWS refuses signatures of version 2, which botocore makes in some regions, for buckets created since 2020.
        ours = {"max_pool_connections": CONNECTIONS, "retries": {"total_max_attempts": 1}, "signature_version": "s3v4"}
        options["config_kwargs"] = {**ours, **own}
    elif scheme in WEB:
        options["client_kwargs"] = {"trust_env": True}  # proxies, and passwords in ~/.netrc
    try:
        system = fsspec.filesystem(scheme, skip_instance_cache=True, **options)
    except ImportError:
        packages = PACKAGES.get(scheme, f"the package of fsspec for {scheme}")
        raise BuildError(f"reading {scheme}:// requires {packages}; run: pip install {packages}") from None
    except (TypeError, ValueError):
        raise BuildError(f"{scheme}://: unknown to fsspec; expected s3, gs, hf or https") from None
    if scheme == "s3":
        system.retries = 1
    return system


def _get(url: str, offset: int, size: int) -> tuple[bytes, ObjectFacts] | None:
    """Read a range of an object with http.client, and its facts; None if that is not possible or fails.

    It takes 0.1 ms of processor time per read, s3fs 1.8 ms, and an image is decoded in 2 ms.
    """
    from http.client import HTTPException  # this module takes 30 ms to import

    if (scheme := _scheme(url)) not in ("s3", *WEB) or _has_proxy():
        return None
    signed = scheme == "s3"
    text = _signed(url, int(time.monotonic() / SIGNED_SECONDS)) if signed else quote(_address(url), SAFE)
    address = urlsplit(text)
    connection = _connection(address.scheme, address.netloc)
    try:
        target = address._replace(scheme="", netloc="", fragment="").geturl()
        connection.request("GET", target, headers={"Range": f"bytes={offset}-{offset + size - 1}"})
        answer = connection.getresponse()
        data = answer.read() if answer.status == 206 else b""
    except (OSError, HTTPException):
        data = b""
    span, _, total = (answer.headers.get("Content-Range", "") if data else "").rpartition("/")
    if len(data) != size or not span.startswith(f"bytes {offset}-") or not total.isdigit():
        connection.close()
        return None
    return data, ObjectFacts(int(total), _version(answer.headers))


@lru_cache
def _has_proxy() -> bool:
    from urllib.request import getproxies

    return not getproxies().keys() <= {"no"}


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

    # botocore is imported if the URL is one of S3; s3fs trusts its certificates.
    botocore = sys.modules.get("botocore.httpsession")
    trusted = os.environ.get("AWS_CA_BUNDLE") or botocore.where() if botocore else None
    return HTTPSConnection(host, timeout=SECONDS, context=ssl.create_default_context(cafile=trusted))
