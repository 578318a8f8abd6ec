"""A Sphinx extension for the documentation site; docs/conf.py loads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

# Pages outside docs/, where code hosts look for them, and the pages of docs/ that include them.
INCLUDED = {
    "CHANGELOG": "contribute/changes",
    "CONTRIBUTING": "contribute/contributing",
    "README": "index",
    "bench/README": "contribute/measurements",
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the handlers. Sphinx calls this function."""
    app.connect("include-read", rebase_included_links)
    app.connect("doctree-read", link_to_including_pages)
    app.connect("doctree-read", mark_flags)
    app.connect("autodoc-process-signature", tidy_signature)
    return {"parallel_read_safe": True}


def rebase_included_links(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    """Make relative links in ../CHANGELOG.md and the other included pages relative to the including page."""
    if path.parts[0] == "..":
        up = "../" * (app.env.docname.count("/") + 1)  # MyST passes only the last part of the name as `page`
        folder = "".join(f"{part}/" for part in path.parent.parts[1:])
        content[0] = re.sub(r"\]\((?![a-z]+:|#)", f"]({up}{folder}", content[0])


def link_to_including_pages(app: Sphinx, doctree: nodes.document) -> None:
    """Point links to ../CHANGELOG.md and the other included pages at the pages of docs/ that include them.

    MyST turns links to other files outside docs/ into downloads.
    """
    root = Path(app.srcdir).parent
    for link in doctree.findall(addnodes.pending_xref):
        name = link.get("reftarget", "")
        if link.get("refdomain") == "doc" and Path(name).is_relative_to(root):
            link["reftarget"] = INCLUDED.get(str(Path(name).relative_to(root)), name)


def mark_flags(app: Sphinx, doctree: nodes.document) -> None:
    """Give flags such as --dry-run a class, because browsers would break lines after their hyphens."""
    for literal in doctree.findall(nodes.literal):
        if re.fullmatch(r"--?\w[\w-]*( [\w./:%=-]{1,12})?", literal.astext()):
            literal["classes"].append("flag")


# NumPy's ArrayLike is an alias, which signatures show in full.
ARRAY_LIKE = re.compile(r"[~\w.]*_Buffer \| .*?_NestedSequence\[complex \| bytes \| str\]")


def tidy_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show `Store` instead of `Store()`, which users do not call, `ArrayLike`, and ... for a default factory."""
    if what == "class" and signature == "()":
        return None, returns
    return signature and ARRAY_LIKE.sub("ArrayLike", signature.replace("<factory>", "...")), returns
