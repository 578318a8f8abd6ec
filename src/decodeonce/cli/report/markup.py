"""HTML and SVG put together so that no text becomes markup: what is not Markup already is escaped."""

from __future__ import annotations

import html

from decodeonce.cli import printable

VOID = frozenset(("img", "link", "meta"))
SHAPES = frozenset(("line", "path", "rect"))


class Markup(str):
    """Text that is markup, made by `element` alone or written in this package."""


def element(name: str, /, *children: str, **attributes: object) -> Markup:
    """An element of these children, escaped unless they are Markup; `class_` is class, `stroke_width` stroke-width.

    An attribute that is None is left out, one that is True has no value.
    """
    tag = name + "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in SHAPES:
        return Markup(f"<{tag}/>")
    return Markup(f"<{tag}>" if name in VOID else f"<{tag}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """The children one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else _escaped(child) for child in children))


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_escaped(str(value))}"'


def _escaped(text: str) -> str:
    """The text, with escapes for what a page would obey, not show, or cannot hold."""
    return html.escape(printable(text))
