"""Objects in stores and on web servers, found and read by ranges.

A `UrlPath` is the root of a source like any other `Path`. `stat_object` takes the place of os.stat: the version of an
object, a hash of its ETag, is what the mtime is of a file.

==================== ============================== ====================================================
URL                  reads and asks for facts with  lists with
==================== ============================== ====================================================
s3://                obstore; botocore finds the    obstore
                     endpoint, the region and the
                     credentials, also of a profile
gs://, az://         obstore                        obstore
http://, https://    obstore                        the links of a page, which often has no length, so that
                                                    obstore cannot read it: urllib
hf://                huggingface_hub, on fsspec     huggingface_hub
==================== ============================== ====================================================
"""

from __future__ import annotations

import logging
import netrc
import os
import random
import re
import sys
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from importlib import import_module
from itertools import chain, islice, pairwise
from pathlib import Path, PosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit

import xxhash

from decodeonce.errors import BuildError, Stopped
from decodeonce.formatting import quoted, without_secrets

# Seconds between attempts; each is made up to 50% longer at random. The first two are short, because the decoder would
# wait for them: at most 128 images are read ahead, which take 0.15 s to decode.
PAUSES = (0.0, 0.05, 1.0, 2.0, 4.0, 8.0)
RETRIES = 6  # of a request for a part of a list, before `attempt` lists all again
PAGE_OBJECTS = 1000  # the most that a server lists per request
CONNECTIONS = 64  # listings at once
MOST_LEVELS = 100  # of nested folders of a web server
SECONDS, STEP = 60, 1 << 26  # the longest that a request may take, and the bytes for which it may take as long again
SCHEMES = ("s3", "gs", "az", "hf", "http", "https")
PACKAGES = {"s3": "obstore botocore", "hf": "huggingface_hub"}  # others: obstore
# The commands that test the access to a URL; "" is the scheme of a local path. Others: curl -I
CHECKS = {
    "": "ls -l {}",
    "s3": "aws s3 ls {}",
    "gs": "gcloud storage ls {}",
    "az": "az account show",
    "hf": "hf auth whoami",
}
WEB = ("http", "https")
QUERY = "DECODEONCE_URL_QUERY"  # an environment variable with lines: a URL or pattern, a space, and its query
# The errors of libraries that are no OSError, by module. They exist once the library is imported.
PASSING = {
    "botocore.exceptions": "HTTPClientError ConnectionError",
    "httpx": "TransportError",
    "httpx2": "TransportError",
}
LASTING = {
    "botocore.exceptions": "BotoCoreError ClientError",
    "http.client": "InvalidURL",
    "httpx": "HTTPError",
    "httpx2": "HTTPError",
    "obstore.exceptions": "BaseError",
}
PASSING_STATUS = {408, 429, *range(500, 600)}
# In the errors of obstore, which have no attributes.
_STATUS = re.compile(r"status code: (\d{3})")
_PASSES = re.compile(r"HttpError \{\s+kind: (Connect|Timeout|Interrupted|Request),")
_CAUSE = re.compile(r'([^":]*\w)\W*$')
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LINK = re.compile(r"""<a\s[^<>]*?href\s*=\s*["']?([^"'\s>]+)""", re.IGNORECASE)
_WITHOUT_SLASH = re.compile(rf"^({'|'.join(SCHEMES)}):/(?!/)")  # what Path makes of a URL
_WILD = re.compile(r"[*?[]")
DOWNLOAD = "download it, then pass its path"
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
        """Return whether the URL is an object that can be read. A web server answers with a page for a folder."""
        try:
            stat_object(str(self))
            return scheme_of(str(self)) not in WEB or not self.is_dir()
        except BuildError:
            return False

    def is_dir(self) -> bool:
        """Return whether the URL is a folder that can be listed."""
        url = str(self)
        try:
            if scheme_of(url) in (*WEB, "hf"):
                list_folder(url)
                return True
            store, path = _opened(url)
            return attempt(url, lambda: next(store.list(path), None)) is not None
        except BuildError:
            return False


def is_url(text: str | Path) -> bool:
    """Return whether a text or a path is a URL; a `Path` of the standard library never is."""
    return isinstance(text, UrlPath) if isinstance(text, Path) else bool(scheme_of(text))


def as_path(text: str) -> Path:
    """Return the path of a file or a URL."""
    return UrlPath(text) if is_url(text) else Path(text)


