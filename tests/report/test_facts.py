"""The facts of a report are right, compared with NumPy, Pillow and the geometry of the build."""

import re
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markupsafe import Markup

from decodeonce.cli.report import charts
from decodeonce.cli.report import page as page_module
from decodeonce.cli.report.charts import Axis, y_axis
from decodeonce.cli.report.page import enlarged, environment, read_sizes
from decodeonce.cli.rows import evenly_spaced
from decodeonce.prep.pixels.decode import fit_to
from decodeonce.store import Reject, open_store, stage_store
from decodeonce.store.table import REJECT_COLUMNS, SAMPLE_COLUMNS, Sample, line, reject_line, sample_lines
from tests.report.stores import gather_facts, make_store_of_many_classes
from tests.store.signing import replace_file
from tests.stores import make_store, random_images


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_histogram_equals_numpy_bincount(channels: int, tmp_path: Path) -> None:
    images = random_images(20, shape=(9, 7, channels)) // 3
    container = "hdf5" if channels == 3 else "npy"
    rows = gather_facts(make_store(tmp_path / "a", images, shard_rows=8, container=container)).rows
    assert (rows.counted, rows.checked, rows.damaged, rows.trouble) == (20, 20, [], "")
    for channel in range(channels):
        levels = images[..., channel]
        assert rows.levels[channel].tolist() == np.bincount(levels.ravel(), minlength=256).tolist()


def test_damaged_row_is_named_and_not_in_the_histogram(tmp_path: Path) -> None:
    facts = gather_facts(make_store_of_many_classes(tmp_path / "a"))
    assert facts.rows.damaged == [7]
    assert facts.rows.shown[7].damaged
    assert not facts.rows.shown[6].damaged
    intact = np.delete(open_store(tmp_path / "a").images[:], 7, axis=0)
    assert facts.rows.levels[2].tolist() == np.bincount(intact[..., 2].ravel(), minlength=256).tolist()


def test_boxes_are_drawn_unless_their_columns_are_damaged(tmp_path: Path) -> None:
    columns = {"boxes": np.full((3, 1, 4), [[2, 3, 9, 11]], "<f4"), "box_count": np.array([1, 0, 1], "<i4")}
    root = make_store(tmp_path / "a", np.zeros((3, 16, 16, 3), np.uint8), columns=columns)
    shown = gather_facts(root).rows.shown
    drawn = [np.argwhere(np.asarray(shown[row].image).any(axis=2)) for row in range(3)]
    assert [(corners.min(0).tolist(), corners.max(0).tolist()) for corners in drawn[::2]] == [([24, 16], [87, 71])] * 2
    assert len(drawn[1]) == 0
    (root / "boxes.npy").write_bytes((root / "boxes.npy").read_bytes()[:-1] + b"\1")
    facts = gather_facts(root)
    assert list(facts.problems) == ["boxes.npy"]
    assert not any(np.asarray(shown.image).any() for shown in facts.rows.shown.values())


def test_large_store_is_sampled_at_evenly_spaced_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(1000, shape=(4, 4, 3))
    root = make_store(tmp_path / "a", images)
    monkeypatch.setattr(page_module, "ALL_BYTES", 48 * 999)
    monkeypatch.setattr(page_module, "SAMPLE_BYTES", 48 * 100)
    rows = gather_facts(root).rows
    assert (rows.sample, rows.counted, rows.checked) == (100, 100, 64 + 100 - 7)
    assert rows.levels.tolist() == [np.bincount(c, minlength=256).tolist() for c in images[::10].reshape(-1, 3).T]
    monkeypatch.setattr(page_module, "ALL_BYTES", 48 * 1000)
    assert gather_facts(root).rows.checked == 1000


@given(st.integers(0, 10**7), st.integers(1, 10**7), st.integers(1, 300))
def test_sampled_rows_are_evenly_spaced(first: int, count: int, wanted: int) -> None:
    rows = evenly_spaced(range(first, first + count), wanted)
    assert len(rows) == len(set(rows)) == min(count, wanted)
    assert rows[0] == first
    gaps = np.diff([*rows, first + count])
    assert gaps.max() - gaps.min() <= 1


