"""Images of 12 and 16 bits, and rotations in EXIF: what a build says about them, and the flags that change them."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decodeonce.cli.output import advice_on
from decodeonce.prep.listing import Undecodable
from decodeonce.prep.recipe import Recipe, gray_range
from decodeonce.store import open_store
from decodeonce.store.table import read_rejects
from tests.command import prep, printed
from tests.images import color_tiff, exif, jpeg, need_format, raw_png
from tests.prep.test_decode import decode, pixels

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
    advice = re.findall(r"2 images were stored dark: .* at most 12 bits; --levels 0:4095 ", shown)
    assert len(advice) == (levels is None)
    for row, values in zip(open_store(folder / "out").images[:2], (VALUES, VALUES // 4 + 100), strict=True):
        low, high = (gray_range(levels) or (int(values.min()), int(values.max()))) if levels else (0, 0)
        expected = scaled(values, low, high) if levels else (values >> 8).astype(np.uint8)
        np.testing.assert_array_equal(row, np.repeat(expected[..., None], 3, axis=2))
    assert ("levels" in open_store(folder / "out").manifest.recipe) == (levels is not None)


def test_dry_run_says_that_gray_becomes_dark(folder: Path) -> None:
    shown = prep("build", "folder", folder / "src", folder / "out", *FLAGS, "--dry-run").stdout
    assert "in this sample, 2 images were stored dark" in shown


COLORS = np.random.default_rng(0).integers(100, 3161, (64, 64, 4), np.uint16)
COLOR_FILES = {
    "png": (raw_png(COLORS[..., :3], 2), "16 bit"),
    "png-alpha": (raw_png(COLORS, 6), "alpha, 16 bit"),
    "png-interlaced": (raw_png(COLORS[..., :3], 2, interlaced=True), "16 bit"),
    "tiff": (color_tiff(COLORS[..., :3]), "16 bit"),
    "tiff-big-endian": (color_tiff(COLORS[..., :3], order=">"), "16 bit"),
    "tiff-compressed": (color_tiff(COLORS[..., :3], _259=(8,)), "16 bit"),
    "tiff-compressed-big-endian": (color_tiff(COLORS[..., :3], order=">", _259=(8,)), "16 bit"),
    "tiff-bands": (color_tiff(COLORS, _338=(0,)), "16 bit, 4 bands, the 4th is dropped"),
    "tiff-alpha": (color_tiff(COLORS, _338=(2,)), "alpha, 16 bit"),
}


@pytest.mark.parametrize("levels", ["0:4095", "500:1500", "auto", None])
@pytest.mark.parametrize("kind", COLOR_FILES)
def test_levels_scale_color(kind: str, levels: str | None) -> None:
    if kind.startswith("tiff-compressed"):
        need_format("TIFF")
    data, unusual = COLOR_FILES[kind]
    low, high = gray_range(levels or "0:1") or (int(COLORS[..., :3].min()), int(COLORS[..., :3].max()))
    row = decode(data, "x", height=64, width=64, levels=levels)
    expected = scaled(COLORS[..., :3], low, high) if levels else (COLORS[..., :3] >> 8).astype(np.uint8)
    np.testing.assert_array_equal(pixels(row, 64, 64), expected)
    # Most of the values, 0 to 4095, are above 1500.
    depth = {None: "16 bit, values of 12 bits", "500:1500": "16 bit, most values are above --levels"}
    assert row.unusual == unusual.replace("16 bit", depth.get(levels, "16 bit"))
    if levels == "500:1500":
        [line] = advice_on({row.unusual: 2}, levels)
        assert line == "2 images were stored mostly white, because most of the values are above --levels 500:1500"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (raw_png(COLORS[..., :2], 4), "PNG of 16 bits in mode RGBA"),  # gray with alpha
        (b"P6 64 64 65535\n" + COLORS[..., :3].astype(">u2").tobytes(), "PPM of 16 bits in mode RGB"),
        (b"P6 64 64 4095\n" + COLORS[..., :3].astype(">u2").tobytes(), "PPM of 16 bits in mode RGB"),
        (color_tiff(COLORS, _262=(5,)), "TIFF of 16 bits in mode CMYK"),
        (color_tiff(COLORS, _338=(1,)), "TIFF of 16 bits in mode RGBA"),  # colors multiplied by alpha
        (color_tiff(COLORS[..., :3], planes=True, _259=(8,)), "TIFF of 16 bits in mode RGB, with separate planes"),
    ],
)
def test_color_that_levels_do_not_scale_is_rejected(data: bytes, found: str) -> None:
    if "planes" in found:
        need_format("TIFF")
    with pytest.raises(Undecodable, match=re.escape(f"{found}, which --levels does not scale")):
        decode(data, levels="0:4095")
    decode(data)


@pytest.mark.parametrize(("bits", "is_dark"), [(8, True), (12, True), (14, True), (15, False), (16, False)])
@pytest.mark.parametrize("kind", ["gray", "gray with alpha", "color"])
def test_dark_images_are_listed(kind: str, bits: int, is_dark: bool) -> None:
    values = np.full((64, 64, 3), (1 << bits) - 1, np.uint16)
    values[..., 1] = 65535 if kind == "gray with alpha" else values[..., 0]
    color_type, channels = {"gray": (0, 1), "gray with alpha": (4, 2), "color": (2, 3)}[kind]
    data = raw_png(values[..., :channels], color_type)
    assert (f"16 bit, values of {bits} bits" in decode(data).unusual) == is_dark


def test_levels_that_scale_nothing_are_reported(tmp_path: Path) -> None:
    (tmp_path / "src/chest").mkdir(parents=True)
    (tmp_path / "src/chest/a.jpg").write_bytes(jpeg(60, 40, mode="L"))
    flags = (tmp_path / "src", tmp_path / "out", *FLAGS, "--levels", "0:4095")
    advice = "--levels 0:4095 scaled none of the stored images, because none has 12 or 16 bits"
    assert advice in printed("build", "folder", *flags, "--dry-run")
    assert advice in printed("build", "folder", *flags)


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


@pytest.mark.parametrize("more", [(), ("--dry-run", "--json")])
def test_quiet_build_prints_warnings_alone(folder: Path, more: tuple[str, ...]) -> None:
    (folder / "src/chest/c.png").write_bytes(b"")
    (folder / "src/chest/d.png").write_bytes(b"no picture")
    done = prep("build", "folder", folder / "src", folder / "out", *FLAGS, "--no-labels", "--max-bad", 2, "-q", *more)
    assert done.returncode == 0
    assert done.stdout.count("\n") == ("--json" in more)
    rejected, *others = done.stderr.splitlines()
    if "--dry-run" in more:
        assert "3 rows of " in rejected
        assert "; 1 file rejected; nothing was written" in rejected
        assert others.pop(0).startswith("sample: 3 of 3 images read; 1 of them cannot be decoded, first chest/d.png")
    else:
        assert "2 of 4 images were rejected (1 empty file, 1 not an image) and 2 unusual images were kept" in rejected
    [dark] = others
    assert "2 images were stored dark: the values have at most 12 bits" in dark
