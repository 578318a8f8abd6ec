"""A row as a small picture, and the words under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from decodeonce.cli import printable
from decodeonce.errors import DecodeonceError
from decodeonce.store.manifest import ImageClass
from decodeonce.store.table import escape

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 128


@dataclass(frozen=True)
class ShownRow:
    """A row as it is shown: its picture, None where that cannot be read, its class, None where labels are damaged."""

    row: int
    image: Image | None
    cls: ImageClass | None
    damaged: bool

    def lines(self, most: int = 200) -> list[str]:
        """What stands under the picture: what people call the class, its name, the row; names cut to `most` letters."""
        names = [self.cls.description, self.cls.name] if self.cls else ["", "of a class not known"]
        return [
            *(legible(name, most) for name in names if name),
            f"row {self.row}{': damaged' if self.damaged else ''}",
        ]


def legible(name: str, most: int = 200) -> str:
    """A name for people: on one line, with escapes for what is not seen, as samples.tsv has them, and not endless."""
    shown = printable(escape(name[: most + 1]).replace("\\\\", "\\"))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def need_pillow(what: str) -> None:
    """DecodeonceError, which says what to install, where there is no Pillow to make this."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise DecodeonceError(f'no Pillow here to {what}; run: pip install "decodeonce[prep-pillow]"') from None


def thumbnail(pixels: NDArray[np.uint8]) -> Image:
    """(H, W, C) as an RGB picture of at most 128 pixels a side; small ones enlarged by a whole number.

    Of one or two channels the first is shown as grey, of more than three the first three as colours.
    """
    from PIL import Image

    seen = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., 0]
    image = Image.fromarray(np.ascontiguousarray(seen)).convert("RGB")
    longest = max(image.size)
    if longest <= SIDE:
        factor = SIDE // longest
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    width, height = (max(1, round(side * SIDE / longest)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BOX)
