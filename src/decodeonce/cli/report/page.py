"""The page: its head, its sections, its foot."""

from __future__ import annotations

from decodeonce import __version__
from decodeonce.cli.report import checks, contents, measures, origin
from decodeonce.cli.report.blocks import facts as grid
from decodeonce.cli.report.blocks import paragraph, section
from decodeonce.cli.report.facts import Facts
from decodeonce.cli.report.markup import Markup, element
from decodeonce.cli.report.style import STYLE
from decodeonce.cli.report.words import count, number_of
from decodeonce.cli.thumbnail import legible
from decodeonce.formatting import size_text

# Nothing is fetched and nothing runs, whatever a name in a store says.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
SECTIONS = {
    "pictures": ("Pictures", contents.pictures),
    "classes": ("Classes", contents.classes),
    "sizes": ("Source pictures", measures.source_sizes),
    "levels": ("Levels", measures.levels),
    "rejects": ("Rejects", origin.rejects),
    "recipe": ("Recipe", origin.recipe),
    "checks": ("Checks", checks.checks),
}


def page(facts: Facts) -> bytes:
    """The whole page, UTF-8: of the same store the same bytes."""
    name = legible(facts.store.paths.root.resolve().name)
    head = (
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{name}: report"),
        element("link", rel="icon", href="data:,"),
        element("style", STYLE),
    )
    links = (
        element("li", element("a", title, href=f"#{key}"))
        for key, (title, _) in {"facts": ("Facts", None), **SECTIONS}.items()
    )
    top = element(
        "header",
        element("h1", name),
        paragraph(_summary(facts)),
        _verdict(facts),
        element("nav", element("ul", *links), aria_label="Sections"),
    )
    body = element("main", _facts(facts), *(make(facts) for _, make in SECTIONS.values()))
    foot = element("footer", paragraph(f"Made by prep report of decodeonce {__version__}."))
    whole = element("html", element("head", *head), element("body", top, body, foot), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n".encode()


def _summary(facts: Facts) -> str:
    manifest, found = facts.store.manifest, facts.rejects
    rejects = []
    if found is not None:
        rejects = [number_of(found.rejected, "reject"), number_of(found.odd, "oddity", "oddities")]
    height, width, _ = manifest.shape
    told = f"{number_of(manifest.count, 'picture')} of {width}x{height} pixels in "
    told += f"{number_of(len(manifest.classes), 'class', 'classes')}, decoded once into "
    told += f"{size_text(sum(shard.bytes for shard in manifest.shards))} of {manifest.container} shards"
    return f"{told}{'; ' if rejects else ''}{', '.join(rejects)}."


def _verdict(facts: Facts) -> Markup:
    rows = facts.rows
    some = f" of {count(rows.checked)} that were read" if 0 < rows.checked < len(facts.store.rows) else ""
    bad = [f"{number_of(len(rows.damaged), 'row')}{some}"] if rows.damaged else []
    bad += [number_of(len(facts.problems), "file")] if facts.problems else []
    if bad:
        link = element("a", "Checks", href="#checks")
        return element("p", f"Damaged: {', '.join(bad)}. See ", link, ".", class_="verdict bad")
    here = " that is here" if len(facts.store.rows) < facts.store.manifest.count else ""
    if rows.checked == len(facts.store.rows):
        return element("p", f"Whole: every file and every row{here} is as it was written.", class_="verdict")
    read = f"the {count(rows.checked)} rows that were read, of {count(len(facts.store.rows))}"
    told = f"Every file and {read}, are as they were written."
    return element("p", told, class_="verdict")


def _facts(facts: Facts) -> Markup:
    manifest = facts.store.manifest
    height, width, channels = manifest.shape
    values = [
        ("Rows", count(manifest.count)),
        ("Held here", count(len(facts.store.rows))),
        ("Pixels of a row", f"{width}x{height}"),
        ("Channels", str(channels)),
        ("Classes", count(len(manifest.classes))),
        ("Bytes", size_text(sum(shard.bytes for shard in manifest.shards))),
        ("Shards", f"{count(len(manifest.shards))} {manifest.container}"),
        ("Columns", legible(", ".join(column.name for column in manifest.columns) or "none")),
        ("Source", legible(str(manifest.source.get("kind", "not said")))),
    ]
    if len(facts.store.rows) == manifest.count:
        del values[1]
    return section("facts", "Facts", grid(values))
