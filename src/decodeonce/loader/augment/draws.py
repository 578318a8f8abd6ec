"""Random numbers that depend only on seed, epoch, step and row, generated on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decodeonce.splitmix import FACTOR_1, FACTOR_2, GOLDEN

_BITS = 24  # the precision of float32


def mix_words(words: Tensor) -> Tensor:
    """Mix 64-bit words as ``decodeonce.splitmix.mix`` does, on any device.

    Args:
        words: int64, any shape; the bits are those of unsigned words.

    Returns:
        Tensor: int64, the same shape.
    """
    words = (words ^ _shift_right(words, 30)) * _signed(FACTOR_1)
    words = (words ^ _shift_right(words, 27)) * _signed(FACTOR_2)
    return words ^ _shift_right(words, 31)


@dataclass(frozen=True, eq=False)
class Draws:
    """The random numbers of one step for the rows of a batch.

    The numbers of a row depend only on `key` and the row, not on the batch. ``Augment`` creates the draws and passes
    them to its steps.

    Args:
        key: 64-bit key, derived from seed, epoch and the number of the step.
        rows: int64 (B,), row numbers in the store.
        epoch: Epoch of the batch. Default: 0.
    """

    key: int
    rows: Tensor
    epoch: int = 0

    def uniform(self, count: int) -> Tensor:
        """Return uniform random numbers for each row. Calling it again returns the same numbers.

        Number i of a row consists of the upper bits of ``derive_key(seed, epoch, step, row, i)``.

        Args:
            count: Numbers per row.

        Returns:
            Tensor: float32 (B, count) in [0, 1), multiples of 2**-24, on the device of the batch.
        """
        words = mix_words(self.rows ^ _signed(self.key + GOLDEN)) + _signed(GOLDEN)
        words = mix_words(words[:, None] ^ torch.arange(count, device=words.device))
        return _shift_right(words, 64 - _BITS).to(torch.float32) * 2.0**-_BITS


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; `>>` would repeat the sign bit."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
