"""Test every row of docs/reference/unusual-images.md on a generated file: its row, and the text in rejects.tsv."""

import base64
import io
import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import simplejpeg
from PIL import Image, ImageFile, ImageOps, features

from decodeonce.cli.output import advice_on
from decodeonce.prep.building.build import build
from decodeonce.prep.building.pool import WorkSettings
from decodeonce.prep.listing import Entry, Undecodable
from decodeonce.prep.pixels import failure_reasons
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.pixels.failure_reasons import reads_avif
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.store import open_store
from decodeonce.store.table import read_rejects
from tests.command import prep
from tests.hostile.bombs import BOMBS
from tests.images import (
    color_tiff,
    crc,
    encoded,
    exif,
    jpeg,
    lossless_jpeg,
    make_image,
    marker_at,
    need_format,
    raw_png,
    reference_row,
    replaced,
    segment,
    tiff_file,
    without_segments,
)
from tests.prep.test_decode import decode, pixels

DOC = Path(__file__).resolve().parents[2] / "docs" / "reference" / "unusual-images.md"
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
RED = Image.new("RGB", (50, 60), (250, 5, 5))
# A synthetic image of 32x24 pixels, through jpegtran -arithmetic (libjpeg-turbo 2.1.5).
ARITHMETIC = base64.b85decode(
    "|JeWF01!$>Nk#wx0RR9200961|JwjV02B@n5)Ta&5)cv>6%-gAG9exu93DL^E+jHZKuk+VKt@GST61DhRc%&9Mr4R(ZFhTtf`Lw8jhBplmUDiAeE-`3"
    "Lje^R7akfOJ0T%Ed{ahKe0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0=}O01*fP7yuvx0U`hb5di}c0sqVZ3IGrg1p"
    "yEd1^?Or3<CiG0ucid06zfHdHuY8VG`OqTEcU70i8+C6-<Q7;(Px9Cf8fa@w@Lg6YUVI9eXFjJI>dv)2JEnJW?g?xl!wIbb-OHlk5;E`yH8feE-="
)


def table() -> dict[str, tuple[str, str]]:
    """Map each id of the page to its action ("", "kept" or "rejected") and its text in rejects.tsv."""
    found = {}
    for line in DOC.read_text().splitlines():
        if row := re.fullmatch(r"\| `([a-z0-9-]+)` \| [^|]+ \| (?:nothing|(kept|rejected): `([^`|]+)`) \|", line):
            found[row[1]] = (row[2] or "", row[3] or "")
    return found


def documented(id_: str) -> tuple[str, re.Pattern[str]]:
    """Return the documented action of an id, and a pattern of its text, in which … matches anything."""
    action, text = table()[id_]
    return action, re.compile(".*".join(map(re.escape, text.split("…"))), re.DOTALL)


def assert_rejected(data: bytes, id_: str, **options: Any) -> None:
    """Check that this content is rejected for the documented reason."""
    action, text = documented(id_)
    assert action == "rejected"
    with pytest.raises(Undecodable) as caught:
        decode(data, **options)
    assert text.fullmatch(str(caught.value)), str(caught.value)
    assert " at 0x" not in str(caught.value)  # a memory address of Pillow's text would differ between two builds


@dataclass(frozen=True)
class Case:
    """An image, its name, and the expected row: `like`, or by default the row of Pillow's convert("RGB")."""

    make: Callable[[], bytes]
    name: str = "x.JPEG"
    like: Callable[[], Pixels] | None = None


def adobe(transform: int) -> bytes:
    return segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes((transform,)))


def ycck() -> bytes:
    """Encode red as Adobe writes YCCK: inverted, so cyan with a black of 255. Pillow inverts once when it saves."""
    cyan = Image.new("RGB", (50, 60), (5, 250, 250)).convert("YCbCr")
    bands = [band.point(lambda value: 255 - value) for band in cyan.split()]
    data = encoded(Image.merge("CMYK", [*bands, Image.new("L", (50, 60), 0)]), quality=95)
    return replaced(data, marker_at(data, 0xEE) + 15, b"\2")


def bare_rgb() -> bytes:
    """Encode a JPEG of RGB channels without a color transform, and without JFIF or Adobe markers."""
    return without_segments(jpeg(50, 60, keep_rgb=True), 0xE0)


def with_ids(data: bytes, ids: bytes) -> bytes:
    """Change the channel numbers of a JPEG, in its frame and in its scan."""
    frame, scan = marker_at(data, 0xC0), marker_at(data, 0xDA)
    for channel, number in enumerate(ids):
        data = replaced(data, frame + 10 + 3 * channel, bytes((number,)))
        data = replaced(data, scan + 5 + 2 * channel, bytes((number,)))
    return data


def with_frame(
    data: bytes, *, kind: int | None = None, bits: int | None = None, size: tuple[int, int] | None = None
) -> bytes:
    """Change the marker, sample depth or (width, height) in the frame header of a JPEG."""
    at = marker_at(data, 0xC0)
    data = replaced(data, at + 1, bytes((kind,))) if kind is not None else data
    data = replaced(data, at + 4, bytes((bits,))) if bits is not None else data
    return replaced(data, at + 5, struct.pack(">HH", size[1], size[0])) if size is not None else data


def bare(*, channels: int, kind: int = 0xC0) -> bytes:
    """Return a JPEG with a frame header for `channels` channels, directly followed by the end marker."""
    frame = struct.pack(">BHHB", 8, 60, 50, channels) + b"".join(bytes((n + 1, 0x11, 0)) for n in range(channels))
    return b"\xff\xd8" + segment(kind, frame) + b"\xff\xd9"


