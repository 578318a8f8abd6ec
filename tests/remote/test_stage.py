"""Staging from an object store gives the parts that staging from a local store gives."""

import subprocess
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodeonce import StageError, StoreError, remote
from decodeonce.store import RemoteStore, open_store, stage_store
from decodeonce.store.manifest import DATA_OFFSET
from tests.command import assert_fails, prep, printed
from tests.images import replaced, tree_bytes
from tests.remote.conftest import SECRET, Proxy, failing
from tests.store.signing import flip_row, resign
from tests.stores import make_store, random_images

COUNT, SHARD_ROWS = 60, 25
HELD = range(20, 40)  # rank 1 of 3: begins and ends in the middle of two of three shards
RANK = ("--rank", 1, "--world-size", 3)
ROW = 8 * 6 * 3
URL = "s3://images/train.store"
IMAGES = random_images(COUNT)
PAIRED = {"mask": random_images(COUNT, shape=(8, 6, 1), seed=1)[..., 0], "target": random_images(COUNT, seed=2)}
UPLOAD = "upload it again from an intact copy of the store"
FORMS: dict[str, dict[str, Any]] = {
    "npy": {"columns": {"features": np.arange(COUNT * 30_000, dtype="<f4").reshape(COUNT, -1)}},  # read in two ranges
    "hdf5": {"container": "hdf5"},
    "paired": {"paired": PAIRED},
}


def upload(s3: Any, store: Path) -> None:
    """Put the files of a store into the bucket."""
    for path in store.iterdir():
        s3.put_object(Bucket="images", Key=f"train.store/{path.name}", Body=path.read_bytes())


def flipped(at: int) -> Callable[[bytes], bytes]:
    """Return a function that flips a bit of the byte at this offset."""
    return lambda data: replaced(data, at, bytes([data[at] ^ 1]))


@pytest.fixture
def whole(tmp_path: Path, s3: Any) -> Path:
    """A store, on disk and in the bucket."""
    store = make_store(tmp_path / "train.store", IMAGES, shard_rows=SHARD_ROWS)
    upload(s3, store)
    return store


def stage_locally(store: Path) -> dict[str, bytes]:
    """Return the files of a part of a local store."""
    stage_store(open_store(store), store.parent / "local", rows=HELD)
    return tree_bytes(store.parent / "local")


@pytest.mark.parametrize("form", FORMS)
def test_part_equals_local_part(tmp_path: Path, s3: Any, form: str) -> None:
    store = make_store(tmp_path / "train.store", IMAGES, shard_rows=SHARD_ROWS, **FORMS[form])
    upload(s3, store)
    opened = RemoteStore(URL)
    assert (len(opened), opened.manifest) == (COUNT, open_store(store).manifest)
    staged = stage_store(opened, tmp_path / "part", rows=HELD)
    assert (staged.rows, staged.copied, staged.finished) == (HELD, len(HELD), False)
    assert tree_bytes(tmp_path / "part") == stage_locally(store)
    assert stage_store(opened, tmp_path / "part", rows=HELD).finished


def spans(proxy: Proxy, name: str) -> list[tuple[int, int]]:
    """Return the ranges of an object that were read, except its first byte, which tells its size and version.

    (0, -1) stands for the whole object.
    """
    found = [span or "bytes=0--2" for path, span in proxy.requests if path.endswith(f"/{name}")]
    ends = [tuple(map(int, span.removeprefix("bytes=").split("-", 1))) for span in found]
    return sorted((first, last + 1) for first, last in ends if last)


def test_only_what_the_part_needs_is_read(tmp_path: Path, whole: Path, proxy: Proxy) -> None:
    stage_store(RemoteStore(URL), tmp_path / "part", rows=HELD)
    rows = [(DATA_OFFSET + 20 * ROW, DATA_OFFSET + 25 * ROW), (DATA_OFFSET, DATA_OFFSET + 15 * ROW), None]
    for name, held in zip(sorted(path.name for path in whole.glob("images-*")), rows, strict=True):
        assert spans(proxy, name) == [(0, DATA_OFFSET), *([held] if held else [])]
    for name in ("labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv"):
        assert spans(proxy, name) == [(0, -1)]