def test_staged_part_shows_and_checks_its_own_rows(tmp_path: Path) -> None:
    images = random_images(30, shape=(4, 4, 3))
    root = make_store(tmp_path / "a", images)
    unusual = [Reject("class0/3.jpg", "gray", "kept"), Reject("class2/11.jpg", "gray", "kept")]
    replace_file(root, "rejects.tsv", line(REJECT_COLUMNS) + b"".join(map(reject_line, unusual)))
    stage_store(open_store(root), tmp_path / "part", rows=range(10, 25))
    facts = gather_facts(tmp_path / "part")
    assert facts.rows.damaged == []
    assert [reject for reject, _ in facts.unusual] == unusual[1:]
    assert (facts.first_rows, facts.rows.checked, facts.rows.counted) == (list(range(10, 25)), 15, 15)
    assert facts.rows.levels[0].tolist() == np.bincount(images[10:25, ..., 0].ravel(), minlength=256).tolist()
    assert facts.counts is not None
    assert facts.counts.sum() == 30


@given(
    st.sampled_from(["crop", "pad", "stretch"]),
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
)
def test_enlarged_agrees_with_build(fit: str, size: tuple[int, int], out: tuple[int, int]) -> None:
    sides = np.array([size], float)
    is_enlarged = enlarged(sides, {"fit": fit, "exif": "ignore"}, out[1], out[0])
    assert is_enlarged is not None
    resized = fit_to(fit, size, out)
    assert bool(is_enlarged[0]) == (resized.width > size[0] or resized.height > size[1])


def test_enlarged_is_unknown_if_the_recipe_does_not_determine_it() -> None:
    sides, plain = np.array([[9.0, 9.0]]), {"fit": "crop", "exif": "ignore"}
    assert enlarged(sides, plain, 99, 98) is not None
    assert enlarged(sides, {**plain, "exif": "apply"}, 99, 99) is not None
    for recipe in ({}, {"exif": "ignore"}, {**plain, "resized_from": [9, 9]}, {**plain, "exif": "apply"}):
        assert enlarged(sides, recipe, 99, 98) is None


def test_sizes_come_from_samples_and_boxes(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(5))
    boxes = ["", "", "10,20,40,90", "", ""]
    names = ["a\tb", "a\\", "\udcff", "plain", "plain"]
    sides = [(5, 6), (0, 0), (100, 100), (7, 1), (8, 2)]
    samples = [Sample(row, 0, "class0", names[row], *sides[row], boxes[row], "0" * 16) for row in range(5)]  # fmt: skip
    replace_file(root, "samples.tsv", line(SAMPLE_COLUMNS) + sample_lines(map(astuple, samples)))
    sizes = read_sizes(open_store(root), {"a\tb", "\udcff", "plain", "nowhere"})
    assert sizes.sides.tolist() == [[5, 6], [30, 70], [7, 1], [8, 2]]
    assert (sizes.unknown, sizes.boxes) == (1, 1)
    assert sizes.rows == {"a\tb": 0, "\udcff": 2, "plain": 3}


@pytest.mark.parametrize("damaged", ["no tabs", f"4\t1\tc\ts\t1{400 * '0'}\t9\t\t0", "4\t1\tc\ts\t9\t9\t1,2\t0", ""])
def test_malformed_samples_file_is_reported(damaged: str, tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(5))
    lines = (root / "samples.tsv").read_bytes().splitlines(keepends=True)
    replace_file(root, "samples.tsv", b"".join([*lines[:5], f"{damaged}\n".encode() if damaged else b""]))
    facts = gather_facts(root)
    assert facts.sizes is None
    assert list(facts.problems) == ["samples.tsv"]


