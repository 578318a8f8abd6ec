"""WebDataset shards in an object store and on a web server."""

import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from decodeonce import BuildError, remote
from decodeonce.prep.sources import holders, open_source
from decodeonce.prep.sources.holders import FEW, MANY
from decodeonce.prep.sources.webdataset import open_webdataset
from decodeonce.remote import ObjectFacts
from tests.command import assert_fails, prep, printed
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg, tree_bytes
from tests.remote.conftest import SECRET, Proxy, forget_server

COUNT = 12
FLAGS = ("--size", 16, "--workers", 1)


@pytest.fixture
def shards(tmp_path: Path, s3: Any) -> Path:
    """Three shards on disk and in the bucket, of which one is gzipped; images of about 20 kB."""
    images = [jpeg(160, 120, seed=seed, quality=95) for seed in range(COUNT)]
    for number, suffix in enumerate((".tar", ".tar", ".tgz")):
        parts = [sample(f"{k:02d}", images[k], cls=k % 3) for k in range(number, COUNT, 3)]
        path = write_tar(tmp_path / "shards" / f"train-{number}{suffix}", chain(*parts), "w:gz" if number == 2 else "w")
        s3.upload_file(str(path), "images", f"set/{path.name}", {"ACL": "public-read"})
    return tmp_path / "shards"


@pytest.mark.parametrize(
    "src",
    [
        pytest.param("s3://images/set", marks=pytest.mark.long),
        "s3://images/set/train-*",
        "{endpoint}/images/set/train-{{0.tar,1.tar,2.tgz}}",
    ],
)
def test_store_from_url_equals_local_one(tmp_path: Path, shards: Path, endpoint: str, src: str) -> None:
    printed("build", "webdataset", shards, tmp_path / "local", *FLAGS)
    build = ("build", "webdataset", src.format(endpoint=endpoint), tmp_path / "out", *FLAGS)
    printed(*build)
    assert tree_bytes(tmp_path / "out") == tree_bytes(tmp_path / "local")
    assert "already" in printed(*build)
    assert not [name for name, data in tree_bytes(tmp_path).items() if SECRET.encode() in data]


def test_store_is_repaired_from_url(tmp_path: Path, shards: Path, s3: Any) -> None:
    printed("build", "webdataset", shards, tmp_path / "out", *FLAGS)
    whole, [shard] = tree_bytes(tmp_path / "out"), (tmp_path / "out").glob("images-*")
    s3.upload_file(str(tmp_path / "out/store.json"), "images", "copy/store.json")
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    copy = prep("repair", tmp_path / "out", "--from", "s3://images/copy")
    assert_fails(copy, 1, "s3://images/copy: a remote store; run `prep stage s3://images/copy COPY`, then pass --from")
    assert "repaired 1 row; 12 rows intact" in printed("repair", tmp_path / "out", "--from", "s3://images/set")
    assert tree_bytes(tmp_path / "out") == whole


def test_listing_takes_few_requests_and_reading_reads_one_image(tmp_path: Path, s3: Any, proxy: Proxy) -> None:
    images = [jpeg(400, 300, seed=seed, quality=95) for seed in range(4)]
    names = [f"{number:04d}" for number in range(300)]
    parts = (sample(name, images[number % 4], cls=number % 3) for number, name in enumerate(names))
    s3.upload_file(str(write_tar(tmp_path / "a.tar", chain(*parts))), "images", "a.tar")
    proxy.latency = 0.05
    source = open_webdataset("s3://images/a.tar")
    entries = list(source.scan().entries)
    assert (len(entries), len(proxy.requests) < 60) == (300, True), len(proxy.requests)
    proxy.requests.clear()
    worker = open_source(source.kind, source.root, source.arguments())
    assert worker.read(entries[2])[0] == images[2]
    place = entries[2].place
    assert [found for _, found in proxy.requests] == [f"bytes={place}-{place + len(images[2]) - 1}"]


@pytest.mark.parametrize("url", ["s3://images/set/train-0.tar", "{endpoint}/images/set/train-0.tar"])
def test_object_that_changes_is_noticed(shards: Path, s3: Any, endpoint: str, url: str) -> None:
    source = open_webdataset(url.format(endpoint=endpoint))
    first, second, *_ = source.scan().entries
    reader, later = (open_source(source.kind, source.root, source.arguments()) for _ in range(2))
    reader.read(first)
    other = (shards / "train-0.tar").read_bytes()[:-1] + b"x"  # the same size
    s3.put_object(Bucket="images", Key="set/train-0.tar", Body=other, ACL="public-read")
    for worker in (reader, later):  # one has read the object before, the other has not
        with pytest.raises(BuildError, match=r"set/train-0\.tar: changed since the plan was made"):
            worker.read(second)


@pytest.mark.parametrize(
    ("answers", "code", "message"),
    [
        ([503, 429, 0, 500], 0, ""),
        ([503] * 8, 75, "HTTP status 503, 7 times; the server may be down or its address"),
        ([403, 403], 1, "access denied (403); test your credentials with `aws s3 ls s3://images/a.tar`"),
        ([404, 404, 404], 1, "no such object or bucket; look for it with `aws s3 ls s3://images/a.tar`"),
    ],
)
def test_passing_errors_are_repeated(
    tmp_path: Path, s3: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, answers: list[int], code: int, message: str
) -> None:
    path = write_tar(tmp_path / "a.tar", sample("0", jpeg(), cls=0))
    s3.upload_file(str(path), "images", "a.tar")
    monkeypatch.setattr(remote, "PAUSES", (0.001,) * 6)
    proxy.answers = iter(answers)
    done = prep("build", "webdataset", "s3://images/a.tar", tmp_path / "out", *FLAGS)
    if code:
        assert_fails(done, code, f"s3://images/a.tar: {message}", "run the same command again")
    else:
        assert done.returncode == 0, done.stderr


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, package, needed in (
        ("s3://images/a.tar", "botocore", "obstore botocore"),
        ("s3://images/a.tar", "obstore.store", "obstore botocore"),
        ("https://host/a.tar", "obstore.store", "obstore"),
        ("hf://datasets/me/photos/a.tar", "huggingface_hub", "huggingface_hub"),
    ):
        forget_server()
        remote._hub.cache_clear()
        with monkeypatch.context() as without:
            without.setitem(sys.modules, package, None)
            done = prep("build", "webdataset", url, tmp_path / "out")
        assert_fails(done, 1, f"reading {url.partition('/')[0]}// requires {needed}; run: pip install {needed}")


@pytest.mark.parametrize(
    ("latency", "bytes_per_s", "image", "size"),
    [(0.05, 8e7, 100_000, MANY), (0.001, 8e7, 1_000_000, FEW), (0.05, 1e6, 100_000, FEW), (0.05, 8e7, 1 << 27, FEW)],
)
def test_headers_are_read_in_the_faster_blocks(
    monkeypatch: pytest.MonkeyPatch, latency: float, bytes_per_s: float, image: int, size: int
) -> None:
    clock, requests = [1.0], list[int]()

    def read(url: str, facts: ObjectFacts, offset: int, nbytes: int) -> bytes:
        requests.append(nbytes)
        clock[0] += latency + nbytes / bytes_per_s
        return bytes(nbytes)

    monkeypatch.setattr(holders, "read_object", read)
    monkeypatch.setattr(holders, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    listed = holders.ListedObject("s3://images/a.tar", ObjectFacts(1000 * image, 1))
    for offset in range(0, 900 * image, image):
        listed.read_at(offset, 513)
    assert set(requests[3:]) == {size}
