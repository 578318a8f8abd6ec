"""Pictures made to do harm: what they cost is bounded, and at the worst they are rejects."""

from __future__ import annotations

import os
import resource
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decodeonce.errors import Stopped
from decodeonce.prep.build import Work, build, worker_pool
from decodeonce.prep.entry import Entry, Row, Undecodable
from decodeonce.prep.pixels import decode as decode_module
from decodeonce.prep.pixels import memory_limit
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.pixels.memory_limit import PICTURE_BYTES, SPARE_BYTES, could_take, limited_memory
from decodeonce.prep.pixels.user_map import find_map
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import FolderSource
from decodeonce.store import open_store
from decodeonce.store.table import read_rejects
from tests.pictures import crc, encoded, jpeg, need_format, picture, segment

MIB = 1 << 20


def decode(data: bytes, **options: str) -> Row:
    decoder = Decoder(Recipe(height=32, width=32, **options))  # type: ignore[arg-type]
    return decoder.row(data, Entry(b"x", 0, len(data), 0))


def png(*chunks: tuple[bytes, bytes], width: int = 10, height: int = 10) -> bytes:
    """A black PNG with these chunks before its pixels."""
    head = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = (b"IDAT", zlib.compress(bytes((1 + 3 * width) * height)))
    every = [head, *chunks, pixels, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + crc(name + body) for name, body in every
    )


@cache
def zeros() -> bytes:
    """100 MiB of zeros, deflated to a thousandth."""
    deflate = zlib.compressobj(1)
    return b"".join(deflate.compress(bytes(MIB)) for _ in range(100)) + deflate.flush()


def tiff(width: int, height: int, *tags: tuple[int, int, int], compression: int = 5) -> bytes:
    """A grey TIFF whose further tags (number, count, value) may be nonsense; its one strip or tile is, too."""
    usual = [(256, 1, width), (257, 1, height), (258, 1, 8), (259, 1, compression), (262, 1, 1)]
    rows = {273: (273, 1, 400), 278: (278, 1, height), 279: (279, 1, 200)}
    tiles = {324: (324, 1, 400), 325: (325, 1, 200)}
    given = {number: (number, count, value) for number, count, value in tags}
    places = tiles if 322 in given else rows
    every = {**{tag[0]: tag for tag in usual}, **places, **given}
    head = b"II*\0\x08\0\0\0" + struct.pack("<H", len(every))
    body = b"".join(struct.pack("<HHII", number, 4, count, value) for number, count, value in sorted(every.values()))
    return (head + body).ljust(400, b"\0") + b"x" * 200