def sixteen_bits(channels: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return np.random.default_rng(channels).integers(0, 65536, (32, 32, channels), np.uint16)


def upper_bytes(channels: int) -> Pixels:
    levels = (sixteen_bits(channels) >> 8).astype(np.uint8)
    return np.repeat(levels, 3, axis=2) if channels == 1 else levels[..., :3]


def raw_tiff(bits: int, *, photometric: int = 1, sample_format: int = 1, order: str = "<") -> bytes:
    """Return a gray TIFF with the upper `bits` of `sixteen_bits`."""
    levels = sixteen_bits(1)[..., 0].astype(int) >> (16 - bits)
    height, width = levels.shape
    if bits == 16:
        data = levels.astype(f"{order}u2").tobytes()
    else:
        data = np.packbits(levels[..., None] >> np.arange(bits - 1, -1, -1) & 1).tobytes()
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 277: 1, 278: height, 339: sample_format}
    return tiff_file([data], {tag: (value,) for tag, value in tags.items()}, order)


def random_tiff(channels: int, *, bits: int = 8, **options: Any) -> bytes:
    """Return a TIFF with the upper `bits` of `sixteen_bits`."""
    return color_tiff((sixteen_bits(channels) >> (16 - bits)).astype(f"u{bits // 8}"), **options)


def gray_sixteen(format_: str) -> bytes:
    return encoded(Image.fromarray(sixteen_bits(1)[..., 0]), format_)


def animated(format_: str, **options: Any) -> bytes:
    return encoded(make_image(50, 60), format_, save_all=True, append_images=[make_image(50, 60, seed=1)], **options)


def faded() -> Image.Image:
    """Return an image with a partly transparent alpha channel."""
    image = make_image(50, 60)
    image.putalpha(Image.linear_gradient("L").resize((50, 60)))
    return image


def solid(format_: str, **options: Any) -> Callable[[], Pixels]:
    """Return a function that gives Pillow's row for an image saved by Pillow."""
    return lambda: reference_row(encoded(make_image(50, 60), format_, **options), 32, 32)


def same_as(data: Callable[[], bytes]) -> Callable[[], Pixels]:
    return lambda: reference_row(data(), 32, 32)


def drawn(seed: int = 0) -> Pixels:
    return np.asarray(make_image(32, 32, seed=seed))


def cmyk_mpo() -> bytes:
    """Return two images in one file, the first of them CMYK."""
    if tuple(map(int, PIL.__version__.split(".")[:2])) < (11, 3):
        pytest.skip("Pillow before 11.3 reads such files, but truncates those that it writes")
    return encoded(RED.convert("CMYK"), "MPO", save_all=True, append_images=[make_image(9, 9)])


def exif_with_thumbnail() -> bytes:
    """Return EXIF data that contain a JPEG, whose markers must not be taken for the image's own."""
    thumbnail = jpeg(16, 12, seed=5)
    first = struct.pack("<HHHII", 1, 0x0112, 3, 1, 1) + struct.pack("<I", 26)
    second = struct.pack("<HHHII", 2, 0x0201, 4, 1, 56) + struct.pack("<HHII", 0x0202, 4, 1, len(thumbnail)) + bytes(4)
    return b"Exif\0\0II*\0\x08\0\0\0" + first + second + thumbnail


def without_scans(data: bytes, kept: int) -> bytes:
    """Return a progressive JPEG of Pillow with its first scans and an end marker."""
    return b"\xff\xda".join(data.split(b"\xff\xda")[: 1 + kept]) + b"\xff\xd9"


def flat(data: bytes, *, transform: int) -> bytes:
    return data[:2] + adobe(transform) + without_segments(data, 0xE0)[2:]


