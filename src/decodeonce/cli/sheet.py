"""A contact sheet: rows of a store side by side in one PNG, with their classes under them."""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from decodeonce.cli.thumbnail import SIDE, ShownRow

if TYPE_CHECKING:
    from PIL.Image import Image

GAP = 8
COLUMNS = 8
FONT_SIZE = 11
LINE = 15  # pixels from a line of text to the next
PAPER, INK, FAINT, RED = "#ffffff", "#1b1f24", "#59636e", "#c01c28"


def draw_sheet(shown: Sequence[ShownRow]) -> bytes:
    """A PNG of these rows: eight in a line, more where they are many, each in a cell as wide as 128 pixels."""
    from PIL import Image, ImageDraw

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
        _draw_picture(sheet, draw, one, left, top, high)
        for number, text in enumerate(caption):
            last = number == len(caption) - 1
            colour = RED if one.damaged and last else FAINT if last else INK
            place = (left, top + high + 3 + number * LINE)
            draw.text(place, words.fitted(text, SIDE), font=words.font, fill=colour)
    encoded = io.BytesIO()
    sheet.save(encoded, "PNG")
    return encoded.getvalue()


def _draw_picture(sheet: Image, draw: Any, one: ShownRow, left: int, top: int, high: int) -> None:
    """The picture above its words; a frame around one that is damaged."""
    width, height = one.image.size if one.image else (SIDE, high)
    y = top + high - height
    if one.image is not None:
        sheet.paste(one.image, (left, y))
    if one.damaged:
        draw.rectangle((left - 3, y - 3, left + width + 2, y + height + 2), outline=RED, width=3)


def default_font() -> Any:
    """Pillow's own font of 11 pixels; where it is built without FreeType, its only one."""
    from PIL import ImageFont, features

    return ImageFont.load_default(FONT_SIZE if features.check("freetype2") else None)


class SheetFont:
    """Texts as a font can draw them; Pillow's own has little more than the letters of English."""

    def __init__(self, font: Any) -> None:
        self.font = font

    @cached_property
    def _unknown(self) -> bytes | None:
        """What the font draws for a character that it has not; None for a font without FreeType, which refuses."""
        from PIL import ImageFont

        return bytes(self.font.getmask("\uffff")) if isinstance(self.font, ImageFont.FreeTypeFont) else None

    def _has(self, character: str) -> bool:
        try:
            return bytes(self.font.getmask(character)) != self._unknown
        except UnicodeEncodeError:
            return False

    def _drawable(self, character: str) -> str:
        """The character, or its letter without accents, or an escape: what the font has."""
        if character.isascii() or self._has(character):
            return character
        plain = "".join(c for c in unicodedata.normalize("NFKD", character) if c.isascii())
        return plain or character.encode("unicode_escape").decode()

    def fitted(self, text: str, width: int) -> str:
        """The text in characters that can be drawn, cut with an ellipsis to so many pixels."""
        drawable = "".join(map(self._drawable, text[:width]))
        if self.font.getlength(drawable) <= width:
            return drawable
        kept = drawable[:width]
        while kept and self.font.getlength(kept + "...") > width:
            kept = kept[:-1]
        return kept.rstrip() + "..."