def source_path(src: str | Path) -> Path:
    """Return the path of SRC, as `source_text` does."""
    return as_path(source_text(src))


def source_text(src: str | Path) -> str:
    """Return SRC without the query of a web address, which may be a secret that no store or message may contain.

    This process and its workers send the query to the same host. Raise BuildError if the address has a password.
    """
    text = _WITHOUT_SLASH.sub(r"\1://", str(src)) if isinstance(src, Path) else src
    text = text.removeprefix("file://")
    return _without_query(text) if scheme_of(text) in WEB else text


def _without_query(url: str) -> str:
    url, _, query = url.partition("?")
    check_url(url)
    if query:
        others = [line for line in os.environ.get(QUERY, "").splitlines() if line.partition(" ")[0] != url]
        os.environ[QUERY] = "\n".join([*others, f"{url} {query}"])
    return url


def absolute(path: Path) -> str:
    """Return the absolute path of a file; a URL is one already."""
    return str(path) if is_url(path) else os.path.abspath(path)


def check_url(url: str) -> None:
    """Raise BuildError if a word is a web address with a password or a query, which may be a secret."""
    if (cut := without_secrets(url, word=True)) != url:
        found = f"{cut}: the URL also has a password or a query, which would be recorded"
        raise BuildError(f"{found}; put the password into ~/.netrc, or download the file and pass its path")


def check_scheme(url: str, where: str = "") -> None:
    """Raise BuildError, starting with `where`, unless URLs of this scheme can be read."""
    if (found := scheme_of(url)) not in SCHEMES:
        expected = f"expected {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}, or the path of a local file"
        raise BuildError(f"{where}{found}://: unsupported scheme; {expected}")


class ObjectFacts(NamedTuple):
    """The size of an object in bytes, and its version as an int64 (0: unknown)."""

    size: int
    version: int


class MissingObject(BuildError):
    """There is no such object or bucket."""


def stat_object(url: str) -> ObjectFacts:
    """Ask for size and version; raise BuildError if the object is missing or may not be read, Stopped on failure."""
    return attempt(url, partial(_stat_in_hub if scheme_of(url) == "hf" else _stat, url))


def read_object(url: str, facts: ObjectFacts, offset: int, size: int) -> bytes:
    """Read a range of the object with this version; raise BuildError if it has changed."""
    if size == 0:
        return b""
    data = attempt(url, partial(_read_in_hub if scheme_of(url) == "hf" else _read, url, facts, offset, size))
    if len(data) != size:
        raise BuildError(f"{url}: {len(data)} bytes for a range of {size}; expected a server that answers ranges")
    return data


def _stat(url: str) -> ObjectFacts:
    store, path = _opened(url)
    try:
        return _facts(store.get(path, options={"range": (0, 1)}).meta)
    except known_errors() as error:
        if not re.search("status code: 416|RangeNotSupported|NotPartial|UnexpectedRange|CONTENT_RANGE", str(error)):
            raise
    return _facts(store.get(path).meta)  # an empty object, or a server that ignores ranges; its body is not read


def _read(url: str, facts: ObjectFacts, offset: int, size: int) -> bytes:
    store, path = _opened(url, size)
    # Servers that ignore ranges can still send whole objects.
    answer = store.get(path, options={} if size == facts.size else {"range": (offset, offset + size)})
    if _facts(answer.meta) != facts:
        raise changed(url)
    return bytes(answer.bytes())


def _facts(meta: Mapping[str, Any]) -> ObjectFacts:
    """Return the facts of an object that obstore found."""
    tag = (meta["e_tag"] or "").strip('"')  # Azure has quotes around it in answers, but not in lists
    modified = meta["last_modified"]  # 1970 if the server does not tell it
    return ObjectFacts(meta["size"], _version(tag or (modified.timestamp() and modified)))


def _version(found: object) -> int:
    return xxhash.xxh3_64_intdigest(str(found).encode()) >> 1 if found else 0


def _stat_in_hub(url: str) -> ObjectFacts:
    hub, path = _opened(url)
    found = hub.info(path)
    if found["type"] == "directory":
        raise MissingObject(f"{url}: a folder; expected a file that holds images")
    return ObjectFacts(found["size"], _version(found.get("blob_id")))


