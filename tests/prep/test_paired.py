"""Masks and second images are stored with their images, with the same geometry, from every kind of source."""

import errno
import itertools
import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from decodeonce.build import WorkSettings, build, make_plan, repair_store, work
from decodeonce.errors import BuildError, Stopped, StoreError
from decodeonce.prep.building.free_space import space_needed
from decodeonce.prep.building.journal import Journal
from decodeonce.prep.building.worker import BlockDecoder, write_block
from decodeonce.prep.convert.convert import Conversion, convert
from decodeonce.prep.processes.child import Heartbeat
from decodeonce.prep.recipe import BoxRules, Recipe, UserMap
from decodeonce.sources import BoxedSource, FolderSource, PairedSource, open_dataset, open_parquet, open_webdataset
from decodeonce.store import Store, add_column, open_store, stage_store, verify_store
from decodeonce.store.table import Reject, read_rejects
from tests.command import assert_fails, prep, printed
from tests.docs.pages import ROOT, blocks
from tests.forms.boxed import xml
from tests.forms.parquet import images, write_table
from tests.forms.webdataset import write_tar
from tests.images import encoded, exif, jpeg, make_image, png_file, tree_bytes
from tests.packages import needs_torch
from tests.prep.building import build_in_process, decoded
from tests.store.signing import flip_row, resign

Pixels = NDArray[np.uint8]
RECIPE = Recipe(height=24, width=20)
SIZES = ((60, 40), (33, 90), (20, 24), (7, 5), (64, 64), (31, 47))
ORIENTATION = 0x0112


