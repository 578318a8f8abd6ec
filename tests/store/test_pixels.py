"""Rows of yuv420 hold the integers that the format defines, and every reader gets the images that they describe."""

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
from decodeonce.store.format import CODECS
from decodeonce.store.manifest import parse_manifest, read_manifest
from tests.images import tree_bytes
from tests.store.signing import resign
from tests.stores import make_store, packed_row, random_images, unpacked_row

GOLDEN = Path(__file__).parent / "golden" / "yuv420"
YUV420 = CODECS["yuv420"]
SHAPE = (8, 6, 3)


def write_golden(root: Path) -> Path:
    images = np.arange(5 * 24, dtype=np.uint8).reshape(5, 2, 4, 3)
    masks = np.arange(5 * 8, dtype=np.uint8).reshape(5, 2, 4)
    labels = np.array([0, 1, 2, 0, 1])
    return make_store(root, images, labels, shard_rows=3, paired={"mask": masks}, pixels="yuv420")


def test_store_matches_golden_bytes(tmp_path: Path) -> None:
    assert tree_bytes(write_golden(tmp_path / "tiny.store")) == tree_bytes(GOLDEN)


@pytest.mark.parametrize("mode", ["RGB", "RGBX"])
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32))
def test_packed_rows_are_the_integers_of_the_format(mode: str, height: int, width: int, seed: int) -> None:
    image = random_images(1, shape=(2 * height, 2 * width, 3), seed=seed)[0]
    drawn = Image.fromarray(image)
    if mode == "RGBX":  # as a JPEG is decoded, with any fourth byte
        wide = np.dstack([image, image[..., 0]]).tobytes()
        drawn = Image.frombuffer(mode, drawn.size, wide, "raw", mode, 0, 1)
    row = np.frombuffer(YUV420.pack(drawn), np.uint8)
    np.testing.assert_array_equal(row, packed_row(image))
    np.testing.assert_array_equal(YUV420.unpack(row, image.shape), unpacked_row(row, *image.shape[:2]))


def all_colors(red: int) -> NDArray[np.uint8]:
    """All colors with this red, in squares of four pixels: an image of 512x512."""
    green, blue = np.mgrid[:256, :256].astype(np.uint8)
    return np.stack([np.full_like(green, red), green, blue], axis=-1).repeat(2, 0).repeat(2, 1)


def check_colors(reds: range) -> None:
    for red in reds:
        image = all_colors(red)
        row = np.frombuffer(YUV420.pack(Image.fromarray(image)), np.uint8)
        np.testing.assert_array_equal(row, packed_row(image))
        levels = np.abs(YUV420.unpack(row, image.shape).astype(int) - image)
        assert levels.max() <= 2
        assert levels.mean() < 0.45


def test_colors_change_by_at_most_two_levels() -> None:
    check_colors(range(0, 256, 51))


@pytest.mark.long
def test_all_colors_change_by_at_most_two_levels() -> None:
    check_colors(range(256))


@given(st.slices(12))
def test_some_lines_are_those_of_the_whole_image(lines: slice) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (2, 12 * 10 * 3 // 2), np.uint8)
    whole = YUV420.unpack(rows, (12, 10, 3))
    np.testing.assert_array_equal(YUV420.unpack(rows, (12, 10, 3), lines), whole[:, lines])


@pytest.fixture(params=["npy", "hdf5"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    images = random_images(9, shape=SHAPE)
    masks = random_images(9)[..., 0]
    root = tmp_path / "some.store"
    return make_store(root, images, shard_rows=4, container=request.param, paired={"mask": masks}, pixels="yuv420")


def expected_images() -> NDArray[np.uint8]:
    return np.stack([unpacked_row(packed_row(image), *SHAPE[:2]) for image in random_images(9, shape=SHAPE)])


INDEXES: list[Any] = [
    *(0, -1, 5, slice(None), slice(1, 3), slice(7, 1, -2), slice(4, 4), ..., [8, 0, 0], np.arange(9) % 2 == 0),
    *((3, slice(2, 5), ..., 0), (slice(2, 7), 1), (0, slice(None), [1, 2]), ([1, 2], [3, 4]), [[0, 1], [2, 3]]),
]


@pytest.mark.parametrize("index", INDEXES, ids=str)
def test_images_are_indexed_like_an_array(store: Path, index: Any) -> None:
    found, expected = open_store(store).images[index], expected_images()[index]
    np.testing.assert_array_equal(found, expected, strict=True)


def test_take_and_paired_see_images(store: Path) -> None:
    opened = open_store(store)
    out = np.empty((3, *SHAPE), np.uint8)
    assert opened.take([4, 8, 0], out=out) is out
    np.testing.assert_array_equal(out, expected_images()[[4, 8, 0]])
    np.testing.assert_array_equal(opened.paired["mask"][:], random_images(9)[..., 0])


def test_code_on_format_page_reads_a_row(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "format.md").read_text()
    _, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    store = make_store(tmp_path / "half.store", random_images(3, shape=SHAPE), pixels="yuv420")
    names: dict[str, Any] = {}
    exec(code.replace("half.store", str(store)), names)
    np.testing.assert_array_equal(names["image"], expected_images()[0], strict=True)


# --- store.json


def facts_of(store: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((store / "store.json").read_bytes())
    return facts


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_golden(tmp_path / "tiny.store")


def test_readers_of_older_versions_refuse_it_by_name(tiny: Path) -> None:
    path = tiny / "store.json"
    with pytest.raises(
        StoreError, match=r"store.json: format version 3, this decodeonce reads 1 and 2; install a newer"
    ):
        hashing.parse_signed(path.read_bytes(), path, form="decodeonce", versions=(1, 2), advice="")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixels": "yuv444"}, "pixels is 'yuv444', expected rgb or yuv420"),
        ({"pixels": "rgb"}, '"pixels" is missing or "rgb", expected another form in version 3'),
        ({"shape": [2, 3, 3]}, "size is 2x3, but yuv420 needs an even height and width: use 2x2 or 2x4"),
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
