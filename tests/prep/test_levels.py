"""Gray of 12 and 16 bits, and rotations in EXIF: what a build says about them, and the flags that change them."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decodeonce.prep.recipe import Recipe, gray_range
from decodeonce.store import open_store
from decodeonce.store.table import read_rejects
from tests.command import prep, printed
from tests.images import exif, jpeg

VALUES = np.arange(4096, dtype=np.uint16).reshape(64, 64)  # 12 bits, as in X-rays
FLAGS = ("--size", 64, "--workers", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two X-rays, the second of which is darker."""
    for name, values in (("a", VALUES), ("b", VALUES // 4 + 100)):
        (tmp_path / "src/chest").mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(tmp_path / "src/chest" / f"{name}.png")
    return tmp_path


def scaled(values: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.clip(np.floor((values.astype(float) - low) * 255 / (high - low) + 0.5), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("levels", ["0:4095", "500:1500", "auto", None])
def test_levels_scale_gray(folder: Path, levels: str | None) -> None:
    flags = ("--levels", levels) if levels else ()
    shown = printed("build", "folder", folder / "src", folder / "out", *FLAGS, *flags, "--shuffle-seed", "none")
    advice = re.findall(r"2 gray images were stored nearly black: .* at most 12 bits; --levels 0:4095 ", shown)
    assert len(advice) == (levels is None)
    for row, values in zip(open_store(folder / "out").images[:2], (VALUES, VALUES // 4 + 100), strict=True):
        low, high = (gray_range(levels) or (int(values.min()), int(values.max()))) if levels else (0, 0)
        expected = scaled(values, low, high) if levels else (values >> 8).astype(np.uint8)
        np.testing.assert_array_equal(row, np.repeat(expected[..., None], 3, axis=2))
    assert ("levels" in open_store(folder / "out").manifest.recipe) == (levels is not None)


def test_dry_run_says_that_gray_becomes_black(folder: Path) -> None:
    shown = prep("build", "folder", folder / "src", folder / "out", *FLAGS, "--dry-run").stdout
    assert "in this sample, 2 gray images were stored nearly black" in shown


@pytest.mark.parametrize("levels", ["", "5", "5:5", "9:5", "-1:5", "0:65536", "a:b", "Auto"])
def test_invalid_levels_are_refused(levels: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"levels are {levels!r}, expected LOW:HIGH")):
        Recipe(levels=levels)


def test_build_names_the_flag_for_ignored_rotations(tmp_path: Path) -> None:
    (tmp_path / "src/phone").mkdir(parents=True)
    for number, orientation in enumerate([1, 6, 8, 3]):
        (tmp_path / f"src/phone/{number}.jpg").write_bytes(jpeg(60, 40, exif=exif(orientation)))
    done = prep("build", "folder", tmp_path / "src", tmp_path / "out", *FLAGS)
    assert "3 images were stored without the rotation in EXIF; --exif apply rotates them\n" in done.stdout
    assert [r.reason for r in read_rejects(tmp_path / "out/rejects.tsv")] == [
        f"EXIF rotation {orientation}, not applied" for orientation in (6, 8, 3)
    ]
    upright = prep("build", "folder", tmp_path / "src", tmp_path / "upright", *FLAGS, "--exif", "apply")
    assert "EXIF" not in upright.stdout
