"""A contact sheet: rows of a store side by side in one PNG."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import DecodeonceError
from decodeonce.store import disk
from decodeonce.store.files import append

CELL = 128
GAP = 4
COLUMNS = 8


def write_sheet(images: NDArray[np.uint8], path: Path) -> int:
    """Write (n, H, W, 3) uint8 as a sheet of cells no larger than 128 pixels a side; returns n."""
    try:
        from PIL import Image
    except ImportError:
        raise DecodeonceError(
            'no Pillow here to write a PNG; install it with: pip install "decodeonce[prep]"'
        ) from None
    height, width = images.shape[1:3]
    scale = min(1.0, CELL / max(height, width))
    cell = (max(1, round(width * scale)), max(1, round(height * scale)))
    columns = min(COLUMNS, len(images))
    lines = math.ceil(len(images) / columns)
    size = (columns * (cell[0] + GAP) + GAP, lines * (cell[1] + GAP) + GAP)
    sheet = Image.new("RGB", size, "white")
    for index, image in enumerate(images):
        line, column = divmod(index, columns)
        small = Image.fromarray(image).resize(cell, Image.Resampling.BOX)
        sheet.paste(small, (GAP + column * (cell[0] + GAP), GAP + line * (cell[1] + GAP)))
    encoded = io.BytesIO()
    sheet.save(encoded, "PNG")
    fd = disk.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        append(fd, encoded.getbuffer())
    finally:
        os.close(fd)
    return len(images)
