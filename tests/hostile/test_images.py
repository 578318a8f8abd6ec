"""Hostile images use limited memory and time, and become a row or a reject."""

import os
import resource
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decodeonce import Stopped, host
from decodeonce.build import Recipe, WorkSettings, build
from decodeonce.host import IMAGE_BYTES, SPARE_BYTES, can_allocate, limited_memory
from decodeonce.prep.building import pool
from decodeonce.prep.listing import Entry, Row, Undecodable
from decodeonce.prep.pixels import unusual
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.store import open_store
from decodeonce.store.table import read_rejects
from tests.hostile.bombs import BOMBS, JPEG, MIB
from tests.images import encoded, jpeg, need_format


def decode(data: bytes, **options: str) -> Row:
    decoder = Decoder(Recipe(height=32, width=32, **options))  # type: ignore[arg-type]
    with limited_memory():
        return decoder.row(data, Entry(b"x", 0, len(data), 0))


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_becomes_row_or_reject_within_memory_limit(name: str, recwarn: pytest.WarningsRecorder) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)[0]
    make, error = BOMBS[name]
    need_format(name)
    data = make()
    for exif in ("ignore", "apply"):
        with pytest.raises(Undecodable, match=f"^({error})") if error else nullcontext():
            decode(data, exif=exif)
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == before
    assert not recwarn.list


def test_memory_is_available_up_to_the_limit() -> None:
    if not can_allocate(IMAGE_BYTES + 2 * SPARE_BYTES):
        pytest.skip("needs 6 GiB of memory")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = IMAGE_BYTES + SPARE_BYTES
    with limited_memory():
        assert np.empty(limit - 64 * MIB, np.uint8).nbytes
        with pytest.raises(MemoryError):
            np.empty(limit + 64 * MIB, np.uint8)
        with pytest.raises(MemoryError):
            [np.empty(limit // 8, np.uint8) for _ in range(9)]
        with limited_memory(2 * IMAGE_BYTES):
            assert np.empty(limit + 64 * MIB, np.uint8).nbytes
        with pytest.raises(MemoryError):
            np.empty(limit + 64 * MIB, np.uint8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


# These limits are far below what the images need: memory that earlier tests freed may still be held by malloc(3), and
# using it again is not limited.
@pytest.mark.parametrize(("progressive", "mebibytes"), [(False, 50), (True, 100)])
def test_image_over_the_memory_limit_is_rejected(
    progressive: bool, mebibytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needs 144 MB in NumPy, and if progressive 216 MB in libjpeg, which reports too little memory as damaged data."""
    large = encoded(Image.new("RGB", (6000, 6000)), progressive=progressive, subsampling=0)
    decoder, entry = Decoder(Recipe(height=32, width=32)), Entry(b"x", 0, len(large), 0)
    monkeypatch.setattr(host, "SPARE_BYTES", 8 * MIB)
    monkeypatch.setattr(unusual, "IMAGE_BYTES", mebibytes * MIB)
    with limited_memory(mebibytes * MIB):
        with pytest.raises(Undecodable, match=r"takes more than \d GiB of memory to decode"):
            decoder.row(large, entry)
        assert decoder.row(JPEG, entry).width == 64
    assert decoder.row(large, entry).width == 6000


LIMITED = """
import resource, sys
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.listing import Entry
decoder, data = Decoder(Recipe(height=32, width=32)), [open(path, "rb").read() for path in sys.argv[2:]]
used = int(open("/proc/self/statm").read().split()[5 if sys.argv[1] == "DATA" else 0]) * resource.getpagesize()
resource.setrlimit(getattr(resource, "RLIMIT_" + sys.argv[1]), (used + (60 << 20),) * 2)
for image in data:
    try:
        decoder.row(image, Entry(b"x", 0, len(image), 0))
    except BaseException as error:
        print(type(error).__name__)
    else:
        print("row")
"""


@pytest.mark.parametrize("limit", ["AS", pytest.param("DATA", marks=pytest.mark.long)])
def test_memory_limit_of_the_user_causes_no_reject(tmp_path: Path, limit: str) -> None:
    """The rows of a store must not depend on the machine that builds it."""
    large, larger, cmyk = (Image.new(mode, (s, s)) for mode, s in (("RGB", 3000), ("RGB", 4500), ("CMYK", 3000)))
    images = [encoded(large, "PNG"), encoded(larger), encoded(cmyk, progressive=True), JPEG, JPEG[: len(JPEG) // 2]]
    for number, data in enumerate(images):
        assert data is images[-1] or decode(data)
        (tmp_path / str(number)).write_bytes(data)
    paths = [str(tmp_path / str(number)) for number in range(len(images))]
    command = [sys.executable, "-c", LIMITED, limit, *paths]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["MemoryError", "MemoryError", "MemoryError", "row", "Undecodable"]


# Workers run this when they start. Reading hostile.jpg then kills them, as a library that decompresses it might.
FATAL_READ = """
import os
from decodeonce.prep.sources import files
read = files.read_range
def fatal_read(fd, path, *where):
    if path.endswith(b"hostile.jpg"):
        os.kill(os.getpid(), {signal})
    return read(fd, path, *where)
files.read_range = fatal_read
"""


def build_with_fatal_read(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Build a store of nine harmless images and one that kills its reader by this signal in `folder`/out."""
    (folder / "src/cat").mkdir(parents=True)
    for name in ("hostile", *range(9)):
        (folder / f"src/cat/{name}.jpg").write_bytes(jpeg(40, 30))
    (folder / "site").mkdir()
    (folder / "site/sitecustomize.py").write_text(FATAL_READ.format(signal=int(number)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site"), *filter(None, sys.path)]))
    work = WorkSettings(workers=1, max_bad="1")
    build(FolderSource(folder / "src"), folder / "out", Recipe(height=8, width=8), work)


@pytest.mark.parametrize("number", [signal.SIGSEGV, pytest.param(signal.SIGABRT, marks=pytest.mark.long)])
def test_image_that_kills_its_reader_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    build_with_fatal_read(tmp_path, monkeypatch, number)
    assert len(open_store(tmp_path / "out")) == 9
    (reject,) = [reject for reject in read_rejects(tmp_path / "out/rejects.tsv") if reject.action == "rejected"]
    reason = f"the decoder died with exit status -{int(number)}, 2 times"
    assert (reject.source, reject.reason) == ("cat/hostile.jpg", reason)


@pytest.mark.parametrize("number", [signal.SIGBUS, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_read_killed_by_the_system_causes_no_reject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with pytest.raises(Stopped, match=f"workers keep dying .exit status -{int(number)}"):
        build_with_fatal_read(tmp_path, monkeypatch, number)


def test_hanging_read_does_not_count_as_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = pool.WorkerHandle({"out": str(tmp_path), "task": 0, "tasks": 1, "on_bad": "reject"})
    heartbeat = worker.child.heartbeat
    monkeypatch.setattr(pool, "IMAGE_SECONDS", -1.0)  # so that the second check finds the limit passed
    try:
        heartbeat.start_reading(7)
        assert (heartbeat.decoding, heartbeat.reading) == (None, 7)
        worker.kill_if_stuck()
        worker.kill_if_stuck()
        assert not worker.limit_passed
        heartbeat.start_decoding(7)
        assert (heartbeat.decoding, heartbeat.reading) == (7, None)
        worker.kill_if_stuck()
        worker.kill_if_stuck()
        assert worker.limit_passed
    finally:
        worker.child.end()