PLAIN = jpeg(50, 60)
LARGE = jpeg(200, 160)
EXIF_TEXT = b"Exif\0\0II*\0\x08\0\0\0\1\0" + struct.pack("<HHI4sI", 0x0112, 2, 2, b"6", 0)  # orientation "6"
KEPT = {
    "gray-jpeg": Case(lambda: jpeg(50, 60, mode="L")),
    "progressive": Case(lambda: jpeg(50, 60, progressive=True)),
    "arithmetic": Case(lambda: ARITHMETIC),
    "restart-markers": Case(lambda: jpeg(50, 60, restart_marker_blocks=1)),
    "sampling-411": Case(lambda: jpeg(50, 60, subsampling="4:1:1")),
    "sampling-440": Case(lambda: simplejpeg.encode_jpeg(np.array(make_image(50, 60)), colorsubsampling="440")),
    "adobe-rgb": Case(lambda: flat(bare_rgb(), transform=0)),
    "rgb-by-ids": Case(lambda: with_ids(bare_rgb(), b"RGB")),
    "other-ids": Case(lambda: with_ids(PLAIN, b"\0\1\2"), like=same_as(lambda: PLAIN)),
    "adobe-cmyk": Case(lambda: encoded(RED.convert("CMYK"))),
    "adobe-ycck": Case(ycck),
    "bare-cmyk": Case(lambda: without_segments(jpeg(50, 60, mode="CMYK"), 0xEE)),
    "lossless-rgb": Case(lambda: lossless_jpeg(drawn()), like=drawn),
    "icc-profile": Case(lambda: jpeg(50, 60, icc_profile=bytes(3000)), like=same_as(lambda: PLAIN)),
    "broken-icc": Case(
        lambda: jpeg(50, 60, icc_profile=bytes(3000)).replace(b"ICC_PROFILE\0\1\1", b"ICC_PROFILE\0\5\1"),
        like=same_as(lambda: PLAIN),
    ),
    "exif-text": Case(lambda: jpeg(50, 60, exif=EXIF_TEXT), like=same_as(lambda: PLAIN)),
    "missing-end-marker": Case(lambda: PLAIN[:-2] + bytes(1000), like=same_as(lambda: PLAIN)),
    "exif-thumbnail": Case(lambda: jpeg(50, 60, exif=exif_with_thumbnail()), like=same_as(lambda: PLAIN)),
    "mpo": Case(lambda: animated("MPO", quality=90), like=same_as(lambda: PLAIN)),
    "cmyk-mpo": Case(cmyk_mpo, like=same_as(lambda: encoded(RED.convert("CMYK"), quality=75))),
    "second-jpeg": Case(lambda: PLAIN + jpeg(20, 20, seed=1), like=same_as(lambda: PLAIN)),
    "trailing-bytes": Case(lambda: PLAIN + b"\0\xffgarbage", like=same_as(lambda: PLAIN)),
    "fill-bytes": Case(lambda: PLAIN[:2] + b"\xff\xff" + PLAIN[2:], like=same_as(lambda: PLAIN)),
    "no-huffman-tables": Case(lambda: without_segments(PLAIN, 0xC4), like=same_as(lambda: PLAIN)),
    "stray-bytes": Case(
        lambda: PLAIN[: marker_at(PLAIN, 0xDB)] + bytes(7) + PLAIN[marker_at(PLAIN, 0xDB) :],
        like=same_as(lambda: PLAIN),
    ),
    "jfif-version": Case(lambda: replaced(PLAIN, 11, b"\x03"), like=same_as(lambda: PLAIN)),
    "adobe-transform": Case(lambda: flat(PLAIN, transform=9), like=same_as(lambda: PLAIN)),
    "early-end-marker": Case(lambda: LARGE[: len(LARGE) // 2] + b"\xff\xd9"),
    "missing-scans": Case(lambda: without_scans(jpeg(50, 60, progressive=True), 1)),
    "misnamed": Case(lambda: PLAIN, name="x.png"),
    "png-named-jpeg": Case(lambda: encoded(make_image(50, 60), "PNG")),
    "png": Case(lambda: encoded(make_image(50, 60), "PNG"), name="x.png"),
    "png-alpha": Case(lambda: encoded(faded(), "PNG"), name="x.png", like=solid("PNG")),
    "png-transparent": Case(
        lambda: encoded(make_image(50, 60), "PNG", transparency=(1, 2, 3)), name="x.png", like=solid("PNG")
    ),
    "png-gray": Case(lambda: encoded(make_image(50, 60, mode="L"), "PNG"), name="x.png"),
    "png-gray-alpha": Case(lambda: encoded(faded().convert("LA"), "PNG"), name="x.png"),
    "png-palette": Case(lambda: encoded(make_image(50, 60).quantize(64), "PNG"), name="x.png"),
    "png-palette-alpha": Case(
        lambda: encoded(make_image(50, 60).quantize(64), "PNG", transparency=bytes(range(64))),
        name="x.png",
        like=same_as(lambda: encoded(make_image(50, 60).quantize(64), "PNG")),
    ),
    "png-black-white": Case(lambda: encoded(make_image(50, 60, mode="1"), "PNG"), name="x.png"),
    "png-gray-16": Case(lambda: gray_sixteen("PNG"), name="x.png", like=lambda: upper_bytes(1)),
    "png-rgb-16": Case(lambda: raw_png(sixteen_bits(3), 2), name="x.png", like=lambda: upper_bytes(3)),
    "png-rgba-16": Case(lambda: raw_png(sixteen_bits(4), 6), name="x.png", like=lambda: upper_bytes(4)),
    "png-interlaced": Case(lambda: raw_png(drawn(), 2, interlaced=True), name="x.png", like=drawn),
    "png-animated": Case(lambda: animated("PNG"), name="x.png", like=solid("PNG")),
    "png-without-end": Case(lambda: encoded(make_image(50, 60), "PNG")[:-12], name="x.png", like=solid("PNG")),
    "gif": Case(lambda: encoded(make_image(50, 60), "GIF"), name="x.gif"),
    "gif-animated": Case(lambda: animated("GIF"), name="x.gif", like=solid("GIF")),
    "webp": Case(lambda: encoded(make_image(50, 60), "WEBP"), name="x.webp"),
    "webp-lossless": Case(lambda: encoded(make_image(32, 32), "WEBP", lossless=True), name="x.webp", like=drawn),
    "webp-alpha": Case(lambda: encoded(faded(), "WEBP"), name="x.webp"),
    "webp-animated": Case(lambda: animated("WEBP", lossless=True), name="x.webp", like=solid("WEBP", lossless=True)),
    "bmp": Case(lambda: encoded(make_image(32, 32), "BMP"), name="x.bmp", like=drawn),
    "tiff": Case(lambda: encoded(make_image(32, 32), "TIFF"), name="x.tif", like=drawn),
    "tiff-compressed": Case(
        lambda: encoded(make_image(32, 32), "TIFF", compression="tiff_lzw"), name="x.tiff", like=drawn
    ),
    "tiff-pages": Case(lambda: animated("TIFF"), name="x.tif", like=solid("TIFF")),
    "tiff-cmyk": Case(lambda: encoded(RED.convert("CMYK"), "TIFF"), name="x.tif"),
    "tiff-12": Case(lambda: raw_tiff(12), name="x.tif", like=lambda: upper_bytes(1)),
    "tiff-16-big-endian": Case(lambda: raw_tiff(16, order=">"), name="x.tif", like=lambda: upper_bytes(1)),
    "tiff-16-white": Case(lambda: raw_tiff(16, photometric=0), name="x.tif", like=lambda: 255 - upper_bytes(1)),
    "tiff-planes": Case(lambda: random_tiff(3, planes=True), name="x.tif", like=lambda: upper_bytes(3)),
    "tiff-bands": Case(lambda: random_tiff(4, _338=(0,)), name="x.tif", like=lambda: upper_bytes(4)),
    "tiff-associated-alpha": Case(lambda: random_tiff(4, _338=(1,)), name="x.tif"),
    "tiff-16": Case(lambda: gray_sixteen("TIFF"), name="x.tif", like=lambda: upper_bytes(1)),
    "ppm": Case(lambda: encoded(make_image(32, 32), "PPM"), name="x.ppm", like=drawn),
    "pgm": Case(lambda: encoded(make_image(50, 60, mode="L"), "PPM"), name="x.pgm"),
    "pbm": Case(lambda: encoded(make_image(50, 60, mode="1"), "PPM"), name="x.pbm"),
    "ppm-16": Case(
        lambda: b"P6 32 32 65535\n" + (sixteen_bits(3) // 257 * 257).astype(">u2").tobytes(),
        name="x.ppm",
        like=lambda: (sixteen_bits(3) // 257).astype(np.uint8),
    ),
    "pgm-16": Case(lambda: gray_sixteen("PPM"), name="x.pgm", like=lambda: upper_bytes(1)),
    "png-pixel-bomb": Case(BOMBS["png-pixels"][0], name="x.png"),
    "one-pixel": Case(lambda: jpeg(1, 1)),
    "one-column": Case(lambda: jpeg(1, 5000)),
    "extreme-shape": Case(
        lambda: encoded(Image.new("RGB", (60000, 2), (10, 200, 30)), "PNG"),
        name="x.png",
        like=lambda: np.full((32, 32, 3), (10, 200, 30), np.uint8),
    ),
}


def need_warning_of_color_profiles() -> None:
    """Skip the test if this simplejpeg, such as 1.7, does not notice a damaged color profile."""
    with suppress(ValueError):
        simplejpeg.decode_jpeg(KEPT["broken-icc"].make(), "RGB")
        pytest.skip("this simplejpeg does not notice a damaged color profile")


@pytest.mark.parametrize("id_", KEPT)
def test_image_becomes_a_row(id_: str) -> None:
    case = KEPT[id_]
    if id_ == "broken-icc":
        need_warning_of_color_profiles()
    if not id_.startswith("tiff") or id_ == "tiff-compressed":
        need_format(id_)
    data = case.make()
    size = 64 if id_ == "extreme-shape" else 32
    row = decode(data, case.name, height=size, width=size)
    expected = case.like() if case.like else reference_row(data, 32, 32)
    np.testing.assert_array_equal(pixels(row, size, size)[:32, :32], expected)
    action, text = documented(id_)
    assert action == ("kept" if row.unusual else "")
    assert text.fullmatch(row.unusual), row.unusual


REJECTED: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "not-an-image": lambda: b"PK\3\4" + bytes(100),
    "dicom": lambda: bytes(128) + b"DICM" + bytes(100),
    "web-page": lambda: b"<!DOCTYPE html><title>404 Not Found</title>",
    "unread-format": lambda: b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic" + bytes(100),
    "other-heif": lambda: b"\0\0\0\x18ftypmif3\0\0\0\0heimmif3" + bytes(100),
    "big-tiff-broken": lambda: b"II+\0\x08\0\0\0\x10" + bytes(100),
    "tiff-without-palette": lambda: encoded(make_image(50, 60).quantize(64), "TIFF").replace(
        struct.pack("<HH", 320, 3), struct.pack("<HH", 65000, 3)
    ),
    "bmp-bit-fields": lambda: (
        b"BM"
        + struct.pack("<IHHI", 82, 0, 0, 66)
        + struct.pack("<IiiHHIIiiII", 40, 2, 2, 1, 32, 3, 16, 0, 0, 0, 0)
        + struct.pack("<III", 0xFF, 0xFF00, 0xFF0000)
        + bytes(16)
    ),
    "jpeg-header-only": lambda: PLAIN[:100],
    "lfs-pointer": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "jpeg-without-image": lambda: b"\xff\xd8\xff\xd9",
    "twelve-bits": lambda: with_frame(PLAIN, kind=0xC1, bits=12),
    "lossless-gray": lambda: lossless_jpeg(drawn()[..., :1]),
    "lossless-cmyk": lambda: lossless_jpeg(sixteen_bits(4).astype(np.uint8)),
    "hierarchical": lambda: with_frame(PLAIN, kind=0xC5),
    "two-channels": lambda: bare(channels=2),
    "no-width": lambda: with_frame(PLAIN, size=(0, 60)),
    "no-height": lambda: with_frame(PLAIN, size=(50, 0)),
    "too-long": lambda: with_frame(PLAIN, size=(65535, 1)),
    "bomb": lambda: with_frame(PLAIN, size=(65500, 65500)),
    "png-bomb": lambda: png_of_size(40000, 40000),
    "no-pixels": lambda: png_of_size(0, 60),
    "broken-header": lambda: replaced(PLAIN, marker_at(PLAIN, 0xC4) + 5, b"\xff" * 8),
    "webp-cut": lambda: b"RIFF\x64\0\0\0WEBPVP8 \x58\0\0\0" + bytes(40),
    "tiff-float": lambda: encoded(Image.new("F", (50, 60), 0.5), "TIFF"),
    "tiff-16-signed": lambda: raw_tiff(16, sample_format=2),
    "tiff-bits": lambda: raw_tiff(12, order=">"),
    "tiff-32": lambda: encoded(Image.new("I", (50, 60), 1 << 20), "TIFF"),
    "tiff-planes-16": lambda: random_tiff(3, bits=16, planes=True),
    "raw-thumbnail": lambda: random_tiff(3, _254=(1,)),
    "tiff-ycbcr": lambda: random_tiff(3, _262=(6,)),
    "tiff-lab": lambda: encoded(Image.new("LAB", (50, 60)), "TIFF"),
    "pfm": lambda: encoded(Image.new("F", (50, 60), 0.5), "PPM"),
    "png-text-bomb": BOMBS["png-text"][0],
    "large-canvas": BOMBS["gif-canvas"][0],
    "tiff-nonsense": BOMBS["tiff-tile"][0],
    "bmp-palette": BOMBS["bmp-palette"][0],
}


def png_of_size(width: int, height: int) -> bytes:
    """Return a PNG with this size in its header."""
    data = replaced(encoded(make_image(8, 8), "PNG"), 16, struct.pack(">II", width, height))
    return replaced(data, 29, crc(data[12:29]))


@pytest.mark.parametrize("id_", REJECTED)
def test_image_is_rejected(id_: str) -> None:
    if id_ in ("webp-cut", "tiff-nonsense"):
        need_format(id_)
    assert_rejected(REJECTED[id_](), id_)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("channels", "tags"),
    [
        (3, {"bits": 16}),
        (4, {"bits": 16, "_338": (2,)}),
        (4, {"bits": 16, "_262": (5,)}),  # CMYK
        (1, {"_262": (0,)}),  # white is 0
        (3, {"_266": (2,)}),  # bits in reverse order
        (4, {"_259": (8,)}),  # compressed, without a meaning of the fourth band
        (4, {"_338": (0,)}),
    ],
)
def test_planes_that_pillow_decodes_wrong_are_rejected(order: str, channels: int, tags: dict[str, Any]) -> None:
    with pytest.raises(Undecodable, match="save it with interleaved channels, for example with tiffcp -p contig"):
        decode(random_tiff(channels, order=order, planes=True, **tags))


def test_bands_that_are_not_declared_as_rgb_are_named() -> None:
    message = r"broken TIFF: unknown pixel mode: its bands are declared as .*; keep three, .*-co PHOTOMETRIC=RGB IN OUT"
    for channels, tags in (
        (4, {"bits": 16, "_338": (0, 0, 0)}),
        (4, {"_338": (0, 0, 0)}),
        (3, {"bits": 16, "_338": (0, 0)}),
    ):
        with pytest.raises(Undecodable, match=message):
            decode(random_tiff(channels, _262=(1,), **tags), "x.tif")  # as GDAL writes bands without a meaning


def test_tiff_of_13_bands_is_named_and_pillow_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        Undecodable, match="TIFF with more bands than Pillow reads: keep three, for example with gdal_tr"
    ):
        decode(random_tiff(13, bits=16, _338=(0,) * 10), "x.tif")
    assert capfd.readouterr().err == ""


def test_thumbnails_of_other_raw_files_are_rejected() -> None:
    assert_rejected(random_tiff(3, order=">", _254=(5,)), "raw-thumbnail")  # also a transparency mask
    assert_rejected(random_tiff(3, _255=(2,)), "raw-thumbnail")  # as TIFF 5 marks it
    line = {256: (8,), 257: (1,), 258: (8,), 262: (1,), 277: (1,)}
    assert_rejected(tiff_file([b"CR\2\0" + bytes(4)], line, "<"), "raw-thumbnail")  # Canon marks no image
    np.testing.assert_array_equal(pixels(decode(random_tiff(3, _254=(2,)))), upper_bytes(3))  # a page of several


@pytest.mark.parametrize(
    ("channels", "tags", "unusual"),
    [
        (4, {"bits": 16, "_338": (0,)}, "16 bit, 4 bands, the 4th is dropped"),
        (5, {"_338": (0, 0)}, "5 bands, the last 2 are dropped"),
        (6, {"_338": (0, 0, 0), "order": ">"}, "6 bands, the last 3 are dropped"),
        (5, {"_338": (2, 0)}, "alpha, 5 bands, the 5th is dropped"),
    ],
)
def test_dropped_bands_are_listed(channels: int, tags: dict[str, Any], unusual: str) -> None:
    row = decode(random_tiff(channels, **tags), "x.tif")
    assert row.unusual == unusual
    np.testing.assert_array_equal(pixels(row), upper_bytes(channels))


@pytest.mark.parametrize(("colors", "unusual"), [(5, "CMYK, 5 bands, the 5th is"), (3, "palette, 2 bands, the 2nd is")])
def test_dropped_bands_of_other_colors_are_listed(colors: int, unusual: str) -> None:
    palette = tuple(range(0, 65536, 256)) * 3 if colors == 3 else ()
    data = random_tiff(2 if palette else 5, _262=(colors,), _338=(0,), _320=palette)
    assert decode(data, "x.tif").unusual == f"{unusual} dropped"
    if palette:
        assert Decoder(Recipe()).decode(data, mask=True).unusual == f"{unusual} dropped".removeprefix("palette, ")


@pytest.mark.parametrize("bits", [8, 16])
def test_compressed_planes_are_read(bits: int) -> None:
    need_format("TIFF")
    for channels, extra in (3, ()), (4, (2,)):
        data = random_tiff(channels, bits=bits, planes=True, _259=(8,), _338=extra)
        np.testing.assert_array_equal(pixels(decode(data)), upper_bytes(channels))


@pytest.mark.parametrize("id_", ["adobe-cmyk", "adobe-ycck", "tiff-cmyk"])
def test_cmyk_polarity(id_: str) -> None:
    data = KEPT[id_].make()
    mean = pixels(decode(data, KEPT[id_].name)).reshape(-1, 3).mean(0)
    np.testing.assert_allclose(mean, (250, 5, 5), atol=8)


@pytest.mark.parametrize("id_", ["adobe-rgb", "rgb-by-ids", "other-ids", "sampling-440", "sampling-411"])
def test_colors_match_the_encoded_image(id_: str) -> None:
    error = pixels(decode(KEPT[id_].make())).astype(int) - reference_row(encoded(make_image(50, 60), "PNG"), 32, 32)
    assert np.abs(error).mean() < 6


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}])
def test_jpeg_truncated_anywhere_is_rejected(mode: str, options: dict[str, Any]) -> None:
    whole = jpeg(64, 48, mode=mode, **options)
    header = marker_at(whole, 0xDA) + 20
    for share in range(1, 100):
        data = whole[: max(4, len(whole) * share // 100)]
        with pytest.raises(Undecodable, match=r"^truncated: " if len(data) > header else r"^(truncated|broken JPEG): "):
            decode(data)


@pytest.mark.parametrize(
    ("format_", "options"),
    [("PNG", {}), ("GIF", {}), ("BMP", {}), ("PPM", {}), ("WEBP", {}), ("WEBP", {"lossless": True}), ("TIFF", {})],
)
def test_other_formats_truncated_anywhere_are_rejected(format_: str, options: dict[str, Any]) -> None:
    if format_ != "TIFF":  # not compressed here
        need_format(format_)
    whole = encoded(make_image(64, 48), format_, **options)
    for share in range(1, 100):
        with pytest.raises(Undecodable, match=r"^(truncated|broken|not an image: begins)"):
            decode(whole[: len(whole) * share // 100])


def test_jpeg_truncated_after_a_thumbnail_is_rejected() -> None:
    whole = jpeg(64, 48, exif=exif_with_thumbnail())
    thumbnail_end = whole.index(b"\xff\xd9")
    assert thumbnail_end < marker_at(whole, 0xDA)
    for end in (*range(4, thumbnail_end + 10, 7), thumbnail_end, thumbnail_end + 2, len(whole) // 2):
        assert_rejected(whole[:end], "truncated")


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 3}])
def test_garbled_data_match_pillow_or_are_rejected(options: dict[str, Any]) -> None:
    """Garble the scan in 150 ways."""
    data, kept = jpeg(200, 160, **options), 0
    scan = marker_at(data, 0xDA) + 14
    decoder = Decoder(Recipe(height=32, width=32))
    before = decoder.row(jpeg(200, 160, seed=99), Entry(b"x", 0, 0, 0))
    for seed in range(150):
        rng = np.random.default_rng(seed)
        garbled = bytearray(data)
        for at in rng.integers(scan, len(data) - 2, int(rng.integers(1, 6))):
            garbled[at] = (0, 255, int(rng.integers(256)))[int(rng.integers(3))]
        with suppress(Undecodable):
            row = decoder.row(bytes(garbled), Entry(b"x", 0, 0, 0))
            kept += 1
            assert row.pixels != before.pixels
            np.testing.assert_array_equal(pixels(row), reference_row(bytes(garbled), 32, 32))
            assert not row.unusual or documented("garbled")[1].fullmatch(row.unusual)
    assert kept > 10


def test_garbled_data_are_rejected_on_request() -> None:
    """A few wrong bytes, whose position depends on the libjpeg-turbo that encoded the image, cause only a warning."""
    made = (replaced(LARGE, at, bytes(4)) for at in range(len(LARGE) // 2, len(LARGE)))
    data, row = next((data, row) for data in made if (row := decode(data)).unusual)
    assert documented("garbled")[1].fullmatch(row.unusual)
    assert [*advice_on({f"grayscale, {row.unusual}": 2}, None)] == [
        "2 garbled images were kept, maybe with wrong pixels; --on-damaged reject leaves them out"
    ]
    with pytest.raises(Undecodable, match="garbled: "):
        decode(data, on_damaged="reject")


def test_error_after_a_warning_is_rejected() -> None:
    decoder = Decoder(Recipe(height=32, width=32))
    decoder.row(LARGE, Entry(b"x", 0, 0, 0))
    whole = jpeg(200, 160, progressive=True)
    first = marker_at(whole, 0xDA)
    broken = replaced(whole, whole.index(b"\xff\xda", first + 2), b"\xff\x1e")  # an error: no such marker
    hidden = 0
    for gap in range(20, 100, 4):
        data = replaced(broken, first + gap, bytes(4))  # a warning, mostly: a bad Huffman code
        with pytest.raises(Undecodable, match="broken JPEG: Unsupported marker type 0x1e"):
            decoder.row(data, Entry(b"x", 0, 0, 0))
        try:
            hidden += simplejpeg.decode_jpeg(data, "RGBX", strict=False).shape == (160, 200, 4)
        except ValueError:
            continue
    assert hidden  # strict=False decodes some of these without an error, so it cannot be used


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_exif_rotation_is_applied_only_on_request(orientation: int, format_: str) -> None:
    need_format(format_)
    data = encoded(make_image(90, 50), format_, exif=exif(orientation))
    upright = encoded(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), "PNG")
    name = f"x.{format_.lower()}"
    np.testing.assert_array_equal(pixels(decode(data, name, exif="apply")), reference_row(upright, 32, 32))
    plain = encoded(make_image(90, 50), format_)
    np.testing.assert_array_equal(pixels(decode(data, name)), reference_row(plain, 32, 32))
    assert decode(data, name, exif="apply").unusual == ""
    assert documented("exif-rotation")[1].fullmatch(decode(data, name).unusual) or orientation == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [(2, b"6\0\0\0"), (1, b"\6"), (3, b"\6\0\6\0"), (4, b"\6\0\0\0"), (12, struct.pack("<d", 6.5))],
)
def test_orientation_of_any_type_is_applied_as_pillow_does(kind: int, value: bytes) -> None:
    at = value.ljust(4, b"\0") if len(value) <= 4 else struct.pack("<I", 26)
    count = len(value) // {1: 1, 2: 1, 3: 2, 4: 4, 12: 8}[kind]
    tags = b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHI4sI", 0x0112, kind, count, at, 0) + value
    data = encoded(make_image(90, 50), exif=b"Exif\0\0" + tags)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    row = decode(data, exif="apply")
    np.testing.assert_array_equal(pixels(row), reference_row(encoded(turned, "PNG"), 32, 32))
    assert bool(row.unusual) == (kind in (1, 2))


def test_damaged_color_profile_is_no_damage_of_pixels() -> None:
    need_warning_of_color_profiles()
    whole = jpeg(50, 60, icc_profile=bytes(100_000))
    for old, new in ((b"\0\1\2", b"\0\7\2"), (b"\0\2\2", b"\0\0\2"), (b"\0\1\2", b"\0\2\2")):
        data = whole.replace(b"ICC_PROFILE" + old, b"ICC_PROFILE" + new)
        row = decode(data, on_damaged="reject")
        assert (row.pixels, row.unusual) == (decode(whole).pixels, "damaged color profile")
        with pytest.raises(Undecodable, match=r"^truncated"):
            decode(data[: len(data) - 200], on_damaged="reject")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("setting", ["ignore", "apply"])
def test_tiff_orientation_is_applied_once(orientation: int, setting: str) -> None:
    data = encoded(make_image(90, 50), "TIFF", tiffinfo={0x0112: orientation})
    tags = encoded(make_image(90, 50), exif=exif(orientation), quality=100)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(tags)))
    row = decode(data, "x.tif", exif=setting)
    assert (row.width, row.height) == turned.size
    upright = encoded(Image.open(io.BytesIO(data)).convert("RGB"), "PNG")
    np.testing.assert_array_equal(pixels(row), reference_row(upright, 32, 32))
    assert np.abs(pixels(row).astype(int) - reference_row(encoded(turned, "PNG"), 32, 32)).mean() < 3


