"""A report in a browser loads nothing, runs no script, fits a phone, and is accessible in light and dark schemes."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from decodeonce.cli.report.page import page as render_page
from tests.packages import NOT_DEV

if not find_spec("axe_playwright_python"):
    pytest.skip(NOT_DEV.format("axe-playwright-python"), allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.browser import chromium
from tests.report.stores import gather_facts, make_hostile_store, make_hostile_tree, make_store_of_many_classes

PHONE, DESKTOP = 390, 1280


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports on two stores, which together have everything that a page can show."""
    root = tmp_path_factory.mktemp("pages")
    tree = make_hostile_tree(root / "src")
    reports = {
        "hostile": gather_facts(make_hostile_store(tree, root / "<h2>.store")),
        "many": gather_facts(make_store_of_many_classes(root / "many.store")),
    }
    for name, facts in reports.items():
        (root / f"{name}.html").write_bytes(render_page(facts))
    return {name: root / f"{name}.html" for name in reports}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@contextmanager
def open_page(browser: Browser, path: Path, **options: object) -> Iterator[Page]:
    """Open a page in its own context. Fail if it makes a request or if the browser reports a message."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    page, requests, messages = context.new_page(), list[str](), list[str]()
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: messages.append(dialog.message))
    page.goto(path.as_uri())
    yield page
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    assert messages == []
    context.close()


@pytest.mark.parametrize("name", ["hostile", pytest.param("many", marks=pytest.mark.long)])
def test_page_makes_no_requests_runs_no_scripts_and_fits(name: str, pages: dict[str, Path], browser: Browser) -> None:
    with open_page(browser, pages[name], viewport={"width": PHONE, "height": 800}) as page:
        for width in (PHONE, DESKTOP):
            page.set_viewport_size({"width": width, "height": 800})
            page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
            assert page.evaluate("document.scrollingElement.scrollWidth") == width
        assert page.evaluate("document.images.length") > 10
        assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        assert page.evaluate("document.scripts.length + document.querySelectorAll('iframe, object, embed').length") == 0


def test_phone_shows_images_first_and_scrolls_wide_tables(pages: dict[str, Path], browser: Browser) -> None:
    with open_page(browser, pages["many"], viewport={"width": PHONE, "height": 800}) as page:
        tops = "document.querySelectorAll('{}')[0].getBoundingClientRect().top"
        assert page.evaluate(tops.format(".sheet")) < min(1000, page.evaluate(tops.format("svg.chart")))
        table = page.get_by_role("region", name="Sizes of the source images")
        assert table.evaluate("node => node.scrollWidth > node.clientWidth")


def test_policy_blocks_injected_scripts_and_requests(pages: dict[str, Path], browser: Browser, tmp_path: Path) -> None:
    attack = b"<script>window.attacked=1</script><img src=x onerror='window.attacked=2'>"
    attack += b"<img src='http://127.0.0.1:9/x'></body>"
    (tmp_path / "a.html").write_bytes(pages["many"].read_bytes().replace(b"</body>", attack))
    page, requests = browser.new_page(), list[str]()
    page.on("requestfinished", lambda request: requests.append(request.url))
    page.goto((tmp_path / "a.html").as_uri())
    assert page.evaluate("window.attacked") is None
    assert [url for url in requests if not url.startswith("data:")] == [(tmp_path / "a.html").as_uri()]
    page.close()


@pytest.mark.long
@pytest.mark.parametrize(("name", "scheme"), [("hostile", "dark"), ("many", "light"), ("many", "dark")])
def test_axe_finds_no_violations(name: str, scheme: str, pages: dict[str, Path], browser: Browser) -> None:
    with open_page(browser, pages[name], color_scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        results = Axe().run(page)
        assert results.response["violations"] == [], results.generate_report()
        assert len(results.response["passes"]) > 20
    assert (sum(map(int, background[4:-1].split(","))) > 384) == (scheme == "light")
