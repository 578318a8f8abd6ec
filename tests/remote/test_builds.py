"""Builds from an object store with latency and failures."""

from __future__ import annotations

from itertools import chain, cycle
from pathlib import Path
from typing import Any

import pytest

from decodeonce.prep.building.worker import MOST_READS, read_ahead
from decodeonce.prep.entry import Entry
from decodeonce.prep.sources import open_webdataset
from tests.command import prep
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg, reference_row, tree_bytes
from tests.remote.conftest import Proxy

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
    assert prep("build", "webdataset", tar, tmp_path / "local", *FLAGS).returncode == 0
    proxy.latency = LATENCY
    failing = chain.from_iterable([*[None] * 49, status] for status in cycle((503, 0, 429)))
    proxy.answers = iter(failing)
    done = prep("build", "webdataset", "s3://images/a.tar", tmp_path / "out", *FLAGS)
    assert done.returncode == 0, done.stderr
    assert tree_bytes(tmp_path / "out") == tree_bytes(tmp_path / "local")


@pytest.mark.usefixtures("tar")
def test_latency_decides_how_many_images_are_read_at_once(proxy: Proxy) -> None:
    source = open_webdataset("s3://images/a.tar")
    entries = list(source.entries())
    assert source.reads_ahead
    most = []
    for proxy.latency in (0.0, LATENCY):
        proxy.most_active = 0
        for _, read in read_ahead(source.read, entries):
            reference_row(read(), 64, 64)
        most.append(proxy.most_active)
    few, many = most
    assert few < many <= MOST_READS


def test_few_bytes_are_read_ahead() -> None:
    large = [Entry(b"%d" % k, 0, 40 << 20, 0) for k in range(9)]
    read = list[bytes]()

    def note(entry: Entry) -> bytes:
        read.append(entry.name)
        return entry.name

    reads = read_ahead(note, large)
    _, first = next(reads)
    assert first() == b"0"
    assert len(read) <= 2
    assert [entry() for _, entry in reads] == [entry.name for entry in large[1:]]
