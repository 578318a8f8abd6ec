"""Render the page: the values passed to the templates, and the formats of numbers, names and images."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from decodeonce import __version__
from decodeonce.cli import printable
from decodeonce.cli.report import charts
from decodeonce.cli.report.facts import Facts
from decodeonce.cli.report.sizes import enlarged
from decodeonce.cli.thumbnail import legible
from decodeonce.formatting import size_text
from decodeonce.store.manifest import VERSION
from decodeonce.store.part import rows_text
from decodeonce.store.verify import row_ranges

if TYPE_CHECKING:
    from PIL.Image import Image

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MAX_VALUE = 300  # characters shown of a value in store.json
MAX_NAME = 60  # characters shown of a class name
JPEG_QUALITY = 82


@dataclass(frozen=True)
class ClassRows:
    """A class and its number of rows."""

    label: int
    name: str
    rows: int


def page(facts: Facts) -> bytes:
    """Render the page as UTF-8. The same store always gives the same bytes."""
    manifest = facts.store.manifest
    channels = manifest.shape[2]
    classes = _class_rows(facts)
    is_enlarged = enlarged(facts.sizes, manifest.recipe, manifest.shape) if facts.sizes else None
    unusual = facts.rejects.shown_unusual if facts.rejects else []
    html = (
        environment()
        .get_template("page.html")
        .render(
            version=__version__,
            format_version=VERSION,
            policy=POLICY,
            name=legible(facts.store.paths.root.resolve().name),
            facts=facts,
            store=facts.store,
            manifest=manifest,
            classes=classes,
            median_rows=None if facts.counts is None else np.median(facts.counts),
            enlarged=is_enlarged,
            channel_names=["red", "green", "blue"] if channels == 3 else [f"channel {n}" for n in range(channels)],
            unusual_rows=[(reject, row) for reject in unusual if (row := facts.unusual_row(reject.source))],
            damaged_runs=[rows_text(range(first, last + 1)) for first, last in row_ranges(facts.rows.damaged)],
            charts=_charts(facts, classes, is_enlarged),
        )
    )
    return html.encode()


def environment() -> Environment:
    """Return the environment of the templates. It escapes everything except the output of macros."""
    env = Environment(
        loader=PackageLoader("decodeonce.cli.report"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters |= {
        "counted": counted,
        "data_uri": data_uri,
        "legible": legible,
        "rows_text": rows_text,
        "share": share,
        "short": charts.short,
        "size": size_text,
        "thousands": lambda number: f"{number:,g}" if isinstance(number, float) else f"{number:,}",
        "value_text": value_text,
    }
    return env


def _finalize(value: object) -> str:
    """Escape characters that UTF-8 cannot encode or that a browser does not show. Markup is already escaped."""
    return value if isinstance(value, Markup) else printable(str(value))


def counted(number: int, one: str, many: str | None = None) -> str:
    """Format a number with its noun: "1,281,167 images"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def share(part: float, whole: float = 1.0) -> str:
    """Format a share as a percentage. Only a share of exactly 0 is "0%", and only a share of exactly 1 is "100%"."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 0.1 or 99.9 < percent < 100:
        return "below 0.1%" if percent < 1 else "above 99.9%"
    return f"{percent:.1f}".removesuffix(".0") + "%"


def value_text(value: Any) -> str:
    """Format a value of store.json."""
    if isinstance(value, dict) and value and not any(isinstance(inner, dict | list) for inner in value.values()):
        return legible(", ".join(f"{key} {value_text(inner)}" for key, inner in value.items()), MAX_VALUE)
    return legible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), MAX_VALUE)


def data_uri(image: Image) -> str:
    """Return a URI that contains the image as PNG or JPEG, whichever is smaller.

    Drawings and enlarged pixels are smaller as PNG, so they stay exact.
    """
    png, jpeg = io.BytesIO(), io.BytesIO()
    image.save(png, "PNG")
    image.save(jpeg, "JPEG", quality=JPEG_QUALITY, optimize=True)
    kind, data = min(("png", png.getvalue()), ("jpeg", jpeg.getvalue()), key=lambda encoded: len(encoded[1]))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _class_rows(facts: Facts) -> list[ClassRows] | None:
    """Return all classes, largest first; None if labels.npy is damaged."""
    if facts.counts is None:
        return None
    classes = []
    for label in np.argsort(-facts.counts, kind="stable").tolist():
        cls = facts.store.classes[label]
        name = f"{cls.name} {cls.description}" if cls.description else cls.name
        classes.append(ClassRows(label, legible(name, MAX_NAME), int(facts.counts[label])))
    return classes


def _charts(
    facts: Facts, classes: list[ClassRows] | None, is_enlarged: NDArray[np.bool_] | None
) -> Mapping[str, charts.Chart]:
    """Return the charts whose data is known, by name."""
    found, (height, width, _) = {}, facts.store.manifest.shape
    if classes is not None:
        names, counts = [cls.name for cls in classes], [cls.rows for cls in classes]
        few = len(classes) <= charts.MAX_BARS
        found["classes"] = charts.class_bars(names, counts) if few else charts.class_curve(counts)
    if facts.sizes and facts.sizes.known:
        found["sizes"] = charts.size_map(facts.sizes.widths, facts.sizes.heights, (height, width))
        found["sides"] = charts.shorter_sides(facts.sizes.shorter, is_enlarged)
    if facts.rows.histogram.rows:
        found["levels"] = charts.levels(facts.rows.histogram.shares)
    return found
