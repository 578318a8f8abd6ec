"""Every relative link of a page leads to an existing file and, if it has an anchor, to an existing heading."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name_of, prose

PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "bench" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)")
# The code host makes the badge, so its address is relative to the host's page of README.md.
BADGE = "../../actions/workflows/"
EXTERNAL = re.compile(rf"[a-z]+:|//|{re.escape(BADGE)}")
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
