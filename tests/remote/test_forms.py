"""Every form of a source in an object store: trees, lists, archives and tables."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.sources import open_source
from decodeonce.sources import Source, open_folder, open_imagenet, open_list
from tests.command import assert_fails, prep, printed
from tests.forms import folder, imagenet, listed, parquet, webdataset
from tests.forms.all_forms import PICS, PLAIN_FORMS
from tests.forms.folder import write_folder
from tests.images import tree_bytes
from tests.remote.conftest import Handler, Proxy, serving

OPENERS = [
    (imagenet, "open_imagenet"),
    (listed, "open_list"),
    (webdataset, "open_webdataset"),
    (parquet, "open_parquet"),
]
FLAGS = ("--size", 16, "--workers", 1)
UNMARKED = ("imagenet-val-kaggle", "list-tsv", "webdataset-gzip")


def upload(s3: Any, root: Path) -> None:
    """Put the files below `root` into the bucket. Absolute paths in lists become URLs."""
    for path in root.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".tsv":
                data = data.replace(os.fsencode(root), b"s3://images")
            s3.put_object(Bucket="images", Key=str(path.relative_to(root)), Body=data)


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=() if form in UNMARKED else pytest.mark.long) for form in PLAIN_FORMS]
)
def test_source_at_url_equals_local_one(tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    calls: list[Callable[[], Source]] = []

    def url(value: object) -> Any:
        text = os.fspath(value) if isinstance(value, str | Path) else ""
        return text.replace(str(tmp_path), "s3://images") if text.startswith(str(tmp_path)) else value

    def noting(opener: Callable[..., Source]) -> Callable[..., Source]:
        def opened(src: object, **options: object) -> Source:
            calls.append(lambda: opener(url(src), **{name: url(value) for name, value in options.items()}))
            return opener(src, **options)

        return opened

    for module, name in OPENERS:
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    monkeypatch.setattr(folder, "FolderSource", noting(open_folder))
    local = PLAIN_FORMS[form].make(tmp_path, PICS)
    upload(s3, tmp_path)
    remote = calls[-1]()
    here, there = list(local.scan().entries), list(remote.scan().entries)
    assert [replace(entry, version=0) for entry in there] == [replace(entry, version=0) for entry in here]
    assert (remote.listing().classes, remote.listing().warnings, remote.found) == (
        local.listing().classes,
        [warning.replace(str(tmp_path), "s3://images") for warning in local.listing().warnings],
        local.found.replace(str(tmp_path), "s3://images"),
    )
    worker = open_source(remote.kind, remote.root, remote.arguments())
    assert [worker.read(entry) for entry in there] == [local.read(entry) for entry in here]
    assert remote.fingerprint() == calls[-1]().fingerprint()
    wanted = {entry.name for entry in here[::5]}
    assert {entry.name for entry in remote.find(wanted)} == wanted


def test_list_of_urls_has_a_store_like_the_local_list(tmp_path: Path, s3: Any) -> None:
    write_folder(tmp_path / "images" / "set", PICS)
    upload(s3, tmp_path / "images")
    s3.put_object(Bucket="images", Key="set/.hidden/empty.jpg", Body=b"")
    names = [f"images/set/{pic.wnid}/{pic.stem}.JPEG\n" for pic in PICS]
    names += ["images/set/n01440764/gone.JPEG\n", "images/set/.hidden/empty.jpg\n"]
    (tmp_path / "images/set/.hidden").mkdir()
    (tmp_path / "images/set/.hidden/empty.jpg").touch()
    (tmp_path / "local.txt").write_text("".join(names))
    (tmp_path / "urls.txt").write_text("".join(f"s3://{name}" for name in names))
    for name in ("local", "urls"):
        printed("build", "list", tmp_path / f"{name}.txt", tmp_path / name, *FLAGS, "--max-bad", 2)
    assert tree_bytes(tmp_path / "urls") == tree_bytes(tmp_path / "local")
    assert tree_bytes(tmp_path / "urls")["rejects.tsv"].count(b"\n") == 3


class Apache(Handler):
    """Lists the folders below `root` as Apache does, with links that sort the page."""

    root: Path

    def do_GET(self) -> None:
        path = self.root / self.path.partition("?")[0].strip("/")
        if not path.is_dir():
            body = path.read_bytes() if path.exists() else b""
            self.answer(200 if path.exists() else 404, body, Content_Type="image/jpeg")
            return
        names = [f"{item.name}/" if item.is_dir() else item.name for item in sorted(path.iterdir())]
        body = "".join(f'<a href="{name}">x</a>\n' for name in ["?C=N;O=D", "?C=S;O=A", *names]).encode()
        self.answer(200, body, Content_Type="text/html")


def test_tree_is_read_from_a_web_server_that_lists_folders(tmp_path: Path) -> None:
    local = open_imagenet(write_folder(tmp_path / "imagenet/train", PICS).parent)
    Apache.root = tmp_path
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Apache)) as address:
        source = open_imagenet(f"{address}/imagenet")
        here, there = list(local.scan().entries), list(source.scan().entries)
        assert [replace(entry, version=0) for entry in there] == [replace(entry, version=0) for entry in here]
        worker = open_source(source.kind, source.root, source.arguments())
        assert [worker.read(entry) for entry in there] == [local.read(entry) for entry in here]


def test_tree_is_listed_with_few_requests(tmp_path: Path, s3: Any, proxy: Proxy) -> None:
    write_folder(tmp_path / "set", PICS)
    upload(s3, tmp_path)
    s3.put_object(Bucket="images", Key="set/n01440764/", Body=b"")  # as consoles do for a new folder
    s3.put_object(Bucket="images", Key="set/.hidden/a.jpg", Body=b"a")
    source = open_folder("s3://images/set")
    assert len(list(source.scan().entries)) == len(PICS)
    assert len(proxy.requests) <= 3 + len(source.listing().classes)
    proxy.requests.clear()
    source.read(next(iter(source.scan().entries)))
    assert [path.partition("?")[0] for path, _ in proxy.requests if "JPEG" in path] == [
        "/images/set/n01440764/n01440764_0.JPEG"
    ]


def test_image_of_a_tree_that_changes_is_noticed(tmp_path: Path, s3: Any) -> None:
    write_folder(tmp_path / "set", PICS)
    upload(s3, tmp_path)
    first, *_ = (source := open_folder("s3://images/set")).scan().entries
    s3.put_object(Bucket="images", Key=f"set/{first.text}", Body=source.read(first)[0][:-1] + b"x")
    with pytest.raises(BuildError, match=r"s3://images/set/n01440764/.*: changed since the plan was made"):
        source.read(first)


@pytest.mark.parametrize(
    ("kind", "src", "message"),
    [
        ("folder", "s3://nowhere/set", "s3://nowhere/set: no such object or bucket; look for it with `aws s3 ls"),
        ("imagenet", "s3://nowhere/set", "s3://nowhere/set: no such object or bucket; look for it with `aws s3 ls"),
        ("list", "s3://images/a.txt", "s3://images/a.txt: no such object or bucket; look for it with `aws s3 ls"),
        ("list", "s3://images/a b.txt", "look for it with `aws s3 ls 's3://images/a b.txt'`, then run the same"),
        ("folder", "https://me:hush@host/set", "https://host/set: the URL also has a password or a query"),
        ("webdataset", "s3://images/none*.tar", "s3://images/none*.tar: no such file; expected *.tar or"),
        ("webdataset", "s3://", "s3://: names no host or bucket; expected a URL such as s3://NAME/..."),
        ("webdataset", "http://host:99999/a.tar", "/host:99999/a.tar: ValueError: invalid port number; test"),
        ("webdataset", "http://host:99999/a*", "http://host:99999: ValueError: invalid port number; test"),
        ("webdataset", "s3://images/a/../b.tar", "s3://images/a/../b.tar: ValueError: Could not parse path: "),
        ("webdataset", "az://a/b.tar", "az://a/b.tar: Generic MicrosoftAzure error: "),
        (
            "webdataset",
            "zz://a/b.tar",
            "zz://: unsupported scheme; expected s3, gs, az, hf, http or https, or the path",
        ),
        ("folder", "dir://a", "dir://: unsupported scheme; expected s3, gs"),
        ("folder", "ftp://localhost/a", "ftp://: unsupported scheme; expected s3, gs"),
        ("parquet", "local:///a", "local://: unsupported scheme; expected s3, gs"),
        ("webdataset", "{endpoint}/images/private.tar", "/private.tar: access denied (403); test your credentials"),
    ],
)
def test_url_that_cannot_be_read_is_one_line(
    tmp_path: Path, s3: Any, endpoint: str, kind: str, src: str, message: str
) -> None:
    s3.put_object(Bucket="images", Key="private.tar", Body=b"")
    done = prep("build", kind, src.format(endpoint=endpoint), tmp_path / "out", "--log", tmp_path / "log")
    assert_fails(done, 1, message)
    assert "hush" not in done.stdout + done.stderr + (tmp_path / "log").read_text()


@pytest.mark.parametrize("scheme", ["file", "FILE"])
def test_list_reads_no_local_file_through_a_url(tmp_path: Path, s3: Any, endpoint: str, scheme: str) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/1.jpg").write_bytes(PICS[0].data)
    lines = f"{scheme}://{tmp_path}/cat/1.jpg\n"
    (tmp_path / "list.txt").write_text(lines)
    s3.put_object(Bucket="images", Key="list.txt", Body=lines.encode(), ACL="public-read")
    for src in (tmp_path / "list.txt", f"{endpoint}/images/list.txt", "s3://images/list.txt"):
        done = prep("build", "list", src, tmp_path / "out")
        assert done.returncode == 1
        assert f"list.txt: line 1: '{lines.strip()}': {scheme}://: unsupported scheme; expected s3, gs" in done.stderr


def test_list_of_local_paths_and_urls_is_refused(tmp_path: Path) -> None:
    for first, second, root in (
        ("cat/1.jpg", "s3://images/cat/2.jpg", tmp_path),
        ("s3://images/cat/2.jpg", "cat/1.jpg", "s3://"),
        ("s3://images/cat/2.jpg", "/cat/1.jpg", "s3://"),
        ("s3://images/cat/2.jpg", "https://host/cat/1.jpg", "s3://"),
    ):
        (tmp_path / "list.txt").write_text(f"{first}\n{second}\n")
        message = f"list.txt: line 2: '{second}' is not below {root}; list local files, and URLs of each kind, in files"
        with pytest.raises(BuildError, match=re.escape(message)):
            open_list(tmp_path / "list.txt").listing()


def test_list_of_urls_with_queries_is_refused(tmp_path: Path) -> None:
    for url in ("https://host/cat/1.jpg", "https://host/a cat/1.jpg"):
        (tmp_path / "list.txt").write_text(f"{url}?signature=hush\n")
        with pytest.raises(BuildError, match=f"^{url}: the URL also has a password or a query") as failed:
            list(open_list(tmp_path / "list.txt").scan().entries)
        assert "hush" not in str(failed.value)