def mask_of(width: int, height: int, seed: int) -> Pixels:
    """Return regions of a few classes with straight edges and single pixels."""
    rng = np.random.default_rng(seed)
    mask = np.kron(rng.integers(0, 5, (height // 6 + 1, width // 6 + 1)), np.ones((6, 6)))[:height, :width]
    mask[rng.random((height, width)) < 0.05] = 255
    return mask.astype(np.uint8)


def png(mask: Pixels, mode: str = "L") -> bytes:
    """Return a mask as a PNG; with mode "P" its values are indexes into a palette."""
    image = Image.fromarray(mask)
    if mode == "P":
        image = Image.frombytes("P", image.size, mask.tobytes())
        image.putpalette([value for n in range(256) for value in (255 - n, n, n // 2)])
    return encoded(image, "PNG")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with EXIF orientations, their masks as gray and palette PNGs, and the same images as second ones."""
    root = tmp_path_factory.mktemp("paired")
    for number, (width, height) in enumerate(SIZES):
        name = f"n{number % 2:08d}/{number}.x"
        for folder in ("photos", "masks", "targets"):
            (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
        data = jpeg(width, height, seed=number, exif=exif(1 + number))
        (root / "photos" / f"{name}.JPEG").write_bytes(data)
        (root / "masks" / f"{name}.png").write_bytes(png(mask_of(width, height, number), "LP"[number % 2]))
        (root / "targets" / f"{name}.jpg").write_bytes(data)
    return root


@pytest.fixture
def copied(tree: Path, tmp_path: Path) -> Path:
    """A copy of `tree` to change, which also has room for stores."""
    return Path(shutil.copytree(tree, tmp_path, dirs_exist_ok=True))


def mask_path(root: Path, number: int) -> Path:
    return root / f"masks/n{number % 2:08d}/{number}.x.png"


def paired_source(tree: Path, **folders: str) -> PairedSource:
    """Return the photos with their masks, or with other folders by name."""
    given = {name.replace("_rgb", ":rgb"): tree / folder for name, folder in (folders or {"mask": "masks"}).items()}
    return PairedSource(FolderSource(tree / "photos"), given)


def number_of(store: Store, row: int) -> int:
    return int(Path(store.samples[row].source).name.partition(".")[0])


def row_bytes(store: Store, row: int) -> bytes:
    return b"".join(array[row].tobytes() for array in (store.images, *store.paired.values()))


def expected_mask(number: int, recipe: Recipe) -> Pixels:
    """Return the row of a mask by Pillow alone: rotate, resize to the nearest value, crop or pad."""
    width, height = SIZES[number]
    image = Image.fromarray(mask_of(width, height, number))
    turns = [Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM]
    turns += [Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270]
    if recipe.exif == "apply" and number:
        image = image.transpose(turns[number - 1])
    (w, h), (row_w, row_h), nearest = image.size, (recipe.width, recipe.height), Image.Resampling.NEAREST
    if recipe.fit == "stretch":
        return np.asarray(image.resize((row_w, row_h), nearest))
    wide = row_w * h >= row_h * w
    by_width = wide if recipe.fit == "crop" else not wide or row_w * h == row_h * w
    size = (row_w, max(1, int(row_w * h / w))) if by_width else (max(1, int(row_h * w / h)), row_h)
    image = image.resize(size, nearest)
    if recipe.fit == "crop":
        left, top = round((size[0] - row_w) / 2.0), round((size[1] - row_h) / 2.0)
        return np.asarray(image.crop((left, top, left + row_w, top + row_h)))
    padded = Image.new("L", (row_w, row_h))
    padded.paste(image, ((row_w - size[0]) // 2, (row_h - size[1]) // 2))
    return np.asarray(padded)


@pytest.mark.parametrize("exif", ["ignore", "apply"])
@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
def test_masks_have_the_geometry_of_their_images_and_own_values(
    tree: Path, tmp_path: Path, fit: Any, exif: Any
) -> None:
    recipe = replace(RECIPE, fit=fit, exif=exif)
    out = build_in_process(paired_source(tree, mask="masks", target_rgb="targets"), tmp_path / "out", recipe)
    alone = open_store(build_in_process(FolderSource(tree / "photos"), tmp_path / "alone", recipe))
    store = open_store(out)
    assert (store.images.shape, store.paired["mask"].shape) == (alone.images.shape, (len(SIZES), 24, 20))
    np.testing.assert_array_equal(store.images[:], alone.images[:])
    assert store.manifest.pixel_mean == alone.manifest.pixel_mean
    np.testing.assert_array_equal(store.paired["target"][:], alone.images[:])  # the same file, as a second image
    for row in range(len(SIZES)):
        np.testing.assert_array_equal(store.paired["mask"][row], expected_mask(number_of(store, row), recipe))


@pytest.mark.parametrize(
    "recipe", [{"scaled_decode": True}, {"boxes": BoxRules()}, {"filter": "lanczos"}, {"height": 700}]
)
def test_second_images_are_made_like_their_images(tree: Path, tmp_path: Path, recipe: dict[str, Any]) -> None:
    inner, made = paired_source(tree, target_rgb="targets"), replace(RECIPE, **recipe)
    boxes = tmp_path / "xml"
    boxes.mkdir()
    for number in range(len(SIZES)):
        (boxes / f"{number}.x.xml").write_text(xml(("dog", (10, 20, 70, 50)), ("cat", (0, 0, 33, 80))))
    source = BoxedSource(inner, boxes, made.boxes) if made.boxes else inner
    store = open_store(build_in_process(source, tmp_path / "out", made))
    assert len(store) == len(SIZES) * (2 if made.boxes else 1)
    np.testing.assert_array_equal(store.paired["target"][:], store.images[:])


def test_masks_of_unusual_kinds_keep_their_values(copied: Path) -> None:
    white_is_zero = encoded(Image.new("L", SIZES[0], 3), "TIFF", tiffinfo={262: 0})
    assert bytes([252]) * SIZES[0][0] * SIZES[0][1] in white_is_zero
    mask_path(copied, 0).write_bytes(white_is_zero)
    same_orientation = encoded(Image.fromarray(mask_of(*SIZES[1], 1)), "PNG", exif=exif(2))
    mask_path(copied, 1).write_bytes(same_orientation)
    mask_path(copied, 2).write_bytes(encoded(Image.new("1", SIZES[2], 1), "PNG"))
    recipe = replace(RECIPE, exif="apply")
    store = open_store(build_in_process(paired_source(copied), copied / "out", recipe))
    masks = {number_of(store, row): mask for row, mask in enumerate(store.paired["mask"][:])}
    assert np.unique(masks[0]).tolist() == [3]
    np.testing.assert_array_equal(masks[1], expected_mask(1, recipe))
    assert np.unique(masks[2]).tolist() == [1]


def test_image_without_a_usable_mask_is_rejected_by_name(copied: Path) -> None:
    masks = [mask_path(copied, number) for number in range(len(SIZES))]
    masks[0].unlink()
    masks[1].write_bytes(png(mask_of(10, 10, 0)))
    masks[2].write_bytes(encoded(make_image(*SIZES[2]), "PNG"))
    masks[3].write_bytes(masks[4].read_bytes()[:60])
    masks[5].write_bytes(b"")
    out = build_in_process(paired_source(copied), copied / "out", RECIPE)
    assert len(open_store(out)) == 1
    reasons = {reject.source: reject.reason for reject in rejected(out)}
    assert len(reasons) == 5
    assert reasons["n00000000/0.x.JPEG"] == "no mask: its folder has no image with this name and any suffix"
    assert reasons["n00000001/1.x.JPEG"] == "mask: 10x10 pixels, but its image has 33x90; expected equal sizes"
    expected = "mask: RGB pixels, expected one channel of 8 bits or a palette; if its colors are classes, replace"
    assert reasons["n00000000/2.x.JPEG"].startswith(expected)
    assert reasons["n00000001/3.x.JPEG"].startswith("mask: ")
    assert reasons["n00000001/5.x.JPEG"] == "mask: empty file"


@pytest.mark.parametrize(("other", "rejects"), [(".TIF", True), (".PNG", True), (".txt", False)])
def test_image_with_several_masks_is_rejected(copied: Path, other: str, *, rejects: bool) -> None:
    shutil.copy(mask_path(copied, 4), mask_path(copied, 4).with_suffix(other))
    mask_path(copied, 5).with_suffix(".tif").symlink_to("gone")
    source, problem = paired_source(copied), "mask: 2 images in its folder have this name; keep only one"
    expected = [("n00000000/4.x.JPEG", problem)] if rejects else []
    assert [(entry.text, entry.problem) for entry in source.scan().entries if entry.problem] == expected
    assert [entry.problem for entry in source.find([b"n00000000/4.x.JPEG"])] == [problem if rejects else ""]


def test_masks_with_other_names_or_formats_are_named(tmp_path: Path) -> None:
    for name in ("1", "1 (2)", "car", "a", "7"):
        file = tmp_path / f"images/{name}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(encoded(make_image(9, 9), "PNG"))
    (tmp_path / "masks").mkdir()
    for name in (
        "1.pfm",
        "10.png",
        "1 (2)_mask.png",
        "car_mask.gif",
        "a_1.png",
        "a.xml",
        "7.jp2",
        *(f"{n}_mask.png" for n in range(100, 300)),
    ):
        (tmp_path / "masks" / name).touch()
    source = PairedSource(FolderSource(tmp_path / "images", no_labels=True), {"mask": tmp_path / "masks"})
    rename = "instead; give masks the names of their images, as docs/how-to/segmentation.md#masks-with-other-names says"
    assert {entry.text: entry.problem.partition("its folder has ")[2] for entry in source.scan().entries} == {
        "1.png": "'1.pfm' instead; save it as a PNG of 8 bits",
        "1 (2).png": f"'1 (2)_mask.png' {rename}",
        "car.png": f"'car_mask.gif' {rename}",
        "7.png": "'7.jp2' instead; save it as a PNG of 8 bits",
        "a.png": "no image with this name and any suffix",
    }


def test_folder_of_masks_that_cannot_be_listed_stops_the_build(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: bytes) -> list[bytes]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), folder)

    source = paired_source(tree)
    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(Stopped, match="Stale file handle; run the same command again"):
        list(source.scan().entries)


def test_documented_script_replaces_colors_by_numbers(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of masks with colors, `:rgb` would store thousands of mixed ones."""
    [script] = [block for block in blocks(ROOT / "docs/how-to/segmentation.md") if "COLORS" in block.text]
    colors = np.array([(0, 0, 0), (128, 0, 0), (0, 128, 0)], np.uint8)
    (copied / "masks").rename(copied / "colors")
    numbers = [np.random.default_rng(number).integers(0, 3, size[::-1]) for number, size in enumerate(SIZES)]
    for number, classes in enumerate(numbers):
        path = copied / "colors" / mask_path(copied, number).relative_to(copied / "masks")
        Image.fromarray(colors[classes]).save(path)
    monkeypatch.chdir(copied)
    exec(script.text, {})
    for number, classes in enumerate(numbers):
        with Image.open(mask_path(copied, number)) as mask:
            assert (mask.mode, np.asarray(mask).tolist()) == ("L", classes.tolist())
    stored = open_store(build_in_process(paired_source(copied), copied / "out", RECIPE)).paired["mask"]
    assert set(np.unique(stored[:])) <= {0, 1, 2}
    Image.new("RGB", (8, 8), (1, 2, 3)).save(path)
    with pytest.raises(AssertionError, match="contains a color that is not in COLORS"):
        exec(script.text, {})


@pytest.mark.parametrize("colors", [[(0, 0, 0), (0, 255, 0)], [(0, 0, 0), (255, 0, 0), (9, 9, 9)], None], ids=str)
@pytest.mark.parametrize("last", [1, 17])
def test_palettes_in_which_an_index_has_several_colors_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, colors: Sequence[tuple[int, int, int]] | None, last: int
) -> None:
    """Colors of indexes that no pixel has do not count."""
    for number in range(18):
        mask = Image.new("P" if colors or number != last else "L", (80, 60), 1)
        if mask.mode == "P":
            palette = colors if colors and number == last else [(0, 0, 0), (255, 0, 0), (0, 0, 255)]
            mask.putpalette([value for color in palette for value in color])
        for name, data in (("photos/a/{:02}.JPEG", jpeg(80, 60)), ("masks/a/{:02}.png", encoded(mask, "PNG"))):
            path = tmp_path / name.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    out = build_in_process(paired_source(tmp_path), tmp_path / "out", Recipe(shard_size=3 << 20))
    assert np.unique(open_store(out).paired["mask"][:]).tolist() == [1]
    found = "mask: index 1 of the palette is #ff0000 for a/00.JPEG, but #00ff00 for a/{:02}.JPEG (indexes"
    said = [message for message in caplog.messages if "of the palette" in message]
    differ = bool(colors and colors[1] == (0, 255, 0))
    assert [message.startswith(f"{out}: {found.format(last)}") for message in said] == [True] * differ


def test_needed_space_includes_the_colors_of_palettes(tmp_path: Path) -> None:
    values, colors = bytes(range(256)), np.random.default_rng(0).integers(0, 256, (2, 768), np.uint8)
    for number in range(2):
        mask = Image.frombytes("P", (16, 16), values)
        mask.putpalette(colors[number].tobytes())
        for name, data in (("photos/a/{}.jpg", jpeg(16, 16)), ("masks/a/{}.png", encoded(mask, "PNG"))):
            path = tmp_path / name.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    plan = make_plan(paired_source(tmp_path), tmp_path / "out", Recipe(height=16, width=16))
    work(tmp_path / "out", WorkSettings(workers=1))
    [journal] = plan.paths.journals.iterdir()
    other_bytes = space_needed(plan).bytes - plan.blocks.shard_bytes
    assert 2 * 256 * len('"000000":1,') < journal.stat().st_size < other_bytes < 4 * journal.stat().st_size


def rejected(out: Path) -> list[Reject]:
    """Return the images that are not in the store, without those whose rotation is ignored."""
    return [reject for reject in read_rejects(out / "rejects.tsv") if reject.action == "rejected"]


def gray_png(bits: int, width: int, height: int) -> bytes:
    """Return a PNG of zeros with 2 or 4 bits of gray, which Pillow cannot write."""
    lines = bytes(1 + (bits * width + 7) // 8) * height
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return png_file((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))


def test_masks_that_pillow_scales_are_rejected(copied: Path) -> None:
    sizes = [b"%d %d" % size for size in SIZES]
    for number, data in enumerate(
        (
            gray_png(2, *SIZES[0]),
            gray_png(4, *SIZES[1]),
            b"P5 %s 3\n" % sizes[2] + bytes(20 * 24),
            b"P2 %s 4\n" % sizes[3] + b"1 " * 35,
            b"P5 %s 255\n" % sizes[4] + bytes([3]) * 64 * 64,
            b"P2 %s 255\n" % sizes[5] + b"3 " * 31 * 47,
        )
    ):
        mask_path(copied, number).write_bytes(data)
    out = build_in_process(paired_source(copied), copied / "out", RECIPE)
    assert np.unique(open_store(out).paired["mask"][:]).tolist() == [3]
    rejects = {reject.source[10:11]: reject.reason for reject in rejected(out)}
    assert rejects.keys() == set("0123")
    for reason in rejects.values():
        assert reason.startswith("mask: levels of gray that do not go up to 255, which Pillow scales to 0..255; save")


def test_tiffs_that_pillow_turns_are_rejected(copied: Path) -> None:
    for number, turn in enumerate((3, 1, 2, 1)):
        image, path = make_image(*SIZES[number]), mask_path(copied, number)
        if number < 2:
            path = copied / "photos" / path.relative_to(copied / "masks").with_suffix(".JPEG")
        else:
            image = image.convert("L")
        path.write_bytes(encoded(image, "TIFF", tiffinfo={ORIENTATION: turn}))
    problem = ", which its pair would not follow; save the TIFF upright, without an orientation"
    for setting in ("ignore", "apply"):
        out = build_in_process(paired_source(copied), copied / setting, replace(RECIPE, exif=setting))
        assert {reject.source[10:11]: reject.reason for reject in rejected(out)} == {
            "0": f"TIFF with orientation 3{problem}",
            "2": f"mask: TIFF with orientation 2{problem}",
        }
    alone = build_in_process(FolderSource(copied / "photos"), copied / "alone", RECIPE)
    assert len(open_store(alone)) == len(SIZES)


def test_build_that_was_stopped_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    for number in range(18):
        for name, data in (("photos/a/{}.JPEG", jpeg(300, 260)), ("masks/a/{}.png", png(mask_of(300, 260, number)))):
            path = tmp_path / name.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    source, recipe = paired_source(tmp_path), Recipe(shuffle_seed=0, shard_size=3 << 20)
    expected = tree_bytes(build_in_process(source, tmp_path / "whole", recipe))
    plan = make_plan(source, tmp_path / "out", recipe)
    assert len(plan.blocks) > 3
    decoder, journal = BlockDecoder(plan, Heartbeat(), fail_on_bad=False), Journal(plan.paths.journals, 0, 1)
    for block in (plan.blocks[0], plan.blocks[2]):
        report = write_block(plan, journal.path, block, *decoded(plan, decoder, block))
        journal.append(report["line"].encode())
    build(source, tmp_path / "out", recipe, WorkSettings(workers=2))
    assert tree_bytes(tmp_path / "out") == expected
    manifest = build(source, tmp_path / "out", recipe)  # finished: nothing to do
    assert manifest.row_bytes == 256 * 256 * 4


def test_mask_that_changes_is_noticed(copied: Path) -> None:
    source = paired_source(copied)
    store = build_in_process(source, copied / "store", RECIPE)
    plan = make_plan(source, copied / "out", RECIPE)
    number = number_of(open_store(store), 2)
    name = f"n{number % 2:08d}/{number}.x"
    mask_path(copied, number).write_bytes(png(mask_of(*SIZES[number], seed=99)))
    with pytest.raises(BuildError, match=rf"masks/{name}\.png: changed since the plan was made"):
        [plan.source().read(plan.samples.entry(row)) for row in range(plan.count)]
    with pytest.raises(BuildError, match="the source changed since the plan"):
        make_plan(source, copied / "out", RECIPE)
    flip_row(store, 2, 0)
    done = prep("repair", store, "--from", copied / "photos", "--paired", f"mask={copied}/masks", "--quiet")
    assert_fails(done, 1, f"row 2: {name}.JPEG: decodes to different pixels, or its mask changed")


def test_settings_that_cannot_be_combined_are_refused(tree: Path, tmp_path: Path) -> None:
    arguments = ("build", "folder", tree / "photos", tmp_path / "out", "--size", 24)
    assert_fails(prep(*arguments, "--paired", "mask"), 2, "--paired mask: expected NAME=DIR, such as mask=masks")
    assert_fails(prep(*arguments, "--paired", f"mask:gray={tree}"), 2, "expected a name such as mask, or target:rgb")
    photos, masks = FolderSource(tree / "photos"), tree / "masks"
    mapped = replace(RECIPE, map=UserMap("maps:same", "0" * 16))
    for source, recipe, problem in (
        (PairedSource(photos, {"labels": masks}), RECIPE, "photos: a paired image is called 'labels', expected"),
        (PairedSource(paired_source(tree), {"mask": masks}), RECIPE, "photos: a paired image is called 'mask', expect"),
        (paired_source(tree), mapped, "photos: paired images cannot be combined with a map"),
    ):
        for make in (build, make_plan):
            with pytest.raises(BuildError, match=problem):
                make(source, tmp_path / "out", recipe)
    with pytest.raises(BuildError, match="photos: `folders` is empty, expected a mapping"):
        PairedSource(photos, {})
    for where in ("s3://bucket/masks", "https://host/masks"):
        remote = prep(*arguments, "--paired", f"mask={where}")
        assert_fails(remote, 1, f"{where}: masks must be in a local folder, or in the tars of the images; download")
    missing = prep(*arguments, "--paired", f"mask=file://{tmp_path}/none")
    assert missing.returncode == 1
    assert f"prep: error: {tmp_path}/none: no such folder; expected mask images, named like those" in missing.stderr


@pytest.mark.parametrize("container", ["npy", "hdf5"])
def test_flipped_bit_of_a_mask_is_found_and_repaired(tree: Path, tmp_path: Path, container: Any) -> None:
    recipe = replace(RECIPE, container=container)
    store = build_in_process(paired_source(tree), tmp_path / "out", recipe)
    copy, original = shutil.copytree(store, tmp_path / "copy"), tree_bytes(store)
    for source in ("photos", "copy"):
        flip_row(store, 2, 24 * 20 * 3 + 100)
        assert verify_store(store).bad_rows == [(2, 2)]
        assert f"{store}: row 2: damaged\n" in prep("verify", store).stderr
        if source == "photos":
            assert_fails(prep("repair", store, "--from", tree / "photos"), 1, "--paired mask=DIR")
            done = prep("repair", store, "--from", tree / "photos", "--paired", f"mask={tree}/masks")
        else:
            done = prep("repair", store, "--from", copy)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert tree_bytes(store) == original
    alone = build_in_process(FolderSource(tree / "photos"), tmp_path / "alone", recipe)
    flip_row(store, 2, 0)
    with pytest.raises(BuildError, match="alone: expected a store with mask; pass another one, or the images"):
        repair_store(store, alone)


def test_conversion_keeps_masks(tree: Path, tmp_path: Path) -> None:
    source = paired_source(tree, mask="masks", target_rgb="targets")
    first = open_store(build_in_process(source, tmp_path / "first", RECIPE))
    whole = convert([first.paths.root], tmp_path / "again", workers=1)
    assert whole == first.manifest
    convert([first.paths.root] * 2, tmp_path / "two", Conversion(container="hdf5", size=(12, 10)), workers=1)
    two = open_store(tmp_path / "two")
    assert verify_store(two.paths.root).ok
    for row in range(len(first)):
        mask = Image.fromarray(first.paired["mask"][row]).resize((10, 12), Image.Resampling.NEAREST)
        np.testing.assert_array_equal(two.paired["mask"][row], np.asarray(mask))
        target = Image.fromarray(first.paired["target"][row]).resize((10, 12), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(two.paired["target"][len(first) + row], np.asarray(target))
    alone = build_in_process(FolderSource(tree / "photos"), tmp_path / "alone", RECIPE)
    with pytest.raises(BuildError, match=r"--paired is \[\], the first store says \['mask', 'target:rgb'\]"):
        convert([first.paths.root, alone], tmp_path / "merged")
    flip_row(two.paths.root, 1, 12 * 10 * 3 + 5)
    repair = repair_store(two.paths.root, first.paths.root)
    assert (repair.ok, repair.repaired_rows) == (True, 1), repair


def test_staged_part_holds_masks(tree: Path, tmp_path: Path) -> None:
    whole = open_store(build_in_process(paired_source(tree), tmp_path / "whole", RECIPE))
    stage_store(whole, tmp_path / "part", rows=range(2, 5))
    part = open_store(tmp_path / "part")
    np.testing.assert_array_equal(part.paired["mask"][2:5], whole.paired["mask"][2:5])
    with pytest.raises(StoreError, match=r"a staged part that holds rows 2\.\.4 of 6"):
        part.paired["mask"][0]


def write_shards(tree: Path, root: Path, suffix: str) -> Path:
    """Write the images with their masks as tars; a mask is before or after its image."""
    paths = sorted((tree / "photos").rglob("*.JPEG"))
    for shard in range(2):
        files = []
        for path in paths[3 * shard : 3 * shard + 3]:
            key = path.name.partition(".")[0]
            mask = mask_path(tree, int(key)).read_bytes()
            label = b"%d" % int(path.parent.name[1:])
            parts = [(f"{key}.jpg", path.read_bytes()), (f"{key}.cls", label), (f"{key}.mask.png", mask)]
            files += parts if int(key) % 2 else parts[::-1]
        write_tar(root / f"a-{shard}{suffix}", files, "w:gz" if suffix.endswith("gz") else "w")
    return root


@pytest.mark.parametrize("kind", ["folder", "webdataset", "dataset"])
def test_each_mask_has_its_own_values_in_any_order_of_the_names(tmp_path: Path, kind: str) -> None:
    least, members = {"image": 0, "z": 10, "m": 100, "a": 200}, []  # each image has one value
    for number, (name, value) in itertools.product(range(3), least.items()):
        mode = "RGB" if name in ("image", "m") else "L"
        data = encoded(Image.new(mode, (9, 9), (value + number,) * len(mode)), "PNG")
        members.append((f"{number}.{name}.png", data))
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{number}.png").write_bytes(data)
    write_tar(tmp_path / "a.tar", members)
    (tmp_path / "own.py").write_text(
        "from PIL import Image\n"
        "class Own:\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, index):\n"
        f"        image, *others = [Image.open(f'{tmp_path}/{{name}}/{{index}}.png') for name in {[*least]}]\n"
        "        return image, None, dict(zip('zma', others))\n"
    )
    arguments = {
        "folder": ("image", *(f"--paired={name}={tmp_path}/{name[0]}" for name in ("z", "m:rgb", "a"))),
        "webdataset": ("a.tar", "--image-suffix=image.png", *(f"--paired={n}={n[0]}.png" for n in ("z", "m:rgb", "a"))),
        "dataset": ("own:Own",),
    }
    source, *flags = arguments[kind]
    printed("build", kind, tmp_path / source, tmp_path / "out", "--size", 9, "--no-labels", *flags)
    store = open_store(tmp_path / "out")
    for image, *others in zip(store.images, *(store.paired[name] for name in "zma"), strict=True):
        values = [value + int(image[0, 0, 0]) for value in (10, 100, 200)]
        assert [set(one.flat) for one in others] == [{value} for value in values]
    before = tree_bytes(store.paths.root)
    flip_row(store.paths.root, 1, 9 * 9 * 3)
    printed("repair", store.paths.root, "--from", tmp_path / source, *(flag for flag in flags if kind == "folder"))
    assert tree_bytes(store.paths.root) == before


@pytest.mark.parametrize("suffix", [".tar", ".tgz"])
def test_masks_of_webdataset_are_members(tree: Path, tmp_path: Path, suffix: str) -> None:
    folder = open_store(build_in_process(paired_source(tree), tmp_path / "folder", RECIPE))
    shards = write_shards(tree, tmp_path / "shards", suffix)
    arguments = ("build", "webdataset", shards, tmp_path / "out", "--size", "24x20", "--workers", 1)
    printed(*arguments, "--paired", "mask=mask.png")
    store = open_store(tmp_path / "out")
    rows = {sample.digest: row_bytes(folder, sample.row) for sample in folder.samples}
    assert {sample.digest: row_bytes(store, sample.row) for sample in store.samples} == rows
    source = open_webdataset(shards, paired={"mask": "mask.png"})
    assert source.listing().warnings == []  # masks do not count as images that were not read
    assert "already finished" in prep(*arguments, "--paired", "mask=mask.png").stdout
    other = prep(*arguments)
    assert (other.returncode, "--paired is absent, the store says ['mask']" in other.stderr) == (1, True)
    before = tree_bytes(store.paths.root)
    flip_row(store.paths.root, 1, 24 * 20 * 3)
    assert repair_store(store.paths.root, shards).ok
    assert tree_bytes(store.paths.root) == before


def test_sample_of_a_shard_has_one_mask_of_each_name(tmp_path: Path) -> None:
    image, mask = jpeg(30, 20), png(mask_of(30, 20, 0))
    files = [("0.jpg", image), ("0.cls", b"0"), ("0.mask.png", mask), ("1.jpg", image), ("1.cls", b"0")]
    files += [("2.jpg", image), ("2.cls", b"0"), ("2.mask.png", b"")]
    files += [("3.jpg", image), ("3.cls", b"0"), ("3.mask.png", mask), ("3.MASK.png", mask)]
    write_tar(tmp_path / "a.tar", files)
    source = open_webdataset(tmp_path, paired={"mask": "mask.png"})
    assert [one.problem for one in source.scan().entries] == [
        "",
        "mask.png: missing in the sample",
        "mask.png: empty file",
        "two files mask.png in the sample",
    ]
    for suffix in ("mask.png", ".MASK.png"):
        with pytest.raises(BuildError, match=r"the suffix mask\.png is given twice, expected another suffix"):
            open_webdataset(tmp_path, paired={"a": "mask.png", "b": suffix})


def test_mask_is_not_read_outside_its_folder_nor_by_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [("../../b.jpg", jpeg(30, 20)), ("../../b.cls", b"1")])
    (tmp_path / "masks" / "a.tar").mkdir(parents=True)
    (tmp_path / "b.png").write_bytes(encoded(make_image(30, 20), "PNG"))
    table = write_table(tmp_path / "a.parquet", {"image": images([(jpeg(30, 20), "a\0b.jpg")]), "label": [0]})
    for inner in (open_webdataset(tar), open_parquet(table)):
        source = PairedSource(inner, {"mask": tmp_path / "masks"}, follow_links=True)
        assert [entry.problem[:8] for entry in source.scan().entries] == ["no mask:"]


MODULE = """
import numpy as np
from pathlib import Path
from PIL import Image

ROOT = Path({root!r})
paths = sorted((ROOT / "photos").rglob("*.JPEG"))

def array(path):
    return np.asarray(Image.open(path))

class Scenes:
    def __init__(self, open_mask=array, change=lambda index, others: others):
        self.open_mask, self.change = open_mask, change

    def __len__(self):
        return len(paths)

    def __getitem__(self, index):
        name = paths[index].relative_to(ROOT / "photos")
        mask = self.open_mask((ROOT / "masks" / name).with_suffix(".png"))
        return paths[index].read_bytes(), int(name.parts[0][1:]), self.change(index, {{"mask": mask, "score": index}})

def Images():
    return Scenes(Image.open)

def Tensors():
    import torch
    return Scenes(lambda path: torch.from_numpy(array(path).copy()))

def Colors():
    return Scenes(lambda path: np.stack([array(path)] * 3, 2))

def Named():
    return Scenes(change=lambda index, others: {{"seg-mask": others["mask"], "score": index}})

def Depths():
    return Scenes(change=lambda index, others: {{**others, "depth": np.zeros((4, 4), np.float32)}})

def Photos():
    modes = ["RGB", "P", "1", "L", "RGBA", "P"]
    return Scenes(change=lambda index, others: {{"mask": photo(index, modes)}})

def Palettes():
    return Scenes(change=lambda index, others: {{"mask": photo(index, "P1PPPP")}})

def photo(index, modes):
    image = Image.open(paths[index]).convert("RGB").convert(modes[index])
    if index == 1:
        image.info["transparency"] = 3
    if index == 5:  # a palette of fewer colors than indexes, as of a mask whose border is 255
        image.putpalette([9, 8, 7, 1, 2, 3])
    return image

def Mixed():
    return Scenes(change=lambda index, others: {{"mask": photo(index, ["L", "L", "RGB", "P", "1", "L"])}})

def Bytes():
    return Scenes(change=lambda index, others: {{"mask": b"an image"}})

def changed(index, others):
    mask = others["mask"]
    size = mask.shape[::-1]
    masks = {{2: mask[1:], 3: 7, 4: Image.new("I;16", size), 5: Image.new("F", size)}}
    return {{**others, "mask": masks.get(index, mask)}}

def Missing():
    return Scenes(change=changed)
"""


@pytest.fixture
def module(tree: Path, tmp_path: Path) -> Callable[[str], str]:
    path = tmp_path / f"scenes_of_a_user_{tmp_path.name}"
    path.with_suffix(".py").write_text(MODULE.format(root=str(tree)))
    return lambda name: f"{path}:{name}"


@pytest.mark.parametrize(
    "name", ["Scenes", "Images", pytest.param("Tensors", marks=[needs_torch, pytest.mark.long]), "Colors"]
)
def test_masks_of_any_dataset(tree: Path, tmp_path: Path, module: Callable[[str], str], name: str) -> None:
    store = open_store(build_in_process(open_dataset(module(name)), tmp_path / "out", RECIPE))
    assert ([*store.columns], [*store.paired]) == (["score"], ["mask"])
    if name == "Colors":
        assert store.paired["mask"].shape == (len(SIZES), 24, 20, 3)
        return
    folder = open_store(build_in_process(paired_source(tree), tmp_path / "folder", RECIPE))
    assert [row_bytes(store, row) for row in range(len(SIZES))] == [row_bytes(folder, row) for row in range(len(SIZES))]


@pytest.mark.parametrize("name", ["Photos", "Palettes"])
def test_palette_of_a_dataset_is_converted_for_photos_and_gives_indexes_for_masks(
    tmp_path: Path, module: Callable[[str], str], name: str
) -> None:
    source = open_dataset(module(name))
    advice = "; mask: one channel of palette indexes; for a photo, return .convert('RGB')"
    assert source.found == "6 samples" + (advice if name == "Palettes" else "")
    recipe = Recipe(height=24, width=20, fit="stretch", filter="box")
    store = open_store(build_in_process(source, tmp_path / "out", recipe))
    user: dict[str, Any] = {}
    exec(Path(module("x")[:-2] + ".py").read_text(), user)
    assert len(store) == len(SIZES)
    for row in range(len(SIZES)):
        index = number_of(store, row)
        image = user["photo"](index, ["RGB", "P", "1", "L", "RGBA", "P"] if name == "Photos" else "P1PPPP")
        if name == "Photos":
            image.info.pop("transparency", None)
            expected = image.convert("RGB").resize((20, 24), Image.Resampling.BOX)
        else:
            expected = Image.fromarray(np.asarray(image).astype(np.uint8)).resize((20, 24), Image.Resampling.NEAREST)
        np.testing.assert_array_equal(store.paired["mask"][row], np.asarray(expected))


def test_colors_after_a_mask_are_rejected(tmp_path: Path, module: Callable[[str], str]) -> None:
    out = build_in_process(open_dataset(module("Mixed")), tmp_path / "out", RECIPE)
    advice = "for photos, return .convert('RGB') in all samples, and for masks, one channel"
    assert [(one.source, one.reason) for one in rejected(out)] == [
        ("2", f"mask has three channels, but one in the first sample; {advice}")
    ]


@pytest.mark.parametrize("right", ["right:rgb", "right"])
@pytest.mark.parametrize(
    ("exif_choice", "own", "listed"),
    [
        ("apply", 6, [("rejected", "right: EXIF orientation 6, but its image has 1")]),
        ("apply", 1, []),
        ("ignore", 6, [("kept", "right: EXIF orientation ignored")]),
    ],
)
def test_orientation_of_a_second_image_alone_is_refused_or_listed(
    tmp_path: Path, right: str, exif_choice: Any, own: int, listed: list[tuple[str, str]]
) -> None:
    for number, turn in enumerate((own, 1)):
        second = make_image(40, 40) if right.endswith("rgb") else Image.new("L", (40, 40), 1)
        data = encoded(second, "JPEG" if right.endswith("rgb") else "PNG", exif=exif(turn))
        for name, content in (("left", jpeg(40, 40)), ("right", data)):
            (tmp_path / name / "a").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "a" / f"{number}.jpg").write_bytes(content)
    source = PairedSource(FolderSource(tmp_path / "left"), {right: tmp_path / "right"})
    out = build_in_process(source, tmp_path / "out", replace(RECIPE, exif=exif_choice))
    reasons = [(one.action, one.reason.partition(";")[0]) for one in read_rejects(out / "rejects.tsv")]
    assert reasons == listed


def test_encoded_mask_is_refused(module: Callable[[str], str]) -> None:
    with pytest.raises(BuildError, match="mask is bytes; a paired image must be a PIL image or an array"):
        open_dataset(module("Bytes"))


def test_sample_of_a_dataset_without_a_mask_is_rejected(tmp_path: Path, module: Callable[[str], str]) -> None:
    out = build_in_process(open_dataset(module("Missing")), tmp_path / "out", RECIPE)
    rejects = rejected(out)
    assert [(reject.source, reject.reason.partition(" (")[0]) for reject in rejects] == [
        ("2", "mask: 64x63 pixels, but its image has 64x64; expected equal sizes"),
        ("3", "mask is missing, or is not an image as in the first sample"),
        ("4", "mask is uint16"),
        ("5", "mask is float32"),
    ]
    assert all("expected a PIL image of 8 bits" in reject.reason for reject in rejects[2:])


def test_only_arrays_that_are_kept_must_be_valid(tmp_path: Path, module: Callable[[str], str]) -> None:
    with pytest.raises(BuildError, match=r":Named\[0\]: the name of a paired image is 'seg-mask', expected letters"):
        open_dataset(module("Named"))
    assert open_dataset(module("Named"), column=["score"]).column_names == ("score",)
    out = build_in_process(open_dataset(module("Depths"), column=["score", "mask"]), tmp_path / "out", RECIPE)
    store = open_store(out)
    assert (len(store), [*store.columns], [*store.paired]) == (len(SIZES), ["score"], ["mask"])


@pytest.mark.parametrize("column", [["score"], [], None])
def test_stores_of_columns_are_repaired(tmp_path: Path, module: Callable[[str], str], column: list[str] | None) -> None:
    store = build_in_process(open_dataset(module("Scenes"), column=column), tmp_path / "out", RECIPE)
    manifest = open_store(store).manifest
    assert manifest.source.get("options") == (None if column is None else {"column": column})
    assert (manifest.version, len(manifest.paired)) == ((1, 0) if column is not None else (2, 1))
    before = tree_bytes(store)
    flip_row(store, 1, 0)
    assert repair_store(store, module("Scenes")).ok
    assert tree_bytes(store) == before


def test_store_without_masks_is_of_version_1(tree: Path, tmp_path: Path) -> None:
    stores = [
        build_in_process(source, tmp_path / name, RECIPE)
        for name, source in (("masked", paired_source(tree)), ("plain", FolderSource(tree / "photos")))
    ]
    masked, plain = (json.loads((store / "store.json").read_bytes()) for store in stores)
    assert (masked["version"], masked["paired"]) == (2, [{"name": "mask", "channels": 1}])
    assert (plain["version"], "paired" in plain) == (1, False)
    assert masked["recipe"] == {**plain["recipe"], "paired": ["mask"]}
    resign(stores[1], lambda facts: facts.update(paired="of another writer"))
    assert open_store(stores[1]).paired == {}


def test_rows_can_be_read_with_numpy_and_h5py(tree: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    store = open_store(build_in_process(paired_source(tree), tmp_path / "a", replace(RECIPE, container="hdf5")))
    with h5py.File(tmp_path / "a/store.h5") as file:
        rows = file["images"][:]
    np.testing.assert_array_equal(rows[:, : 24 * 20 * 3].reshape(-1, 24, 20, 3), store.images[:])
    np.testing.assert_array_equal(rows[:, 24 * 20 * 3 :].reshape(-1, 24, 20), store.paired["mask"][:])
    build_in_process(paired_source(tree), tmp_path / "b", RECIPE)
    np.testing.assert_array_equal(np.load(tmp_path / "b/images-00000.npy"), rows)


def test_folder_of_the_images_is_refused_and_masks_as_jpegs_are_listed(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"mask=.*photos: this is the folder of the images; move the masks into a"):
        paired_source(copied, mask="photos").listing()
    mask_path(copied, 0).unlink()
    Image.fromarray(mask_of(*SIZES[0], 0)).save(mask_path(copied, 0).with_suffix(".jpg"))
    out = build_in_process(paired_source(copied), tmp_path / "out", RECIPE)
    listed = {one.source: one.reason for one in read_rejects(out / "rejects.tsv")}
    assert "mask: JPEG, which changes values" in listed["n00000000/0.x.JPEG"]
    assert not any("mask: JPEG" in reason for source, reason in listed.items() if source != "n00000000/0.x.JPEG")


def test_column_cannot_have_the_name_of_a_mask(tree: Path, tmp_path: Path) -> None:
    store = build_in_process(paired_source(tree), tmp_path / "out", RECIPE)
    with pytest.raises(StoreError, match=r"'mask' is already a mask or second image .*; choose another name$"):
        add_column(store, "mask", np.zeros(len(SIZES)))
    assert prep("info", store).stdout.count("mask") == 2  # in "paired" and in the recipe
    add_column(store, "score", np.zeros(len(SIZES)))
    resign(store, lambda facts: facts["columns"][0].update(name="mask"))
    with pytest.raises(StoreError, match="'mask' names more than one array"):
        open_store(store)


def test_bad_manifest_is_refused(tree: Path, tmp_path: Path) -> None:
    store = build_in_process(paired_source(tree), tmp_path / "out", RECIPE)
    whole = (store / "store.json").read_bytes()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"paired": [{"name": "../mask", "channels": 1}]}, "the name of a paired image is '../mask', expected letters"),
        ({"paired": [{"name": "mask", "channels": 2}]}, "paired image mask has 2 channels, expected 1 or 3"),
        ({"paired": [{"name": "images", "channels": 1}]}, "a paired image is called 'images', expected none of"),
        ({"paired": [{"name": "box_labels", "channels": 1}]}, "a paired image is called 'box_labels', expected none"),
        ({"paired": [{"name": "mask", "channels": 3}]}, "expected at least 1 row, first_row 0, "),
        ({"paired": []}, '"paired" is empty, expected a list of arrays in version 2'),
        ({"paired": {}}, "paired is {}, expected list"),
        ({"version": 1}, "expected at least 1 row, first_row 0, "),
    ]
    for change, problem in changes:
        (store / "store.json").write_bytes(whole)
        resign(store, lambda facts, change=change: facts.update(change))  # type: ignore[misc]
        with pytest.raises(StoreError, match=re.escape(problem)):
            open_store(store)


def test_folders_in_a_manifest_are_not_read(tree: Path, tmp_path: Path) -> None:
    store = build_in_process(paired_source(tree), tmp_path / "out", RECIPE)
    resign(store, lambda facts: facts["source"].update(options={"paired": {"mask": str(tree / "masks")}}))
    flip_row(store, 0, 0)
    with pytest.raises(BuildError, match="pass those of the build: --paired mask=DIR"):
        repair_store(store, tree / "photos")
