"""Images of a batch as planes in blocks of BC4, which take a quarter of the bytes of RGB. See store/bc4.py."""

from __future__ import annotations

import torch
from torch import Tensor

from decodeonce.loader.planes import Planes
from decodeonce.store.bc4 import blocks_of, plane_sizes, unpack_blocks
from decodeonce.store.pixels import Pixels


class Blocks(Planes):
    """How rows of bytes hold images: the planes of ``Planes``, each in blocks of 4x4 values.

    With ``Loader(pixels="stored")``, a batch of a bc4 store has one as ``batch.planes``.
    """

    pixels = "bc4"

    def planes(self, rows: Tensor) -> Tensor:
        """Return the planes of images in rows (B, H * W * 3 / 4), uint8 (B, H * W * 3 / 2), on any device."""
        sizes = plane_sizes(self.height, self.width)
        planes = zip(rows.split([height * width // 2 for height, width in sizes], 1), sizes, strict=True)
        return torch.cat([_values(plane.unflatten(1, (h // 4, w // 4, 8))) for plane, (h, w) in planes], 1)

    def parts(self, row: Pixels, top: int, left: int, bottom: int, right: int) -> list[Pixels]:
        """Return Y and, of half the height and width, U and V of a window with even edges, from the blocks under it."""
        parts = []
        for blocks, step in zip(blocks_of(row, self.height, self.width), (1, 2, 2), strict=True):
            y, x, end_y, end_x = top // step, left // step, bottom // step, right // step
            values = unpack_blocks(blocks[y // 4 : -(-end_y // 4), x // 4 : -(-end_x // 4)])
            parts.append(values[y % 4 : y % 4 + end_y - y, x % 4 : x % 4 + end_x - x])
        return parts


def _values(blocks: Tensor) -> Tensor:
    """The values of blocks (B, rows, columns, 8), uint8 (B, rows * columns * 16), line by line."""
    batch, rows, columns, _ = blocks.shape
    out = torch.empty((batch, rows, 4, columns, 4), dtype=torch.uint8, device=blocks.device)
    low = blocks[..., 1].to(torch.int32)
    span = blocks[..., 0] - low
    for half in range(2):  # two lines have 24 bits, three bytes
        bits = sum(blocks[..., 2 + 3 * half + byte].to(torch.int32) << 8 * byte for byte in range(3))
        for value in range(8):
            number = bits >> 3 * value & 7
            sevenths = -(number ^ (number < 2)) & 7
            line, column = divmod(8 * half + value, 4)
            out[:, :, line, :, column] = low + torch.div(span * sevenths + 3, 7, rounding_mode="floor")
    return out.view(batch, -1)
