"""The site that `make docs` makes: no warning, no request to another place, no page left out; search, and phones."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import decodeonce
from decodeonce import store
from decodeonce.prep import build, sources
from tests.docs.pages import ROOT, is_ci_of_all, is_pinned

if not is_pinned("Sphinx") and not is_ci_of_all():
    why = "not the Sphinx of constraints.txt, which `make env` installs for Python 3.11 and newer"
    pytest.skip(why, allow_module_level=True)

from playwright.sync_api import Browser

from tests.browser import chromium
from tools.site import listed

pytestmark = pytest.mark.long

DOCS = ROOT / "docs"
# How shards, tables and their paths are named: of use to who writes a container, whom docs/format.md serves.
INTERNAL = {"Reject", "StorePaths"}
# What reaches beyond the window; tables and code scroll by themselves.
BEYOND = """[...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest(".table-wrapper, .highlight"))
    .map(e => e.outerHTML.slice(0, 100))"""
# What a browser fetches by itself: tag and attribute.
FETCHED = {("link", "href"), ("object", "data"), ("form", "action"), ("use", "href")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, made anew; a warning is an error."""
    scratch = tmp_path_factory.mktemp("site")
    options = ("-W", "--keep-going", "-n", "-E", "-q", "-d", scratch / "doctrees")
    command = [sys.executable, "-m", "sphinx", *options, DOCS, scratch / "html"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return scratch / "html"


class Tags(HTMLParser):
    """The links that a reader may follow, and what a browser fetches by itself."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if (tag, name) == ("a", "href"):
                self.links.append(value or "")
            elif name in ("src", "srcset") or (tag, name) in FETCHED:
                self.fetched.append(value or "")
            elif name == "style":
                self.fetched += outside_of_css(value or "")


def outside_of_css(text: str) -> list[str]:
    """What a style sheet fetches."""
    return re.findall(r"(?:url\(\s*|@import\s+)[\"']?([^\"')\s]+)", text)


def test_nothing_is_asked_for_from_another_place(site: Path) -> None:
    asked = {page.name: Tags(page).fetched for page in site.rglob("*.html")}
    asked |= {sheet.name: outside_of_css(sheet.read_text()) for sheet in site.rglob("*.css")}
    assert sum(map(len, asked.values())) > 50
    outside = {name: [one for one in found if re.match(r"(?!data:)[a-z]+:|//", one)] for name, found in asked.items()}
    assert {name: found for name, found in outside.items() if found} == {}


def test_every_page_is_reached_from_the_first(site: Path) -> None:
    seen, waiting = {"index.html"}, ["index.html"]
    while waiting:
        for link in Tags(site / waiting.pop()).links:
            name = link.partition("#")[0]
            if name.endswith(".html") and ":" not in name and name not in seen:
                seen.add(name)
                waiting.append(name)
    assert {page.with_suffix(".html").name for page in DOCS.glob("*.md")} <= seen
    assert {name for name in seen if not (site / name).exists()} == set()


def test_links_out_of_docs_lead_to_pages_or_come_along(site: Path) -> None:
    assert any(link.startswith("changes.html") for link in Tags(site / "index.html").links)
    assert [path.name for path in site.glob("_downloads/*/train.slurm")] == ["train.slurm"]
    links = [link for page in site.glob("*.html") for link in Tags(page).links]
    assert not [link for link in links if link.startswith("..")]


@pytest.mark.parametrize("module", [decodeonce, build, sources, store], ids=lambda module: module.__name__)
def test_public_names_are_in_the_reference(module: Any) -> None:
    text = (DOCS / "api.md").read_text()
    shown = {name.rpartition(".")[2] for name in re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, re.MULTILINE)}
    assert set(module.__all__) - INTERNAL <= shown


def test_parameters_become_a_list() -> None:
    text = "What it is. size: pixels,\none number. low, high: of b: both (c: d). Raises ValueError: never.\n\nb: x."
    size, both = "* **size**: pixels, one number.", "* **low, high**: of b: both (c: d)."
    made = ["What it is.", size, both, "Raises ValueError: never.", "b: x."]
    assert listed(text, {"size", "low", "high", "b"}).split("\n\n") == made
    assert listed("one: two.", {"one"}) == "one: two."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def test_pages_are_read_and_searched_without_a_network(site: Path, browser: Browser) -> None:
    requests: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"file://{site}/index.html")
    page.goto(f"file://{site}/search.html?q=pread")
    page.wait_for_selector("ul.search li a")
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def test_a_phone_shows_every_page_without_scrolling_sideways(site: Path, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 700})
    wide = {}
    for path in sorted(site.glob("*.html")):
        page.goto(f"file://{path}")
        wide[path.name] = page.evaluate(BEYOND)
    assert {name: found for name, found in wide.items() if found} == {}
