"""Draw rows of a store: small images with captions and boxes for `prep report`, and a sheet of them for `prep show`."""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from decodeonce.cli import printable
from decodeonce.store.manifest import ImageClass
from decodeonce.store.table import escape

SIDE = 128  # of an image in pixels
GAP = 8
COLUMNS = 8
FONT_SIZE = 11
LINE = 15  # height of a line of text in pixels
PAPER, INK, FAINT, RED = "#ffffff", "#1b1f24", "#59636e", "#c01c28"
# A box is a light line with a dark line inside it: one of them is visible on any background.
LIGHT, DARK = "#ffe14d", "#000000"


class NamedBox(NamedTuple):
    """Left, top, right and bottom of a box in pixels of its row, and its class name, "" if the store has none."""

    edges: tuple[float, ...]
    name: str


@dataclass(frozen=True)
class ShownRow:
    """A row as a thumbnail. `image` is None if the row cannot be read, `cls` is None if the labels are damaged."""

    row: int
    image: Image.Image | None
    cls: ImageClass | None
    damaged: bool

    def lines(self, most: int = 200) -> list[str]:
        """Return the caption: the class in words, its name and the row. Names are cut to `most` characters."""
        names = [self.cls.description, self.cls.name] if self.cls else ["unknown class"]
        row = f"row {self.row}{': damaged' if self.damaged else ''}"
        return [*(legible(name, most) for name in names if name), row]


def legible(name: str, most: int = 200) -> str:
    """Return a name on one line of at most `most` characters, with the escapes of samples.tsv for invisible ones."""
    shown = printable(escape(name[: most + 1]).replace("\\\\", "\\"))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def default_font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font at 11 pixels, or its only bitmap font if it was built without FreeType."""
    return ImageFont.load_default(FONT_SIZE if features.check("freetype2") else None)


def fitted(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Return the text in ASCII, which every font has, cut with an ellipsis to `width` pixels."""
    letters = (c for c in unicodedata.normalize("NFKD", text[:width]) if not unicodedata.combining(c))
    drawable = "".join(letters).encode("ascii", "backslashreplace").decode()
    if font.getlength(drawable) <= width:
        return drawable
    kept = drawable[:width]
    while kept and font.getlength(kept + "...") > width:
        kept = kept[:-1]
    return kept.rstrip() + "..."


def with_paired(arrays: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8] | None:
    """Return an image with its masks drawn over it, and with its second images to its right; None without an image.

    Each value of a mask above 0 is a color, mixed half and half with the image.
    """
    if not arrays:
        return None
    image, *others = arrays
    colors = np.array([[(n * step) % 256 for step in (97, 53, 193)] for n in range(256)], np.uint8)
    for mask in (other for other in others if other.ndim == 2):
        mixed = image // 2 + colors[mask] // 2
        image = np.where(mask[:, :, None] > 0, mixed, image)
    return np.concatenate([image, *(other for other in others if other.ndim == 3)], axis=1)


def thumbnail(pixels: NDArray[np.uint8] | None, boxes: Sequence[NamedBox] = ()) -> Image.Image | None:
    """Return pixels of shape (H, W, C) as an RGB image of at most 128 pixels per side, with boxes; None for None.

    Smaller images are enlarged by an integer factor. With one or two channels, the first is shown as gray; with more
    than three, the first three are shown as colors.
    """
    if pixels is None:
        return None
    seen = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., 0]
    image = Image.fromarray(np.ascontiguousarray(seen)).convert("RGB")
    longest = max(image.size)
    if longest <= SIDE:
        factor = SIDE // longest
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    else:
        width, height = (max(1, round(side * SIDE / longest)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BOX)
    _draw_boxes(image, boxes, image.width / pixels.shape[1], image.height / pixels.shape[0])
    return image


def _draw_boxes(image: Image.Image, boxes: Sequence[NamedBox], across: float, down: float) -> None:
    """Draw boxes, scaled by these factors, each with its name unless it would cover another name."""
    draw, font = ImageDraw.Draw(image), default_font()
    drawn = []
    for box in boxes:
        if all(map(math.isfinite, box.edges)):
            left, right = _pixels(box.edges[0], box.edges[2], across, image.width)
            top, bottom = _pixels(box.edges[1], box.edges[3], down, image.height)
            if right - left > 1 and bottom - top > 1:
                draw.rectangle((left + 1, top + 1, right - 1, bottom - 1), outline=DARK)
            draw.rectangle((left, top, right, bottom), outline=LIGHT)
            drawn.append((box.name, left, top, bottom))
    taken: list[tuple[int, int, int]] = []  # left, right and top in pixels
    for name, left, top, bottom in drawn:
        text = fitted(legible(name, 60), image.width - 4, font)
        width = math.ceil(font.getlength(text)) + 4
        x = min(left, image.width - width)
        for y in (top - LINE, top, bottom - LINE + 1, bottom + 1):
            inside = x >= 0 and 0 <= y <= image.height - LINE
            if name and inside and all(x >= b or x + width <= a or abs(y - c) >= LINE for a, b, c in taken):
                draw.rectangle((x, y, x + width - 1, y + LINE - 1), fill=LIGHT)
                draw.text((x + 2, y + 1), text, font=font, fill=DARK)
                taken.append((x, x + width, y))
                break


def _pixels(start: float, end: float, scale: float, side: int) -> tuple[int, int]:
    """Return the outermost pixels of a box along a side of an image."""
    first, last = (min(max(pixel, 0), side - 1) for pixel in (round(start * scale), round(end * scale) - 1))
    return first, max(first, last)


def draw_sheet(shown: Sequence[ShownRow]) -> bytes:
    """Return a PNG of these rows: at least eight per line, each in a cell 128 pixels wide."""
    captions = [one.lines() for one in shown]
    high = max((one.image.height for one in shown if one.image), default=SIDE)
    cell = (SIDE, high + LINE * max(map(len, captions)) + 2)
    columns = min(len(shown), max(COLUMNS, math.isqrt(len(shown) - 1) + 1))
    lines = math.ceil(len(shown) / columns)
    sheet = Image.new("RGB", (columns * (cell[0] + GAP) + GAP, lines * (cell[1] + GAP) + GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), default_font()
    for index, (one, caption) in enumerate(zip(shown, captions, strict=True)):
        line, column = divmod(index, columns)
        left, top = GAP + column * (cell[0] + GAP), GAP + line * (cell[1] + GAP)
        width, height = one.image.size if one.image else (SIDE, high)
        y = top + high - height
        if one.image is not None:
            sheet.paste(one.image, (left, y))
        if one.damaged:
            draw.rectangle((left - 3, y - 3, left + width + 2, y + height + 2), outline=RED, width=3)
        colors = [INK] * (len(caption) - 1) + [RED if one.damaged else FAINT]
        for number, (text, color) in enumerate(zip(caption, colors, strict=True)):
            place = (left, top + high + 3 + number * LINE)
            draw.text(place, fitted(text, SIDE, font), font=font, fill=color)
    encoded = io.BytesIO()
    sheet.save(encoded, "PNG")
    return encoded.getvalue()
