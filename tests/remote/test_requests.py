"""The requests for ranges and lists: their settings, their repetitions, and odd servers."""

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import ThreadingHTTPServer
from itertools import repeat
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from decodeonce import BuildError, Stopped, remote
from decodeonce.remote import ObjectFacts, read_object, stat_object
from decodeonce.sources import open_list, open_parquet, open_webdataset
from tests.command import prep
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg
from tests.remote.conftest import SECRET, Handler, Proxy, forget_server, serving

WHOLE = bytes(range(256)) * 4096  # 1 MB


@pytest.mark.parametrize("key", ["a b/ü+c%20#?&=.jpg", "a\\b{}~.jpg"])
def test_object_of_any_name_is_read(s3: Any, proxy: Proxy, key: str) -> None:
    s3.put_object(Bucket="images", Key=key, Body=WHOLE)
    assert remote.list_folder(f"s3://images/{key.rpartition('/')[0]}".rstrip("/")) == [(key.rpartition("/")[2], False)]
    proxy.requests.clear()
    facts = stat_object(f"s3://images/{key}")
    assert read_object(f"s3://images/{key}", facts, 5, 10) == WHOLE[5:15]
    assert [span for _, span in proxy.requests] == ["bytes=0-0", "bytes=5-14"]


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", ""])
def test_public_bucket_is_read_without_signature(
    s3: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    s3.put_object(Bucket="images", Key="a b.jpg", Body=WHOLE, ACL="public-read")
    if name:
        monkeypatch.delenv(name)
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    else:
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    facts = stat_object("s3://images/a b.jpg")
    assert read_object("s3://images/a b.jpg", facts, 5, 10) == WHOLE[5:15]
    assert proxy.signed[-2:] == [None, None]


def test_profile_and_region_of_a_bucket_are_used(
    tmp_path: Path, s3: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.create_bucket(Bucket="europe", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.put_object(Bucket="europe", Key="a.jpg", Body=WHOLE)
    key = {"Version": 1, "AccessKeyId": "AKIAPROFILE", "SecretAccessKey": SECRET, "SessionToken": "token"}
    (tmp_path / "key.json").write_text(json.dumps(key))
    profile = ("[profile lab]", f"endpoint_url = {proxy.url}", f"credential_process = cat {tmp_path}/key.json")
    (tmp_path / "config").write_text("\n".join(profile))
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert stat_object("s3://europe/a.jpg").size == len(WHOLE)
    assert re.search(r"Credential=AKIAPROFILE/[0-9]{8}/eu-west-1/s3/", str(proxy.signed[-1]))
    s3.delete_object(Bucket="europe", Key="a.jpg")
    s3.delete_bucket(Bucket="europe")


def test_list_goes_on_after_failures_and_has_no_markers_of_folders(
    s3: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("set/", "set/a/", "set/a/1.jpg", "set/a/b/", "set/a/b/c/2.jpg", "set/empty.jpg"):
        s3.put_object(Bucket="images", Key=key, Body=b"" if "." not in key or "empty" in key else b"1")
    stat_object("s3://images/set/empty.jpg")
    monkeypatch.setattr(remote, "PAUSES", ())
    proxy.answers = iter([503, 0, 429])
    found = {name: facts.size for name, facts in remote.list_objects("s3://images/set")}
    assert found == {"a/1.jpg": 1, "a/b/c/2.jpg": 1, "empty.jpg": 0}
    proxy.answers = iter([503, 0, 429])
    assert sorted(remote.list_folder("s3://images/set")) == [("a", True), ("empty.jpg", False)]


def test_wait_for_a_server_is_reported_once(tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_waits", Lock())
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    proxy.answers = repeat(503)
    done = prep("build", "webdataset", "s3://images/a.tar", tmp_path / "out")
    wait, stopped = done.stderr.splitlines()
    assert wait == "s3://images/a.tar: cannot be read at the moment; trying again for about 20 s"
    assert (done.returncode, stopped[:14]) == (75, "prep: stopped:")


class Web(Handler):
    """A web server that redirects /a to WHOLE and ignores ranges."""

    def do_GET(self) -> None:
        if self.path == "/a":
            self.answer(302, b"", Location="/b")
        else:
            self.answer(200, WHOLE, ETag='"1"')


PAGE = b'<a href="in.jpg">x</a> <a href="sub/">x</a> <a href="%2e%2e/out.jpg">x</a> <a href="%2e%2e/">x</a>'


class Odd(Handler):
    """Sends the bodies of /slow and /slow%20page/ a byte at a time, and redirects /loop to itself.

    It answers others with a page of links.
    """

    def do_GET(self) -> None:
        if self.path == "/loop":
            self.answer(302, b"", Location="/loop")
        elif self.path.startswith("/slow"):
            kind = "text/html" if "page" in self.path else "image/jpeg"
            self.answer(206, b"", Content_Length="100", Content_Range="bytes 0-99/101", ETag='"1"', Content_Type=kind)
            with suppress(ConnectionError):  # the client gives up
                for _ in range(100):
                    self.wfile.write(b"x")
                    time.sleep(0.05)  # the pace of a slow server, not a wait for an event
        else:
            self.answer(200, PAGE, Content_Type="text/html")


@pytest.mark.parametrize(
    ("path", "ask"),
    [
        ("/slow", lambda url: read_object(url, ObjectFacts(101, remote._version("1")), 0, 100)),
        ("/slow page", remote.list_folder),
    ],
)
def test_request_ends_at_its_deadline_however_many_bytes_arrive(
    monkeypatch: pytest.MonkeyPatch, path: str, ask: Callable[[str], object]
) -> None:
    monkeypatch.setattr(remote, "SECONDS", 0.5)
    monkeypatch.setattr(remote, "PAUSES", (0.0,))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Odd)) as address:
        before = time.monotonic()
        with pytest.raises(Stopped, match=rf"{path}: .*(TimedOut|TimeoutError).*, 2 times; the server may be down"):
            ask(f"{address}{path}")
        assert time.monotonic() - before < 4


def test_redirect_loop_is_an_error_that_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSES", (0.0,))
    message = r"/loop: HTTP error: error following redirect: TooManyRedirects; test the URL and your credentials with"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    with serving(server) as address, pytest.raises(BuildError, match=message):
        stat_object(f"{address}/loop")


def test_page_of_links_cannot_lead_out_of_the_folder() -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Odd)) as address:
        assert sorted(remote.list_folder(f"{address}/photos")) == [("in.jpg", False), ("sub", True)]
        assert remote.find_objects(f"{address}/photos", (".jpg",), deep=False) == [f"{address}/photos/in.jpg"]


def test_page_of_unclosed_tags_takes_no_quadratic_time() -> None:
    before = time.process_time()
    assert remote._LINK.findall("<a x" * 40_000 + '<a class="x" href="1.jpg">') == ["1.jpg"]
    assert time.process_time() - before < 1


def test_folder_of_a_web_server_that_links_to_itself_is_one_line() -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Odd)) as address:
        with pytest.raises(BuildError, match="folders nested more than 100 deep; the page of a folder may") as it:
            remote.find_objects(f"{address}/photos", (".jpg",), deep=True)
        assert len(str(it.value)) < 500


