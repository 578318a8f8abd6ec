"""A rank's rows in the device's own memory, for stores that fit there."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce.loader.backend import Shape, StreamBackend
from decodeonce.loader.steps import Rows


class DeviceCache:
    """A range of a store's rows on the device, each from when it first came there.

    All calls queue their work on the calling thread's current stream, which has to be the same one for all of them.
    """

    def __init__(self, backend: StreamBackend, rows: range, row_shape: Shape) -> None:
        try:
            self.images = backend.empty((len(rows), *row_shape))
        except RuntimeError as error:  # torch.OutOfMemoryError is one; the host's allocator raises it as it is
            nbytes = len(rows) * math.prod(row_shape)
            advice = "take more ranks, a smaller store, or no cache"
            raise ValueError(f'cache="device": {nbytes / 1e9:.1f} GB of rows do not fit; {advice} ({error})') from error
        self._backend = backend
        self._first_row = rows.start
        self._kept: NDArray[np.bool_] = np.zeros(len(rows), np.bool_)

    @property
    def rows(self) -> int:
        """How many rows are there by now."""
        return int(self._kept.sum())

    def lacking(self, rows: Rows) -> Rows:
        """Those of `rows` that are not there yet."""
        return rows[~self._kept[rows - self._first_row]]

    def keep(self, rows: Rows, images: Tensor) -> None:
        """Take images[i], on the device, as row rows[i]."""
        self._backend.put(self.images, self._places(rows), images)
        self._kept[rows - self._first_row] = True

    def batch(self, rows: Rows) -> Tensor:
        """A new tensor of these rows, all of which are there."""
        return self._backend.gather(self.images, self._places(rows))

    def _places(self, rows: Rows) -> Tensor:
        return self._backend.upload(self._backend.pin(torch.from_numpy(rows - self._first_row)))
