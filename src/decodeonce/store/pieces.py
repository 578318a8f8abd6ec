"""Pieces of a store's rows. One thread reads a piece at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from decodeonce.store.manifest import Manifest, Shard
from decodeonce.store.shard_file import PAGE

# Large enough for storage with a high latency, and small enough for the processor's cache: a piece is hashed and
# written right after it was read.
PIECE_BYTES = 4 << 20


class Piece(NamedTuple):
    """Consecutive rows of one shard."""

    shard: Shard
    rows: range

    @property
    def offset(self) -> int:
        """The byte of the shard's file at which the rows begin."""
        return self.shard.offset(self.rows.start)

    @property
    def nbytes(self) -> int:
        """Size of the rows in bytes."""
        return len(self.rows) * self.shard.row_bytes


def pieces(manifest: Manifest, rows: range) -> Iterator[Piece]:
    """Yield pieces that cover `rows` in order.

    If a small number of rows fills whole pages, every piece except the first and last consists of whole pages.
    """
    step = rows_per_piece(manifest)
    for shard in manifest.shards:
        held = shard.held_rows(rows)
        first = held.start
        while first < held.stop:
            last = min(held.stop, shard.first_row + ((first - shard.first_row) // step + 1) * step)
            yield Piece(shard, range(first, last))
            first = last


def rows_per_piece(manifest: Manifest) -> int:
    """Return the maximum number of rows in a piece."""
    step = max(1, PIECE_BYTES // manifest.row_bytes)
    whole_pages = PAGE // math.gcd(PAGE, manifest.row_bytes)
    return -(-step // whole_pages) * whole_pages if whole_pages <= 4 * step else step
