"""The sections on what was measured: sizes of the source pictures, levels of the pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from decodeonce.cli.report import charts
from decodeonce.cli.report.blocks import details, figure, paragraph, section, table
from decodeonce.cli.report.facts import Facts
from decodeonce.cli.report.histogram import Histogram
from decodeonce.cli.report.markup import Markup, element
from decodeonce.cli.report.sizes import Sizes, enlarged
from decodeonce.cli.report.words import count, number_of, share

SHARES = {"least": 0.0, "5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95, "most": 1.0}
BAND = 16  # levels a line of the table


def source_sizes(facts: Facts) -> Markup:
    """How large the source pictures were."""
    sizes, title = facts.sizes, "Source pictures"
    if sizes is None:
        return section("sizes", title, paragraph("samples.tsv is damaged: not shown."))
    if not len(sizes.widths):
        return section("sizes", title, paragraph("samples.tsv has no sizes of the source pictures."))
    told = list(_sizes_told(facts, sizes))
    grown = enlarged(sizes, facts.store.manifest.recipe, facts.store.manifest.shape)
    height, width, _ = facts.store.manifest.shape
    drawn = (
        figure(
            charts.size_map(sizes.widths, sizes.heights, (height, width), told[0]),
            "Width and height: the stronger a square's colour, the more pictures. "
            f"The dashed frame is a row, {width}x{height}.",
        ),
        figure(charts.shorter_sides(sizes.shorter, grown, " ".join(told)), "Shorter side.", *_colours(grown)),
    )
    measures = {
        "width": sizes.widths,
        "height": sizes.heights,
        "shorter side": sizes.shorter,
        "width / height": sizes.widths / sizes.heights,
    }
    rows = [
        [name, *(f"{value:.4g}" for value in np.quantile(values, list(SHARES.values()), method="inverted_cdf"))]
        for name, values in measures.items()
    ]
    numbers = table("Sizes of the source pictures", ("pixels", *SHARES), rows, numbers=range(1, 1 + len(SHARES)))
    return section("sizes", title, paragraph(" ".join(told)), charts.side_by_side(*drawn), numbers)


def _colours(grown: NDArray[np.bool_] | None) -> list[str]:
    return [] if grown is None or not grown.any() else [" Orange: pictures that were enlarged."]


def _sizes_told(facts: Facts, sizes: Sizes) -> Iterator[str]:
    total = len(sizes.widths)
    w, h = (int(np.quantile(side, 0.5, method="inverted_cdf")) for side in (sizes.widths, sizes.heights))
    yield f"Of {number_of(total, 'row')} the source picture's size is known; the median is {w} wide and {h} high."
    grown = enlarged(sizes, facts.store.manifest.recipe, facts.store.manifest.shape)
    if grown is not None:
        number = int(grown.sum())
        told = f"{count(number)} ({share(number, total)}) had" if number else "None had"
        yield f"{told} fewer pixels than {'their row, and were enlarged' if number else 'its row'}."
    if sizes.boxes:
        yield f"{number_of(sizes.boxes, 'row')} are of a box that was cut out: there it is the box's size."
    if sizes.unknown:
        yield f"Of {number_of(sizes.unknown, 'row')} it is not known."


def levels(facts: Facts) -> Markup:
    """Mean, deviation and histogram of each channel."""
    manifest, histogram = facts.store.manifest, facts.rows.histogram
    names = ("red", "green", "blue") if manifest.shape[2] == 3 else [f"channel {c}" for c in range(manifest.shape[2])]
    moments = zip(names, manifest.pixel_mean, manifest.pixel_std, strict=True)
    exact = [[name, f"{mean:.4f}", f"{std:.4f}"] for name, mean, std in moments]
    tables = [table("Mean and standard deviation", ("channel", "mean", "std"), exact, numbers=(1, 2))]
    told = "Mean and standard deviation are exact, of all rows, as the build summed them."
    if not histogram.rows:
        return section("levels", "Levels", paragraph(told), *tables)
    read, whole = count(histogram.rows), count(manifest.count)
    of = f"all {whole} rows" if read == whole else f"{read} of {whole} rows"
    spaced = ", evenly spaced" if facts.rows.sample < len(facts.store.rows) else ""
    drawn = charts.levels(histogram.shares, f"The share that each of 256 levels has of its channel, from {of}.")
    tables.append(_quantiles(histogram, names))
    caption = "Red is a full line, green dashed, blue dotted." if len(names) == 3 else "A line a channel."
    beside = charts.side_by_side(figure(drawn, caption), element("div", *tables))
    folded = details("The drawing as a table", _bands(histogram, names))
    return section("levels", "Levels", paragraph(f"{told} All else is of {of}{spaced}."), beside, folded)


def _quantiles(histogram: Histogram, names: Sequence[str]) -> Markup:
    rows = []
    for channel, name in enumerate(names):
        inner = [str(histogram.quantile(channel, part)) for part in (0.05, 0.5, 0.95)]
        rows.append([name, *inner, *(share(histogram.shares[channel][level], 1) for level in (0, 255))])
    return table(
        "Levels of each channel", ("channel", "5%", "median", "95%", "at 0", "at 255"), rows, numbers=range(1, 6)
    )


def _bands(histogram: Histogram, names: Sequence[str]) -> Markup:
    """The shares of 16 levels at a time."""
    shares = histogram.shares.reshape(len(names), -1, BAND).sum(axis=2)
    rows = [
        [f"{band * BAND} to {band * BAND + BAND - 1}", *(share(part, 1) for part in shares[:, band].tolist())]
        for band in range(shares.shape[1])
    ]
    return table("Shares of levels", ("levels", *names), rows, numbers=range(1, 1 + len(names)))
