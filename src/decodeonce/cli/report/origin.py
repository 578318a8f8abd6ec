"""The sections on where a store comes from: recipe, source, and what became no row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from decodeonce.cli.report.blocks import details, paragraph, row_picture, section, sheet, source_picture, table
from decodeonce.cli.report.facts import Facts
from decodeonce.cli.report.markup import Markup, element
from decodeonce.cli.report.rejects import ODD, Rejects
from decodeonce.cli.report.words import count, number_of
from decodeonce.cli.thumbnail import legible
from decodeonce.formatting import size_text
from decodeonce.store import Reject
from decodeonce.store.manifest import VERSION

MOST = 300  # characters of a value
KINDS = 50  # kinds of reasons that are counted one by one
MEANINGS = {
    "fit": {
        "crop": "resized until it covers the row, then its centre: torchvision's Resize and CenterCrop",
        "stretch": "resized to the row's width and height, whatever its shape",
        "pad": "resized until it fits into the row, black around it",
    },
    "exif": {"ignore": "pixels as they are stored", "apply": "turned upright"},
    "on_odd": {"keep": "garbled pictures are rows, and listed", "reject": "garbled pictures are rejects"},
    "scaled_decode": {"False": "decoded at full size", "True": "large JPEGs were decoded at 1/2, 1/4 or 1/8"},
    "boxes": {"None": "whole pictures: no boxes were used"},
    "map": {"None": "no function of the user's on the pictures"},
    "shuffle_seed": {"None": "rows are in the source's order"},
}


def recipe(facts: Facts) -> Markup:
    """How pictures became rows, and by which decoders."""
    rows = [[key, _text(value), _meaning(key, value)] for key, value in sorted(facts.store.manifest.recipe.items())]
    every = table("The recipe", ("key", "value", "what that means"), rows)
    told = paragraph("All that decides the bytes of this store: the same pictures and this recipe give them again.")
    manifest, rows = facts.store.manifest, []
    rows = [[f"source: {key}", _text(value), ""] for key, value in sorted(manifest.source.items())]
    rows += [
        ["digest", manifest.digest, "of store.json, which has those of all other files"],
        ["format version", str(VERSION), "of a store"],
        ["decoder crashes", str(manifest.decoder_crashes), _crashes(manifest.decoder_crashes)],
    ]
    origin = table("Where it comes from", ("what", "value", "remark"), rows)
    return section("recipe", "Recipe and origin", told, every, element("h3", "Where it comes from"), origin)


def _crashes(number: int) -> str:
    return "pictures that killed a decoder: such a store may not come out the same twice" if number else "none"


def _meaning(key: str, value: Any) -> str:
    if key == "shard_size" and isinstance(value, int):
        return size_text(value)
    return MEANINGS.get(legible(key), {}).get(str(value), "") if not isinstance(value, dict) else ""


def _text(value: Any) -> str:
    """A value of the manifest for people."""
    if isinstance(value, dict) and value and not any(isinstance(inner, dict | list) for inner in value.values()):
        return legible(", ".join(f"{key} {_text(inner)}" for key, inner in value.items()), MOST)
    if isinstance(value, str):
        return legible(value, MOST)
    return legible(json.dumps(value, ensure_ascii=False), MOST)


def rejects(facts: Facts) -> Markup:
    """What rejects.tsv lists: counts, pictures, lines."""
    title, found = "Rejects and oddities", facts.rejects
    if found is None:
        return section("rejects", title, paragraph("rejects.tsv is damaged: not shown."))
    if not found.counts:
        none = "None: every picture of the source is in the store, and none is odd."
        return section("rejects", title, paragraph(none))
    told = paragraph(
        f"{number_of(found.rejected, 'picture')} of the source became no row. {number_of(found.odd, 'picture')} "
        f"{'is' if found.odd == 1 else 'are'} odd, and in the store all the same."
    )
    kinds = [[legible(kind), action, count(number)] for (action, kind), number in found.counts.most_common(KINDS)]
    counts = table("Counts by reason", ("reason", "action", "pictures"), kinds, numbers=(2,))
    parts = [told, counts, *_left_out(len(found.counts) - KINDS, "more kind of reason", "more kinds of reasons")]
    lines = ([legible(one.source), legible(one.reason, MOST), legible(one.action)] for one in found.listed)
    listed = table("Rejects and oddities, one by one", ("source", "reason", "action"), lines, long=True)
    more = found.counts.total() - len(found.listed)
    head = f"The first {count(len(found.listed))}, one by one" if more else "One by one"
    every = details(head, listed, *_left_out(more, "more line in rejects.tsv", "more lines in rejects.tsv"))
    return section("rejects", title, *parts, *_galleries(facts, found), every)


def _left_out(number: int, one: str, many: str) -> list[Markup]:
    return [paragraph(f"And {number_of(number, one, many)}.")] if number > 0 else []


def _galleries(facts: Facts, found: Rejects) -> Iterator[Markup]:
    odd = [reject for reject in found.pictured if reject.action == ODD]
    rows = [(reject, row) for reject in odd if (row := facts.odd_row(reject.source))]
    if rows:
        yield element("h3", "Odd pictures, as their rows are")
        yield _some(len(rows), found.odd)
        yield sheet(row_picture(row, legible(reject.reason, 90)) for reject, row in rows)
    out = [reject for reject in found.pictured if reject.action != ODD]
    if not out:
        return
    yield element("h3", "Pictures that became no row")
    if facts.broken is None:
        flag = element("code", "--source SRC")
        yield paragraph("They are not in the store: give ", flag, ", what it was built from, to see them here.")
        return
    yield _some(len(out), found.rejected, "as much of each as can be decoded of what lies in the source now")
    yield sheet(_broken(facts.broken, reject) for reject in out)


def _broken(pictures: dict[str, bytes], reject: Reject) -> Markup:
    return source_picture(pictures.get(reject.source, b""), reject.source, legible(reject.reason, 90))


def _some(shown: int, of: int, *more: str) -> Markup:
    which = [f"{count(shown)} of {count(of)}", "a few of each kind"] if shown < of else [f"All {count(of)}"]
    return paragraph(f"{', '.join([*which, *more])}.")