def _read_in_hub(url: str, facts: ObjectFacts, offset: int, size: int) -> bytes:
    _, path = _opened(url)
    utils: Any = import_module("huggingface_hub.utils")
    # HfFileSystem takes any range for the one it asked for.
    wanted = f"{offset}-{offset + size - 1}"
    headers = {**utils.build_hf_headers(), "Range": f"bytes={wanted}", "Accept-Encoding": "identity"}
    answer = utils.get_session().get(_hub_address(path), headers=headers, timeout=SECONDS * (1 + size // STEP))
    utils.hf_raise_for_status(answer)
    found = answer.headers.get("Content-Range", "none")
    if answer.status_code == 206 and not found.startswith(f"bytes {wanted}/"):
        raise BuildError(f"{url}: the server sent the range {found!r}, expected bytes {wanted}; {DOWNLOAD}")
    if _stat_in_hub(url) != facts:
        raise changed(url)
    data: bytes = answer.content
    return data


@lru_cache
def _hub_address(path: str) -> str:
    """Return the address of a file in the hub, for which HfFileSystem lists its folder."""
    address: str = _hub().url(path)
    return address


def list_folder(url: str) -> list[tuple[str, bool]]:
    """Return the names in a folder, and whether each is a folder; raise BuildError if it is missing."""
    return attempt(url, partial(_links if scheme_of(url) in WEB else _list, url))


def _list(url: str) -> list[tuple[str, bool]]:
    system, path = _opened(url, retries=RETRIES)
    if scheme_of(url) == "hf":
        found = [(item["name"], item["type"] == "directory") for item in system.ls(path, detail=True)]
    else:
        # obstore follows the pages of a folder by itself, so look once for repeated pages in the list of all objects.
        # Look at three, because two may name each other as the next one.
        if _host(url) not in _checked:
            deque(islice(_distinct(url, system.list(path)), 3 * PAGE_OBJECTS), 0)
            _checked.add(_host(url))
        listed = system.list_with_delimiter(path)
        found = [(name, True) for name in listed["common_prefixes"]]
        found += [(item["path"], False) for item in listed["objects"]]
        if path and not found:
            raise FileNotFoundError
    # An object whose name ends with a slash marks an empty folder; obstore lists it without the slash.
    return [(name.rpartition("/")[2], is_folder) for name, is_folder in found if name != path]


def list_objects(url: str) -> Iterator[tuple[str, ObjectFacts]]:
    """Yield the objects below a folder: their paths in it, and their facts. Most stores list 1,000 per request."""
    for inner, facts in _walk(url):
        yield inner, facts or stat_object(f"{url}/{inner}")


def _walk(url: str, level: int = 0) -> Iterator[tuple[str, ObjectFacts | None]]:
    """Yield the objects below a folder: their paths in it, and their facts if listing tells them."""
    if level > MOST_LEVELS:
        advice = "the page of a folder may link to the folder itself; download the images, then pass their folder"
        raise BuildError(f"{url[:200]}...: folders nested more than {MOST_LEVELS} deep; {advice}")
    if scheme_of(url) not in WEB:
        yield from attempt(url, partial(_list_below, url))
        return
    for name, is_folder in list_folder(url):
        if is_folder:
            yield from ((f"{name}/{below}", None) for below, _ in _walk(f"{url}/{name}", level + 1))
        else:
            yield name, None


def _list_below(url: str) -> list[tuple[str, ObjectFacts | None]]:
    system, path = _opened(url, retries=RETRIES)
    first = len(path) + 1 if path else 0
    if scheme_of(url) == "hf":
        found = system.find(path, detail=True).items()
        return [(name[first:], ObjectFacts(item["size"], _version(item.get("blob_id")))) for name, item in found]
    listed = list(_distinct(url, system.list(path)))
    if path and not listed:
        raise FileNotFoundError
    # The marker of a folder, see `_list`, is before the objects in the folder.
    markers = {
        one["path"] for one, two in pairwise(listed) if not one["size"] and two["path"].startswith(one["path"] + "/")
    }
    return [(item["path"][first:], _facts(item)) for item in listed if item["path"] not in {path, *markers}]


def _distinct(url: str, pages: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """Yield the objects of a list; raise BuildError if one comes again, because the list may then have no end."""
    found = set[str]()
    for item in chain.from_iterable(pages):
        if item["path"] in found:
            raise _repeats(url, f"the list has {item['path']!r} twice, expected each object once")
        found.add(item["path"])
        yield item


def _repeats(url: str, what: str) -> BuildError:
    advice = "the server may repeat its pages without end; report this to its administrator"
    return BuildError(f"{url}: {what}; {advice}")


_pages = dict[str, set[str]]()  # the pages before the next one of a list, by its URL


def _refuse_repeats(answer: Any, **_: object) -> None:
    """Raise BuildError if a page of a list leads back to one before it, for which huggingface_hub asks without end."""
    url = str(answer.request.url)
    read, following = _pages.pop(url, set()), answer.links.get("next", {}).get("url")
    read.add(url)
    if following in read:
        raise _repeats(url.partition("?")[0], "the list continues with a page that was read before")
    if following:
        _pages[following] = read


def find_objects(url: str, suffixes: tuple[str, ...], *, deep: bool) -> list[str]:
    """Return the URLs of the objects that a URL, a pattern with wildcards, or a folder names, sorted."""
    is_pattern = bool(_WILD.search(url))  # a web address has no query here
    if url.endswith(suffixes) and not is_pattern:
        return [url]
    if is_pattern:
        found = _matches(_host(url), url[len(_host(url)) + 1 :].split("/"))
    elif deep:
        found = (f"{url}/{inner}" for inner, _ in _walk(url))
    else:
        found = (f"{url}/{name}" for name, is_folder in list_folder(url) if not is_folder)
    return sorted((name for name in found if name.endswith(suffixes)), key=os.fsencode)


def _matches(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the URLs of the objects below a folder whose path matches these parts of a pattern."""
    part, *rest = parts
    if rest and not _WILD.search(part):
        yield from _matches(f"{folder}/{part}", rest)
        return
    with suppress(MissingObject):
        for name, is_folder in list_folder(folder):
            if is_folder == bool(rest) and fnmatchcase(name, part):
                yield from _matches(f"{folder}/{name}", rest) if rest else [f"{folder}/{name}"]


def _links(url: str) -> list[tuple[str, bool]]:
    """Return what the links on the page of a folder name in it, and whether each is a folder."""
    from html import unescape
    from urllib.request import Request, build_opener  # this imports ssl and http, which takes 10 ms

    deadline = time.monotonic() + SECONDS
    _opened(url)  # which refuses a malformed address
    request = Request(quote(f"{url}/{_query(url)}", SAFE))
    for name, value in _login(_host(url)).items():
        request.add_unredirected_header(name, value)
    with build_opener().open(request, timeout=SECONDS) as answer:
        if answer.headers.get_content_type() != "text/html":
            raise FileNotFoundError
        page = b""
        while piece := answer.read1():
            page += piece
            if time.monotonic() > deadline:
                raise TimeoutError("the server was too slow")
        folder = answer.url.partition("?")[0].rstrip("/") + "/"
    links = [urljoin(folder, unescape(link)) for link in _LINK.findall(page.decode(errors="replace"))]
    names = dict.fromkeys(link[len(folder) :] for link in links if link.startswith(folder) and "?" not in link)
    # A link may lead to a folder above, such as "%2e%2e".
    inside = [name for name in names if "/" not in name[:-1] and unquote(name).strip("/") not in ("", ".", "..")]
    return [(name.rstrip("/"), name.endswith("/")) for name in inside]


def attempt(url: str, function: Callable[[], Result]) -> Result:
    """Call a function that asks a server; repeat it with growing pauses if its error may pass.

    Raises:
        BuildError: The object is missing (`MissingObject`), may not be read or has changed.
        Stopped: The error did not pass.
    """
    started = time.monotonic()
    for pause in (*PAUSES, None):
        try:
            return function()
        except known_errors() as error:
            failed = _failure(url, error)
            # huggingface_hub has repeated most requests itself, with pauses.
            is_over = scheme_of(url) == "hf" and time.monotonic() - started > sum(PAUSES)
            if pause is None or is_over or isinstance(failed, BuildError):
                raise failed from None
        if pause > 1 and _waits.acquire(blocking=False):
            logging.getLogger("decodeonce").warning(
                "%s: cannot be read at the moment; trying again for about 20 s", url
            )
        time.sleep(pause * random.uniform(1.0, 1.5))
    raise AssertionError("unreachable")


def known_errors() -> tuple[type[BaseException], ...]:
    """Return the classes of errors that obstore and the other libraries raise."""
    return (OSError, ValueError, *_loaded({"http.client": "HTTPException"}), *_loaded(PASSING), *_loaded(LASTING))


class ChangedObject(BuildError):
    """The object is another one than was listed."""


def changed(url: str) -> ChangedObject:
    """Return the error for an object that is another one than was listed."""
    return ChangedObject(f"{url}: changed since the plan was made; restore the object, or remove OUT and build again")


def _failure(url: str, error: BaseException) -> BuildError | Stopped:
    status, again, debug = _status(error), "run the same command again", str(error)
    check = CHECKS.get(scheme_of(url), "curl -I {}").format(quoted(url))
    if status == 404:
        return MissingObject(f"{url}: no such object or bucket; look for it with `{check}`, then {again}")
    if status in (401, 403):
        return BuildError(f"{url}: access denied ({status}); test your credentials with `{check}`, then {again}")
    if status == 416 or "UnexpectedRange" in debug:
        return changed(url)
    if re.search("RangeNotSupported|NotPartial", debug):
        return BuildError(f"{url}: the server ignores ranges, so it would send the whole object; {DOWNLOAD}")
    if "MissingContentLength" in debug:
        return BuildError(f"{url}: the server does not tell its size; {DOWNLOAD}")
    found = f"{type(error).__name__}: {debug}"
    if isinstance(error, _loaded({"obstore.exceptions": "BaseError"})):  # its last words name the cause
        first, *details = debug.split("\n\n")
        words = [match[1].strip() for match in map(_CAUSE.search, "".join(details).splitlines()) if match]
        found = ": ".join([first.rpartition(" - ")[2], *words[-1:]])
    text = f"HTTP status {status}" if status else without_secrets(" ".join(found.split()))[:200].rstrip(".")
    passes = status in PASSING_STATUS or isinstance(error, _loaded(PASSING)) or _PASSES.search(debug)
    lasting = isinstance(error, (ValueError, *_loaded(LASTING))) and not passes  # the former: a malformed URL
    if (status and not passes) or lasting or re.search("CERTIFICATE_VERIFY_FAILED|InvalidCertificate", debug):
        return BuildError(f"{url}: {text}; test the URL and your credentials with `{check}`, then {again}")
    times = "several" if scheme_of(url) == "hf" else len(PAUSES) + 1
    return Stopped(f"{url}: {text}, {times} times; the server may be down or its address wrong; {again}")


def _status(error: BaseException) -> int:
    """Return the HTTP status of an error; 0 if there is none."""
    answer = getattr(error, "response", None)  # of botocore, and of huggingface_hub
    found = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(answer, dict) else None
    found = found or getattr(answer, "status_code", None) or getattr(error, "code", None)  # the latter: urllib
    if isinstance(found, int):
        return found
    if match := _STATUS.search(str(error)):
        return int(match[1])
    if error.__cause__ and (status := _status(error.__cause__)):
        return status
    return 404 if isinstance(error, FileNotFoundError) else 403 if isinstance(error, PermissionError) else 0


def _loaded(names: dict[str, str]) -> tuple[type[BaseException], ...]:
    every = ((module, name) for module, some in names.items() for name in some.split())
    found = (getattr(sys.modules.get(module), name, None) for module, name in every)
    return tuple(cls for cls in found if cls is not None)


def scheme_of(url: str) -> str:
    """Return the scheme of a URL; "" for other texts."""
    match = _URL.match(url)
    return match[1] if match else ""


def _host(url: str) -> str:
    """Return a URL up to its host or bucket, or "" for a local path; raise BuildError if it names none."""
    host = "/".join(url.split("/", 3)[:3]) if scheme_of(url) else ""
    if host.endswith("://") and scheme_of(url) in SCHEMES:
        raise BuildError(f"{url}: names no host or bucket; expected a URL such as {host}NAME/...")
    return host


def _query(url: str) -> str:
    """Return the query, with its "?", that was given for the host of a web address, or for the URL most like it."""
    host, given = _host(url), (line.partition(" ") for line in os.environ.get(QUERY, "").splitlines())
    here = ((_alike(to, url), query) for to, _, query in given if _host(to) == host)
    _, query = max(here, default=(0, ""))
    return f"?{query}" if query else ""


def _alike(one: str, other: str) -> int:
    """Return with how many equal characters two texts begin."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _login(host: str) -> dict[str, str]:
    """Return the header with the password for a host in ~/.netrc, if there is one."""
    with suppress(OSError, netrc.NetrcParseError):
        if found := netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(host).hostname or ""):
            return {"Authorization": f"Basic {b64encode(f'{found[0]}:{found[2]}'.encode()).decode()}"}
    return {}


_opening = threading.Lock()
_checked = set[str]()  # the hosts whose lists repeat no pages
_waits = threading.Lock()  # taken by the first message about waiting; workers print none


def take_over(query: str) -> None:
    """Read objects for another process, which has this value of `QUERY`, and reports that it waits for a server."""
    _waits.acquire(blocking=False)
    os.environ[QUERY] = query


@contextmanager
def _requiring(scheme: str) -> Iterator[None]:
    """Turn an ImportError into a BuildError that names the packages to install."""
    try:
        yield
    except ImportError:
        packages = PACKAGES.get(scheme, "obstore")
        raise BuildError(f"reading {scheme}:// requires {packages}; run: pip install {packages}") from None


def _opened(url: str, size: int = 0, retries: int = 0) -> tuple[Any, str]:
    """Return what reads a URL, for a request of this many bytes, and the path in it: a store of obstore, or the hub."""
    host, scheme = _host(url), scheme_of(url)
    if scheme == "hf":
        hub = _hub()
        session: Any = import_module("huggingface_hub.utils").get_session()  # another one after a fork or a failure
        hooks = getattr(session, "event_hooks", None) or session.hooks  # the latter before huggingface_hub 1.0
        if _refuse_repeats not in hooks["response"]:
            hooks["response"].append(_refuse_repeats)
        return hub, url.removeprefix("hf://")
    path = url[len(host) :].lstrip("/")
    with _opening:
        query, path = (_query(url), unquote(path)) if scheme in WEB else ("", path)
        return _store(host, query, SECONDS * (1 + size // STEP), retries), path


@lru_cache
def _hub() -> Any:
    """Return the file system of the Hugging Face Hub."""
    with _requiring("hf"):
        from huggingface_hub import HfFileSystem

        return HfFileSystem(skip_instance_cache=True, use_listings_cache=False)


@lru_cache
def _store(host: str, query: str, seconds: float, retries: int) -> Any:
    """Return the store of a bucket, a web server, or local files, whose requests may take so many seconds."""
    scheme, _, bucket = host.partition("://")
    if scheme:
        check_scheme(host)
    client: dict[str, Any] = {"allow_http": True, "timeout": f"{round(seconds * 1000)} ms", "user_agent": "decodeonce"}
    options: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": retries}}
    with _requiring(scheme):
        from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, S3Store

        if scheme in WEB:
            client["default_headers"] = _login(host)
            return HTTPStore(host + query, **options)
        if scheme == "s3":
            settings, trusted = _s3_settings(bucket)
            client |= {"root_certificate": Path(trusted).read_bytes()} if trusted else {}
            return S3Store(bucket, **settings, **options)
        return {"gs": GCSStore, "az": AzureStore}[scheme](bucket, **options) if scheme else LocalStore("/")


@lru_cache
def _s3_settings(bucket: str) -> tuple[dict[str, Any], str | None]:
    """Return the settings of a bucket as the AWS tools see it, and the file of the certificates that they trust.

    obstore reads environment variables only: it knows neither profiles nor their endpoints, and finds no region.
    """
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import ClientError
    from botocore.session import get_session

    session = get_session()
    known = session.get_credentials()
    signing = None if known else UNSIGNED  # the bucket may be public
    client = session.create_client("s3", config=Config(retries={"total_max_attempts": 1}, signature_version=signing))
    try:
        found = client.head_bucket(Bucket=bucket)
    except ClientError as error:
        if _status(error) in PASSING_STATUS:
            raise
        found = error.response  # which has the region, too
    region = found["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region") or client.meta.region_name
    client = session.create_client("s3", region_name=region, config=Config(signature_version=UNSIGNED))
    address = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a"}).removesuffix("/a")
    address = address.replace("s3.amazonaws.com", f"s3.{region}.amazonaws.com")  # the former may redirect
    endpoint = address.removesuffix(f"/{bucket}")  # otherwise the bucket is in the name of the host

    def credentials() -> dict[str, Any]:
        found = known.get_frozen_credentials()  # renews them before they expire
        facts = {"access_key_id": found.access_key, "secret_access_key": found.secret_key, "token": found.token}
        return {**facts, "expires_at": datetime.now(UTC) + timedelta(minutes=5)}

    settings = {"aws_endpoint_url_s3": endpoint, "virtual_hosted_style_request": endpoint == address, "region": region}
    settings |= {"credential_provider": credentials} if known else {"skip_signature": True}
    return settings, session.get_config_variable("ca_bundle")
