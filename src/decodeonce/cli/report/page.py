"""Render a report as one HTML page that loads nothing and runs no script."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from decodeonce import __version__
from decodeonce.cli import printable
from decodeonce.cli.drawing import legible
from decodeonce.cli.report import charts
from decodeonce.cli.report.facts import Facts
from decodeonce.formatting import counted, size_text
from decodeonce.store.manifest import VERSION
from decodeonce.store.part import rows_text
from decodeonce.store.verify import row_ranges

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MAX_VALUE = 300  # characters shown of a value in store.json
MAX_NAME = 60  # characters shown of a class name
JPEG_QUALITY = 82
QUANTILES = {"smallest": 0.0, "5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95, "largest": 1.0}


class ClassRows(NamedTuple):
    """A class and its number of rows."""

    label: int
    name: str
    rows: int


def page(facts: Facts) -> bytes:
    """Render the page as UTF-8. The same store always gives the same bytes."""
    manifest, rows = facts.store.manifest, facts.rows
    (height, width, channels), sides = manifest.shape, facts.sizes.sides if facts.sizes else np.zeros((0, 2))
    classes, drawn, is_enlarged = _class_rows(facts), dict[str, charts.Chart](), None
    if classes:
        names, counts = [cls.name for cls in classes], [cls.rows for cls in classes]
        few = len(classes) <= charts.MAX_BARS
        drawn["classes"] = charts.class_bars(names, counts) if few else charts.class_curve(counts)
    if len(sides):
        is_enlarged = enlarged(sides, manifest.recipe, height, width)
        drawn["sizes"] = charts.size_map(sides, (height, width))
        drawn["sides"] = charts.shorter_sides(sides.min(axis=1), is_enlarged)
    shares = rows.levels / np.maximum(rows.levels.sum(axis=1, keepdims=True), 1)
    if rows.counted:
        drawn["levels"] = charts.levels(shares)
    unusual = facts.rejects.shown if facts.rejects else []
    template = environment().get_template("page.html")
    html = template.render(
        version=__version__,
        format_version=VERSION,
        policy=POLICY,
        name=legible(facts.store.paths.root.resolve().name),
        facts=facts,
        rows=rows,
        store=facts.store,
        manifest=manifest,
        classes=classes,
        median_rows=None if facts.counts is None else np.median(facts.counts),
        enlarged=None if is_enlarged is None else int(is_enlarged.sum()),
        quantile_names=list(QUANTILES),
        quantiles=_quantiles(sides) if len(sides) else {},
        channel_names=["red", "green", "blue"] if channels == 3 else [f"channel {n}" for n in range(channels)],
        levels=[[int(np.searchsorted(line.cumsum(), share)) for share in (0.05, 0.5, 0.95)] for line in shares],
        shares=shares,
        unusual=[(reject, row) for reject in unusual if (row := facts.unusual_row(reject.source))],
        damaged_runs=[rows_text(range(first, last + 1)) for first, last in row_ranges(rows.damaged)],
        charts=drawn,
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
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters |= {
        "counted": counted,
        "data_uri": data_uri,
        "legible": legible,
        "rows_text": rows_text,
        "share": lambda part: f"{100 * part:.1f}%",
        "size": size_text,
        "thousands": lambda number: f"{number:,g}" if isinstance(number, float) else f"{number:,}",
        "value_text": value_text,
    }
    return env


def _finalize(value: object) -> str:
    """Escape characters that UTF-8 cannot encode or that a browser does not show. Markup is already escaped."""
    return value if isinstance(value, Markup) else printable(str(value))


def value_text(value: Any) -> str:
    """Format a value of store.json."""
    if isinstance(value, dict) and value and not any(isinstance(inner, dict | list) for inner in value.values()):
        return legible(", ".join(f"{key} {value_text(inner)}" for key, inner in value.items()), MAX_VALUE)
    return legible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), MAX_VALUE)


def data_uri(image: Image.Image) -> str:
    """Return a URI that contains the image as PNG or JPEG, whichever is smaller.

    Drawings and enlarged pixels are smaller as PNG, so they stay exact.
    """
    png, jpeg = io.BytesIO(), io.BytesIO()
    image.save(png, "PNG")
    image.save(jpeg, "JPEG", quality=JPEG_QUALITY, optimize=True)
    kind, data = min(("png", png.getvalue()), ("jpeg", jpeg.getvalue()), key=lambda encoded: len(encoded[1]))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def enlarged(
    sides: NDArray[np.float64], recipe: Mapping[str, Any], height: int, width: int
) -> NDArray[np.bool_] | None:
    """Return whether each image was enlarged to become its row, bool (n,); None if that cannot be known.

    "crop" and "stretch" enlarge an image if either side is shorter than the row's; "pad", if both sides are.
    """
    fit = recipe.get("fit")
    rotated = recipe.get("exif") != "ignore" and height != width  # samples.tsv has sizes before the rotation
    if fit not in ("crop", "stretch", "pad") or rotated or "resized_from" in recipe or "joined" in recipe:
        return None
    narrower, lower = sides[:, 0] < width, sides[:, 1] < height
    return narrower & lower if fit == "pad" else narrower | lower


def _quantiles(sides: NDArray[np.float64]) -> dict[str, list[str]]:
    """Return the values of each measure at QUANTILES, as text."""
    measures = [*sides.T, sides.min(axis=1), sides[:, 0] / sides[:, 1]]
    found = np.quantile(measures, list(QUANTILES.values()), axis=1, method="inverted_cdf").T.tolist()
    texts = [[f"{value:.4g}" if value < 1000 else f"{value:.0f}" for value in values] for values in found]
    return dict(zip(("width", "height", "shorter side", "width / height"), texts, strict=True))


def _class_rows(facts: Facts) -> list[ClassRows]:
    """Return all classes, largest first; none if labels.npy is damaged."""
    if facts.counts is None:
        return []
    order, classes = np.argsort(-facts.counts, kind="stable").tolist(), facts.store.classes
    names = [" ".join(filter(None, (cls.name, cls.description))) for cls in classes]
    return [ClassRows(label, legible(names[label], MAX_NAME), int(facts.counts[label])) for label in order]
