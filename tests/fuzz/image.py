"""Images, decoded by recipes of every kind."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from random import Random
from typing import get_args
from unittest.mock import patch

import numpy as np
from PIL import Image, features

from decodeonce.prep.listing import Entry, Undecodable
from decodeonce.prep.pixels import failure_reasons
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.recipe import BoxRules, Exif, Fit, OnDamaged, Recipe
from tests.fuzz import Mutate
from tests.images import encoded, jpeg, lossless_jpeg, make_image, raw_png, segment

SIZE = (24, 16)
MAX_PIXELS = 1 << 20  # instead of 179 million: images of that size take a second
BOXES = (None, [0.0, 0.0, 1.0, 1.0], [0.4, 0.4, 0.4, 0.4], [0.9, 0.1, 1.0, 0.2])
CHOICES = list(product(get_args(Fit), get_args(Exif), get_args(OnDamaged), (False, True), BOXES))

EXIF_HEAD = b"Exif\0\0"
MARKERS = bytes((*range(0xC0, 0xD0), *range(0xD8, 0xE3), 0xEE, 0xFE))


def seeds() -> Iterator[bytes]:
    """Yield an image of each supported format and mode, some unusual or damaged. The first byte selects the recipe."""
    tags = Image.Exif()
    tags[0x0112] = 6
    images = [
        jpeg(40, 30),
        jpeg(9, 31, mode="L", exif=tags.tobytes()),
        jpeg(20, 20, mode="CMYK"),
        jpeg(33, 17, progressive=True, subsampling=0, comment=b"a"),
        lossless_jpeg(np.asarray(make_image(4, 3))),
        encoded(make_image(18, 12), "PNG"),
        encoded(make_image(18, 12, mode="P"), "PNG", transparency=3, exif=tags.tobytes()),
        raw_png(np.arange(24, dtype=np.uint16).reshape(6, 4, 1), 0),
        raw_png(np.arange(96, dtype=np.uint16).reshape(6, 4, 4), 6, interlaced=True),
        encoded(make_image(18, 12), "GIF"),
        encoded(make_image(18, 12), "GIF", save_all=True, append_images=[make_image(18, 12, seed=1)]),
        encoded(make_image(18, 12), "BMP"),
        encoded(make_image(18, 12, mode="P"), "BMP"),
        encoded(make_image(18, 12), "TIFF", compression="raw"),
        encoded(make_image(18, 12, mode="F"), "TIFF"),
        encoded(make_image(18, 12), "PPM"),
        encoded(make_image(18, 12, mode="1"), "PPM"),
        encoded(make_image(40, 30), "MPO", save_all=True, append_images=[make_image(9, 9)]),
        b"P3 2 1 255 1 2 3 4 5 6\n",
        b"P6 1 1 65535\n" + bytes(6),
    ]
    if features.check("webp"):
        images.append(encoded(make_image(18, 12), "WEBP"))
        images.append(encoded(make_image(18, 12, mode="RGBA"), "WEBP", lossless=True, exif=tags.tobytes()))
    if features.check("libtiff"):
        images.append(encoded(make_image(18, 12), "TIFF", compression="tiff_lzw"))
        images.append(encoded(make_image(18, 12, mode="1"), "TIFF", compression="group4"))
        images.append(encoded(make_image(18, 12), "TIFF", compression="jpeg"))
    for number, data in enumerate(images):
        yield bytes([number * 7 % len(CHOICES)]) + data


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Change, copy, remove or insert a segment of a JPEG (2 of 3 times), or let libFuzzer change the bytes."""
    if data[1:3] != b"\xff\xd8" or not random.randrange(3):
        return mutate(data, size)
    head, parts, scans = _segments(data)
    if not parts:
        return mutate(data, size)
    index, kind = random.randrange(len(parts)), random.randrange(5)
    part = parts[index]
    if kind == 0:
        parts.insert(random.randrange(len(parts) + 1), part)
    elif kind == 1:
        del parts[index]
    elif kind == 2:
        parts.insert(index, segment(random.choice(MARKERS), EXIF_HEAD + mutate(b"II*\0\x08\0\0\0\x01\0", 64)))
    elif kind == 3:
        parts[index] = part[:4] + mutate(part[4:], max(1, len(part) - 4))
    else:
        parts[index] = segment(part[1], mutate(part[4:], min(65533, len(part) + 16))[:65533])
    return (head + b"".join(parts) + scans)[:size]


def _segments(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Return the bytes before the first segment of a JPEG, the segments before the first scan, and the rest."""
    parts, start = [], 3
    while start + 4 <= len(data) and data[start] == 0xFF and data[start + 1] != 0xDA:
        end = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
        parts.append(data[start:end])
        start = end
    return data[:3], parts, data[start:]


@cache
def decoder_of(fit: Fit, exif: Exif, on_damaged: OnDamaged, scaled: bool, boxes: BoxRules | None) -> Decoder:
    return Decoder(Recipe(*SIZE, fit=fit, exif=exif, on_damaged=on_damaged, scaled_decode=scaled, boxes=boxes))


def TestOneInput(data: bytes) -> None:
    """Decoding gives a row or raises Undecodable."""
    if not data:
        return
    fit, exif, on_damaged, scaled, box = CHOICES[data[0] % len(CHOICES)]
    decoder = decoder_of(fit, exif, on_damaged, scaled, BoxRules() if box else None)
    try:
        with patch.object(failure_reasons, "MAX_PIXELS", MAX_PIXELS):
            row = decoder.row(data[1:], Entry(b"a/b.jpg", 0, len(data), 0, numbers={"box": box} if box else {}))
    except Undecodable:
        return
    assert len(row.pixels) == SIZE[0] * SIZE[1] * 3
    assert row.width > 0 < row.height
    assert row.turn in range(1, 9)
