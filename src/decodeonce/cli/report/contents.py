"""The sections on what a store holds: its pictures and its classes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from decodeonce.cli.report import charts
from decodeonce.cli.report.blocks import CAPTION, details, figure, paragraph, row_picture, section, sheet, table
from decodeonce.cli.report.facts import Facts
from decodeonce.cli.report.markup import Markup
from decodeonce.cli.report.words import count, number_of
from decodeonce.cli.thumbnail import legible

ENDS = 5  # of the largest and of the smallest classes
LISTED = 20_000  # classes in the table


def pictures(facts: Facts) -> Markup:
    """The contact sheet."""
    of = f"of {count(len(facts.store.rows))}" if len(facts.sheet) < len(facts.store.rows) else ""
    recipe = facts.store.manifest.recipe
    shuffled = recipe.get("shuffle_seed") is not None and "selected" not in recipe  # which may have sorted them
    fair = " Rows were shuffled when the store was planned, so these are a fair draw." if of and shuffled else ""
    told = paragraph(f"The first {number_of(len(facts.sheet), 'row')} {of}".rstrip() + f".{fair}")
    return section("pictures", "Pictures", told, sheet(row_picture(facts.rows.seen[row]) for row in facts.sheet))


def class_name(facts: Facts, label: int, most: int = CAPTION) -> str:
    """What a class is called, with what people call it."""
    cls = facts.store.classes[label]
    return legible(f"{cls.name} {cls.description}" if cls.description else cls.name, most)


def classes(facts: Facts) -> Markup:
    """How many rows each class has."""
    if facts.counts is None:
        return section("classes", "Classes", paragraph("labels.npy is damaged: not shown."))
    order = np.argsort(-facts.counts, kind="stable")
    sizes = facts.counts[order].tolist()
    spread = f"from {count(sizes[-1])} to {number_of(sizes[0], 'row')} each, median {np.median(sizes):,g}"
    spread = spread if sizes[0] > sizes[-1] else f"{number_of(sizes[0], 'row')} each"
    told = f"{number_of(len(sizes), 'class', 'classes')}: {spread}."
    if len(sizes) <= charts.NAMED_BARS:
        names = [class_name(facts, label) for label in order.tolist()]
        drawn = charts.class_bars(names, sizes, told)
    else:
        drawn = charts.class_curve(sizes, told)
    listed = order.tolist()[:LISTED]
    rows = ([class_name(facts, label), str(label), count(facts.counts[label])] for label in listed)
    parts = [paragraph(told), charts.side_by_side(figure(drawn), *_ends(facts, order.tolist()))]
    more = f" (the first {count(LISTED)} of {count(len(sizes))})" if len(listed) < len(sizes) else ""
    head = ("class", "label", "rows")
    every = table("Rows of every class", head, rows, numbers=(1, 2), long=True)
    return section("classes", "Classes", *parts, details(f"Every class{more}, largest first", every))


def _ends(facts: Facts, order: list[int]) -> Iterator[Markup]:
    """The largest and smallest classes by name, where not every class has its own line in the drawing."""
    assert facts.counts is not None
    if len(order) <= charts.NAMED_BARS:
        return
    ends = [("largest", order[:ENDS]), ("smallest", order[: -ENDS - 1 : -1])]
    rows = [[class_name(facts, label), which, count(facts.counts[label])] for which, some in ends for label in some]
    yield table("The largest and the smallest classes", ("class", "is among the", "rows"), rows, numbers=(2,))
