"""The site of `make docs` builds without warnings, needs no network, and fits a phone."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.docs.pages import ROOT, blocks, is_full_ci, is_pinned, name_of, prose

if not is_pinned("Sphinx") and not is_full_ci():
    why = "needs the Sphinx of constraints.txt, which `make env` installs for Python 3.11 and newer"
    pytest.skip(why, allow_module_level=True)

from playwright.sync_api import Browser

from tests.browser import chromium

pytestmark = pytest.mark.long

DOCS = ROOT / "docs"
# Elements wider than the window. Tables and code have their own scrollbars.
TOO_WIDE = """[...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest(".table-wrapper, .highlight"))
    .map(e => e.outerHTML.slice(0, 100))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new build of the site. Warnings, such as those about dead links or lost pages, are errors."""
    scratch = tmp_path_factory.mktemp("site")
    options = ("-W", "--keep-going", "-n", "-E", "-q", "-d", scratch / "doctrees")
    command = [sys.executable, "-m", "sphinx", *options, DOCS, scratch / "html"]
    result = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    return scratch / "html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def test_links_out_of_docs_become_pages_or_downloads(site: Path) -> None:
    assert 'href="changes.html' in (site / "contribute/contributing.html").read_text()
    assert [path.name for path in site.glob("_downloads/*/train.slurm")] == ["train.slurm"]


def test_commands_but_no_output_have_a_button_that_copies_them(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"file://{site}/start/tutorial.html")
    blocks = page.locator("div[class*='highlight-']")
    output = page.locator("div.highlight-text")
    assert output.count() > 3
    assert output.locator("button.copy").count() == 0
    assert page.locator("button.copy").count() == blocks.count() - output.count()


def test_site_fits_a_phone_and_can_be_searched_offline(site: Path, browser: Browser) -> None:
    requests: list[str] = []
    page = browser.new_page(viewport={"width": 360, "height": 700})
    page.on("request", lambda request: requests.append(request.url))
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    for path in pages:
        page.goto(f"file://{path}")
        assert page.evaluate(TOO_WIDE) == [], path.name
        links = page.evaluate("[...document.links].map(link => link.href)")
        assert not [link for link in links if link.startswith("file:") and not link.startswith(f"file://{site}/")]
    page.goto(f"file://{site}/search.html?q=out+of+memory")
    page.wait_for_selector("ul.search li a")
    first = page.locator("ul.search li a").first.get_attribute("href")
    assert first is not None
    assert first.startswith("troubleshooting.html")
    assert [url for url in requests if not url.startswith((f"file://{site}/", "data:"))] == []


# ---- Every relative link of a page leads to an existing file and, if it has an anchor, to an existing heading

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)")
EXTERNAL = re.compile(r"[a-z]+:|//")
CODE = re.compile(r"(`+).+?\1", re.DOTALL)
PATH = re.compile(r"\b(?:containers|docs|examples|src|tests|tools)/[\w./-]*\w")


def anchors(page: Path) -> set[str]:
    """Return the anchors that code hosts and MyST (with docs/conf.py) generate for the headings of a page."""
    titles = re.findall(r"^#{1,4} +(.+?) *$", prose(page), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_has_no_dead_links(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", prose(page))):
        if not EXTERNAL.match(target):
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            assert path.is_relative_to(ROOT), target
            assert path.is_file(), target
            assert not anchor or anchor in anchors(path), target


@pytest.mark.parametrize("page", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_page_names_only_existing_paths(page: str) -> None:
    assert [path for path in PATH.findall((ROOT / page).read_text()) if not (ROOT / path).exists()] == []


# ---- Figures on pages that can be computed are right, and so are the pictures that show settings of the package

SIZES = ROOT / "docs" / "how-to" / "size-and-fit.md"
IMAGES = ROOT / "docs" / "images"
IMAGENET = 1_281_167  # images of train


def cells(page: Path) -> list[list[str]]:
    """Return the cells of all lines of tables."""
    return [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]


def test_sizes_of_stores_are_right() -> None:
    found = {row[0].partition(" ")[0]: row[1:] for row in cells(SIZES) if len(row) == 4 and row[0][0].isdigit()}
    assert list(found) == ["160", "192", "224", "256", "320", "512"]
    for size, (row_bytes, total, rate) in found.items():
        nbytes = int(size) ** 2 * 3
        assert row_bytes == f"{nbytes:,}"
        assert total == f"{nbytes * IMAGENET / 1e9:,.1f} GB"
        assert rate == f"{nbytes * 2500 / 1e6:,.0f} MB/s"
    advised = re.findall(r"`--size (\d+)`.* \| ([\d.]+ GB) \|", SIZES.read_text())
    assert len(advised) == 6
    for size, total in advised:
        assert found[size][1] == total


def test_advice_of_readme_is_that_of_the_guide() -> None:
    advised = re.findall(r"RandomResizedCrop\(224\)` \| `--size (\d+)` \| ([\d.]+) GB", SIZES.read_text())
    readme = (ROOT / "README.md").read_text()
    [(size, total)] = advised
    assert f"prep build imagenet /data/imagenet train.store --size {size}" in readme
    assert f"{float(total):.0f} GB" in readme


def test_shares_of_enlarged_crops_are_right() -> None:
    names: dict[str, Callable[[int, int], float]] = {}
    [block] = [block for block in blocks(SIZES) if "def share_enlarged" in block.text]
    exec(block.text, names)  # prints
    share = names["share_enlarged"]
    table = [row for row in cells(SIZES) if len(row) == 3 and row[0].isdigit()]
    assert len(table) == 4
    for stored, *shares in table:
        assert shares == [f"{share(int(stored), output):.0%}" for output in (224, 160)]


def test_badges_are_true() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    python = SpecifierSet(re.findall(r'^requires-python = "(.*)"$', text, re.MULTILINE)[0])
    first, last = re.findall(r">3\.(\d+) to 3\.(\d+)<", (IMAGES / "python.svg").read_text())[0]
    right = [minor for minor in range(100) if f"3.{minor}" in python]
    assert [int(first), int(last)] == [right[0], right[-1]]
    assert f'license = "{re.findall(r">([^<]+)</text>", (IMAGES / "license.svg").read_text())[-1]}"' in text


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.svg")), ids=lambda path: path.name)
def test_pictures_load_nothing(path: Path) -> None:
    found = re.findall(r"https?:[^\"']*|url\(|href=|@import", path.read_text())
    assert found == ["http://www.w3.org/2000/svg"]
