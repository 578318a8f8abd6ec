"""Every relative link of every page leads to an existing file and, if it has an anchor, to an existing heading.

The changelog and the contributing guide name only files and folders that exist.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name_of, prose

FOLDERS = (".", "bench", "bench/peers", "containers", "examples")
PAGES = [page for folder in FOLDERS for page in sorted((ROOT / folder).glob("*.md"))]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
PATH = re.compile(r"\b(?:containers|docs|examples|src|tests|tools)/[\w./-]*\w")
EXTERNAL = re.compile(r"[a-z]+:|//")
CODE = re.compile(r"(`+).+?\1", re.DOTALL)


@lru_cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that code hosts and MyST (with docs/conf.py) generate for the headings of a page."""
    count: Counter[str] = Counter()
    names = set()
    for title in re.findall(r"^#{1,4} +(.+?) *$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        names.add(f"{slug}-{count[slug]}" if count[slug] else slug)
        count[slug] += 1
    return frozenset(names)


def dead_links(page: Path, root: Path = ROOT) -> Iterator[str]:
    for target in LINK.findall(CODE.sub("", prose(page))):
        if EXTERNAL.match(target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.is_relative_to(root) or not path.is_file() or (anchor and anchor not in anchors(path)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_has_no_dead_links(page: Path) -> None:
    assert not list(dead_links(page))


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One\n## One\n")
    here = tmp_path / "page.md"
    good = "# A `b`, c\n[1](#a-b-c) [2\n3](other.md#one-1) `[4](y)` [5](https://x.y)\n```\n# d\n[6](y)\n```\n"
    here.write_text(good + "[7](#a) [8](other.md#two) [9](../x) [10](gone.md)\n")
    assert anchors(here) == {"a-b-c"}
    assert list(dead_links(here, tmp_path)) == ["#a", "other.md#two", "../x", "gone.md"]


def missing_paths(text: str) -> list[str]:
    """Return the paths of the repository that a text names, also outside of links, and that do not exist."""
    return [path for path in PATH.findall(text) if not (ROOT / path).exists()]


def test_changelog_and_contributing_guide_name_only_existing_paths() -> None:
    for page in ("CHANGELOG.md", "CONTRIBUTING.md"):
        assert not missing_paths((ROOT / page).read_text(encoding="utf-8"))


def test_missing_paths_are_found() -> None:
    assert missing_paths("See `tests/docs`, docs/format.md, [x](docs/index.md#y), docs/ and (docs/bench.md).") == [
        "docs/format.md",
        "docs/bench.md",
    ]
