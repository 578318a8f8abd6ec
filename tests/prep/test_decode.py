"""Rows against Pillow alone, and what becomes of odd and broken pictures."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from decodeonce.prep.decode import Decoder, Row, Undecodable
from decodeonce.prep.geometry import fit_to
from decodeonce.prep.recipe import Recipe
from tests.pictures import encoded, jpeg, picture, reference_row


def decode(data: bytes, name: str = "x.JPEG", **options: Any) -> Row:
    return Decoder(Recipe(**{"height": 32, "width": 32, **options})).row(data, name)


def pixels(row: Row, height: int = 32, width: int = 32) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(row.pixels, np.uint8).reshape(height, width, 3)


@settings(max_examples=150, deadline=None)
@given(
    width=st.integers(1, 200),
    height=st.integers(1, 200),
    row=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    subsampling=st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]),
)
def test_crop_is_resize_and_centre_crop(width: int, height: int, row: tuple[int, int], subsampling: str) -> None:
    data = jpeg(width, height, subsampling=subsampling)
    got = pixels(decode(data, height=row[0], width=row[1]), *row)
    np.testing.assert_array_equal(got, reference_row(data, *row))


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 600))
def test_square_crop_has_torchvisions_integers(width: int, height: int, size: int) -> None:
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = size, int(size * long / short)
    expected = (new_short, new_long) if width <= height else (new_long, new_short)
    fit = fit_to("crop", (width, height), (size, size))
    assert (fit.width, fit.height) == expected
    assert (fit.left, fit.top) == (round((expected[0] - size) / 2.0), round((expected[1] - size) / 2.0))


@pytest.mark.parametrize("filter_name", ["bilinear", "bicubic", "lanczos", "box"])
def test_filters_are_pillows(filter_name: str) -> None:
    data = jpeg(70, 90)
    expected = Image.open(io.BytesIO(data)).resize((32, 41), getattr(Image.Resampling, filter_name.upper()))
    got = pixels(decode(data, filter=filter_name))
    np.testing.assert_array_equal(got, np.asarray(expected)[4:36])


def test_stretch_is_one_resize() -> None:
    data = jpeg(70, 30)
    expected = np.asarray(Image.open(io.BytesIO(data)).resize((20, 40), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(pixels(decode(data, fit="stretch", height=40, width=20), 40, 20), expected)


@pytest.mark.parametrize(("width", "height"), [(64, 32), (30, 90), (32, 32), (3, 2)])
def test_pad_is_a_resize_inside_black(width: int, height: int) -> None:
    data = jpeg(width, height)
    scale = min(32 / width, 32 / height)
    size = (max(1, int(width * scale + 1e-9)), max(1, int(height * scale + 1e-9)))
    expected = Image.new("RGB", (32, 32))
    inside = Image.open(io.BytesIO(data)).resize(size, Image.Resampling.BILINEAR)
    expected.paste(inside, ((32 - size[0]) // 2, (32 - size[1]) // 2))
    np.testing.assert_array_equal(pixels(decode(data, fit="pad")), np.asarray(expected))


@pytest.mark.parametrize(
    ("data", "name", "oddity"),
    [
        (jpeg(50, 60, mode="L"), "x.JPEG", "grey"),
        (jpeg(50, 60, mode="CMYK"), "x.JPEG", "CMYK"),
        (encoded(picture(50, 60), "PNG"), "x.JPEG", "PNG named .JPEG"),
        (encoded(picture(50, 60), "PNG"), "x.png", ""),
        (encoded(picture(50, 60), "PNG"), "x", ""),
        (jpeg(50, 60), "x.png", "JPEG named .png"),
        (encoded(picture(50, 60, mode="RGBA"), "PNG"), "x.png", "alpha"),
        (encoded(picture(50, 60).quantize(64), "PNG"), "x.png", "palette"),
        (encoded(picture(50, 60), "TIFF"), "x.tif", ""),
        (encoded(picture(50, 60), "BMP"), "x.bmp", ""),
        (jpeg(50, 60, progressive=True), "x.jpg", ""),
        (jpeg(50, 60) + b"trailing garbage", "x.jpg", ""),
    ],
)
def test_odd_pictures_become_pillows_rows(data: bytes, name: str, oddity: str) -> None:
    row = decode(data, name)
    np.testing.assert_array_equal(pixels(row), reference_row(data, 32, 32))
    assert (row.width, row.height, row.oddity) == (50, 60, oddity)


def test_cmyk_of_adobe_has_the_right_polarity() -> None:
    red = encoded(Image.new("RGB", (40, 40), (250, 5, 5)).convert("CMYK"))
    assert b"Adobe" in red
    mean = pixels(decode(red)).reshape(-1, 3).mean(0)
    assert mean[0] > 200
    assert mean[1:].max() < 60


def test_sixteen_bits_keep_their_upper_byte() -> None:
    levels = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    row = decode(encoded(Image.fromarray(levels), "PNG"), "x.png")
    np.testing.assert_array_equal(pixels(row)[..., 1], levels >> 8)
    assert row.oddity == "16 bit"


WHOLE = jpeg(200, 160)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"hello, world", "not a picture"),
        (b"\xff\xd8\xff\xe0nothing more", "Truncated File Read"),
        (WHOLE[: len(WHOLE) // 2], "truncated"),
        (encoded(picture(50, 50), "PNG")[:400], "truncated"),
        (b"%PDF-1.4 " + bytes(100), "not a picture"),
    ],
)
def test_what_cannot_be_a_row_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(Undecodable, match=reason):
        decode(data)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 0.9, 0.97])
def test_short_data_are_rejects_wherever_pillow_says_so(share: float) -> None:
    short = WHOLE[: int(len(WHOLE) * share)]
    with pytest.raises(OSError, match="truncated"):
        Image.open(io.BytesIO(short)).load()
    with pytest.raises(Undecodable, match="truncated"):
        decode(short)


def test_a_missing_end_marker_counts_as_truncated() -> None:
    with pytest.raises(Undecodable, match="truncated: Premature end"):
        decode(WHOLE[:-2])


def garbled_jpeg() -> bytes:
    """A JPEG with a few wrong bytes, which libjpeg-turbo complains of and Pillow still decodes."""
    for start in range(len(WHOLE) // 2, len(WHOLE) - 20):
        data = WHOLE[:start] + bytes(byte ^ 0x5A for byte in WHOLE[start : start + 4]) + WHOLE[start + 4 :]
        try:
            Image.open(io.BytesIO(data)).load()
            simplejpeg.decode_jpeg(data, strict=True)
        except OSError:
            continue
        except ValueError:
            return data
    raise AssertionError("no garbling found")


def test_garbled_data_are_kept_as_pillow_sees_them_or_rejected_if_asked() -> None:
    garbled = garbled_jpeg()
    row = decode(garbled)
    assert row.oddity.startswith("garbled: ")
    np.testing.assert_array_equal(pixels(row), reference_row(garbled, 32, 32))
    with pytest.raises(Undecodable, match="garbled"):
        decode(garbled, on_odd="reject")


def test_a_decompression_bomb_is_refused_by_its_header() -> None:
    bomb = bytearray(jpeg(64, 64))
    start = bomb.index(b"\xff\xc0") + 5
    bomb[start : start + 4] = (20000).to_bytes(2, "big") * 2
    with pytest.raises(Undecodable, match="decompression bomb: 20000x20000"):
        decode(bytes(bomb))
    png = bytearray(encoded(picture(8, 8), "PNG"))
    png[16:24] = (40000).to_bytes(4, "big") * 2
    import zlib

    png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
    with pytest.raises(Undecodable, match="bomb"):
        decode(bytes(png), "x.png")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied_only_when_asked(orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(90, 50, exif=exif)
    upright = encoded(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), "PNG")
    np.testing.assert_array_equal(pixels(decode(data, exif="apply")), reference_row(upright, 32, 32))
    np.testing.assert_array_equal(pixels(decode(data)), reference_row(data, 32, 32))


def test_scaled_decode_leaves_at_least_twice_the_size() -> None:
    data = jpeg(1000, 800)
    decoder = Decoder(Recipe(height=32, width=32, scaled_decode=True))
    picture_ = decoder.picture(data)
    assert picture_.image.size == (125, 100)
    assert (picture_.width, picture_.height) == (1000, 800)
    error = np.abs(pixels(decoder.row(data, "x")).astype(int) - reference_row(data, 32, 32))
    assert 0 < error.max()
    assert error.mean() < 4


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_extreme_shapes_are_resized_where_they_are_kept(fit: str) -> None:
    row = decode(encoded(Image.new("RGB", (60000, 2), (10, 200, 30)), "PNG"), "x.png", fit=fit, height=64, width=64)
    assert ("extreme shape" in row.oddity) == (fit == "crop")
    assert tuple(pixels(row, 64, 64)[31, 32]) == (10, 200, 30)


def test_histogram_counts_every_value_of_every_row() -> None:
    decoder = Decoder(Recipe(height=16, width=24))
    rows = [decoder.row(data, "x") for data in (jpeg(50, 40), jpeg(30, 80, mode="L"), jpeg(30, 80, mode="CMYK"))]
    values = np.concatenate([pixels(row, 16, 24).reshape(-1, 3) for row in rows])
    for channel in range(3):
        np.testing.assert_array_equal(decoder.histogram[channel], np.bincount(values[:, channel], minlength=256))


def test_a_large_picture_leaves_no_large_buffer_behind() -> None:
    decoder = Decoder(Recipe(height=16, width=16))
    decoder.row(jpeg(3000, 2500, quality=30), "x")
    assert decoder._buffer.nbytes < 1 << 24