def test_pillow_without_webp_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(make_image(50, 60), "WEBP") if features.check("webp") else b"RIFF\x64\0\0\0WEBPVP8 " + bytes(100)
    monkeypatch.setattr("PIL.WebPImagePlugin.SUPPORTED", False)
    monkeypatch.setattr("PIL.features.check", lambda name: False)
    assert_rejected(data, "webp-not-built", name="x.webp")
    assert "libwebp-dev" in failure_reasons.NO_WEBP


def test_animation_that_ends_in_its_second_frame_is_kept() -> None:
    data = animated("GIF")
    whole = decode(data, "x.gif")
    for size in range(len(data) * 51 // 100, len(data) * 60 // 100, 10):  # the first ones end in its header
        cut = decode(data[:size], "x.gif")
        assert (cut.pixels, cut.unusual) == (whole.pixels, "palette, animation, the first frame is kept")


def avif(image: Image.Image, **options: Any) -> bytes:
    """Return an AVIF, or only its first box if this Pillow has no AVIF."""
    return encoded(image, "AVIF", **options) if reads_avif() else b"\0\0\0\x20ftypavif\0\0\0\0avifmif1" + bytes(100)


def test_avif_is_read_if_pillow_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    image = make_image(50, 60)
    whole, frames = avif(image), {"save_all": True, "append_images": [make_image(50, 60, seed=1)]}
    if reads_avif():
        for data, id_ in (
            (whole, "avif"),
            (avif(image, **frames), "avif-animated"),
            (avif(faded()), "avif-alpha"),
            (avif(image, exif=exif(6)), "exif-rotation"),
        ):
            row = decode(data, "x.avif")
            action, text = documented(id_)
            assert (bool(row.unusual), bool(text.fullmatch(row.unusual))) == (action == "kept", True)
            first = encoded(Image.open(io.BytesIO(data)).convert("RGB"), "PNG")
            np.testing.assert_array_equal(pixels(row), reference_row(first, 32, 32))
        upright = encoded(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), "PNG")
        np.testing.assert_array_equal(pixels(decode(data, "x.avif", exif="apply")), reference_row(upright, 32, 32))
        for share in range(1, 100):
            with pytest.raises(Undecodable, match=r"^(truncated|broken AVIF|not an image: begins)"):
                decode(whole[: len(whole) * share // 100])
        assert_rejected(whole[:-20], "avif-cut", name="x.avif")
        assert_rejected(whole[:100] + bytes(len(whole) - 100), "avif-broken", name="x.avif")
        assert any("libavif" in library for library in decoder_versions("npy"))
    monkeypatch.setattr("PIL.features.check", lambda name: False)
    assert_rejected(whole, "avif-not-built", name="x.avif")
    assert "Pillow 11.3 and later do" in failure_reasons.NO_AVIF


def test_pillow_without_libtiff_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    need_format("TIFF")
    data = encoded(make_image(50, 60), "TIFF", compression="tiff_lzw")
    monkeypatch.delattr("PIL.Image.core.libtiff_decoder")
    assert_rejected(data, "tiff-not-built", name="x.tif")
    assert "libtiff-dev" in failure_reasons.NO_TIFF


NAMES = {"name-newline": b"a\nb.JPEG", "name-not-utf8": b"caf\xe9.JPEG", "name-tab": b"tab\t\\.JPEG"}


def test_unusual_names_survive_a_build(tmp_path: Path) -> None:
    top = os.fsencode(tmp_path / "pictures")
    os.makedirs(os.path.join(top, b"class"))
    for number, name in enumerate(NAMES.values()):
        Path(os.fsdecode(os.path.join(top, b"class", name))).write_bytes(jpeg(40, 30, seed=number))
        Path(os.fsdecode(os.path.join(top, b"class", b"cut" + name))).write_bytes(jpeg(40, 30, seed=number)[:-9])
    Path(os.fsdecode(os.path.join(top, b"class", b"empty\n.JPEG"))).touch()
    out = tmp_path / "store"
    settings = WorkSettings(workers=1, max_bad="100%")
    build(FolderSource(Path(os.fsdecode(top))), out, Recipe(height=32, width=32), settings)
    kept = {os.fsencode(sample.source): sample.row for sample in open_store(out).samples}
    assert set(kept) == {b"class/" + name for name in NAMES.values()}
    for number, name in enumerate(NAMES.values()):
        row = open_store(out).images[kept[b"class/" + name]]
        np.testing.assert_array_equal(row, reference_row(jpeg(40, 30, seed=number), 32, 32))
    rejects = {os.fsencode(reject.source): reject.reason for reject in read_rejects(out / "rejects.tsv")}
    assert set(rejects) == {b"class/cut" + name for name in NAMES.values()} | {b"class/empty\n.JPEG"}
    assert rejects.pop(b"class/empty\n.JPEG") == table()["empty"][1]
    assert all(documented("truncated")[1].fullmatch(reason) for reason in rejects.values())
    lines = (out / "samples.tsv").read_bytes().splitlines()
    assert len(lines) == 1 + len(NAMES)
    for written in (rb"class/a\nb.JPEG", rb"class/caf\xe9.JPEG", rb"class/tab\t\\.JPEG"):
        assert sum(b"\t" + written + b"\t" in line for line in lines) == 1


# Rows of the table with a test function of their own.
OTHERS = {
    "truncated": test_jpeg_truncated_anywhere_is_rejected,
    "garbled": test_garbled_data_match_pillow_or_are_rejected,
    "exif-rotation": test_exif_rotation_is_applied_only_on_request,
    "tiff-orientation": test_tiff_orientation_is_applied_once,
    "webp-not-built": test_pillow_without_webp_names_the_package_to_install,
    **dict.fromkeys(
        ("avif", "avif-alpha", "avif-animated", "avif-cut", "avif-broken", "avif-not-built"),
        test_avif_is_read_if_pillow_reads_it,
    ),
    "tiff-not-built": test_pillow_without_libtiff_names_the_package_to_install,
    **dict.fromkeys(NAMES, test_unusual_names_survive_a_build),
}
# Rows of the table with tests in other files.
ELSEWHERE = {
    "damaged-exif": "hostile/test_images.py test_bomb_becomes_row_or_reject_within_memory_limit",
    "too-much-memory": "hostile/test_images.py test_image_over_the_memory_limit_is_rejected",
    "endless": "prep/test_worker_pool.py test_image_that_takes_long_is_rejected",
    "deadly": "hostile/test_images.py test_image_that_kills_its_reader_is_rejected",
}


def test_table_and_tests_cover_each_other() -> None:
    rows = [line for line in DOC.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(table()), [line for line in rows if line.split("`")[1] not in table()]
    assert set(table()) == {*KEPT, *REJECTED, *OTHERS, *ELSEWHERE}
    for file, name in map(str.split, ELSEWHERE.values()):
        assert f"\ndef {name}(" in (Path(__file__).parents[1] / file).read_text()
    assert all(table()[id_][0] in ("", "kept") for id_ in KEPT)


@pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 2}, {"mode": "L"}])
@pytest.mark.parametrize("trailer", [b"", bytes(1000)])
def test_jpeg_without_end_marker_has_all_pixels(options: dict[str, Any], trailer: bytes) -> None:
    whole = jpeg(64, 48, **options)
    row = decode(whole[:-2] + trailer)
    np.testing.assert_array_equal(pixels(row), pixels(decode(whole)))
    assert "no end marker" in row.unusual


