"""What the documentation's site needs of Sphinx beyond settings; an extension that docs/conf.py names."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

# Pages that lie outside of docs/, for code hosts look for them there, and the pages of docs/ that include them.
INCLUDED = {"CHANGELOG": "changes", "CONTRIBUTING": "contributing", "README": "index"}


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("include-read", lead_from_docs)
    app.connect("doctree-read", lead_to_pages)
    app.connect("autodoc-process-signature", tidy_signature)
    app.connect("autodoc-process-docstring", list_parameters)
    return {"parallel_read_safe": True}


def lead_from_docs(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    """Have the relative links of ../CHANGELOG.md and the like begin where the page is that includes it."""
    if path.parent == Path(".."):
        content[0] = re.sub(r"\]\((?![a-z]+:|#)", "](../", content[0])


def lead_to_pages(app: Sphinx, doctree: nodes.document) -> None:
    """Have links to ../CHANGELOG.md and the like lead to the pages that include them.

    Other files outside of docs/ become downloads, which is MyST's doing.
    """
    root = Path(app.srcdir).parent
    for link in doctree.findall(addnodes.pending_xref):
        name = link.get("reftarget", "")
        if link.get("refdomain") == "doc" and Path(name).parent == root:
            link["reftarget"] = INCLUDED.get(Path(name).name, name)


def tidy_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show `Store` where the page has `Store()`, a class that nobody makes; and ... for a default that is made."""
    if what == "class" and signature == "()":
        return None, returns
    return signature and signature.replace("<factory>", "..."), returns


def list_parameters(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make a list of the sentences `name: what it is.` of a docstring, where it has several of them."""
    if what in ("class", "function", "method"):
        lines[:] = listed("\n".join(lines), parameters(obj)).splitlines()


def parameters(obj: Any) -> set[str]:
    """The names that a docstring may describe: parameters, and a dataclass's fields."""
    fields = {field.name for field in dataclasses.fields(obj)} if dataclasses.is_dataclass(obj) else set()
    return {*inspect.signature(obj).parameters, *fields}


def listed(text: str, names: Collection[str]) -> str:
    """A docstring with a list of its parameters, if there are two or more in a paragraph.

    A sentence that begins with Raises ends the list.
    """
    if not names:
        return text
    one = "|".join(map(re.escape, sorted(names)))
    begins = re.compile(rf"(?:^|(?<=[.)]\s))((?:{one})(?:, (?:{one}))*): |(?<=\.\s)(?=Raises )")
    return "\n\n".join(_listed(paragraph, begins) for paragraph in text.split("\n\n"))


def _listed(paragraph: str, begins: re.Pattern[str]) -> str:
    head, *rest = begins.split(paragraph)
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    if sum(name is not None for name, _ in pairs) < 2:
        return paragraph
    parts = [head.strip()] if head.strip() else []
    for name, told in pairs:
        told = " ".join(told.split())
        parts.append(told if name is None else f"* **{name}**: {told}")
    return "\n\n".join(parts)
