"""Figures on pages that can be computed are right, and so are the pictures that show settings of the package."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from decodeonce.store.layout import FORMS
from tests.docs.pages import ROOT, blocks
from tools.charts import CHARTS

SIZES = ROOT / "docs" / "how-to" / "size-and-fit.md"
IMAGES = ROOT / "docs" / "images"
IMAGENET = 1_281_167  # images of train


def cells(page: Path) -> list[list[str]]:
    """Return the cells of all lines of tables."""
    return [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]


def test_sizes_of_stores_are_right() -> None:
    found = {row[0].partition(" ")[0]: row[1:] for row in cells(SIZES) if len(row) == 8 and row[0][0].isdigit()}
    assert list(found) == ["160", "192", "224", "256", "320", "512"]
    for size, row in found.items():
        nbytes = [int(size) ** 2 * 3 // form.divisor for form in FORMS.values()]
        assert row[0] == f"{nbytes[0]:,}"
        assert row[1:4] == [f"{each * IMAGENET / 1e9:,.1f} GB" for each in nbytes]
        assert row[4:] == [f"{each * 1000 / 1e6:,.0f} MB/s" for each in nbytes]
    advised = re.findall(r"`--size (\d+)`.* \| ([\d.]+ GB) \| ([\d.]+ GB) \| ([\d.]+ GB) \|", SIZES.read_text())
    assert len(advised) == 6
    for size, *totals in advised:
        assert found[size][1:4] == totals


def test_advice_of_readme_is_that_of_the_guide() -> None:
    advised = re.findall(r"RandomResizedCrop\(224\)` \| `--size (\d+)` \| ([\d.]+) GB", SIZES.read_text())
    readme = (ROOT / "README.md").read_text()
    [(size, total)] = advised
    assert f"prep build imagenet /data/imagenet train.store --size {size}" in readme
    assert f"{float(total):.0f} GB" in readme


def test_cost_of_stock_pillow_is_the_measured_one() -> None:
    ours = next(row for row in cells(ROOT / "bench/README.md") if row[0] == "decodeonce" and len(row) == 5)
    ratio = f"{1 / float(ours[4].split()[0]):.1f} times"
    assert f"installs pillow-simd for {ratio} faster builds" in (ROOT / "README.md").read_text()
    assert f"decodes and resizes {ratio} slower" in (ROOT / "tools/setup_env.py").read_text()


@pytest.mark.long
def test_shares_of_enlarged_crops_are_right() -> None:
    names: dict[str, Callable[[int, int, int], float]] = {}
    [block] = [block for block in blocks(SIZES) if "def share_enlarged" in block.text]
    exec(block.text, names)  # prints
    share = names["share_enlarged"]
    table = [row for row in cells(SIZES) if len(row) == 3 and row[0].isdigit()]
    assert len(table) == 4
    for stored, *shares in table:
        for text, output in zip(shares, (224, 160), strict=True):
            # The function draws its crops.
            assert float(text.rstrip("%")) == pytest.approx(100 * share(int(stored), int(stored), output), abs=0.7)
    [(original, *call)] = re.findall(
        r"(\d+)% of\nthe crops are enlarged .*`share_enlarged\((\d+), (\d+), (\d+)\)`", SIZES.read_text()
    )
    assert float(original) == pytest.approx(100 * share(*map(int, call)), abs=0.7)
    [readme] = re.findall(r"\b(\d+%) of the crops would have", (ROOT / "README.md").read_text())
    assert [row[1] for row in table if row[0] == "256"] == [readme]


def test_terminal_shows_the_lines_of_commands_as_they_are_now() -> None:
    lines = re.findall(r">([^<]*)</text>", (IMAGES / "terminal.svg").read_text())
    tutorial = (ROOT / "docs" / "start" / "tutorial.md").read_text()
    for line in re.findall(r"^train\.store: 1.*; see rejects\.tsv$|^train\.store: .* intact$", tutorial, re.MULTILINE):
        assert line in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("name", CHARTS)
def test_charts_are_up_to_date(name: str) -> None:
    assert (IMAGES / name).read_text() == CHARTS[name](), "run: python -m tools.charts"


def test_pictures_load_nothing() -> None:
    for path in IMAGES.glob("*.svg"):
        found = re.findall(r"https?:[^\"']*|url\(|href=|@import", path.read_text())
        assert found == ["http://www.w3.org/2000/svg"], path.name
