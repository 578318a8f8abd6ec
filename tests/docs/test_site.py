"""The site of `make docs` builds without warnings, needs no network, and fits a phone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, is_full_ci, is_pinned

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

# Words that people search for, and the page that the search lists first.
FOUND_FIRST = {
    "out+of+memory": "troubleshooting",
    "regression": "how-to/data/regression",
    "multilabel": "how-to/data/multi-label",
    "multi-label": "how-to/data/multi-label",
    "EXIF": "how-to/data/phone-photos",
    "Kaggle": "how-to/data/csv",
    "medical": "how-to/data/x-rays",
    "DICOM": "how-to/data/x-rays",
    "X-ray": "how-to/data/x-rays",
}


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
    for words, wanted in FOUND_FIRST.items():
        page.goto(f"file://{site}/search.html?q={words}")
        page.wait_for_selector("ul.search li a")
        first = page.locator("ul.search li a").first.get_attribute("href")
        assert first is not None
        assert first.startswith(f"{wanted}.html"), words
    assert [url for url in requests if not url.startswith((f"file://{site}/", "data:"))] == []
