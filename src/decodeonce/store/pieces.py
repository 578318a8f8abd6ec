"""A store's rows in pieces that one thread reads at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from decodeonce.store.manifest import Manifest, Shard
from decodeonce.store.shard_file import PAGE

# Large enough for storage that takes long to answer, small enough for the processor's cache: a piece is hashed and
# written right after it was read.
PIECE_BYTES = 4 << 20


class Piece(NamedTuple):
    """Rows of the store that lie in one shard."""

    shard: Shard
    rows: range

    @property
    def offset(self) -> int:
        """The byte of the shard's file at which they begin."""
        return self.shard.offset(self.rows.start)

    @property
    def nbytes(self) -> int:
        """Their size."""
        return len(self.rows) * self.shard.row_bytes


def pieces(manifest: Manifest, rows: range) -> Iterator[Piece]:
    """These rows of the store in their order; the pieces between the ends are whole pages if a few rows are."""
    step = rows_per_piece(manifest)
    for shard in manifest.shards:
        held = shard.held_rows(rows)
        first = held.start
        while first < held.stop:
            last = min(held.stop, shard.first_row + ((first - shard.first_row) // step + 1) * step)
            yield Piece(shard, range(first, last))
            first = last


def rows_per_piece(manifest: Manifest) -> int:
    """The most rows that a piece has."""
    step = max(1, PIECE_BYTES // manifest.row_bytes)
    whole_pages = PAGE // math.gcd(PAGE, manifest.row_bytes)
    return -(-step // whole_pages) * whole_pages if whole_pages <= 4 * step else step
