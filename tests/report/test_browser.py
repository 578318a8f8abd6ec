"""`prep report` in a browser: it fetches nothing, runs nothing, fits a phone, and is accessible in light and dark."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decodeonce.cli.report.page import page as made_page
from tests.packages import NOT_DEV

if not find_spec("axe_playwright_python"):
    pytest.skip(NOT_DEV.format("axe-playwright-python"), allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page

from tests.browser import chromium
from tests.report.made import ATTACKS, gathered, hostile_store, hostile_tree, many_classes

PHONE, DESKTOP = 390, 1280


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports of two stores that between them have all that a page can show."""
    root = tmp_path_factory.mktemp("pages")
    tree = hostile_tree(root / "src")
    found = {
        "hostile": gathered(hostile_store(tree, root / "<h2>.store"), tree),
        "many": gathered(many_classes(root / "many.store")),
    }
    for name, facts in found.items():
        (root / f"{name}.html").write_bytes(made_page(facts))
    return {name: root / f"{name}.html" for name in found}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@contextmanager
def shown(browser: Browser, path: Path, **options: object) -> Iterator[Page]:
    """The page, opened in a context of its own; fails if it asks for anything, or says anything."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    page, asked, told = context.new_page(), list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("dialog", lambda dialog: told.append(dialog.message))
    page.goto(path.as_uri())
    yield page
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    assert told == []
    context.close()


@pytest.mark.parametrize("name", ["hostile", pytest.param("many", marks=pytest.mark.long)])
def test_a_page_asks_for_nothing_runs_nothing_and_fits(name: str, pages: dict[str, Path], browser: Browser) -> None:
    with shown(browser, pages[name], viewport={"width": PHONE, "height": 800}) as page:
        for width in (PHONE, DESKTOP):
            page.set_viewport_size({"width": width, "height": 800})
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert page.evaluate("document.scrollingElement.scrollWidth") == width
        assert page.evaluate("document.images.length") > 10
        assert page.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
        assert page.evaluate("document.scripts.length + document.querySelectorAll('iframe, object, embed').length") == 0


def test_on_a_phone_charts_come_first_and_wide_tables_show_that_they_scroll(
    pages: dict[str, Path], browser: Browser
) -> None:
    with shown(browser, pages["many"], viewport={"width": PHONE, "height": 800}) as page:
        tops = "document.querySelectorAll('{}')[0].getBoundingClientRect().top"
        assert page.evaluate(tops.format("svg.chart")) < min(1000, page.evaluate(tops.format(".sheet")))
        table = page.get_by_role("region", name="Sizes of the source images")
        assert table.evaluate("one => one.scrollWidth > one.clientWidth")
        before = edges(table)
        table.evaluate("one => one.scrollLeft = one.scrollWidth")
        after = edges(table)
        assert before[0] == after[1] > before[1] + 20  # nothing more to the left, then to the right
        assert after[0] < before[0] - 20
        fitting = page.get_by_role("region", name="Mean and standard deviation")
        assert edges(fitting)[0] == edges(fitting)[1] == before[0]


def edges(table: Locator) -> tuple[int, int]:
    """The lightness at the left and at the right edge of a table, between two lines."""
    pixels = np.asarray(Image.open(io.BytesIO(table.screenshot())).convert("L"))
    return int(pixels[2, 0]), int(pixels[2, -1])


def test_markup_in_names_is_text(pages: dict[str, Path], browser: Browser) -> None:
    with shown(browser, pages["many"]) as page:
        assert "<script>window.hurt=8</script>" in page.evaluate("document.body.textContent")
    with shown(browser, pages["hostile"]) as page:
        assert page.evaluate("window.hurt") is None
        assert page.evaluate("[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
                             ".filter(name => name.startsWith('on'))") == []  # fmt: skip
        assert page.locator("h1").all_inner_texts() == ["<h2>.store"]
        text = page.evaluate("document.body.textContent")
    names = [name.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b") for name in ATTACKS]
    wanted = ["<h1>one</h1>", "<plaintext>", "</section>", "begins with b'<script>'"]
    wanted += ["</style><script>window.hurt=6</script> </table>", f"{ATTACKS[0]}/script><b>.jpg"]
    for told in [*names, *wanted]:
        assert told in text, told


def test_what_would_run_is_not_run_even_if_it_were_there(
    pages: dict[str, Path], browser: Browser, tmp_path: Path
) -> None:
    attack = b"<script>window.hurt=1</script><img src=x onerror='window.hurt=2'><img src='http://127.0.0.1:9/x'></body>"
    (tmp_path / "a.html").write_bytes(pages["many"].read_bytes().replace(b"</body>", attack))
    page, asked = browser.new_page(), list[str]()
    page.on("requestfinished", lambda request: asked.append(request.url))
    page.goto((tmp_path / "a.html").as_uri())
    assert page.evaluate("window.hurt") is None
    assert [url for url in asked if not url.startswith("data:")] == [(tmp_path / "a.html").as_uri()]
    page.close()


def test_without_scripts_all_is_shown(pages: dict[str, Path], browser: Browser) -> None:
    with shown(browser, pages["many"], java_script_enabled=False) as page:
        before = page.locator("section").all_inner_texts()
        assert len(before) == 8
        page.locator("details summary").first.click()
        assert "class58" in page.locator("#classes table").last.inner_text()
        pixels = np.asarray(Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("L"))
    assert pixels.std() > 20
    assert all(part.std() > 3 for part in np.array_split(pixels, len(pixels) // 300))


@pytest.mark.long
@pytest.mark.parametrize(("name", "scheme"), [("hostile", "dark"), ("many", "light"), ("many", "dark")])
def test_axe_finds_nothing(name: str, scheme: str, pages: dict[str, Path], browser: Browser) -> None:
    with shown(browser, pages[name], color_scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        found = Axe().run(page)
        assert found.response["violations"] == [], found.generate_report()
        assert len(found.response["passes"]) > 20
    assert (sum(map(int, ground[4:-1].split(","))) > 384) == (scheme == "light")