def test_latency_and_failures_do_not_change_the_part(
    tmp_path: Path, whole: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PAUSES", (0.001,) * 6)
    proxy.latency = 0.05
    proxy.answers = failing(every=10)
    shown = printed("stage", URL, tmp_path / "part", *RANK)
    assert f"staging rows 20..39 of the 60 rows of {URL}, for rank 1 of 3" in shown
    assert tree_bytes(tmp_path / "part") == stage_locally(whole)


@pytest.mark.long
def test_killed_stage_resumes_with_the_same_bytes(tmp_path: Path, s3: Any, proxy: Proxy) -> None:
    store = make_store(tmp_path / "train.store", random_images(9, shape=(1024, 1024, 4)))  # each row is a range
    upload(s3, store)
    stage = ("stage", URL, tmp_path / "part", "--threads", 1)
    last = DATA_OFFSET
    for _ in range(5):
        proxy.requests.clear()
        with subprocess.Popen([sys.executable, "-m", "decodeonce.cli", *map(str, stage)]) as run:
            while len(spans(proxy, "images-00000.npy")) < 3 and run.poll() is None:  # the header and two rows
                proxy.arrived.wait(1)
                proxy.arrived.clear()
            run.kill()
        assert run.returncode == -9
        _, *rows = spans(proxy, "images-00000.npy")
        assert rows[0][0] >= last  # the rows before it are not read again
        last = rows[1][0]
        with pytest.raises(StoreError, match=r"an unfinished part .*; run the same `prep stage` again"):
            open_store(tmp_path / "part")
    printed(*stage)
    stage_store(open_store(store), tmp_path / "local", rows=range(9))
    assert tree_bytes(tmp_path / "part") == tree_bytes(tmp_path / "local")


def test_object_replaced_meanwhile_is_noticed(tmp_path: Path, s3: Any, whole: Path) -> None:
    opened = RemoteStore(URL)
    stage_store(opened, tmp_path / "part", rows=range(5))
    flip_row(whole, 45)
    upload(s3, whole)
    with pytest.raises(StageError, match=rf"^{URL}/images-00001\.npy: changed while the store was being staged; run"):
        stage_store(opened, tmp_path / "other", rows=HELD)
    stage_store(RemoteStore(URL), tmp_path / "other", rows=HELD)  # does not hold that row
    assert tree_bytes(tmp_path / "other") == stage_locally(whole)


def test_store_replaced_meanwhile_is_refused(tmp_path: Path, s3: Any, whole: Path) -> None:
    opened = RemoteStore(URL)
    resign(whole, lambda facts: facts.update({"source": {"kind": "other"}}))
    upload(s3, whole)
    with pytest.raises(StageError, match=rf"^{URL}: the store was replaced while it was being staged; remove .*part"):
        stage_store(opened, tmp_path / "part", rows=HELD)
    with pytest.raises(StageError, match=r"part: an unfinished part, not of this store"):
        stage_store(RemoteStore(URL), tmp_path / "part", rows=HELD)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("images-00001.npy", lambda data: data[: DATA_OFFSET + 9], "4105 bytes, expected 7696; " + UPLOAD),
        pytest.param(
            "images-00002.npy", lambda data: data[:9], "9 bytes, expected 5536; " + UPLOAD, marks=pytest.mark.long
        ),
        ("images-00002.npy", lambda data: None, "no such object or bucket; look for it with `aws s3 ls "),
        pytest.param(
            "labels.npy", lambda data: data[:600], "600 bytes, expected 608; " + UPLOAD, marks=pytest.mark.long
        ),
        ("store.json", lambda data: data[:600], "not JSON ("),
        pytest.param(
            "store.json",
            lambda data: None,
            "no such object or bucket; look for it with `aws s3 ls ",
            marks=pytest.mark.long,
        ),
        ("images-00001.npy", flipped(DATA_OFFSET + 6 * ROW), "row 31 does not match its checksum; " + UPLOAD),
        pytest.param(
            "images-00002.npy",
            flipped(9),
            "its header (first 4096 bytes) is damaged; " + UPLOAD,
            marks=pytest.mark.long,
        ),
        ("samples.tsv", flipped(150), "damaged: its contents do not match store.json; " + UPLOAD),
    ],
)
def test_damaged_object_is_named(
    tmp_path: Path, s3: Any, whole: Path, name: str, change: Callable[[bytes], bytes | None], message: str
) -> None:
    s3.delete_object(Bucket="images", Key=f"train.store/{name}")
    if (data := change((whole / name).read_bytes())) is not None:
        s3.put_object(Bucket="images", Key=f"train.store/{name}", Body=data)
    done = prep("stage", URL, tmp_path / "part", *RANK, "--quiet")
    assert_fails(done, 1, f"{URL}/{name}: {message}")
    assert not (tmp_path / "part/store.json").exists()
    upload(s3, whole)
    printed("stage", URL, tmp_path / "part", *RANK)
    assert tree_bytes(tmp_path / "part") == stage_locally(whole)


def test_signature_of_a_web_address_is_nowhere(
    tmp_path: Path, s3: Any, whole: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(remote.QUERY, "")
    for item in s3.list_objects_v2(Bucket="images")["Contents"]:
        s3.put_object_acl(Bucket="images", Key=item["Key"], ACL="public-read")
    url = f"{proxy.url}/images/train.store"
    proxy.requests.clear()
    stage = ("stage", f"{url}?signature=hush", tmp_path / "part", *RANK, "--log", tmp_path / "log")
    done = prep(*stage)
    assert done.returncode == 0, done.stderr
    assert {path.partition("?")[2] for path, _ in proxy.requests} == {"signature=hush"}
    assert tree_bytes(tmp_path / "part") == stage_locally(whole)
    proxy.answers = repeat(403)
    failed = prep(*stage)
    assert_fails(failed, 1, f"{url}/store.json: access denied (403)")
    written = b"".join(tree_bytes(tmp_path).values()).decode(errors="replace")
    for text in (written, done.stdout, done.stderr, failed.stderr):
        assert "hush" not in text
        assert SECRET not in text
