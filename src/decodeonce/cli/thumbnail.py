"""A row as a small image with a caption."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from decodeonce.cli import printable
from decodeonce.store.manifest import ImageClass
from decodeonce.store.table import escape

SIDE = 128


@dataclass(frozen=True)
class ShownRow:
    """A row as a thumbnail. `image` is None if the row cannot be read, `cls` is None if the labels are damaged."""

    row: int
    image: Image.Image | None
    cls: ImageClass | None
    damaged: bool

    def lines(self, most: int = 200) -> list[str]:
        """Return the caption: the class in words, its name and the row. Names are cut to `most` characters."""
        names = [self.cls.description, self.cls.name] if self.cls else ["", "unknown class"]
        return [
            *(legible(name, most) for name in names if name),
            f"row {self.row}{': damaged' if self.damaged else ''}",
        ]


def legible(name: str, most: int = 200) -> str:
    """Return a name on one line of at most `most` characters, with the escapes of samples.tsv for invisible ones."""
    shown = printable(escape(name[: most + 1]).replace("\\\\", "\\"))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def thumbnail(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return pixels of shape (H, W, C) as an RGB image of at most 128 pixels per side.

    Smaller images are enlarged by an integer factor. With one or two channels, the first is shown as grey; with more
    than three, the first three are shown as colours.
    """
    seen = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., 0]
    image = Image.fromarray(np.ascontiguousarray(seen)).convert("RGB")
    longest = max(image.size)
    if longest <= SIDE:
        factor = SIDE // longest
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    width, height = (max(1, round(side * SIDE / longest)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BOX)