def test_build_counts_tiffs_of_several_pages(tmp_path: Path) -> None:
    pages = [make_image(30, 20, seed=seed) for seed in range(3)]
    (tmp_path / "src/a").mkdir(parents=True)
    pages[0].save(tmp_path / "src/a/1.tif", save_all=True, append_images=pages[1:])
    done = prep("build", "folder", tmp_path / "src", tmp_path / "out", "--size", 16, "--workers", 1, "-q")
    assert "out: 1 TIFF was stored as the first of several pages\n" in done.stderr


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
@pytest.mark.parametrize("stored", ["rgb", "yuv420"])
def test_transparent_color_changes_no_row(mode: str, stored: str) -> None:
    image, transparent = make_image(50, 60, mode=mode), (1, 2, 3) if mode == "RGB" else 1
    row = decode(encoded(image, "PNG", transparency=transparent), "x.png", pixels=stored)
    plain = decode(encoded(image, "PNG"), "x.png", pixels=stored)
    assert row.pixels == plain.pixels
    color = "transparent color" if mode in ("L", "RGB") else ""
    assert row.unusual == ", ".join(filter(None, (plain.unusual, color)))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_missing_scans_are_listed(mode: str) -> None:
    whole = jpeg(200, 160, progressive=True, mode=mode)
    count = whole.count(b"\xff\xda")
    assert count > 5
    assert "garbled" not in decode(whole).unusual
    for kept in range(1, count):
        data = without_scans(whole, kept)
        row = decode(data)
        assert row.unusual.endswith("garbled: its last scans are missing")
        np.testing.assert_array_equal(pixels(row), reference_row(data, 32, 32))
        assert pixels(decode(data, scaled_decode=True)).tobytes() == row.pixels
        with pytest.raises(Undecodable, match=r"^garbled: its last scans are missing"):
            decode(data, on_damaged="reject")
        if mode == "L":
            with pytest.raises(Undecodable, match=r"^garbled: its last scans are missing"):
                Decoder(Recipe()).decode(data, mask=True)


