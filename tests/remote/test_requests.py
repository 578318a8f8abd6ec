"""The requests for ranges: their signatures, their repetitions, and servers that need fsspec."""

import json
import os
import sys
import time
from contextlib import suppress
from http.server import ThreadingHTTPServer
from itertools import repeat
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from decodeonce import BuildError, Stopped, remote
from decodeonce.remote import ObjectFacts, read_object, stat_object
from decodeonce.sources import open_list, open_parquet, open_webdataset
from tests.command import prep, run
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg
from tests.remote.conftest import Handler, Proxy, serving

WHOLE = bytes(range(256)) * 4096  # 1 MB


@pytest.mark.parametrize(("key", "token"), [("a b/ü+c%20#?&=.jpg", "a/token+=="), ("a//./~b.jpg", "")])
@pytest.mark.usefixtures("proxy")
def test_signature_is_that_of_s3fs(monkeypatch: pytest.MonkeyPatch, key: str, token: str) -> None:
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    found, wanted = "a&X-Amz-Date=1", "a&X-Amz-Date=2"
    while found.partition("Date=")[2][:16] != wanted.partition("Date=")[2][:16]:  # signed in another second
        signer = remote._new_signer("s3://images")
        assert signer is not None
        found = signer.origin + signer.sign(key)
        wanted = remote._file_system("s3").sign(f"images/{key}", expiration=remote.SIGNED_SECONDS)
    assert found == wanted


def test_public_bucket_is_read_without_signature(s3: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put_object(Bucket="images", Key="a b.jpg", Body=WHOLE, ACL="public-read")
    monkeypatch.setenv("FSSPEC_S3_ANON", "true")
    import fsspec.config

    monkeypatch.setitem(fsspec.config.conf, "s3", {"anon": True})
    facts = stat_object("s3://images/a b.jpg")
    assert read_object("s3://images/a b.jpg", facts, 5, 10) == WHOLE[5:15]
    assert {path for path, _ in proxy.requests} == {"/images/a%20b.jpg"}


def test_other_process_reads_without_s3fs(s3: Any, proxy: Proxy) -> None:
    s3.put_object(Bucket="images", Key="a.jpg", Body=WHOLE)
    facts = stat_object("s3://images/a.jpg")
    code = (
        "import json, sys; from decodeonce.remote import ObjectFacts, read_object, share;"
        "share(json.loads(sys.argv[1]));"
        f"data = read_object('s3://images/a.jpg', ObjectFacts(*{tuple(facts)}), 5, 10);"
        "print(data.hex(), sorted({'s3fs', 'fsspec', 'botocore'} & sys.modules.keys()))"
    )
    assert run(sys.executable, "-c", code, json.dumps(remote.shared())) == f"{WHOLE[5:15].hex()} []\n"


def test_expired_signature_is_renewed(s3: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put_object(Bucket="images", Key="a.jpg", Body=WHOLE)
    facts = stat_object("s3://images/a.jpg")
    first = remote._signers["s3://images"]
    assert first is not None
    remote._signers["s3://images"] = first._replace(made=first.made - 2 * remote.RENEWED_SECONDS)
    proxy.answers = iter([403])
    proxy.requests.clear()
    assert read_object("s3://images/a.jpg", facts, 5, 10) == WHOLE[5:15]
    assert [span for path, span in proxy.requests if "Signature=" in path] == ["bytes=5-14"]


def test_other_objects_are_read_without_s3fs_after_an_empty_one(s3: Any, proxy: Proxy) -> None:
    s3.put_object(Bucket="images", Key="empty.jpg", Body=b"")
    s3.put_object(Bucket="images", Key="a.jpg", Body=WHOLE)
    assert stat_object("s3://images/empty.jpg").size == 0
    proxy.requests.clear()
    facts = stat_object("s3://images/a.jpg")
    assert read_object("s3://images/a.jpg", facts, 5, 10) == WHOLE[5:15]
    assert ["Signature=" in path for path, _ in proxy.requests] == [True, True]


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
    """Sends the body of /slow a byte at a time, redirects /loop to itself, and answers others with a page of links."""

    def do_GET(self) -> None:
        if self.path == "/loop":
            self.answer(302, b"", Location="/loop")
        elif self.path == "/slow":
            self.answer(206, b"", Content_Length="100", Content_Range="bytes 0-99/100", ETag='"1"')
            with suppress(ConnectionError):  # the client gives up
                for _ in range(100):
                    self.wfile.write(b"x")
                    time.sleep(0.05)  # the pace of a slow server, not a wait for an event
        else:
            self.answer(200, PAGE, Content_Type="text/html")


def test_request_ends_at_its_deadline_however_many_bytes_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SECONDS", 0.5)
    monkeypatch.setattr(remote, "PAUSES", (0.0,))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Odd)) as address:
        before = time.monotonic()
        with pytest.raises(Stopped, match=r"/slow: TimeoutError: .*, 2 times; the server may be down"):
            read_object(f"{address}/slow", ObjectFacts(100, remote._version({"ETag": '"1"'})), 0, 100)
        assert time.monotonic() - before < 4


