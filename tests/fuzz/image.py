"""Pictures, decoded by recipes of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import get_args
from unittest.mock import patch

import numpy as np
from PIL import Image, features

from decodeonce.prep.entry import Entry, Undecodable
from decodeonce.prep.pixels import decode
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.recipe import BoxRules, Exif, Fit, OnDamaged, Recipe
from tests.fuzz import Mutate
from tests.images import encoded, jpeg, lossless_jpeg, picture, raw_png, segment

SIZE = (24, 16)
MOST_PIXELS = 1 << 20  # instead of 179 million, each of which takes a second
BOXES = ((), ((0.0, 0.0, 1.0, 1.0),), ((0.4, 0.4, 0.4, 0.4),), ((0.9, 0.1, 1.0, 0.2),))
CHOICES = list(product(get_args(Fit), get_args(Exif), get_args(OnDamaged), (False, True), BOXES))
DECODERS: dict[tuple[str, str, str, bool, bool], Decoder] = {}
EXIF_HEAD = b"Exif\0\0"
MARKERS = bytes((*range(0xC0, 0xD0), *range(0xD8, 0xE3), 0xEE, 0xFE))


def seeds() -> Iterator[bytes]:
    """A picture of each format and mode that is read, some odd or broken; which recipe is in the first byte."""
    tags = Image.Exif()
    tags[0x0112] = 6
    pictures = [
        jpeg(40, 30),
        jpeg(9, 31, mode="L", exif=tags.tobytes()),
        jpeg(20, 20, mode="CMYK"),
        jpeg(33, 17, progressive=True, subsampling=0, comment=b"a"),
        lossless_jpeg(np.asarray(picture(4, 3))),
        encoded(picture(18, 12), "PNG"),
        encoded(picture(18, 12, mode="P"), "PNG", transparency=3, exif=tags.tobytes()),
        raw_png(np.arange(24, dtype=np.uint16).reshape(6, 4, 1), 0),
        raw_png(np.arange(96, dtype=np.uint16).reshape(6, 4, 4), 6, interlaced=True),
        encoded(picture(18, 12), "GIF"),
        encoded(picture(18, 12), "GIF", save_all=True, append_images=[picture(18, 12, seed=1)]),
        encoded(picture(18, 12), "BMP"),
        encoded(picture(18, 12, mode="P"), "BMP"),
        encoded(picture(18, 12), "TIFF", compression="raw"),
        encoded(picture(18, 12, mode="F"), "TIFF"),
        encoded(picture(18, 12), "PPM"),
        encoded(picture(18, 12, mode="1"), "PPM"),
        encoded(picture(40, 30), "MPO", save_all=True, append_images=[picture(9, 9)]),
        b"P3 2 1 255 1 2 3 4 5 6\n",
        b"P6 1 1 65535\n" + bytes(6),
    ]
    if features.check("webp"):
        pictures.append(encoded(picture(18, 12), "WEBP"))
        pictures.append(encoded(picture(18, 12, mode="RGBA"), "WEBP", lossless=True, exif=tags.tobytes()))
    if features.check("libtiff"):
        pictures.append(encoded(picture(18, 12), "TIFF", compression="tiff_lzw"))
        pictures.append(encoded(picture(18, 12, mode="1"), "TIFF", compression="group4"))
        pictures.append(encoded(picture(18, 12), "TIFF", compression="jpeg"))
    for number, data in enumerate(pictures):
        yield bytes([number * 7 % len(CHOICES)]) + data


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Of a JPEG one segment changed, moved or put in, mostly; else as libFuzzer has it."""
    if data[1:3] != b"\xff\xd8" or not random.randrange(3):
        return mutate(data, size)
    head, parts, scans = _segments(data)
    if not parts:
        return mutate(data, size)
    at, kind = random.randrange(len(parts)), random.randrange(5)
    if kind == 0:
        parts.insert(random.randrange(len(parts) + 1), parts[at])
    elif kind == 1:
        del parts[at]
    elif kind == 2:
        parts.insert(at, segment(random.choice(MARKERS), EXIF_HEAD + mutate(b"II*\0\x08\0\0\0\x01\0", 64)))
    elif kind == 3:
        parts[at] = parts[at][:4] + mutate(parts[at][4:], max(1, len(parts[at]) - 4))
    else:
        parts[at] = segment(parts[at][1], mutate(parts[at][4:], min(65533, len(parts[at]) + 16))[:65533])
    return (head + b"".join(parts) + scans)[:size]


def _segments(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    """What stands before the first segment of a JPEG, its segments before the first scan, and the rest."""
    parts, place = [], 3
    while place + 4 <= len(data) and data[place] == 0xFF and data[place + 1] != 0xDA:
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        parts.append(data[place:end])
        place = end
    return data[:3], parts, data[place:]


def TestOneInput(data: bytes) -> None:
    """A row, or Undecodable with a reason."""
    if not data:
        return
    fit, exif, on_damaged, scaled, boxes = CHOICES[data[0] % len(CHOICES)]
    key = (fit, exif, on_damaged, scaled, bool(boxes))
    if key not in DECODERS:
        rules = BoxRules() if boxes else None
        recipe = Recipe(*SIZE, fit=fit, exif=exif, on_damaged=on_damaged, scaled_decode=scaled, boxes=rules)
        DECODERS[key] = Decoder(recipe)
    decoder = DECODERS[key]
    try:
        with patch.object(decode, "MAX_PIXELS", MOST_PIXELS):
            row = decoder.row(data[1:], Entry(b"a/b.jpg", 0, len(data), 0, boxes=boxes))
    except Undecodable:
        return
    assert len(row.pixels) == SIZE[0] * SIZE[1] * 3
    assert row.width > 0 < row.height
    assert row.turn in range(1, 9)
