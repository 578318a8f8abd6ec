"""A PNG with a grid of rows of a store, each with its class below it."""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from PIL import Image, ImageDraw, ImageFont, features

from decodeonce.cli.thumbnail import SIDE, ShownRow

GAP = 8
COLUMNS = 8
FONT_SIZE = 11
LINE = 15  # height of a line of text in pixels
PAPER, INK, FAINT, RED = "#ffffff", "#1b1f24", "#59636e", "#c01c28"


def draw_sheet(shown: Sequence[ShownRow]) -> bytes:
    """Return a PNG of these rows: at least eight per line, each in a cell 128 pixels wide."""
    captions = [one.lines() for one in shown]
    high = max((one.image.height for one in shown if one.image), default=SIDE)
    cell = (SIDE, high + LINE * max(map(len, captions)) + 2)
    columns = min(len(shown), max(COLUMNS, math.isqrt(len(shown) - 1) + 1))
    lines = math.ceil(len(shown) / columns)
    sheet = Image.new("RGB", (columns * (cell[0] + GAP) + GAP, lines * (cell[1] + GAP) + GAP), PAPER)
    draw, words = ImageDraw.Draw(sheet), SheetFont(default_font())
    for index, (one, caption) in enumerate(zip(shown, captions, strict=True)):
        line, column = divmod(index, columns)
        left, top = GAP + column * (cell[0] + GAP), GAP + line * (cell[1] + GAP)
        _draw_image(sheet, draw, one, left, top, high)
        for number, text in enumerate(caption):
            last = number == len(caption) - 1
            colour = RED if one.damaged and last else FAINT if last else INK
            place = (left, top + high + 3 + number * LINE)
            draw.text(place, words.fitted(text, SIDE), font=words.font, fill=colour)
    encoded = io.BytesIO()
    sheet.save(encoded, "PNG")
    return encoded.getvalue()


def _draw_image(sheet: Image.Image, draw: Any, one: ShownRow, left: int, top: int, high: int) -> None:
    """Draw the image above its caption, with a frame if the row is damaged."""
    width, height = one.image.size if one.image else (SIDE, high)
    y = top + high - height
    if one.image is not None:
        sheet.paste(one.image, (left, y))
    if one.damaged:
        draw.rectangle((left - 3, y - 3, left + width + 2, y + height + 2), outline=RED, width=3)


def default_font() -> Any:
    """Return Pillow's own font at 11 pixels, or its only bitmap font if it was built without FreeType."""
    return ImageFont.load_default(FONT_SIZE if features.check("freetype2") else None)


class SheetFont:
    """Fit texts to what a font can draw; Pillow's own font has few characters besides ASCII."""

    def __init__(self, font: Any) -> None:
        self.font = font

    @cached_property
    def _unknown(self) -> bytes | None:
        """What the font draws for a missing character; None without FreeType, where drawing it raises an error."""
        return bytes(self.font.getmask("\uffff")) if isinstance(self.font, ImageFont.FreeTypeFont) else None

    def _has(self, character: str) -> bool:
        try:
            return bytes(self.font.getmask(character)) != self._unknown
        except UnicodeEncodeError:
            return False

    def _drawable(self, character: str) -> str:
        """Return the character, or its letter without accents, or an escape, whichever the font has."""
        if character.isascii() or self._has(character):
            return character
        plain = "".join(c for c in unicodedata.normalize("NFKD", character) if c.isascii())
        return plain or character.encode("unicode_escape").decode()

    def fitted(self, text: str, width: int) -> str:
        """Return the text in drawable characters, cut with an ellipsis to `width` pixels."""
        drawable = "".join(map(self._drawable, text[:width]))
        if self.font.getlength(drawable) <= width:
            return drawable
        kept = drawable[:width]
        while kept and self.font.getlength(kept + "...") > width:
            kept = kept[:-1]
        return kept.rstrip() + "..."
