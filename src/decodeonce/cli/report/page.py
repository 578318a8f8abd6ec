"""Gather what a report shows from a store, and render it as one HTML page that loads nothing and runs no script."""

from __future__ import annotations

import base64
import io
import json
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from decodeonce import __version__
from decodeonce.cli import printable
from decodeonce.cli.drawing import ShownRow, legible, thumbnail, with_paired
from decodeonce.cli.report import charts
from decodeonce.cli.rows import CheckedRows, KeptBoxes, box_columns, evenly_spaced
from decodeonce.errors import StoreError
from decodeonce.formatting import counted, size_text
from decodeonce.prep.recipe import given_flags
from decodeonce.store import Reject, Store
from decodeonce.store.manifest import rows_text
from decodeonce.store.table import read_rejects
from decodeonce.store.verify import bad_files, ranges_text, row_ranges

T = TypeVar("T")

FIRST_ROWS = 64  # shown as images, as in `prep show`
ALL_BYTES = 2 * 10**9  # every row of a store of up to this size is read
SAMPLE_BYTES = 400 * 10**6  # read from a larger store: 2,034 evenly spaced rows of 256x256
MAX_LISTED = 500  # lines of rejects.tsv
MAX_SHOWN, MAX_PER_KIND = 24, 4  # unusual images, in total and per kind of reason
KEPT = "kept"  # the action for an unusual image, which is in the store
LEVELS = 256
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MAX_VALUE = 300  # characters shown of a value in store.json
MAX_NAME = 60  # characters shown of a class name
JPEG_QUALITY = 82
QUANTILES = {"smallest": 0.0, "5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95, "largest": 1.0}


@dataclass
class Rejects:
    """The lines of rejects.tsv: `counts` maps (action, kind of reason) to a number of lines, `listed` are the first.

    `shown` are the unusual images that the page shows.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    listed: list[Reject] = field(default_factory=list)
    shown: list[Reject] = field(default_factory=list)

    @property
    def unusual(self) -> int:
        """The number of unusual images; they are in the store."""
        return sum(number for (action, _), number in self.counts.items() if action == KEPT)

    @property
    def rejected(self) -> int:
        """The number of images that are not in the store."""
        return self.counts.total() - self.unusual


@dataclass(frozen=True)
class Sizes:
    """Known sizes, float64 (n, 2) as width and height, of the images or boxes that rows were made from.

    `unknown` rows have no size, `boxes` rows were made from a box. `rows` maps each unusual image to its first row.
    """

    sides: NDArray[np.float64]
    unknown: int
    boxes: int
    rows: dict[str, int]


@dataclass
class ReadRows:
    """The rows that were read: `shown` as images, `damaged` ones, and how often each level occurs, int64 (C, 256).

    `counted` rows of an evenly spaced `sample` are in `levels`. `checked` is the number of rows whose checksum was
    compared. It is 0 if checksums.npy is damaged; `trouble` is then the error.
    """

    levels: NDArray[np.int64]
    sample: int
    trouble: str
    counted: int = 0
    checked: int = 0
    damaged: list[int] = field(default_factory=list)
    shown: dict[int, ShownRow] = field(default_factory=dict)


@dataclass(frozen=True)
class PageContent:
    """What a report shows. The attributes read from a damaged file are None.

    `problems` maps names of damaged files to what is wrong. `first_rows` are the rows shown in the section Images,
    `unusual` those made from unusual images.
    """

    store: Store
    problems: dict[str, str]
    counts: NDArray[np.int64] | None
    sizes: Sizes | None
    rejects: Rejects | None
    first_rows: list[int]
    rows: ReadRows
    unusual: list[tuple[Reject, ShownRow]]


def gather(store: Store, progress: Callable[[int], None]) -> PageContent:
    """Read what the page shows; `progress` is called with the number of rows just read."""
    problems = dict(bad_files(store.paths, store.manifest))
    rejects = _unless_bad("rejects.tsv", problems, lambda: read_all_rejects(store))
    to_show = rejects.shown if rejects else []
    sizes = _unless_bad("samples.tsv", problems, lambda: read_sizes(store, {reject.source for reject in to_show}))
    labels = _unless_bad("labels.npy", problems, lambda: store.labels)
    counts = None if labels is None else np.bincount(labels, minlength=len(store.classes))
    first_rows = list(store.rows[:FIRST_ROWS])
    row_of = {source: row for source, row in sizes.rows.items() if row in store.rows} if sizes else {}
    boxes = None if problems.keys() & {column.file for column in box_columns(store)} else KeptBoxes(store)
    rows = _read_rows(store, {*first_rows, *row_of.values()}, labels, boxes, progress)
    if rows.trouble:
        problems.setdefault("checksums.npy", rows.trouble)
    unusual = [(reject, rows.shown[row_of[reject.source]]) for reject in to_show if reject.source in row_of]
    return PageContent(store, problems, counts, sizes, rejects, first_rows, rows, unusual)


def _unless_bad(name: str, problems: dict[str, str], read: Callable[[], T]) -> T | None:
    """Return `read()`, or None if the file is damaged or cannot be parsed."""
    if name in problems:
        return None
    try:
        return read()
    except (StoreError, OverflowError, ValueError) as error:  # its content is malformed, although its digest matches
        problems[name] = str(error)
        return None


def read_all_rejects(store: Store) -> Rejects:
    """Count the lines of rejects.tsv, and choose those to show."""
    rejects = Rejects()
    for reject in read_rejects(store.paths.rejects):
        kind = (reject.action, reject.reason.partition(":")[0])  # "garbled: Corrupt JPEG data" is of kind "garbled"
        rejects.counts[kind] += 1
        if len(rejects.listed) < MAX_LISTED:
            rejects.listed.append(reject)
        if reject.action == KEPT and rejects.counts[kind] <= MAX_PER_KIND and len(rejects.shown) < MAX_SHOWN:
            rejects.shown.append(reject)
    return rejects


def read_sizes(store: Store, wanted: set[str]) -> Sizes:
    """Read the sizes of all rows, and find the first rows of the `wanted` sources."""
    sides, boxes, rows = array("d"), 0, dict[str, int]()
    for sample in store.samples:
        box = map(int, sample.box.split(",")) if sample.box else (0, 0, sample.width, sample.height)
        left, top, right, bottom = box
        sides.extend((right - left, bottom - top))
        boxes += bool(sample.box)
        if sample.source in wanted:
            rows.setdefault(sample.source, sample.row)
    both = np.frombuffer(sides).reshape(-1, 2)
    known = both[(both > 0).all(axis=1)]
    return Sizes(known, len(both) - len(known), boxes, rows)


def _read_rows(
    store: Store,
    shown: set[int],
    labels: NDArray[np.int64] | None,
    boxes: KeptBoxes | None,
    progress: Callable[[int], None],
) -> ReadRows:
    """Read the sample and the rows to show, each row once. Damaged rows are left out of the levels."""
    sample = set(store.rows)
    if len(sample) * store.manifest.row_bytes > ALL_BYTES:
        sample = set(evenly_spaced(store.rows, max(1, SAMPLE_BYTES // store.manifest.row_bytes)))
    checked, channels = CheckedRows(store), store.manifest.shape[2]
    rows = ReadRows(np.zeros((channels, LEVELS), np.int64), len(sample), checked.problem)
    for row in sorted(sample | shown):
        pixels, damaged = checked.read(row)
        rows.checked += not checked.problem
        if damaged:
            rows.damaged.append(row)
        elif row in sample and pixels:
            rows.counted += 1
            for channel in range(channels):
                # Pillow takes 0.1 ms per row of 256x256, and np.bincount 1.5 ms.
                rows.levels[channel] += np.array(Image.fromarray(pixels[0][..., channel]).histogram())
        if row in shown:
            cls = None if labels is None else store.classes[labels[row]]
            image = thumbnail(with_paired(pixels), boxes.of(row) if boxes else ())
            rows.shown[row] = ShownRow(row, image, cls, damaged)
        progress(1)
    return rows


def page(content: PageContent) -> bytes:
    """Render the page as UTF-8. The same store always gives the same bytes."""
    manifest, rows = content.store.manifest, content.rows
    (height, width, channels), sides = manifest.shape, content.sizes.sides if content.sizes else np.zeros((0, 2))
    classes, drawn = _class_rows(content), dict[str, Markup]()
    if classes and classes[0]["rows"] > classes[-1]["rows"]:  # one sentence says it all otherwise
        drawn["classes"] = charts.class_curve([cls["rows"] for cls in classes])
    is_enlarged = enlarged(sides, manifest.recipe, height, width)
    shares = rows.levels / np.maximum(rows.levels.sum(axis=1, keepdims=True), 1)
    if rows.counted:
        drawn["levels"] = charts.levels(shares)
    template = environment().get_template("page.html")
    html = template.render(
        version=__version__,
        format_version=manifest.version,
        policy=POLICY,
        name=legible(content.store.paths.root.resolve().name),
        content=content,
        recipe=given_flags(manifest.recipe),
        classes=classes,
        median_rows=None if content.counts is None else np.median(content.counts),
        enlarged=None if is_enlarged is None else int(is_enlarged.sum()),
        quantile_names=list(QUANTILES),
        quantiles=_quantiles(sides) if len(sides) else {},
        channel_names=["red", "green", "blue"] if channels == 3 else [f"channel {n}" for n in range(channels)],
        levels=[[int(np.searchsorted(line.cumsum(), share)) for share in (0.05, 0.5, 0.95)] for line in shares],
        shares=shares,
        damaged=ranges_text(row_ranges(rows.damaged)),
        charts=drawn,
    )
    return html.encode()


def environment() -> Environment:
    """Return the environment of the templates. It escapes everything except the output of macros."""
    env = Environment(
        loader=PackageLoader("decodeonce.cli.report"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),  # for UTF-8 and browsers
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


def value_text(value: object) -> str:
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
    sides: NDArray[np.float64], recipe: Mapping[str, object], height: int, width: int
) -> NDArray[np.bool_] | None:
    """Return whether each image was enlarged to become its row, bool (n,); None if that cannot be known.

    "crop" and "stretch" enlarge an image if either side is shorter than the row's; "pad", if both sides are.
    """
    fit = recipe.get("fit")
    rotated = recipe.get("exif") != "ignore" and height != width  # samples.tsv has sizes before the rotation
    if fit not in ("crop", "stretch", "pad") or rotated or "resized_from" in recipe:
        return None
    narrower, lower = sides[:, 0] < width, sides[:, 1] < height
    return narrower & lower if fit == "pad" else narrower | lower


def _quantiles(sides: NDArray[np.float64]) -> dict[str, list[str]]:
    """Return the values of each measure at QUANTILES, as text."""
    measures = [*sides.T, sides.min(axis=1), sides[:, 0] / sides[:, 1]]
    found = np.quantile(measures, list(QUANTILES.values()), axis=1, method="inverted_cdf").T.tolist()
    texts = [[f"{value:.4g}" if value < 1000 else f"{value:.0f}" for value in values] for values in found]
    return dict(zip(("width", "height", "shorter side", "width / height"), texts, strict=True))


def _class_rows(content: PageContent) -> list[dict[str, Any]]:
    """Return label, name and number of rows of all classes, largest first; none if labels.npy is damaged."""
    if content.counts is None:
        return []
    names = [legible(" ".join(filter(None, (cls.name, cls.description))), MAX_NAME) for cls in content.store.classes]
    order = np.argsort(-content.counts, kind="stable").tolist()
    return [{"label": label, "name": names[label], "rows": int(content.counts[label])} for label in order]