def webp_canvas(width: int, height: int) -> bytes:
    """An animated WebP of one small frame on a canvas of this size."""
    frame = encoded(picture(16, 16), "WEBP")[12:]
    place = bytes(6) + struct.pack("<I", 15)[:3] * 2 + b"\x10\0\0\0"
    canvas = b"\2\0\0\0" + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    chunks = ((b"VP8X", canvas), (b"ANIM", bytes(6)), (b"ANMF", place + frame))
    body = b"".join(name + struct.pack("<I", len(data)) + data for name, data in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def bmp(width: int, height: int, *, colours: int = 0) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8 if colours else 24, 0, 0, 0, 0, colours, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head + bytes(100)


def scans(side: int, count: int) -> bytes:
    """A progressive grey JPEG of side x side pixels that are all grey, in `count` scans more than it needs."""
    blocks = (-(-side // 8)) ** 2
    runs = "0" + "1" * 14  # the end of the band, of 32,767 blocks
    bits = runs * -(-blocks // 32767)
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    one_code = bytes((1, *[0] * 15))
    head = segment(0xDB, b"\0" + b"\1" * 64) + segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    head += segment(0xC4, b"\0" + one_code + b"\0") + segment(0xC4, b"\x10" + one_code + b"\xe0")
    first = segment(0xDA, b"\1\1\0\0\0\0") + bytes(-(-blocks // 8))
    rest = b"".join(
        segment(0xDA, bytes((1, 1, 0, band, band, 0))) + scan for band in (1 + k % 63 for k in range(count))
    )
    return b"\xff\xd8" + head + first + rest + b"\xff\xd9"


JPEG = jpeg(64, 48)
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "png-pixels": (lambda: png((b"IDAT", zeros())), ""),
    "png-profile": (lambda: png((b"iCCP", b"a\0\0" + zeros())), "broken PNG: Decompressed data too large"),
    "png-text": (lambda: png((b"zTXt", b"a\0\0" + zeros())), "broken PNG: Decompressed data too large"),
    "png-texts": (lambda: png(*[(b"zTXt", b"a\0\0" + zlib.compress(bytes(900_000)))] * 99), "broken PNG: Too much mem"),
    "png-chunks": (lambda: png(*[(b"teSt", b"")] * 9999), ""),
    "gif-canvas": (lambda: b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\1\0\1\0\0\2\1\x44\0;", "decompression bomb: "),
    "gif-comment": (lambda: b"GIF89a\1\0\1\0\0\0\0!\xfe" + b"\1c" * 9999 + b"\0;", "broken GIF"),
    "webp-canvas": (lambda: webp_canvas(65535, 65535), "broken WEBP: "),
    "webp-large-canvas": (lambda: webp_canvas(16384, 16384), "decompression bomb: "),
    "bmp-wide": (lambda: bmp(2**31 - 1, 1), "decompression bomb: "),
    "bmp-upside-down": (lambda: bmp(13377, -13377), "truncated: "),
    "bmp-palette": (lambda: bmp(10, 10, colours=2**31 - 1), "broken BMP: "),
    "ppm-wide": (lambda: b"P5 4000000000 1 255\n", "decompression bomb: "),
    "ppm-short": (lambda: b"P5 13377 13377 255\n", "truncated: "),
    "ppm-digits": (lambda: b"P5 " + b"9" * 99, "broken PPM: "),
    "pbm-short": (lambda: b"P1 13377 13377\n0 1", "broken PPM: not enough image data"),
    "tiff-tile": (lambda: tiff(100, 100, (322, 1, 65520), (323, 1, 65520)), "broken TIFF: |truncated: "),
    "tiff-tile-2-gb": (lambda: tiff(100, 100, (322, 1, 46336), (323, 1, 46336)), "broken TIFF: |truncated: "),
    "tiff-raw-tile": (lambda: tiff(99, 99, (322, 1, 46336), (323, 1, 46336), compression=1), "broken TIFF|truncated: "),
    "tiff-strip": (lambda: tiff(100, 100, (279, 1, 2**32 - 16)), "broken TIFF: |truncated: "),
    "tiff-strips": (lambda: tiff(1, 99999, (273, 99999, 8), (279, 99999, 8), (278, 1, 1)), "broken TIFF: |truncated: "),
    "tiff-tag": (lambda: tiff(100, 100, (270, 2**30, 8)), "broken TIFF: |truncated: "),
    "tiff-channels": (lambda: tiff(100, 100, (277, 1, 65535)), "broken TIFF: "),
    "jpeg-exif": (lambda: JPEG[:2] + segment(0xE1, b"Exif\0\0" + bytes(60000)) * 99 + JPEG[2:], ""),
    "jpeg-comments": (lambda: JPEG[:2] + b"\xff\xfe\0\2" * 99999 + JPEG[2:], ""),
    "jpeg-scans": (lambda: scans(200, 2000), ""),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("exif", ["ignore", "apply"])
def test_a_bomb_is_a_row_or_a_reject_within_the_bound(name: str, exif: str, recwarn: pytest.WarningsRecorder) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)[0]
    make, told = BOMBS[name]
    need_format(name)
    if told:
        with pytest.raises(Undecodable, match=f"^({told})"):
            decode(make(), exif=exif)
    else:
        decode(make(), exif=exif)
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == before
    assert not recwarn.list


def test_memory_up_to_the_bound_is_given_and_no_more() -> None:
    if not could_take(PICTURE_BYTES + 2 * SPARE_BYTES):
        pytest.skip("this machine does not give 6 GiB")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = PICTURE_BYTES + SPARE_BYTES
    with limited_memory():
        assert np.empty(most - 64 * MIB, np.uint8).nbytes
        with pytest.raises(MemoryError):
            np.empty(most + 64 * MIB, np.uint8)
        with pytest.raises(MemoryError):
            [np.empty(most // 8, np.uint8) for _ in range(9)]
        with limited_memory(2 * PICTURE_BYTES):
            assert np.empty(most + 64 * MIB, np.uint8).nbytes
        with pytest.raises(MemoryError):
            np.empty(most + 64 * MIB, np.uint8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


# Far less than they take: what earlier tests of this process freed, malloc(3) may still have, and that is not limited.
@pytest.mark.parametrize(("progressive", "mebibytes"), [(False, 50), (True, 100)])
def test_a_picture_that_takes_more_is_a_reject(
    progressive: bool, mebibytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 MB in NumPy; if it is progressive 384 in libjpeg, which calls the lack of memory damaged data."""
    large = encoded(Image.new("RGB", (8000, 8000)), progressive=progressive, subsampling=0)
    monkeypatch.setattr(memory_limit, "SPARE_BYTES", 8 * MIB)
    monkeypatch.setattr(decode_module, "PICTURE_BYTES", mebibytes * MIB)
    with limited_memory(mebibytes * MIB):
        with pytest.raises(Undecodable, match=r"takes more than \d GiB of memory to decode"):
            decode(large)
        assert decode(JPEG).width == 64
    assert decode(large).width == 8000


LIMITED = """
import resource, sys
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.entry import Entry
decoder, data = Decoder(Recipe(height=32, width=32)), [open(path, "rb").read() for path in sys.argv[2:]]
taken = int(open("/proc/self/statm").read().split()[5 if sys.argv[1] == "DATA" else 0]) * resource.getpagesize()
resource.setrlimit(getattr(resource, "RLIMIT_" + sys.argv[1]), (taken + (60 << 20),) * 2)
for picture in data:
    try:
        decoder.row(picture, Entry(b"x", 0, len(picture), 0))
    except BaseException as error:
        print(type(error).__name__)
    else:
        print("row")
"""


@pytest.mark.parametrize("limit", ["AS", pytest.param("DATA", marks=pytest.mark.long)])
def test_what_the_users_own_limit_forbids_is_no_reject(tmp_path: Path, limit: str) -> None:
    """Which rows a store has must not follow from where it was built."""
    large, larger, cmyk = (Image.new(mode, (s, s)) for mode, s in (("RGB", 3000), ("RGB", 4500), ("CMYK", 3000)))
    pictures = [encoded(large, "PNG"), encoded(larger), encoded(cmyk, progressive=True), JPEG, JPEG[:-2]]
    for number, data in enumerate(pictures):
        assert data is pictures[-1] or decode(data)
        (tmp_path / str(number)).write_bytes(data)
    paths = [str(tmp_path / str(number)) for number in range(len(pictures))]
    command = [sys.executable, "-c", LIMITED, limit, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["MemoryError", "MemoryError", "MemoryError", "row", "Undecodable"]


def tree(root: Path, hostile: bytes) -> Path:
    """Nine pictures, and a tenth."""
    (root / "cat").mkdir(parents=True)
    for number in range(9):
        (root / f"cat/{number}.jpg").write_bytes(jpeg(40, 30, seed=number))
    (root / "cat/hostile.jpg").write_bytes(hostile)
    return root


def assert_one_reject(out: Path, reason: str) -> None:
    assert len(open_store(out)) == 9
    (reject,) = [reject for reject in read_rejects(out / "rejects.tsv") if reject.action == "rejected"]
    assert (reject.source, reject.reason) == ("cat/hostile.jpg", reason)


def test_scans_without_end_cost_one_reject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "PICTURE_SECONDS", 0.2)
    monkeypatch.setattr(worker_pool, "TICK_SECONDS", 0.02)
    endless = scans(4000, 60_000)  # 1 MB, 4000x4000 pixels, a minute
    build(
        FolderSource(tree(tmp_path / "src", endless)),
        tmp_path / "out",
        Recipe(height=8, width=8),
        Work(workers=1, max_bad="1"),
    )
    assert_one_reject(tmp_path / "out", "the decoder took more than 0.2 s, 2 times")


def test_a_picture_that_stops_its_worker_twice_is_a_reject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "HANGING_SECONDS", 0.2)
    monkeypatch.setattr(worker_pool, "TICK_SECONDS", 0.1)
    build(
        FolderSource(tree(tmp_path / "src", JPEG)),
        tmp_path / "out",
        Recipe(height=8, width=8, map=find_map("tests.hostile.dying:stops")),
        Work(workers=1, max_bad="1"),
    )
    assert_one_reject(tmp_path / "out", "the decoder took more than 0.2 s, 2 times")


# Workers run this when they begin: reading one file kills them, as a library that unpacks it might.
DEADLY = """
import os
from decodeonce.prep.sources import base
read = base.read_range
def deadly(fd, path, *where):
    if path.endswith(b"hostile.jpg"):
        os.kill(os.getpid(), {signal})
    return read(fd, path, *where)
base.read_range = deadly
"""


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    def prepared(number: int) -> Path:
        (tmp_path / "site").mkdir()
        (tmp_path / "site/sitecustomize.py").write_text(DEADLY.format(signal=int(number)))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)]))
        return tree(tmp_path / "src", jpeg(40, 30))

    return prepared


@pytest.mark.parametrize("number", [signal.SIGSEGV, pytest.param(signal.SIGABRT, marks=pytest.mark.long)])
def test_a_sample_that_kills_who_reads_it_costs_one_reject(
    tmp_path: Path, deadly: Callable[[int], Path], number: int
) -> None:
    build(FolderSource(deadly(number)), tmp_path / "out", Recipe(height=8, width=8), Work(workers=1, max_bad="1"))
    assert_one_reject(tmp_path / "out", f"the decoder died with exit status -{int(number)}, 2 times")


@pytest.mark.parametrize("number", [signal.SIGBUS, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_what_fails_beneath_a_read_is_no_reject(tmp_path: Path, deadly: Callable[[int], Path], number: int) -> None:
    with pytest.raises(Stopped, match=f"workers keep dying .exit status -{int(number)}"):
        build(FolderSource(deadly(number)), tmp_path / "out", Recipe(height=8, width=8), Work(workers=1, max_bad="1"))


def test_a_read_that_hangs_is_not_the_pictures_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from decodeonce.prep.build.worker_pool import Worker, WorkerSettings

    worker = Worker(WorkerSettings(str(tmp_path), 0, 1, fail_on_bad=False))
    heartbeat = worker.process.heartbeat
    monkeypatch.setattr(worker_pool, "PICTURE_SECONDS", -1.0)  # at the second look
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
        worker.process.end()


def test_damaged_exif_says_nothing(recwarn: pytest.WarningsRecorder) -> None:
    broken = JPEG[:2] + segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0") + JPEG[2:]
    decode(broken, exif="apply")
    assert not recwarn.list
