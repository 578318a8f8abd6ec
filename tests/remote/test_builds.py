"""Builds from an object store with latency and failures."""

import subprocess
import sys
from itertools import chain
from operator import length_hint
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from decodeonce import BuildError, remote
from decodeonce.prep.building.worker import read_in_threads
from decodeonce.sources import Entry, open_webdataset
from tests.command import assert_fails, prep, printed
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg, tree_bytes
from tests.remote.conftest import Proxy, failing

FLAGS = ("--size", 16, "--workers", 2)
LATENCY = 0.05


@pytest.fixture
def tar(tmp_path: Path, s3: Any) -> Path:
    """A shard of 150 images, on disk and in the bucket."""
    parts = [sample(f"{k:03d}", jpeg(160, 120, seed=k, quality=95), cls=k % 3) for k in range(150)]
    path = write_tar(tmp_path / "shards" / "a.tar", chain(*parts))
    s3.upload_file(str(path), "images", "a.tar")
    return path


def test_latency_and_failures_do_not_change_the_store(tmp_path: Path, tar: Path, proxy: Proxy) -> None:
    printed("build", "webdataset", tar, tmp_path / "local", *FLAGS)
    proxy.latency = LATENCY
    proxy.answers = failing(every=50)
    printed("build", "webdataset", "s3://images/a.tar", tmp_path / "out", *FLAGS)
    assert tree_bytes(tmp_path / "out") == tree_bytes(tmp_path / "local")


def test_more_reads_are_started_if_they_are_slow() -> None:
    arrived, entries, ahead = Event(), iter([Entry(b"", 0, 1000, 0)] * 1000), list[int]()

    def read(_: Entry) -> bytes:
        arrived.wait()
        return b""

    reads = read_in_threads(read, entries)
    for rows in range(1, 11):
        next(reads)
        ahead.append(1000 - length_hint(entries) - rows)
    arrived.set()  # ends the threads
    assert ahead == [3, 15, 63, *[127] * 7]


def test_few_bytes_are_read_ahead() -> None:
    large = [Entry(b"%d" % k, 0, 40 << 20, 0) for k in range(9)]
    read = list[bytes]()

    def note(entry: Entry) -> bytes:
        read.append(entry.name)
        return entry.name

    reads = read_in_threads(note, large)
    _, first = next(reads)
    assert first() == b"0"
    assert len(read) <= 2
    assert [entry() for _, entry in reads] == [entry.name for entry in large[1:]]


@pytest.mark.usefixtures("tar")
def test_bucket_that_vanishes_is_named(s3: Any) -> None:
    source = open_webdataset("s3://images/a.tar")
    first, *_, last = source.scan().entries
    source.read(first)
    s3.delete_object(Bucket="images", Key="a.tar")
    with pytest.raises(BuildError, match=r"^s3://images/a\.tar: no such object or bucket; look for it with `aws s3 ls"):
        source.read(last)


def test_wrong_endpoint_stops_with_one_line(tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSES", (0.001,) * 2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # the port "discard", where nothing listens
    done = prep("build", "webdataset", "s3://images/a.tar", tmp_path / "out")
    assert_fails(done, 75, "s3://images/a.tar: ", "3 times; the server may be down or its address wrong; run the same")


@pytest.mark.long
def test_build_killed_ten_times_has_the_same_bytes(tmp_path: Path, tar: Path, proxy: Proxy) -> None:
    flags = (*map(str, FLAGS), "--shard-size", "20KB")  # many small blocks
    printed("build", "webdataset", tar, tmp_path / "local", *flags)
    source, out = "s3://images/a.tar", tmp_path / "out"
    printed("plan", "webdataset", source, out, "--size", 16, "--shard-size", "20KB")
    proxy.latency = LATENCY
    proxy.answers = failing(every=50)
    for _ in range(10):
        proxy.requests.clear()
        with subprocess.Popen(
            [sys.executable, "-m", "decodeonce.cli", "build", "webdataset", source, out, *flags]
        ) as run:
            while len(proxy.requests) < 12 and run.poll() is None:
                proxy.arrived.wait(1)
                proxy.arrived.clear()
            run.kill()
    printed("build", "webdataset", source, out, *flags)
    assert tree_bytes(out) == tree_bytes(tmp_path / "local")
