"""What the sections of a page are put together from: tables, grids of facts, figures, pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from decodeonce.cli.report.markup import Markup, element
from decodeonce.cli.report.pictures import data_uri, encoded
from decodeonce.cli.thumbnail import Shown, legible

CAPTION = 60  # characters of a name under a picture


def section(key: str, title: str, *contents: str) -> Markup:
    """A part of the page with its heading."""
    heading = element("h2", title, id=f"{key}-heading")
    return element("section", heading, *contents, id=key, aria_labelledby=f"{key}-heading")


def paragraph(*contents: str) -> Markup:
    """A paragraph."""
    return element("p", *contents)


def facts(values: Iterable[tuple[str, str]]) -> Markup:
    """Names and values as a grid."""
    pairs = (element("div", element("dt", name), element("dd", value)) for name, value in values)
    return element("dl", *pairs, class_="facts")


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = (), long: bool = False
) -> Markup:
    """A table in a box of its own, which scrolls where it is too wide; `numbers` are columns of numbers.

    The first cell of a row is its heading. A `long` one scrolls down, too.
    """

    def cell(index: int, value: str, **attributes: str) -> Markup:
        name = "th" if attributes or index == 0 else "td"
        scope = {"scope": "row"} if name == "th" and not attributes else {}
        return element(name, value, class_="n" if index in numbers else None, **scope, **attributes)

    top = element("tr", *(cell(index, name, scope="col") for index, name in enumerate(head)))
    body = (element("tr", *(cell(index, value) for index, value in enumerate(row))) for row in rows)
    whole = element("table", element("thead", top), element("tbody", *body), aria_label=caption)
    box = "scroll long" if long else "scroll"
    return element("div", whole, class_=box, role="region", aria_label=caption, tabindex="0")


def details(summary: str, *contents: str) -> Markup:
    """Something that is folded away until it is asked for."""
    return element("details", element("summary", summary), *contents)


def figure(drawn: str, *caption: str) -> Markup:
    """A drawing with words under it."""
    return element("figure", drawn, element("figcaption", *caption))


def sheet(pictures: Iterable[str]) -> Markup:
    """Pictures in a grid."""
    return element("ul", *(element("li", picture) for picture in pictures), class_="sheet")


def row_picture(shown: Shown, *more: str) -> Markup:
    """A row with its class and number under it, and `more` words."""
    *names, number = shown.lines(CAPTION)
    first = names[0] if names else ""  # a class may have an empty name
    last = element("span", number, class_="bad" if shown.damaged else None)
    words = [*(element("span", text) for text in names[1:]), last, *(element("span", text) for text in more)]
    picture = b"" if shown.picture is None else encoded(shown.picture)
    seen = image(picture, f"Row {shown.row}: {first}", "cannot be read")
    name = "damaged" if shown.damaged else None
    return element("figure", seen, element("figcaption", first, *words), class_=name)


def source_picture(picture: bytes, source: str, reason: str) -> Markup:
    """A picture that is in no row, with its name and why."""
    alt = f"What can be decoded of {legible(source, CAPTION)}"
    seen = image(picture, alt, "nothing of it can be decoded, or it is not there")
    return element("figure", seen, element("figcaption", reason, element("span", legible(source, CAPTION))))


def image(data: bytes, alt: str, otherwise: str) -> Markup:
    """The picture that these bytes hold; other words where there are none."""
    if not data:
        return element("div", otherwise, class_="none")
    return element("img", src=data_uri(data), alt=alt)
