"""Files in a repository of the Hugging Face Hub, which a server on the loopback imitates."""

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Event
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from decodeonce import Stopped, remote
from tests.command import assert_fails, prep, prep_process, printed
from tests.forms.parquet import write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg, tree_bytes
from tests.packages import NOT_DEV
from tests.remote.conftest import Handler, serving

REPO = "/datasets/me/photos"


class Hub(Handler):
    """Answers for the branch main of REPO, whose files are in the folder `root`."""

    root: Path
    read: list[int]  # lengths of the ranges
    shift = 0  # by which the ranges that are sent differ
    cycle = 0  # pages of a list, after the first one, that follow each other without end

    def do_GET(self) -> None:
        path, query = urlsplit(self.path)[2:4]
        headers = {}
        file, data, status = self.root / path.rpartition("/main")[2].strip("/"), b"", 200
        if path == f"/api{REPO}":
            data = b'{"id": "me/photos"}'
        elif path == f"/api{REPO}/tree/main":
            sizes = {one.name: one.stat().st_size for one in self.root.iterdir()}
            items = [{"type": "file", "path": name, "size": size, "oid": "1"} for name, size in sizes.items()]
            data = json.dumps(items).encode()
            if self.cycle:
                cursor = int(parse_qs(query).get("cursor", "0")[0]) % self.cycle + 1
                headers = {"Link": f'<http://{self.headers["Host"]}{path}?cursor={cursor}>; rel="next"'}
        elif path.startswith(f"{REPO}/resolve/main/") and file.is_file():
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            first, last = first + self.shift, last + self.shift
            data, status = file.read_bytes()[first : last + 1], 206
            headers = {"Content_Range": f"bytes {first}-{last}/{file.stat().st_size}"}
            self.read.append(len(data))
        else:
            status = 404
        self.answer(status, data, **headers)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """The URL of a hub with the folder "hub"."""
    pytest.importorskip("huggingface_hub", reason=NOT_DEV.format("huggingface_hub"))
    (tmp_path / "hub").mkdir()
    Hub.root, Hub.read = tmp_path / "hub", []
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Hub)) as url:
        yield url


@pytest.mark.parametrize(
    ("kind", "name"),
    [("webdataset", "train-0.tar"), pytest.param("parquet", "photos.parquet", marks=pytest.mark.long)],
)
def test_store_from_hub_equals_local_one(tmp_path: Path, hub: str, kind: str, name: str) -> None:
    images = [jpeg(160, 120, seed=seed, quality=95) for seed in range(8)]
    write_tar(Hub.root / "train-0.tar", [part for k in range(8) for part in sample(f"{k}", images[k], cls=k % 3)])
    write_table(Hub.root / "photos.parquet", {"image": pa.array(images), "label": pa.array([0, 1] * 4)})
    flags = ("--size", 16, "--workers", 1)
    printed("build", kind, Hub.root / name, tmp_path / "local", *flags)
    src = f"hf:/{REPO}/{name}"
    done = prep_process("build", kind, src, tmp_path / "out", *flags, HF_ENDPOINT=hub, NO_PROXY="*")
    assert done.returncode == 0, done.stderr
    assert tree_bytes(tmp_path / "out") == tree_bytes(tmp_path / "local")
    if kind == "webdataset":  # without the bytes that fsspec reads ahead by default
        assert set(map(len, images)) <= set(Hub.read)


@pytest.mark.parametrize("url", ["hf://", "hf://photos", "hf://datasets/m@e/photos/a.tar"])
@pytest.mark.usefixtures("hub")
def test_wrong_url_of_a_hub_is_one_line(tmp_path: Path, url: str) -> None:
    assert_fails(prep("build", "webdataset", url, tmp_path / "out"), 1, f"{url}: ")


def test_another_range_from_a_hub_is_noticed(tmp_path: Path, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(Hub.root / "a.tar", sample("1", jpeg(160, 120, seed=0), cls=0))
    monkeypatch.setattr(Hub, "shift", 1)
    src = f"hf:/{REPO}/a.tar"
    flags = ("--size", 16, "--workers", 1)
    done = prep_process("build", "webdataset", src, tmp_path / "out", *flags, HF_ENDPOINT=hub, NO_PROXY="*")
    assert done.returncode == 1
    assert f"{src}: the server sent the range 'bytes 1-" in done.stderr


@pytest.mark.parametrize(("kind", "cycle"), [("folder", 1), ("webdataset", 3)])
def test_list_of_a_hub_that_repeats_its_pages_is_an_error(
    tmp_path: Path, hub: str, monkeypatch: pytest.MonkeyPatch, kind: str, cycle: int
) -> None:
    write_tar(Hub.root / "a.tar", sample("1", jpeg(160, 120, seed=0), cls=0))
    monkeypatch.setattr(Hub, "cycle", cycle)
    src = f"hf:/{REPO}" + {"folder": "", "webdataset": "/a.tar"}[kind]
    done = prep_process("build", kind, src, tmp_path / "out", HF_ENDPOINT=hub, NO_PROXY="*")
    assert done.returncode == 1
    assert f"/api{REPO}/tree/main: the list continues with a page that was read before; the server" in done.stderr


def test_requests_that_the_library_of_the_hub_has_repeated_are_not_repeated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0, 0.01))
    asked = list[str]()

    def ask() -> None:
        asked.append("again")
        Event().wait(0.02)  # as long as the library repeats it
        raise TimeoutError

    for url, times in (("hf://datasets/me/photos/a.tar", 1), ("s3://images/a.tar", 4)):
        asked.clear()
        with pytest.raises(Stopped, match=f"{'several' if times == 1 else times} times"):
            remote.attempt(url, ask)
        assert len(asked) == times
