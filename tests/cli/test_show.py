"""`prep show`: rows of any shape, with any class name, damaged or not, in a PNG."""

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from decodeonce.cli.drawing import (
    GAP,
    LINE,
    SIDE,
    NamedBox,
    ShownRow,
    default_font,
    draw_sheet,
    fitted,
    legible,
    thumbnail,
)
from decodeonce.cli.output import write_out
from decodeonce.cli.rows import CheckedRows, KeptBoxes, draw_rows, shown_rows
from decodeonce.store import ImageClass, open_store
from tests.command import assert_fails, prep, prep_after
from tests.store.signing import flip_row, resign
from tests.stores import make_store, random_images

NAMES = ("a class with a name that is longer than its image", "汽车 Größe ñ", "\u202eabc\x1b[31m", "\udcff\ud800", "")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 rows of 32x24 in 3 classes, row % 3."""
    return make_store(
        tmp_path_factory.mktemp("stores") / "a.store", random_images(80, shape=(32, 24, 3)), shard_rows=30
    )


def sheet(data: bytes) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def cell(pixels: NDArray[np.uint8], index: int, columns: int, lines: int, high: int = SIDE) -> NDArray[np.uint8]:
    """Return a cell of a sheet with images of height `high` and captions of `lines` lines."""
    down, across = divmod(index, columns)
    top, left = GAP + down * (high + LINE * lines + 2 + GAP), GAP + across * (SIDE + GAP)
    return pixels[top : top + high + LINE * lines + 2, left : left + SIDE]


def test_selected_rows_are_drawn_with_captions(store: Path, tmp_path: Path) -> None:
    flags = ("--class", "class1", "--rows", "10:40", "--count", 9, "--out", tmp_path / "sheet.png")
    assert prep("show", store, *flags).stdout == f"{tmp_path / 'sheet.png'}: 9 rows of {store} shown\n"
    pixels = sheet((tmp_path / "sheet.png").read_bytes())
    assert pixels.shape == (2 * (SIDE + 3 * LINE + 2 + GAP) + GAP, 8 * (SIDE + GAP) + GAP, 3)
    for index, row in enumerate(range(10, 37, 3)):
        here = cell(pixels, index, 8, 3)
        enlarged = open_store(store).images[row].repeat(4, axis=0).repeat(4, axis=1)
        np.testing.assert_array_equal(here[:SIDE, :96], enlarged)
        assert (here[:SIDE, 96:] == 255).all()
        np.testing.assert_array_equal(here[SIDE:], caption("the class 1", "class1", f"row {row}"))
    assert (cell(pixels, 9, 8, 3) == 255).all()


def caption(*lines: str) -> NDArray[np.uint8]:
    """Return the pixels of a caption."""
    image = Image.new("RGB", (SIDE, LINE * len(lines) + 2), "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        color = "#59636e" if number == len(lines) - 1 else "#1b1f24"
        draw.text((0, 3 + number * LINE), line, font=default_font(), fill=color)
    return np.asarray(image)


@pytest.mark.parametrize("shape", [(16, 16, 3), (256, 32, 3), (30, 300, 3), (1024, 1024, 3), (1, 1, 3), (128, 90, 3)])
def test_any_shape_fits_its_cell(shape: tuple[int, int, int], tmp_path: Path) -> None:
    opened = open_store(make_store(tmp_path / "a", random_images(2, shape=shape)))
    images = [one.image for one in shown_rows(opened, [0, 1], CheckedRows(opened))]
    for row, image in enumerate(images):
        assert image is not None
        assert max(image.size) in range(SIDE // 2 + 1, SIDE + 1)
        assert abs(image.width / image.height - shape[1] / shape[0]) < 0.05 * shape[1] / shape[0]
        assert abs(np.asarray(image).mean() - opened.images[row].mean()) < 2
    assert sheet(draw_sheet(list(shown_rows(opened, [0, 1], CheckedRows(opened))))).shape[1] == 2 * (SIDE + GAP) + GAP


def test_any_number_of_channels_is_shown() -> None:
    for channels, seen in ((1, [0, 0, 0]), (2, [0, 0, 0]), (4, [0, 1, 2])):
        pixels = random_images(1, shape=(SIDE, SIDE, channels))[0]
        np.testing.assert_array_equal(np.asarray(thumbnail(pixels)), pixels[..., seen])


def test_damaged_row_is_framed_and_reported(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(5, shape=(64, 64, 3)))
    flip_row(root, 3)
    result = prep("show", root, "--out", tmp_path / "sheet.png")
    message = f"row 3: damaged; run `prep repair {root} --from SRC`\n"
    assert (result.returncode, result.stderr) == (0, f"prep: note: {root}: {message}")
    pixels = sheet((tmp_path / "sheet.png").read_bytes())
    for row in range(5):
        here = cell(pixels, row, 5, 3)
        reds = (here[SIDE + 5 :] == (0xC0, 0x1C, 0x28)).all(axis=2).any()
        left = GAP + row * (SIDE + GAP)
        frame = (pixels[GAP : GAP + SIDE, left - 2] == (0xC0, 0x1C, 0x28)).all()
        assert (reds, frame) == (row == 3, row == 3)


def test_unreadable_row_counts_as_damaged_and_damaged_checksums_are_reported_once(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(5))
    opened = open_store(root)
    (root / "images-00000.npy").rename(tmp_path / "moved")
    [one] = shown_rows(opened, [2], CheckedRows(opened))
    assert (one.image, one.damaged, one.lines()[-1]) == (None, True, "row 2: damaged")
    assert sheet(draw_sheet([one])).shape == (SIDE + 3 * LINE + 2 + 2 * GAP, SIDE + 2 * GAP, 3)
    (tmp_path / "moved").rename(root / "images-00000.npy")
    (root / "checksums.npy").write_bytes(b"\0" * (root / "checksums.npy").stat().st_size)
    result = prep("show", root, "--out", tmp_path / "sheet.png")
    assert result.stderr.startswith(f"prep: note: {root}/checksums.npy: damaged: xxh3_64 is")
    assert result.stderr.endswith("until then, no row can be checked\n")
    assert result.stderr.count("\n") == 1


def test_random_rows_depend_on_seed_and_selection(store: Path, tmp_path: Path) -> None:
    out = [tmp_path / f"{name}.png" for name in "abc"]
    for path, seed in zip(out, ("0", "0", "1"), strict=True):
        flags = ("--class", "class2", "--random", 8, "--seed", seed)
        assert prep("show", store, *flags, "--out", path).returncode == 0
    first, again, other = (path.read_bytes() for path in out)
    assert first == again != other
    rows = draw_rows(range(2, 80, 3), 8, seed=0)
    assert rows == [2, 8, 14, 17, 44, 62, 65, 71]
    shown = list(shown_rows(open_store(store), rows, CheckedRows(open_store(store))))
    assert first == draw_sheet(shown)


def test_wrong_flags_are_usage_errors(store: Path) -> None:
    before = (store / "labels.npy").read_bytes()
    assert_fails(prep("show", store, "--random", 4, "--count", 4), 2, "exclude each other")
    assert_fails(prep("show", store, "--seed", 4), 2, "--seed requires --random N")
    assert_fails(prep("show", "../a.store", "--out", "labels.npy", cwd=store), 2, "this file is part of the store")
    assert (store / "labels.npy").read_bytes() == before


def test_sheet_is_not_written_to_link_into_store(store: Path, tmp_path: Path) -> None:
    before = (store / "labels.npy").read_bytes()
    (tmp_path / "soft.png").symlink_to(store / "labels.npy")
    (tmp_path / "hard.png").hardlink_to(store / "labels.npy")
    for command in ("show", "report"):
        assert_fails(prep(command, store, "--out", tmp_path / "soft.png"), 2, "this file is part of the store")
    assert prep("show", store, "--out", tmp_path / "hard.png").returncode == 0
    assert sheet((tmp_path / "hard.png").read_bytes()).std() > 0
    assert (store / "labels.npy").read_bytes() == before


def test_sheet_is_written_through_links_and_into_pipes(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"old")
    (tmp_path / "link.png").symlink_to("old.png")
    write_out(tmp_path / "link.png", b"new bytes")
    assert ((tmp_path / "old.png").read_bytes(), (tmp_path / "link.png").is_symlink()) == (b"new bytes", True)
    with pytest.raises(FileNotFoundError, match=r"'[^']*/nowhere/new\.png'"):
        write_out(tmp_path / "nowhere/new.png", b"")
    reading, writing = os.pipe()
    write_out(Path(f"/proc/self/fd/{writing}"), b"new bytes")
    os.close(writing)
    assert os.read(reading, 100) == b"new bytes"
    os.close(reading)


def test_names_in_any_script_are_drawn_or_escaped(store: Path) -> None:
    shown = [ShownRow(0, None, ImageClass(name, name), False) for name in NAMES]
    assert sheet(draw_sheet(shown)).std() > 0
    fonts = [default_font(), ImageFont.load_default_imagefont()]
    for font in fonts:
        assert fitted("goldfish", SIDE, font) == "goldfish"
        assert fitted("\u6c7d\u8f66", SIDE, font) == "\\u6c7d\\u8f66"
        assert fitted("Gro\u0308n\u00f1", SIDE, font) == "Gronn"
        cut = fitted("w" * 100000, SIDE, font)
        assert cut.endswith("...")
        assert font.getlength(cut) <= SIDE < font.getlength(f"{cut}w")
    assert [legible(name) for name in NAMES[2:]] == ["\\u202eabc\\x1b[31m", "\\xff\\ud800", ""]
    assert legible("a\\b\tc\n") == "a\\b\\tc\\n"
    assert legible("x" * 300) == "x" * 199 + "…"
    assert len(legible("\n" * 300, 60)) == 60


# ---- boxes

LIGHT, DARK = (0xFF, 0xE1, 0x4D), (0, 0, 0)


def with_boxes(
    root: Path, boxes: Sequence[Sequence[Sequence[float]]], labels: list[list[int]] | None, side: int = 64
) -> Path:
    """Write rows of side x side, white on the left and black on the right, with these boxes and labels."""
    most = max(map(len, boxes))
    edges, counts = np.zeros((len(boxes), most, 4), "<f4"), np.array(list(map(len, boxes)), "<i4")
    for row, some in enumerate(boxes):
        edges[row, : len(some)] = np.reshape(some, (-1, 4))
    columns: dict[str, NDArray[np.generic]] = {"boxes": edges, "box_count": counts}
    if labels is not None:
        columns["box_labels"] = np.array(labels, "<i4")
    images = np.zeros((len(boxes), side, side, 3), np.uint8)
    images[:, :, : side // 2] = 255
    make_store(root, images, columns=columns)
    if labels is not None:
        resign(root, lambda facts: facts.update(box_classes=["class1", "dog"]))
    return root


def thumbnails(root: Path) -> list[NDArray[np.uint8]]:
    opened = open_store(root)
    shown = list(shown_rows(opened, range(len(opened)), CheckedRows(opened)))
    return [np.asarray(one.image) for one in shown]


def is_color(pixels: NDArray[np.uint8], color: tuple[int, int, int]) -> NDArray[np.bool_]:
    return (pixels == color).all(axis=-1)  # type: ignore[no-any-return]


def test_boxes_are_drawn_light_and_dark(tmp_path: Path) -> None:
    [image, plain] = thumbnails(with_boxes(tmp_path / "a", [[(16, 20, 48, 60)], []], None))
    outer, inner = np.zeros((2, SIDE, SIDE), bool)
    outer[40:120, 32:96], inner[41:119, 33:95] = True, True
    light = outer & ~inner
    inner[42:118, 34:94] = False  # only its rim
    assert (is_color(image, LIGHT) == light).all()
    assert is_color(image, DARK)[inner].all()
    assert (image[~light & ~inner] == plain[~light & ~inner]).all()
    assert len(np.unique(plain)) == 2


def test_box_names_are_above_boxes_and_do_not_overlap(tmp_path: Path) -> None:
    """A box class that is also a class of images is shown with its description."""
    boxes = [[(10, 20, 60, 60)], [(10, 20, 60, 60)] * 5, [(0, 0, 64, 64)], [(0, 0, 2, 2)]]
    names = [[0, -1, -1, -1, -1], [1] * 5, [1, -1, -1, -1, -1], [-1] * 5]
    drawn = thumbnails(with_boxes(tmp_path / "a", boxes, names))
    above, several, inside, nameless = drawn
    draw = ImageDraw.Draw(expected := Image.new("RGB", (math.ceil(default_font().getlength("the class 1")) + 4, LINE)))
    draw.rectangle((0, 0, expected.width, LINE), fill=LIGHT)
    draw.text((2, 1), "the class 1", font=default_font(), fill=DARK)
    np.testing.assert_array_equal(above[40 - LINE : 40, 20 : 20 + expected.width], np.asarray(expected))
    lines = is_color(several, LIGHT)[:, 21]  # the left edge of each name
    assert np.flatnonzero(lines).tolist() == [*range(40 - LINE, 40 + LINE), *range(120 - LINE, 120)]
    assert is_color(inside, LIGHT)[:LINE, 1].all()
    assert is_color(nameless, LIGHT).sum() == 4 * 3


def test_box_is_named_by_description_if_known(tmp_path: Path) -> None:
    root = with_boxes(tmp_path / "a", [[(0, 0, 9, 9)] * 3], [[0, 1, 2]])
    resign(root, lambda facts: facts["box_classes"].append("n02110185"))
    boxes = KeptBoxes(open_store(root)).of(0)
    assert boxes == [NamedBox((0, 0, 9, 9), name) for name in ("the class 1", "dog", "Siberian husky")]


def test_boxes_anywhere_are_drawn_or_skipped(tmp_path: Path) -> None:
    far = [(-9e30, -5, 9e30, 5), (np.nan, 0, 1, 1), (0, 0, np.inf, 1), (50, 50, 10, 10), (70, 70, 80, 80)]
    [image] = thumbnails(with_boxes(tmp_path / "a", [far], [[0, 1, 0, 1, 0]]))
    assert is_color(image, LIGHT)[9, 99:].all()
    with_boxes(tmp_path / "b", [[(0, 0, 1, 1)]], [[0]], side=1)
    assert is_color(thumbnails(tmp_path / "b")[0], LIGHT).any()


@pytest.mark.parametrize("column", ["boxes", "labels"])
def test_damaged_boxes_or_labels_are_an_error(tmp_path: Path, column: str) -> None:
    path = with_boxes(tmp_path / "a", [[(0, 0, 9, 9)]], [[0]]) / f"{column}.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert_fails(prep("show", path.parent, "--out", tmp_path / "a.png"), 1, f"{column}.npy: damaged: xxh3_64 is")


def test_missing_pillow_is_an_error_with_the_command_to_run(store: Path, tmp_path: Path) -> None:
    done = prep_after("sys.modules['PIL'] = None", "show", store, "--out", tmp_path / "sheet.png")
    assert_fails(done, 1, "a package cannot be imported: ", "PIL", "; run: prep doctor\n")


# ---- masks


def test_masks_are_drawn_over_their_images_and_second_images_next_to_them(tmp_path: Path) -> None:
    images, targets = random_images(2, shape=(SIDE, SIDE, 3)), random_images(2, shape=(SIDE, SIDE, 3), seed=1)
    masks = np.zeros((2, SIDE, SIDE), np.uint8)
    masks[0, :50, :40], masks[1, 60:, 70:] = 3, 255
    [first, second] = thumbnails(make_store(tmp_path / "a", images, paired={"mask": masks}))
    np.testing.assert_array_equal(first[50:], images[0, 50:])
    np.testing.assert_array_equal(second[:60], images[1, :60])
    colors = {tuple((first[:50, :40].astype(int) - images[0, :50, :40] // 2).reshape(-1, 3)[k]) for k in range(2000)}
    assert len(colors) == 1
    assert len(np.unique((second[60:, 70:].astype(int) - images[1, 60:, 70:] // 2).reshape(-1, 3), axis=0)) == 1
    root = make_store(tmp_path / "b", images, paired={"mask": masks, "target": targets})
    assert [one.shape for one in thumbnails(root)] == [(SIDE // 2, SIDE, 3)] * 2
    assert prep("show", root, "--out", tmp_path / "sheet.png").returncode == 0
    assert prep("report", root, "--out", tmp_path / "report.html").returncode == 0