class Repeating(Handler):
    """An S3 server whose first of so many pages follows the last one; with 0, it has one page with all keys twice."""

    pages = 0

    def do_GET(self) -> None:
        page = int(parse_qs(urlsplit(self.path).query).get("continuation-token", "0")[0])
        item = "<Contents><Key>a/{}.jpg</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        item += '<ETag>"1"</ETag></Contents>'
        items = "".join(item.format(1000 * page + number) for number in range(1000)) * (1 if self.pages else 2)
        following = (page + 1) % max(self.pages, 1)
        next_page = f"<NextContinuationToken>{following}</NextContinuationToken>" * bool(self.pages)
        more = f"<IsTruncated>{str(self.pages > 0).lower()}</IsTruncated>{next_page}"
        body = f"<ListBucketResult><Name>images</Name>{more}{items}</ListBucketResult>".encode()
        self.answer(200, body, Content_Type="application/xml")


@pytest.mark.parametrize("pages", [0, pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("list_some", [lambda url: list(remote.list_objects(url)), remote.list_folder])
@pytest.mark.usefixtures("s3")
def test_key_that_is_listed_twice_is_an_error(
    monkeypatch: pytest.MonkeyPatch, pages: int, list_some: Callable[[str], object]
) -> None:
    monkeypatch.setattr(Repeating, "pages", pages)
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Repeating)) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        forget_server()
        with pytest.raises(
            BuildError, match=r"s3://images/a: the list has 'a/0\.jpg' twice, expected each object once"
        ):
            list_some("s3://images/a")
    forget_server()


def test_folder_is_listed_with_one_request_after_the_first(s3: Any, proxy: Proxy) -> None:
    for key in ("a/1/x.tar", "a/2/x.tar"):
        s3.put_object(Bucket="images", Key=key, Body=b"x")
    assert remote.find_objects("s3://images/a/*/*.tar", (".tar",), deep=False) == [
        "s3://images/a/1/x.tar",
        "s3://images/a/2/x.tar",
    ]
    lists = [path for path, _ in proxy.requests if "list-type" in path]
    assert len(lists) == 1 + 3  # a check of the bucket, and the folders a, a/1 and a/2


def test_server_that_ignores_ranges_sends_only_whole_objects() -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Web)) as address:
        for url in (f"{address}/b", f"{address}/a"):
            facts = stat_object(url)
            assert facts.size == len(WHOLE)
            with pytest.raises(BuildError, match=f"^{url}: the server ignores ranges, so it would send the whole obj"):
                read_object(url, facts, 100, 10)
            assert read_object(url, facts, 0, facts.size) == WHOLE