def test_rejects_are_counted_listed_and_shown_by_kind(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(5))
    kinds = [("gray", "kept"), ("truncated: a", "rejected"), ("truncated: b", "rejected"), ("alpha", "left out")]
    rejects = [Reject(f"{number}.jpg", *kinds[number % 4]) for number in range(2000)]
    rejects += [Reject(f"x{number}", f"kind {number}", "kept") for number in range(50)]
    replace_file(root, "rejects.tsv", line(REJECT_COLUMNS) + b"".join(map(reject_line, rejects)))
    gathered = gather_facts(root).rejects
    assert gathered is not None
    assert gathered.counts["rejected", "truncated"] == 1000
    assert (gathered.unusual, gathered.rejected, len(gathered.listed)) == (550, 1500, 500)
    assert gathered.listed == rejects[:500]
    shown = Counter(reject.reason for reject in gathered.shown)
    assert (shown["gray"], shown.total()) == (4, 24)


def test_unusual_images_are_shown_by_their_rows(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(90))
    odd = [Reject("class0/81.jpg", "gray", "kept"), Reject("class1/4.jpg", "gray", "kept"), Reject("a", "x", "kept")]
    replace_file(root, "rejects.tsv", line(REJECT_COLUMNS) + b"".join(map(reject_line, odd)))
    facts = gather_facts(root)
    assert [(reject, shown.row) for reject, shown in facts.unusual] == [(odd[0], 81), (odd[1], 4)]


# ---- The charts of a report are to scale


def svg(chart: Markup) -> ElementTree.Element:
    """Parse the SVG that the page contains for a chart."""
    template = environment().from_string(
        '{% from "blocks.html" import figure %}{{ figure(chart, "key", "title", "text") }}'
    )
    return ElementTree.fromstring(template.render(chart=chart))


def shapes(chart: Markup, tag: str, style: str) -> list[dict[str, str]]:
    """Return the attributes of the elements with this tag and CSS class."""
    return [element.attrib for element in svg(chart).iter(tag) if style in element.attrib.get("class", "").split()]


def corners(path: str) -> list[tuple[float, float]]:
    """Return the points of an SVG path that consists of M, V, H and Z."""
    points = []
    x = y = 0.0
    for command, first, second in re.findall(r"([MVHZ])([\d.]*) ?([\d.]*)", path):
        if command == "M":
            x, y = float(first), float(second)
        elif command == "V":
            y = float(first)
        elif command == "H":
            x = float(first)
        points.append((x, y))
    return points


@pytest.mark.parametrize("classes", [1, 31, 21841])
def test_class_curve_goes_through_counts(classes: int) -> None:
    counts = sorted(np.random.default_rng(0).integers(0, 1300, classes).tolist(), reverse=True)
    chart = charts.class_curve(counts)
    [area] = shapes(chart, "path", "area")
    x_of, y_of = Axis("", 0, classes), y_axis("", max(*counts, 1))
    points = corners(area["d"])[1:-2]
    assert len(points) <= 2 * charts.CURVE_POINTS
    for (x, y), (next_x, next_y) in zip(points[::2], points[1::2], strict=True):
        assert y == next_y
        index = round((x - x_of.start) / (x_of.end - x_of.start) * classes)
        near = {counts[i] for i in range(max(index - 5, 0), min(index + 6, classes))}
        assert min(abs(y - y_of.at(count)) for count in near) < 0.06
        assert next_x > x
    assert points[-1][0] == x_of.end


@pytest.mark.parametrize("channels", [1, 3])
def test_level_lines_go_through_shares(channels: int) -> None:
    counts = np.random.default_rng(0).integers(1, 100, (channels, 256)).astype(float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    lines = shapes(charts.levels(shares), "path", "line")
    inner = shares[:, 1:-1].max()
    up = y_axis("", 100 * min(shares.max(), 1.15 * inner))
    assert len(lines) == channels
    for drawn, expected in zip(lines, shares, strict=True):
        heights = [y for _, y in corners(drawn["d"])[1::2]]
        assert heights == pytest.approx([up.at(100 * value) for value in expected], abs=0.06)


@given(st.floats(1e-3, 1e7), st.floats(1e-3, 1e7))
def test_axis_ticks_are_few_sorted_and_in_range(low: float, span: float) -> None:
    high = low + span
    assume(high - low > low / 1e6)
    axis = Axis("", low, high, 0, 100)
    ticks = axis.ticks()
    assert ticks == sorted(set(ticks))
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    assert len(ticks) <= 8
    assert all(-0.1 <= axis.at(tick) <= 100.1 for tick in ticks)
