"""Random numbers that follow from seed, epoch, step and row, made on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decodeonce.splitmix import FACTOR_1, FACTOR_2, GOLDEN

_BITS = 24  # as many as a float32 holds


def mix_words(words: Tensor) -> Tensor:
    """`decodeonce.splitmix.mix` on a device: an int64 tensor stands for 64-bit words of the same bits."""
    words = (words ^ _shift_right(words, 30)) * _signed(FACTOR_1)
    words = (words ^ _shift_right(words, 27)) * _signed(FACTOR_2)
    return words ^ _shift_right(words, 31)


@dataclass(frozen=True, eq=False)
class Draws:
    """One step's random numbers for the rows of a batch: those of a row are a function of `key` and the row alone.

    key: 64 bits. rows: (B,) int64. epoch: the epoch of the batch.
    """

    key: int
    rows: Tensor
    epoch: int = 0

    def uniform(self, count: int) -> Tensor:
        """(B, count) float32 in [0, 1), multiples of 2**-24; a second call gives the same numbers.

        Number i of a row is made of the upper bits of `derive_key(seed, epoch, step, row, i)`.
        """
        words = mix_words(self.rows ^ _signed(self.key + GOLDEN)) + _signed(GOLDEN)
        words = mix_words(words[:, None] ^ torch.arange(count, device=words.device))
        return _shift_right(words, 64 - _BITS).to(torch.float32) * 2.0**-_BITS


def _signed(word: int) -> int:
    """The int64 of the same 64 bits."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Zeros come in from the left; `>>` would repeat the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
