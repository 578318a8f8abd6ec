"""Rows of a quarter of the bytes: the planes of yuv420, each as blocks of BC4, a texture format of graphics cards.

A block holds 4x4 values in 8 bytes: the largest value, the smallest, and 16 numbers of three bits that choose one of
eight values from one to the other. docs/reference/format.md defines them. Graphics libraries call them BC4_UNORM
(Direct3D, Vulkan) or RGTC1 (OpenGL), and can read the planes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decodeonce.store.pixels import Pixels, Yuv420

Blocks = NDArray[np.int64]  # the bytes of each block as a number

# x // (2 * span) == x * _INVERSE[span] >> 21 for all x to 15 * span, which `pack_blocks` divides.
_INVERSE = np.append(0, -(-(2**20) // np.arange(1, 256))).astype(np.uint32)
# What two neighbors add to the smallest value of their block, by its span and their numbers, six bits: one in each byte
# of a uint16. The weights, in sevenths of the span, are in the order of the numbers. 32 KiB stay in a core's cache.
_ADDED = (np.arange(256)[:, None] * np.array([7, 0, 6, 5, 4, 3, 2, 1]) + 3) // 7
_PAIRS = (_ADDED[:, None, :] | _ADDED[:, :, None] << 8).astype("<u2").reshape(-1)


class Bc4(Yuv420):
    """The planes of yuv420 in blocks of BC4. Heights and widths are divisible by 8."""

    def pack_planes(self, planes: bytes | Pixels, height: int, width: int) -> bytes:
        """Return the blocks of Y, U and V, each row by row."""
        return pack_blocks(np.frombuffer(planes, np.uint8), height, width)

    def planes(self, row: Pixels, shape: tuple[int, ...]) -> Pixels:
        """Return the bytes of the planes of an image of `shape` (H, W, 3)."""
        planes = [unpack_blocks(blocks).reshape(-1) for blocks in blocks_of(row, *shape[:2])]
        return np.concatenate(planes)


def plane_sizes(height: int, width: int) -> tuple[tuple[int, int], ...]:
    """Height and width of the planes Y, U and V."""
    return (height, width), (height // 2, width // 2), (height // 2, width // 2)


def pack_blocks(planes: Pixels, height: int, width: int) -> bytes:
    """Return the blocks of the planes of an image, uint8 (H * W * 3 / 2)."""
    values = np.empty((4, 4, len(planes) // 16), np.uint8)  # [line, column, block], so that NumPy works on long lines
    first = 0
    for rows, columns in plane_sizes(height, width):
        last = first + rows * columns // 16
        plane = planes[first * 16 : last * 16].reshape(rows // 4, 4, columns // 4, 4)
        values[:, :, first:last] = plane.transpose(1, 3, 0, 2).reshape(4, 4, -1)
        first = last
    low, high = values.min((0, 1)), values.max((0, 1))
    span = high - low
    # The nearest seventh of the span, halves up, 0 to 7: (14 * value + span) // (2 * span)
    sevenths = (values - low).astype(np.uint32) * np.uint32(14) + span
    sevenths *= _INVERSE[span]
    sevenths >>= np.uint32(21)
    numbers = (8 - sevenths.astype(np.uint16)) & np.uint16(7)
    numbers ^= numbers < 2
    lines = numbers[:, 0] | numbers[:, 1] << 3 | numbers[:, 2] << 6 | numbers[:, 3] << 9
    blocks = high | low.astype("<u8") << np.uint64(8)
    for line, bits in enumerate(lines.astype(np.uint64)):
        blocks |= bits << np.uint64(16 + 12 * line)
    packed: bytes = blocks.astype("<u8").tobytes()
    return packed


def blocks_of(row: Pixels, height: int, width: int) -> list[Blocks]:
    """Return the blocks of the planes in a row as views, each (H / 4, W / 4) of its plane."""
    blocks, count = row[: height * width * 3 // 4].view("<i8"), height * width // 16
    planes = zip(np.split(blocks, [count, count * 5 // 4]), plane_sizes(height, width), strict=True)
    return [plane.reshape(rows // 4, columns // 4) for plane, (rows, columns) in planes]


def unpack_blocks(blocks: Blocks) -> Pixels:
    """Return the values of blocks (rows, columns), uint8 (rows * 4, columns * 4)."""
    rows, columns = blocks.shape
    out = np.empty((rows, 4, columns, 2), "<u2")
    low = blocks >> 8 & 255
    span, lows = (blocks & 255) - low << 6, (low * 0x101).astype("<u2")
    for line in range(4):
        for pair in range(2):
            chosen = blocks >> 16 + 12 * line + 6 * pair
            chosen &= 63
            chosen |= span
            np.add(_PAIRS.take(chosen, mode="clip"), lows, out=out[:, line, :, pair])
    return out.view(np.uint8).reshape(rows * 4, columns * 4)
