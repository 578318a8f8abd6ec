"""Compare rows with Pillow. Unusual and broken images are in test_unusual_images.py."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from decodeonce.prep.listing import Box, Entry, Row
from decodeonce.prep.pixels import versions
from decodeonce.prep.pixels.decode import Decoder, fit_to
from decodeonce.prep.recipe import Recipe
from tests.images import encoded, exif, jpeg, make_image, marker_at, reference_row, replaced


def decode(data: bytes, name: str = "x.JPEG", **options: Any) -> Row:
    decoder = Decoder(Recipe(**{"height": 32, "width": 32, **options}))
    return decoder.row(data, Entry(name.encode(), 0, len(data), 0))


def entry(name: str = "x") -> Entry:
    return Entry(name.encode(), 0, 0, 0)


def pixels(row: Row, height: int = 32, width: int = 32) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(row.pixels, np.uint8).reshape(height, width, 3)


@settings(max_examples=150, deadline=None)
@given(
    width=st.integers(1, 200),
    height=st.integers(1, 200),
    row=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    subsampling=st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]),
)
@example(width=3, height=9, row=(6, 1), subsampling="4:4:4")  # Pillow 13 resizes it vertically first
def test_crop_matches_resize_and_center_crop(width: int, height: int, row: tuple[int, int], subsampling: str) -> None:
    data = jpeg(width, height, subsampling=subsampling)
    got = pixels(decode(data, height=row[0], width=row[1]), *row)
    np.testing.assert_array_equal(got, reference_row(data, *row))


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 600))
def test_square_crop_matches_torchvision(width: int, height: int, size: int) -> None:
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = size, int(size * long / short)
    expected = (new_short, new_long) if width <= height else (new_long, new_short)
    fit = fit_to("crop", (width, height), (size, size))
    assert (fit.width, fit.height) == expected
    assert (fit.left, fit.top) == (round((expected[0] - size) / 2.0), round((expected[1] - size) / 2.0))


@pytest.mark.parametrize("filter_name", ["bilinear", "bicubic", "lanczos", "box"])
def test_filters_match_pillow(filter_name: str) -> None:
    data = jpeg(70, 90)
    expected = Image.open(io.BytesIO(data)).resize((32, 41), getattr(Image.Resampling, filter_name.upper()))
    got = pixels(decode(data, filter=filter_name))
    np.testing.assert_array_equal(got, np.asarray(expected)[4:36])


def test_stretch_is_one_resize() -> None:
    data = jpeg(70, 30)
    expected = np.asarray(Image.open(io.BytesIO(data)).resize((20, 40), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(pixels(decode(data, fit="stretch", height=40, width=20), 40, 20), expected)


@pytest.mark.parametrize(("width", "height"), [(64, 32), (30, 90), (32, 32), (3, 2)])
def test_pad_resizes_inside_black(width: int, height: int) -> None:
    data = jpeg(width, height)
    scale = min(32 / width, 32 / height)
    size = (max(1, int(width * scale + 1e-9)), max(1, int(height * scale + 1e-9)))
    expected = Image.new("RGB", (32, 32))
    inside = Image.open(io.BytesIO(data)).resize(size, Image.Resampling.BILINEAR)
    expected.paste(inside, ((32 - size[0]) // 2, (32 - size[1]) // 2))
    np.testing.assert_array_equal(pixels(decode(data, fit="pad")), np.asarray(expected))


def test_scaled_decode_keeps_at_least_twice_the_size() -> None:
    data = jpeg(1000, 800)
    decoder = Decoder(Recipe(height=32, width=32, scaled_decode=True))
    decoded = decoder.decode(data)
    assert decoded.image.size == (125, 100)
    assert (decoded.width, decoded.height) == (1000, 800)
    error = np.abs(pixels(decoder.row(data, entry())).astype(int) - reference_row(data, 32, 32))
    assert 0 < error.max()
    assert error.mean() < 4


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_extreme_shapes_resize_only_the_kept_region(fit: str) -> None:
    row = decode(encoded(Image.new("RGB", (60000, 2), (10, 200, 30)), "PNG"), "x.png", fit=fit, height=64, width=64)
    assert ("extreme shape" in row.unusual) == (fit == "crop")
    assert tuple(pixels(row, 64, 64)[31, 32]) == (10, 200, 30)


def test_large_image_leaves_no_large_buffer() -> None:
    decoder = Decoder(Recipe(height=16, width=16))
    decoder.row(jpeg(3000, 2500, quality=30), entry())
    assert decoder._buffer.nbytes < 1 << 24


@pytest.mark.parametrize("turn", [1, 6])
def test_scaled_decode_keeps_twice_the_size_of_rotated_images_and_boxes(turn: int) -> None:
    data = jpeg(1600, 400, exif=exif(turn))
    decoder = Decoder(Recipe(height=32, width=96, scaled_decode=True, exif="apply"))
    image = decoder.decode(data).image
    assert image.size in ((400, 100), (200, 800))  # upright it is 1600x400 or 400x1600; the row is 96 wide
    width, height = decoder.decode(data, (0.5, 0.5, 0.75, 1.0)).image.size
    assert min(width / 96, height / 32) >= 2


HIDDEN = (1, 2, 4, 7, 8, 11, 15)


@pytest.mark.parametrize("denominator", [2, pytest.param(4, marks=pytest.mark.long), 8])
@pytest.mark.parametrize("sampling", ["Gray", "444", "422", "420", "440", "411", "progressive 422", "progressive 420"])
def test_scaled_decode_shows_no_hidden_pixels(sampling: str, denominator: int) -> None:
    """Columns and rows that a JPEG hides after the last ones may hold anything; libjpeg-turbo scales them, too."""
    size = 240 // denominator // 2
    decoder = Decoder(Recipe(height=size, width=size, scaled_decode=True))
    width_of_blocks = {"Gray": 8, "444": 8, "440": 8, "411": 32, "422": 16, "420": 16}.get(sampling, 8)
    height_of_blocks = 16 if sampling in ("420", "440") else 8
    visible = np.asarray(make_image(256, 256))
    for across, down in [(hidden, hidden) for hidden in HIDDEN] + [(0, hidden) for hidden in HIDDEN]:
        width, height = 256 - across % width_of_blocks, 256 - down % height_of_blocks
        images = []
        for color in ((0, 255, 0), (255, 0, 255)):
            whole = np.full_like(visible, color)
            whole[:height, :width] = visible[:height, :width]
            image = encode(whole, sampling)
            frame = marker_at(image, 0xC2 if "progressive" in sampling else 0xC0)
            image = replaced(image, frame + 5, height.to_bytes(2) + width.to_bytes(2))
            images.append(np.array(decoder.decode(image).image)[..., :3].astype(int))
        if sampling[-3:] in ("422", "440", "411") and images[0].shape == visible[:height, :width].shape:
            continue  # no fraction fits, and an exact decode mixes colors with hidden ones as Pillow does
        assert images[0].shape[0] < 150
        assert np.abs(images[0] - images[1]).max() <= 4  # a hidden pixel changes how visible ones are rounded


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "411"])
def test_scaled_decode_repeats_no_clean_pixels_at_the_edges(sampling: str) -> None:
    step = np.arange(1100)
    stripes = np.where(step[:, None] // 8 % 2 == step // 8 % 2, 200, 50).astype(np.uint8)[..., None].repeat(3, 2)
    decoder = Decoder(Recipe(height=50, width=50, scaled_decode=True))
    for width, height in ((1056, 1056), (1000, 1000), (1008, 1004), (1001, 1008), (1008, 1009)):
        data = encode(stripes[:height, :width], sampling)
        got = np.asarray(decoder.decode(data).image)[..., :3].astype(int)
        exact = Image.open(io.BytesIO(data))
        n = -(-width // got.shape[1])
        whole = np.s_[: height // n, : width // n]
        assert np.abs(got - np.asarray(exact.reduce(n)))[whole].max() <= 4


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("box", [None, (0.1003, 0.2007, 0.9, 1.0)])
def test_scaled_rows_show_the_same_part_as_exact_ones(turn: int, box: Box | None) -> None:
    """1001 pixels at 1/8 are 126 columns, and the last of them is an eighth of a column."""
    data = encoded(make_image(250, 188).resize((1001, 751)), quality=95, exif=exif(turn))
    recipe = Recipe(height=45, width=45, exif="apply")
    one = replace(entry(), numbers={"box": [*box]} if box else {})
    exact, scaled = (
        pixels(Decoder(replace(recipe, scaled_decode=scaled)).row(data, one), 45, 45).astype(int)
        for scaled in (False, True)
    )
    assert np.abs(exact - scaled).mean() < 0.5


def encode(image: np.ndarray[Any, np.dtype[np.uint8]], sampling: str) -> bytes:
    if "progressive" in sampling:
        subsampling = ":".join(sampling[-3:])
        return encoded(Image.fromarray(image), quality=100, progressive=True, subsampling=subsampling)
    pixels, colors = (image[..., :1], "GRAY") if sampling == "Gray" else (image, "RGB")
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 100, colors, sampling)
    return data


@pytest.mark.parametrize(
    ("width", "height", "denominator"), [(1000, 800, 8), (999, 804, 4), (999, 800, 2), (990, 795, 1)]
)
def test_scaled_decode_takes_means(width: int, height: int, denominator: int) -> None:
    data = encoded(make_image(width, height).point(lambda value: 64 + value // 2), subsampling="4:4:4")
    size = 800 // denominator // 2
    got = np.asarray(Decoder(Recipe(height=size, width=size, scaled_decode=True)).decode(data).image)[..., :3]
    means = np.asarray(Image.open(io.BytesIO(data)).reduce(denominator)).astype(int)
    assert got.shape == means.shape
    whole = np.s_[: height // denominator, : width // denominator]
    assert np.abs(got - means)[whole].max() <= 3  # rounded before and after the conversion from YCbCr


def test_two_pillows_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions.two_pillows() == ""
    monkeypatch.setattr(versions, "installed_version", lambda name: "12.1.1")
    assert "run prep doctor" in versions.two_pillows()