class Cloud(Handler):
    """Answers as a proxy for every host with an object of S3."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.answer(200, WHOLE, ETag='"1"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT")


def test_bucket_may_be_in_the_name_of_the_host(tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[default]\ns3 =\n  addressing_style = virtual\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://s3.example/base")
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Cloud)) as address:
        monkeypatch.setenv("http_proxy", address)
        assert stat_object("s3://images/a/b.jpg").size == len(WHOLE)
    assert Cloud.seen[-1] == "http://images.s3.example/base/a/b.jpg"


def test_first_answer_about_a_bucket_may_be_a_failure(s3: Any, proxy: Proxy) -> None:
    s3.create_bucket(Bucket="europe", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    proxy.answers = iter([503, 429])
    with pytest.raises(BuildError, match="no such object"):
        stat_object("s3://europe/a.jpg")
    assert "/eu-west-1/s3/" in str(proxy.signed[-1])
    s3.delete_bucket(Bucket="europe")


class Guarded(Handler):
    """Answers as a proxy for every host, and needs a password except for /open, where /moved leads."""

    def do_GET(self) -> None:
        host, path = self.path.removeprefix("http://").split("/", 1)
        self.seen.append((host, path, self.headers["Authorization"]))
        if path.startswith("moved"):
            self.answer(302, b"", Location=f"http://other.example/open{path.removeprefix('moved')}")
        elif self.headers["Authorization"] is None and not path.startswith("open"):
            self.answer(401, b"")
        else:
            self.answer(200, b'<a href="a%20b.jpg">x</a>', Content_Type="image/jpeg" if "." in path else "text/html")

    seen: ClassVar[list[tuple[str, str, str | None]]] = []


def test_web_server_is_read_through_a_proxy_with_the_password_of_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine images.example login me password hush\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    login = "Basic bWU6aHVzaA=="
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Guarded)) as address:
        monkeypatch.setenv("http_proxy", address)
        [name] = remote.find_objects("http://images.example/set", (".jpg",), deep=True)
        assert stat_object(name).size == 25
        assert stat_object("http://images.example/moved.jpg").size == 25
        assert remote.list_folder("http://images.example/moved") == [("a%20b.jpg", False)]
        with pytest.raises(BuildError, match=r"access denied \(401\)"):
            stat_object("http://other.example/a.jpg")
    assert ("images.example", "set/a%20b.jpg", login) in Guarded.seen
    assert {found for host, _, found in Guarded.seen if host == "other.example"} == {None}


def test_each_url_has_its_own_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote.QUERY, "")
    assert str(remote.source_path("https://host/a.tar?signature=hush")) == "https://host/a.tar"
    assert os.environ[remote.QUERY] == "https://host/a.tar signature=hush"
    assert str(remote.source_path("s3://bucket").parent / "other") == "s3://other"
    sources = ["https://host/train-{000..147}.tar?s=1", "https://host/labels.txt?s=2", "https://other/a.tar?s=3"]
    for source in [*sources, "https://other/a.tar?s=4"]:
        remote.source_text(source)
    urls = ["https://host/train-003.tar", "https://host/labels.txt", "https://other/b.tar", "https://third/a.tar"]
    assert [remote._query(url) for url in urls] == ["?s=1", "?s=2", "?s=4", ""]


def test_question_mark_is_a_wildcard_in_a_bucket(tmp_path: Path, s3: Any, proxy: Proxy) -> None:
    tar = write_tar(tmp_path / "a.tar", sample("0", jpeg(), cls=0))
    for key in ("a-1.tar", "a-2.tar", "a-10.tar"):
        s3.upload_file(str(tar), "images", key)
    source = open_webdataset(Path("s3://images/a-?.tar"))
    assert [entry.text for entry in source.scan().entries] == ["a-1.tar/0.jpg", "a-2.tar/0.jpg"]
    with pytest.raises(BuildError, match=r"^s3://images/none: no such object or bucket"):
        open_parquet(Path("s3://images/none"))


@pytest.mark.usefixtures("s3")
def test_paths_of_a_list_are_relative_to_a_url(tmp_path: Path, s3: Any) -> None:
    s3.put_object(Bucket="images", Key="set/cat/1.jpg", Body=jpeg())
    (tmp_path / "list.txt").write_text("./cat/1.jpg\n")
    source = open_list(tmp_path / "list.txt", root=Path("s3://images/set"))
    assert [(entry.text, entry.problem) for entry in source.scan().entries] == [("cat/1.jpg", "")]
    (tmp_path / "list.txt").write_text("../other/cat/1.jpg\n")
    with pytest.raises(BuildError, match=r"is not below s3://images/set"):
        list(open_list(tmp_path / "list.txt", root=Path("s3://images/set")).scan().entries)
    (tmp_path / "list.txt").write_text("picture\ncat/1.jpg\n")
    with pytest.raises(BuildError, match="no such file; if this line is a header, pass --image-column picture"):
        list(open_list(tmp_path / "list.txt", root=Path("s3://images/set")).scan().entries)
