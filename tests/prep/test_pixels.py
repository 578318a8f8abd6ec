"""Builds, conversions, repairs and commands of stores that hold their images as yuv420."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from decodeonce import open_store
from decodeonce.build import Conversion, Recipe, repair_store
from decodeonce.errors import BuildError
from decodeonce.prep.recipe import differences
from decodeonce.sources import FolderSource
from decodeonce.store import stage_store, verify_store
from decodeonce.store.layout import ContainerName
from tests.command import assert_fails, prep, printed
from tests.forms.all_forms import PICS
from tests.forms.folder import write_folder
from tests.images import tree_bytes
from tests.prep.building import build_in_process, convert_in_process
from tests.store.signing import damage_rows, flip_row
from tests.stores import packed_row, unpacked_row

RGB = Recipe(height=32, width=48, shard_size=5 * 32 * 48 * 3)
YUV420 = replace(RGB, pixels="yuv420")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("source") / "images", PICS)


@pytest.fixture(scope="module")
def rgb(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_in_process(FolderSource(tree), tmp_path_factory.mktemp("stores") / "rgb", RGB)


@pytest.fixture
def half(tree: Path, tmp_path: Path) -> Path:
    return build_in_process(FolderSource(tree), tmp_path / "half", YUV420)


def test_rows_are_those_of_the_rgb_store_in_half_the_bytes(rgb: Path, half: Path) -> None:
    images, packed = open_store(rgb).images, open_store(half)
    assert 2 * packed.manifest.row_bytes == open_store(rgb).manifest.row_bytes
    for image, found in zip(images, packed.images, strict=True):
        np.testing.assert_array_equal(found, unpacked_row(packed_row(image), 32, 48))
    verify_store(half)


def test_statistics_are_those_of_the_stored_images(half: Path) -> None:
    store = open_store(half)
    np.testing.assert_allclose(store.manifest.pixel_mean, store.images[:].mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(store.manifest.pixel_std, store.images[:].std((0, 1, 2)), rtol=1e-9)


@pytest.mark.parametrize("container", ["npy", "hdf5"])
def test_converted_store_equals_a_built_one(tree: Path, rgb: Path, tmp_path: Path, container: ContainerName) -> None:
    built = build_in_process(FolderSource(tree), tmp_path / "built", replace(YUV420, container=container))
    conversion = Conversion(pixels="yuv420", container=container)
    assert tree_bytes(convert_in_process([rgb], tmp_path / "converted", conversion)) == tree_bytes(built)


def test_conversion_keeps_rows_resizes_and_unpacks(half: Path, tmp_path: Path) -> None:
    kept = convert_in_process([half], tmp_path / "kept", Conversion(sort="source"))
    assert sorted(open_store(kept).checksums) == sorted(open_store(half).checksums)
    small = open_store(convert_in_process([half], tmp_path / "small", Conversion(size=(16, 24))))
    assert (small.manifest.pixels, small.images.shape[1:]) == ("yuv420", (16, 24, 3))
    back = open_store(convert_in_process([half], tmp_path / "back", Conversion(pixels="rgb")))
    assert (back.manifest.pixels, back.manifest.recipe["unpacked_from"]) == ("rgb", "yuv420")
    np.testing.assert_array_equal(back.images[:], open_store(half).images[:])


def test_recipe_tells_resized_planes_from_planes_of_resized_rows(rgb: Path, half: Path, tmp_path: Path) -> None:
    conversion = Conversion(size=(16, 24), pixels="yuv420")
    first, second = (convert_in_process([store], tmp_path / f"small-{store.name}", conversion) for store in (rgb, half))
    assert (first / "images-00000.npy").read_bytes() != (second / "images-00000.npy").read_bytes()
    with pytest.raises(BuildError, match="unpacked_from is yuv420, the first store says absent"):
        convert_in_process([first, second], tmp_path / "out", Conversion())


def test_stores_of_different_pixels_are_not_merged(rgb: Path, half: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="--pixels is yuv420, the first store says rgb"):
        convert_in_process([rgb, half], tmp_path / "out", Conversion())


@pytest.mark.parametrize("source", ["images", "rgb", "copy"])
def test_repair(tree: Path, rgb: Path, half: Path, tmp_path: Path, source: str) -> None:
    original = tree_bytes(half)
    copy = shutil.copytree(half, tmp_path / "copy")
    damage_rows(half, 1, 6)
    repaired = repair_store(half, {"images": tree, "rgb": rgb, "copy": copy}[source])
    assert repaired.repaired_rows == 2
    assert tree_bytes(half) == original


def test_unpacked_store_is_repaired_from_its_origin(tree: Path, half: Path, tmp_path: Path) -> None:
    back = convert_in_process([half], tmp_path / "back", Conversion(pixels="rgb"))
    original = tree_bytes(back)
    flip_row(back, 3)
    with pytest.raises(BuildError, match="the rows were unpacked from yuv420; pass as --from a store that has them"):
        repair_store(back, tree)
    repair_store(back, half)
    assert tree_bytes(back) == original


def test_staged_part(half: Path, tmp_path: Path) -> None:
    stage_store(open_store(half), tmp_path / "part", rows=range(4, 8))
    part = open_store(tmp_path / "part")
    rows = part.rows
    np.testing.assert_array_equal(part.images[rows.start : rows.stop], open_store(half).images[rows.start : rows.stop])


# --- commands


def test_odd_sizes_are_refused_with_the_nearest(tree: Path, tmp_path: Path) -> None:
    done = prep("build", "folder", tree, tmp_path / "out", "--pixels", "yuv420", "--size", "33x48")
    assert_fails(done, 2, "33x48, but yuv420 needs an even height and width: use 32x48 or 34x48")
    for width, near in ((5, "2x4 or 2x6"), (1, "2x2")):
        with pytest.raises(ValueError, match=f"use {near}$"):
            Recipe(height=1, width=width, pixels="yuv420")


def test_both_sizes_are_told(rgb: Path, half: Path, tmp_path: Path) -> None:
    convert = ("convert", rgb, tmp_path / "out", "--dry-run")
    assert "46.08 KB (23.04 KB as yuv420) in" in printed(*convert)
    assert "23.04 KB (46.08 KB as rgb) in" in printed(*convert, "--pixels", "yuv420")
    assert "yuv420)" in printed("info", rgb)
    assert "as rgb)" in printed("info", half)


def test_pictures_of_a_store_are_those_of_its_images(half: Path, tmp_path: Path) -> None:
    back = convert_in_process([half], tmp_path / "back", Conversion(pixels="rgb"))
    for store in (half, back):
        printed("show", store, "--out", tmp_path / f"{store.name}.png")
    assert (tmp_path / "half.png").read_bytes() == (tmp_path / "back.png").read_bytes()


def test_pixels_that_a_recipe_omits_are_named() -> None:
    recipes = [Recipe(pixels=pixels).facts({}) for pixels in ("rgb", "yuv420")]
    assert differences(*recipes) == ["--pixels is rgb, the plan says yuv420"]
    assert differences(*reversed(recipes)) == ["--pixels is yuv420, the plan says rgb"]