def test_redirect_loop_is_an_error_that_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSES", (0.0,))
    message = r"/loop: TooManyRedirects: .*; test the URL and your credentials with"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    with serving(server) as address, pytest.raises(BuildError, match=message):
        stat_object(f"{address}/loop")


def test_page_of_links_cannot_lead_out_of_the_folder() -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Odd)) as address:
        assert sorted(remote.list_folder(f"{address}/photos")) == [("in.jpg", False), ("sub", True)]
        assert remote.find_objects(f"{address}/photos", (".jpg",), deep=False) == [f"{address}/photos/in.jpg"]


def test_server_that_ignores_ranges_sends_only_whole_objects() -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Web)) as address:
        for url in (f"{address}/b", f"{address}/a"):
            facts = stat_object(url)
            assert facts.size == len(WHOLE)
            with pytest.raises(BuildError, match=f"^{url}: the server ignores ranges, so it would send the whole obj"):
                read_object(url, facts, 100, 10)
            assert read_object(url, facts, 0, facts.size) == WHOLE
    remote._refused.clear()


def test_each_url_has_its_own_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote.QUERY, "")
    assert str(remote.source_path("https://host/a.tar?signature=hush")) == "https://host/a.tar"
    assert os.environ[remote.QUERY] == "https://host/a.tar signature=hush"
    assert str(remote.source_path("s3://bucket").parent / "other") == "s3://other"
    sources = ["https://host/train-{000..147}.tar?s=1", "https://host/labels.txt?s=2", "https://other/a.tar?s=3"]
    for source in [*sources, "https://other/a.tar?s=4"]:
        remote.source_text(source)
    urls = ["https://host/train-003.tar", "https://host/labels.txt", "https://other/b.tar", "https://third/a.tar"]
    assert [remote._address(url).partition("?")[2] for url in urls] == ["s=1", "s=2", "s=4", ""]


def test_question_mark_is_a_wildcard_in_a_bucket(tmp_path: Path, s3: Any, proxy: Proxy) -> None:
    tar = write_tar(tmp_path / "a.tar", sample("0", jpeg(), cls=0))
    for key in ("a-1.tar", "a-2.tar", "a-10.tar"):
        s3.upload_file(str(tar), "images", key)
    source = open_webdataset(Path("s3://images/a-?.tar"))
    assert [entry.text for entry in source.entries()] == ["a-1.tar/0.jpg", "a-2.tar/0.jpg"]
    with pytest.raises(BuildError, match=r"^s3://images/none: no such object or bucket"):
        open_parquet(Path("s3://images/none"))


@pytest.mark.usefixtures("s3")
def test_paths_of_a_list_are_relative_to_a_url(tmp_path: Path, s3: Any) -> None:
    s3.put_object(Bucket="images", Key="set/cat/1.jpg", Body=jpeg())
    (tmp_path / "list.txt").write_text("./cat/1.jpg\n")
    source = open_list(tmp_path / "list.txt", root=Path("s3://images/set"))
    assert [(entry.text, entry.problem) for entry in source.entries()] == [("cat/1.jpg", "")]
    (tmp_path / "list.txt").write_text("../other/cat/1.jpg\n")
    with pytest.raises(BuildError, match=r"is not below s3://images/set"):
        list(open_list(tmp_path / "list.txt", root=Path("s3://images/set")).entries())
