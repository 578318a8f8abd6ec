"""How often each level occurs in each channel, counted exactly."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

LEVELS = 256


@dataclass
class Histogram:
    """`counts`, int64 (C, 256), of the levels in `rows` rows."""

    channels: int
    rows: int = 0
    counts: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros((self.channels, LEVELS), np.int64)

    def add(self, pixels: NDArray[np.uint8]) -> None:
        """Count the levels of a row (H, W, C)."""
        self.rows += 1
        if self.channels in (1, 3):
            from PIL import Image

            # 0.1 ms per row of 256x256; NumPy takes 1.5 ms.
            image = Image.fromarray(pixels if self.channels == 3 else pixels[..., 0])
            self.counts += np.array(image.histogram(), np.int64).reshape(self.channels, LEVELS)
            return
        for channel in range(self.channels):
            self.counts[channel] += np.bincount(pixels[..., channel].ravel(), minlength=LEVELS)

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share of each level in its channel, (C, 256)."""
        found: NDArray[np.float64] = self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        return found

    def bands(self, width: int) -> list[list[float]]:
        """For each run of `width` levels, its share of each channel."""
        found: list[list[float]] = self.shares.reshape(self.channels, -1, width).sum(axis=2).T.tolist()
        return found

    def quantile(self, channel: int, share: float) -> int:
        """The lowest level with at least this share of the channel at or below it."""
        below = np.cumsum(self.counts[channel])
        return int(np.searchsorted(below, share * below[-1]))
