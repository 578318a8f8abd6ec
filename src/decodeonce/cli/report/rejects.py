"""Read rejects.tsv: count the lines of each kind, and keep the lines that the page lists or shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from decodeonce.store import Reject, Store
from decodeonce.store.table import read_rejects

MAX_LISTED = 500  # lines
MAX_SHOWN = 24  # unusual images, and the same number of rejected images
MAX_PER_KIND = 4  # images shown per kind of reason
KEPT = "kept"  # the action for an unusual image, which is in the store


@dataclass
class Rejects:
    """The lines of rejects.tsv: `counts` maps (action, kind of reason) to a number of lines, `listed` are the first.

    `shown_unusual` and `shown_rejects` are the lines whose images the page shows.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    listed: list[Reject] = field(default_factory=list)
    shown_unusual: list[Reject] = field(default_factory=list)
    shown_rejects: list[Reject] = field(default_factory=list)

    @property
    def unusual(self) -> int:
        """The number of unusual images; they are in the store."""
        return sum(number for (action, _), number in self.counts.items() if action == KEPT)

    @property
    def rejected(self) -> int:
        """The number of images that are not in the store."""
        return self.counts.total() - self.unusual


def gather_rejects(store: Store) -> Rejects:
    """Read rejects.tsv; raise StoreError if a line is malformed."""
    rejects = Rejects()
    for reject in read_rejects(store.paths.rejects):
        kind = (reject.action, reject.reason.partition(":")[0])  # "garbled: Corrupt JPEG data" is of kind "garbled"
        rejects.counts[kind] += 1
        if len(rejects.listed) < MAX_LISTED:
            rejects.listed.append(reject)
        shown = rejects.shown_unusual if reject.action == KEPT else rejects.shown_rejects
        if rejects.counts[kind] <= MAX_PER_KIND and len(shown) < MAX_SHOWN:
            shown.append(reject)
    return rejects
