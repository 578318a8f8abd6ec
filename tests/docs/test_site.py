"""The site of `make docs` builds without warnings, has all pages, makes no external requests, and fits a phone."""

from __future__ import annotations

import inspect
import posixpath
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
from decodeonce.prep import building, sources
from tests.docs.pages import ROOT, is_full_ci, is_pinned

if not is_pinned("Sphinx") and not is_full_ci():
    why = "needs the Sphinx of constraints.txt, which `make env` installs for Python 3.11 and newer"
    pytest.skip(why, allow_module_level=True)

from playwright.sync_api import Browser

from tests.browser import chromium

pytestmark = pytest.mark.long

DOCS = ROOT / "docs"
# Only authors of containers use these names; docs/reference/format.md is their documentation.
INTERNAL = {"Reject", "StorePaths"}
# Elements wider than the window. Tables and code have their own scrollbars.
TOO_WIDE = """[...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest(".table-wrapper, .highlight"))
    .map(e => e.outerHTML.slice(0, 100))"""
# Tags and attributes whose URLs a browser loads automatically.
LOADED = {("link", "href"), ("object", "data"), ("form", "action"), ("use", "href")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new build of the site. Warnings are errors."""
    scratch = tmp_path_factory.mktemp("site")
    options = ("-W", "--keep-going", "-n", "-E", "-q", "-d", scratch / "doctrees")
    command = [sys.executable, "-m", "sphinx", *options, DOCS, scratch / "html"]
    result = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    return scratch / "html"


class Urls(HTMLParser):
    """The URLs of a page: `links` for readers to follow, and those `loaded` automatically by a browser."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if (tag, name) == ("a", "href"):
                self.links.append(value or "")
            elif name in ("src", "srcset") or (tag, name) in LOADED:
                self.loaded.append(value or "")
            elif name == "style":
                self.loaded += css_urls(value or "")


def css_urls(text: str) -> list[str]:
    """Return the URLs that a style sheet loads."""
    return re.findall(r"(?:url\(\s*|@import\s+)[\"']?([^\"')\s]+)", text)


def test_site_loads_no_external_urls(site: Path) -> None:
    loaded = {page.name: Urls(page).loaded for page in site.rglob("*.html")}
    loaded |= {sheet.name: css_urls(sheet.read_text()) for sheet in site.rglob("*.css")}
    assert sum(map(len, loaded.values())) > 50
    external = {name: [url for url in urls if re.match(r"(?!data:)[a-z]+:|//", url)] for name, urls in loaded.items()}
    assert {name: urls for name, urls in external.items() if urls} == {}


def test_every_page_can_be_reached_from_the_index(site: Path) -> None:
    seen, waiting = {"index.html"}, ["index.html"]
    while waiting:
        page = waiting.pop()
        for link in Urls(site / page).links:
            target = link.partition("#")[0]
            name = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            if target.endswith(".html") and ":" not in target and name not in seen:
                seen.add(name)
                waiting.append(name)
    assert {str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")} <= seen
    assert {name for name in seen if not (site / name).exists()} == set()


def test_links_out_of_docs_become_pages_or_downloads(site: Path) -> None:
    assert any(link.startswith("changes.html") for link in Urls(site / "contribute" / "contributing.html").links)
    assert [path.name for path in site.glob("_downloads/*/train.slurm")] == ["train.slurm"]
    links = [(page.parent, link) for page in site.rglob("*.html") for link in Urls(page).links if ":" not in link]
    assert not [link for folder, link in links if not (folder / link).resolve().is_relative_to(site.resolve())]


@pytest.mark.parametrize("module", [decodeonce, building, sources, store], ids=lambda module: module.__name__)
def test_public_names_are_in_the_reference(module: Any) -> None:
    text = (DOCS / "reference" / "python.md").read_text()
    documented = {name.rpartition(".")[2] for name in re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, re.MULTILINE)}
    assert set(module.__all__) - INTERNAL <= documented


def test_parameters_are_a_list(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text()
    _, _, loader = page.partition('id="decodeonce.Loader"')
    fields, _, _ = loader.partition('id="decodeonce.Loader.')
    listed = re.findall(r"<li><p><strong>(\w+)</strong>", fields)
    parameters = list(inspect.signature(decodeonce.Loader).parameters)
    assert listed[: len(parameters)] == parameters  # attributes follow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def test_site_can_be_read_and_searched_offline(site: Path, browser: Browser) -> None:
    requests: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"file://{site}/index.html")
    page.goto(f"file://{site}/search.html?q=pread")
    page.wait_for_selector("ul.search li a")
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def test_no_page_scrolls_sideways_on_a_phone(site: Path, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 700})
    too_wide = {}
    for path in sorted(site.rglob("*.html")):
        page.goto(f"file://{path}")
        too_wide[path.name] = page.evaluate(TOO_WIDE)
    assert {name: elements for name, elements in too_wide.items() if elements} == {}
