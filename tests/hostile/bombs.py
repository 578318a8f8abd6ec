"""Hostile images, which try to make a decoder use much memory or time."""

import struct
import zlib
from collections.abc import Callable
from functools import cache

from tests.images import encoded, jpeg, make_image, png_file, segment

MIB = 1 << 20


def png(*chunks: tuple[bytes, bytes], width: int = 10, height: int = 10) -> bytes:
    """Return a black PNG with these chunks before its pixels."""
    head = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = (b"IDAT", zlib.compress(bytes((1 + 3 * width) * height)))
    return png_file(head, *chunks, pixels, (b"IEND", b""))


@cache
def zeros() -> bytes:
    """Return 100 MiB of zeros, deflated to a thousandth of that size."""
    deflate = zlib.compressobj(1)
    return b"".join(deflate.compress(bytes(MIB)) for _ in range(100)) + deflate.flush()


def tiff(width: int, height: int, *tags: tuple[int, int, int], compression: int = 5) -> bytes:
    """Return a gray TIFF with one strip or tile of invalid data. `tags` are further tags (number, count, value)."""
    basic = [(256, 1, width), (257, 1, height), (258, 1, 8), (259, 1, compression), (262, 1, 1)]
    strip = {273: (273, 1, 400), 278: (278, 1, height), 279: (279, 1, 200)}
    tile = {324: (324, 1, 400), 325: (325, 1, 200)}
    further = {number: (number, count, value) for number, count, value in tags}
    offsets = tile if 322 in further else strip
    all_tags = {**{tag[0]: tag for tag in basic}, **offsets, **further}
    head = b"II*\0\x08\0\0\0" + struct.pack("<H", len(all_tags))
    body = b"".join(struct.pack("<HHII", number, 4, count, value) for number, count, value in sorted(all_tags.values()))
    return (head + body).ljust(400, b"\0") + b"x" * 200


def webp_canvas(width: int, height: int) -> bytes:
    """Return an animated WebP with one small frame on a canvas of this size."""
    frame = encoded(make_image(16, 16), "WEBP")[12:]
    frame_header = bytes(6) + struct.pack("<I", 15)[:3] * 2 + b"\x10\0\0\0"
    canvas = b"\2\0\0\0" + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    chunks = ((b"VP8X", canvas), (b"ANIM", bytes(6)), (b"ANMF", frame_header + frame))
    body = b"".join(name + struct.pack("<I", len(data)) + data for name, data in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def bmp(width: int, height: int, *, colors: int = 0) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8 if colors else 24, 0, 0, 0, 0, colors, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head + bytes(100)


def scans(side: int, count: int) -> bytes:
    """Return a uniformly gray progressive JPEG of side x side pixels, with `count` unnecessary scans."""
    blocks = (-(-side // 8)) ** 2
    runs = "0" + "1" * 14  # an end-of-band run of 32,767 blocks
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
EXIF_SHORT = b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0"  # five tags, of which the first is incomplete
# A function that makes the image, and the beginning of the error ("" if the image becomes a row).
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "png-pixels": (lambda: png((b"IDAT", zeros())), ""),
    "png-profile": (lambda: png((b"iCCP", b"a\0\0" + zeros())), "broken PNG: Decompressed data too large"),
    "png-text": (lambda: png((b"zTXt", b"a\0\0" + zeros())), "broken PNG: Decompressed data too large"),
    "png-texts": (lambda: png(*[(b"zTXt", b"a\0\0" + zlib.compress(bytes(900_000)))] * 99), "broken PNG: Too much mem"),
    "png-chunks": (lambda: png(*[(b"teSt", b"")] * 9999), ""),
    "gif-canvas": (lambda: b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\1\0\1\0\0\2\1\x44\0;", "decompression bomb: "),
    "gif-comment": (lambda: b"GIF89a\1\0\1\0\0\0\0!\xfe" + b"\1c" * 9999 + b"\0;", "broken GIF"),
    "webp-canvas": (lambda: webp_canvas(65535, 65535), "broken WEBP: |decompression bomb: "),  # Pillow 13: a bomb
    "webp-large-canvas": (lambda: webp_canvas(16384, 16384), "decompression bomb: "),
    "bmp-wide": (lambda: bmp(2**31 - 1, 1), "decompression bomb: "),
    "bmp-upside-down": (lambda: bmp(13377, -13377), "truncated: "),
    "bmp-palette": (lambda: bmp(10, 10, colors=2**31 - 1), "broken BMP: "),
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
    "tiff-channels": (lambda: tiff(100, 100, (277, 1, 65535)), "TIFF with more bands than Pillow reads: "),
    "jpeg-exif": (lambda: JPEG[:2] + segment(0xE1, b"Exif\0\0" + bytes(60000)) * 99 + JPEG[2:], ""),
    "jpeg-exif-short": (lambda: JPEG[:2] + segment(0xE1, EXIF_SHORT) + JPEG[2:], ""),
    "jpeg-comments": (lambda: JPEG[:2] + b"\xff\xfe\0\2" * 99999 + JPEG[2:], ""),
    "jpeg-scans": (lambda: scans(200, 2000), ""),
}