def test_missing_scans_of_a_sequential_jpeg_are_listed() -> None:
    """One scan for each channel, of which the last two are missing."""
    gray, color = jpeg(64, 48, mode="L"), jpeg(64, 48, subsampling="4:4:4")
    data = color[: marker_at(color, 0xDA)] + gray[marker_at(gray, 0xDA) :]
    assert decode(data).unusual == "garbled: its last scans are missing"
    np.testing.assert_array_equal(pixels(decode(data)), reference_row(data, 32, 32))


@pytest.mark.parametrize("share", [70, 90, 98])
@pytest.mark.parametrize("quality", [75, 98])
def test_jpeg_that_is_filled_with_zeros_is_truncated(share: int, quality: int) -> None:
    """As after an interrupted download that had reserved its space."""
    whole = jpeg(64, 48, quality=quality)
    data = whole[: len(whole) * share // 100]
    assert_rejected(data + bytes(len(whole) - len(data)), "truncated")


@pytest.mark.parametrize("format_", ["JPEG", "PNG"])
def test_truncated_image_can_be_kept_as_pillow_reads_it(format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(make_image(64, 64), format_)
    data = data[: len(data) * 7 // 10] + b"the trailer of a phone"
    with pytest.raises(Undecodable, match="truncated"):
        decode(data)
    row = decode(data, on_damaged="keep-truncated")
    assert row.unusual.startswith("truncated: ")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # as a user's code sets it for images of its own
    with pytest.raises(Undecodable, match="truncated"):  # in the same process
        decode(data)
    assert ImageFile.LOAD_TRUNCATED_IMAGES
    np.testing.assert_array_equal(pixels(row), reference_row(data, 32, 32))


@pytest.mark.parametrize("length", range(4, 9))
def test_start_of_a_tiff_is_broken(length: int) -> None:
    with pytest.raises(Undecodable, match=r"^broken TIFF: "):
        decode(b"II*\0\0\0\0\0"[:length])
