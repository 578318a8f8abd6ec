"""Rows of yuv420 and bc4 hold the integers of the format, and every reader gets the images that they describe."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from decodeonce import open_store
from decodeonce.errors import StoreError
from decodeonce.store import hashing
from decodeonce.store.bc4 import blocks_of, pack_blocks, unpack_blocks
from decodeonce.store.format import CODECS
from decodeonce.store.layout import FORMS, PixelsName, image_bytes
from decodeonce.store.manifest import parse_manifest, read_manifest
from tests.images import make_image, tree_bytes
from tests.store.signing import resign
from tests.stores import make_store, packed_row, random_images, unpacked_row

GOLDEN = Path(__file__).parent / "golden"
SHAPE = (8, 16, 3)
PACKED: list[PixelsName] = ["yuv420", "bc4"]


def write_golden(root: Path, pixels: PixelsName) -> Path:
    height, width = {"yuv420": (2, 4), "bc4": (8, 8)}[pixels]
    values = np.arange(5 * height * width * 3) if pixels == "yuv420" else np.arange(5 * height * width * 3) ** 2 // 7
    images = values.astype(np.uint8).reshape(5, height, width, 3)
    masks = np.arange(5 * height * width).astype(np.uint8).reshape(5, height, width)
    labels = np.array([0, 1, 2, 0, 1])
    return make_store(root, images, labels, shard_rows=3, paired={"mask": masks}, pixels=pixels)


@pytest.mark.parametrize("pixels", PACKED)
def test_store_matches_golden_bytes(tmp_path: Path, pixels: PixelsName) -> None:
    assert tree_bytes(write_golden(tmp_path / "tiny.store", pixels)) == tree_bytes(GOLDEN / pixels)


@pytest.mark.parametrize("mode", ["RGB", "RGBX"])
@pytest.mark.parametrize("pixels", PACKED)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32), st.sampled_from([1, 3, 40, 256]))
def test_packed_rows_are_the_integers_of_the_format(
    pixels: PixelsName, mode: str, height: int, width: int, seed: int, levels: int
) -> None:
    step, codec = FORMS[pixels].multiple, CODECS[pixels]
    image = random_images(1, shape=(step * height, step * width, 3), seed=seed)[0] % np.uint16(levels)
    image = (image + seed % (257 - levels)).astype(np.uint8)  # blocks of small spans, too
    drawn = Image.fromarray(image)
    if mode == "RGBX":  # as a JPEG is decoded, with any fourth byte
        wide = np.dstack([image, image[..., 0]]).tobytes()
        drawn = Image.frombuffer(mode, drawn.size, wide, "raw", mode, 0, 1)
    row = np.frombuffer(codec.pack(drawn), np.uint8)
    np.testing.assert_array_equal(row, packed_row(image, pixels))
    np.testing.assert_array_equal(
        codec.unpack(row, image.shape), unpacked_row(row, step * height, step * width, pixels)
    )


def all_colors(red: int, side: int) -> NDArray[np.uint8]:
    """All colors with this red, in squares of `side` x `side` pixels."""
    green, blue = np.mgrid[:256, :256].astype(np.uint8)
    return np.stack([np.full_like(green, red), green, blue], axis=-1).repeat(side, 0).repeat(side, 1)


def check_colors(pixels: PixelsName, reds: range) -> None:
    codec = CODECS[pixels]
    for red in reds:
        image = all_colors(red, FORMS[pixels].multiple)
        row = np.frombuffer(codec.pack(Image.fromarray(image)), np.uint8)
        if pixels == "yuv420":
            np.testing.assert_array_equal(row, packed_row(image))
        levels = np.abs(codec.unpack(row, image.shape).astype(np.int16) - image)
        assert levels.max() <= 2
        assert levels.mean() < 0.45


@pytest.mark.parametrize("pixels", PACKED)
def test_colors_change_by_at_most_two_levels(pixels: PixelsName) -> None:
    check_colors(pixels, range(0, 256, 51))


@pytest.mark.long
@pytest.mark.parametrize("pixels", PACKED)
def test_all_colors_change_by_at_most_two_levels(pixels: PixelsName) -> None:
    check_colors(pixels, range(256))


@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**32))
def test_values_change_by_at_most_half_a_seventh_of_the_span_of_their_block(one: int, other: int, seed: int) -> None:
    low, high = sorted((one, other))
    plane = np.random.default_rng(seed).integers(low, high + 1, (32, 32), np.uint8)
    planes = np.concatenate([plane.reshape(-1), np.zeros(plane.size // 2, np.uint8)])
    row = np.frombuffer(pack_blocks(planes, *plane.shape), np.uint8)
    found = unpack_blocks(blocks_of(row, *plane.shape)[0])
    assert np.abs(found.astype(int) - plane).max() <= (high - low) / 14 + 0.5


def test_public_decoder_reads_the_planes() -> None:
    texture2ddecoder = pytest.importorskip("texture2ddecoder", reason="texture2ddecoder is not installed")
    image = make_image(64, 32, seed=4)
    row = np.frombuffer(CODECS["bc4"].pack(image), np.uint8)
    for blocks in blocks_of(row, 32, 64):
        height, width = 4 * blocks.shape[0], 4 * blocks.shape[1]
        pixels = np.frombuffer(texture2ddecoder.decode_bc4(blocks.tobytes(), width, height), np.uint8)
        levels = pixels.reshape(height, width, 4)[..., 2].astype(int) - unpack_blocks(blocks)  # B, G, R, A
        assert np.abs(levels).max() <= 1


@pytest.mark.parametrize("pixels", PACKED)
@given(st.slices(16))
def test_some_lines_are_those_of_the_whole_image(pixels: PixelsName, lines: slice) -> None:
    codec, shape = CODECS[pixels], (16, 24, 3)
    rows = np.random.default_rng(0).integers(0, 256, (2, image_bytes(pixels, shape)), np.uint8)
    whole = codec.unpack(rows, shape)
    np.testing.assert_array_equal(codec.unpack(rows, shape, lines), whole[:, lines])


@pytest.fixture(params=PACKED)
def pixels(request: pytest.FixtureRequest) -> PixelsName:
    pixels: PixelsName = request.param
    return pixels


@pytest.fixture(params=["npy", "hdf5"])
def store(tmp_path: Path, pixels: PixelsName, request: pytest.FixtureRequest) -> Path:
    images = random_images(9, shape=SHAPE)
    root = tmp_path / "some.store"
    return make_store(root, images, shard_rows=4, container=request.param, paired={"mask": MASKS}, pixels=pixels)


MASKS = random_images(9, shape=SHAPE)[..., 0]


@pytest.fixture
def expected(pixels: PixelsName) -> NDArray[np.uint8]:
    rows = [packed_row(image, pixels) for image in random_images(9, shape=SHAPE)]
    return np.stack([unpacked_row(row, *SHAPE[:2], pixels) for row in rows])


INDEXES: list[Any] = [
    *(0, -1, 5, slice(None), slice(1, 3), slice(7, 1, -2), slice(4, 4), ..., [8, 0, 0], np.arange(9) % 2 == 0),
    *((3, slice(2, 5), ..., 0), (slice(2, 7), 1), (0, slice(None), [1, 2]), ([1, 2], [3, 4]), [[0, 1], [2, 3]]),
]


@pytest.mark.parametrize("index", INDEXES, ids=str)
def test_images_are_indexed_like_an_array(store: Path, expected: NDArray[np.uint8], index: Any) -> None:
    np.testing.assert_array_equal(open_store(store).images[index], expected[index], strict=True)


def test_take_and_paired_see_images(store: Path, expected: NDArray[np.uint8]) -> None:
    opened = open_store(store)
    out = np.empty((3, *SHAPE), np.uint8)
    assert opened.take([4, 8, 0], out=out) is out
    np.testing.assert_array_equal(out, expected[[4, 8, 0]])
    np.testing.assert_array_equal(opened.paired["mask"][:], MASKS)


def test_code_on_format_page_reads_a_row(tmp_path: Path, pixels: PixelsName, expected: NDArray[np.uint8]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "format.md").read_text()
    _, half, quarter = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    store = make_store(tmp_path / "some.store", random_images(3, shape=SHAPE), pixels=pixels)
    names: dict[str, Any] = {}
    exec(re.sub("(half|quarter).store", str(store), {"yuv420": half, "bc4": quarter}[pixels]), names)
    np.testing.assert_array_equal(names["image"], expected[0], strict=True)


# --- store.json


def facts_of(store: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((store / "store.json").read_bytes())
    return facts


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_golden(tmp_path / "tiny.store", "yuv420")


def test_readers_of_older_versions_refuse_it_by_name(tiny: Path) -> None:
    path = tiny / "store.json"
    with pytest.raises(
        StoreError, match=r"store.json: format version 3, this decodeonce reads 1 and 2; install a newer"
    ):
        hashing.parse_signed(path.read_bytes(), path, form="decodeonce", versions=(1, 2), advice="")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixels": "yuv444"}, "pixels is 'yuv444', expected rgb or yuv420 or bc4"),
        ({"pixels": "rgb"}, '"pixels" is missing or "rgb", expected another form in version 3'),
        ({"shape": [2, 3, 3]}, "size is 2x3, but yuv420 needs a height and width divisible by 2: use 2x2 or 2x4"),
        (
            {"shape": [2, 4, 1], "paired": [], "pixel_mean": [0], "pixel_std": [0]},
            "the images have 1 channels, but yuv420 is made of 3",
        ),
        ({"shape": [4, 4, 3]}, "expected at least 1 row, first_row 0"),
    ],
)
def test_invalid_manifests_are_refused(tiny: Path, changes: dict[str, Any], message: str) -> None:
    resign(tiny, lambda facts: facts.update(changes))
    with pytest.raises(StoreError) as error:
        read_manifest(tiny / "store.json")
    assert message in str(error.value)


def test_key_of_another_writer_in_an_older_version_is_ignored(tmp_path: Path) -> None:
    store = make_store(tmp_path / "rgb.store", random_images(3))
    resign(store, lambda facts: facts.update(pixels="yuv420"))
    assert read_manifest(store / "store.json").pixels == "rgb"
    assert "pixels" not in facts_of(make_store(tmp_path / "other.store", random_images(3)))


def test_manifest_round_trip(tiny: Path) -> None:
    manifest = read_manifest(tiny / "store.json")
    assert (manifest.version, manifest.row_bytes, manifest.row_shape) == (3, 12 + 8, (20,))
    assert parse_manifest(manifest.to_bytes(), Path("store.json")) == manifest
    assert replace(manifest, pixels="rgb").version == 2
