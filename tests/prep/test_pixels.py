"""Builds, conversions, repairs and commands of stores that hold their images as yuv420 or bc4."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from decodeonce import open_store
from decodeonce.build import Conversion, Recipe, repair_store
from decodeonce.errors import BuildError
from decodeonce.sources import FolderSource
from decodeonce.store import stage_store, verify_store
from decodeonce.store.layout import ContainerName, PixelsName
from tests.command import assert_fails, prep, printed
from tests.forms.all_forms import PICS
from tests.forms.folder import write_folder
from tests.images import tree_bytes
from tests.prep.building import build_in_process, convert_in_process
from tests.store.signing import damage_rows, flip_row
from tests.stores import packed_row, unpacked_row

RGB = Recipe(height=32, width=48, shard_size=5 * 32 * 48 * 3)
PACKED: dict[PixelsName, Recipe] = {pixels: replace(RGB, pixels=pixels) for pixels in ("yuv420", "bc4")}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("source") / "images", PICS)


@pytest.fixture(scope="module")
def rgb(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_in_process(FolderSource(tree), tmp_path_factory.mktemp("stores") / "rgb", RGB)


@pytest.fixture(params=PACKED)
def pixels(request: pytest.FixtureRequest) -> PixelsName:
    pixels: PixelsName = request.param
    return pixels


@pytest.fixture
def packed(tree: Path, tmp_path: Path, pixels: PixelsName) -> Path:
    return build_in_process(FolderSource(tree), tmp_path / "packed", PACKED[pixels])


def test_rows_are_those_of_the_rgb_store_in_fewer_bytes(rgb: Path, packed: Path, pixels: PixelsName) -> None:
    images, store = open_store(rgb).images, open_store(packed)
    assert {"yuv420": 2, "bc4": 4}[pixels] * store.manifest.row_bytes == open_store(rgb).manifest.row_bytes
    for image, found in zip(images, store.images, strict=True):
        np.testing.assert_array_equal(found, unpacked_row(packed_row(image, pixels), 32, 48, pixels))
    verify_store(packed)


def test_statistics_are_those_of_the_stored_images(packed: Path) -> None:
    store = open_store(packed)
    np.testing.assert_allclose(store.manifest.pixel_mean, store.images[:].mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(store.manifest.pixel_std, store.images[:].std((0, 1, 2)), rtol=1e-9)


@pytest.mark.parametrize("container", ["npy", "hdf5"])
def test_converted_store_equals_a_built_one(
    tree: Path, rgb: Path, tmp_path: Path, pixels: PixelsName, container: ContainerName
) -> None:
    built = build_in_process(FolderSource(tree), tmp_path / "built", replace(PACKED[pixels], container=container))
    conversion = Conversion(pixels=pixels, container=container)
    assert tree_bytes(convert_in_process([rgb], tmp_path / "converted", conversion)) == tree_bytes(built)


def test_conversion_keeps_rows_resizes_and_unpacks(packed: Path, tmp_path: Path, pixels: PixelsName) -> None:
    kept = convert_in_process([packed], tmp_path / "kept", Conversion(sort="source"))
    assert sorted(open_store(kept).checksums) == sorted(open_store(packed).checksums)
    small = open_store(convert_in_process([packed], tmp_path / "small", Conversion(size=(16, 24))))
    assert (small.manifest.pixels, small.images.shape[1:]) == (pixels, (16, 24, 3))
    back = open_store(convert_in_process([packed], tmp_path / "back", Conversion(pixels="rgb")))
    assert (back.manifest.pixels, back.manifest.recipe["unpacked_from"]) == ("rgb", pixels)
    np.testing.assert_array_equal(back.images[:], open_store(packed).images[:])


def test_planes_are_kept_between_packed_forms(tree: Path, tmp_path: Path) -> None:
    stores = {p: build_in_process(FolderSource(tree), tmp_path / p, recipe) for p, recipe in PACKED.items()}
    quarter = convert_in_process([stores["yuv420"]], tmp_path / "quarter", Conversion(pixels="bc4"))
    assert tree_bytes(quarter) == tree_bytes(stores["bc4"])
    original = tree_bytes(quarter)
    damage_rows(quarter, 1, 6)
    assert repair_store(quarter, stores["yuv420"]).repaired_rows == 2
    assert tree_bytes(quarter) == original
    half = convert_in_process([stores["bc4"]], tmp_path / "half", Conversion(pixels="yuv420"))
    np.testing.assert_array_equal(open_store(half).images[:], open_store(stores["bc4"]).images[:])
    assert open_store(half).manifest.recipe["unpacked_from"] == "bc4"  # not the rows of a build
    with pytest.raises(BuildError, match="unpacked_from is bc4, the first store says absent"):
        convert_in_process([stores["yuv420"], half], tmp_path / "out", Conversion())


@pytest.mark.parametrize(
    ("size", "advice"),
    [("60x100", "pass --size 48x80"), ("36x36", "pass --size 32x32"), ("7x9", "build the store again")],
)
def test_conversion_advises_a_size_that_it_can_make(tree: Path, tmp_path: Path, size: str, advice: str) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    printed("build", "folder", tree, store, "--size", size)
    failed = prep("convert", store, out, "--pixels", "bc4")
    assert_fails(failed, 1, f"rows of {size}, but bc4 needs a height and width divisible by 8; {advice}")
    if "pass" in advice:
        printed("convert", store, out, "--pixels", "bc4", *advice.split()[1:])


def test_recipe_tells_resized_planes_from_planes_of_resized_rows(
    rgb: Path, packed: Path, tmp_path: Path, pixels: PixelsName
) -> None:
    conversion = Conversion(size=(16, 24), pixels=pixels)
    first, second = (
        convert_in_process([store], tmp_path / f"small-{store.name}", conversion) for store in (rgb, packed)
    )
    assert (first / "images-00000.npy").read_bytes() != (second / "images-00000.npy").read_bytes()
    with pytest.raises(BuildError, match=f"unpacked_from is {pixels}, the first store says absent"):
        convert_in_process([first, second], tmp_path / "out", Conversion())


def test_stores_of_different_pixels_are_not_merged(rgb: Path, packed: Path, tmp_path: Path, pixels: PixelsName) -> None:
    with pytest.raises(BuildError, match=f"--pixels is {pixels}, the first store says rgb"):
        convert_in_process([rgb, packed], tmp_path / "out", Conversion())


@pytest.mark.parametrize("source", ["images", "rgb", "copy"])
def test_repair(tree: Path, rgb: Path, packed: Path, tmp_path: Path, source: str) -> None:
    original = tree_bytes(packed)
    copy = shutil.copytree(packed, tmp_path / "copy")
    damage_rows(packed, 1, 6)
    repaired = repair_store(packed, {"images": tree, "rgb": rgb, "copy": copy}[source])
    assert repaired.repaired_rows == 2
    assert tree_bytes(packed) == original


def test_unpacked_store_is_repaired_from_its_origin(
    tree: Path, packed: Path, tmp_path: Path, pixels: PixelsName
) -> None:
    back = convert_in_process([packed], tmp_path / "back", Conversion(pixels="rgb"))
    original = tree_bytes(back)
    flip_row(back, 3)
    with pytest.raises(BuildError, match=f"the rows were unpacked from {pixels}; pass as --from a store that has them"):
        repair_store(back, tree)
    repair_store(back, packed)
    assert tree_bytes(back) == original


def test_staged_part(packed: Path, tmp_path: Path) -> None:
    stage_store(open_store(packed), tmp_path / "part", rows=range(4, 8))
    part = open_store(tmp_path / "part")
    rows = part.rows
    np.testing.assert_array_equal(
        part.images[rows.start : rows.stop], open_store(packed).images[rows.start : rows.stop]
    )


# --- commands


def test_odd_sizes_are_refused_with_the_nearest(tree: Path, tmp_path: Path) -> None:
    done = prep("build", "folder", tree, tmp_path / "out", "--pixels", "yuv420", "--size", "33x48")
    assert_fails(done, 2, "33x48, but yuv420 needs a height and width divisible by 2: use 32x48 or 34x48")
    near: list[tuple[PixelsName, int, str]] = [("yuv420", 5, "2x4 or 2x6"), ("yuv420", 1, "2x2")]
    near += [("bc4", 20, "8x16 or 8x24"), ("bc4", 8, "8x8"), ("bc4", 7, "8x8")]
    for pixels, width, sizes in near:
        with pytest.raises(ValueError, match=f"use {sizes}$"):
            Recipe(height=1, width=width, pixels=pixels)


@pytest.mark.parametrize("pixels", ["bc4"])
def test_all_sizes_are_told(rgb: Path, packed: Path, tmp_path: Path) -> None:
    convert = ("convert", rgb, tmp_path / "out", "--dry-run")
    assert "50.18 KB (27.14 KB as yuv420, 15.62 KB as bc4) in" in printed(*convert)
    assert "27.14 KB (50.18 KB as rgb, 15.62 KB as bc4) in" in printed(*convert, "--pixels", "yuv420")
    assert "22.10 KB (13.10 KB as yuv420) in" in printed(*convert, "--size", "20x30")
    assert "as bc4)" in printed("info", rgb)
    assert "as rgb, " in printed("info", packed)


def test_pictures_of_a_store_are_those_of_its_images(packed: Path, tmp_path: Path) -> None:
    back = convert_in_process([packed], tmp_path / "back", Conversion(pixels="rgb"))
    for store in (packed, back):
        printed("show", store, "--out", tmp_path / f"{store.name}.png")
    assert (tmp_path / "packed.png").read_bytes() == (tmp_path / "back.png").read_bytes()
