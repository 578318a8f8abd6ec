"""What rejects.tsv lists: the number of each kind, and the first of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from decodeonce.store import Reject, Store
from decodeonce.store.table import read_rejects

LISTED = 500  # lines in the page
PICTURED = 24  # unusual images, and as many rejected ones
OF_A_KIND = 4  # images
ODD = "kept"  # the action for an image that is in the store


@dataclass
class Rejects:
    """The number of lines of each (action, kind of reason), the first lines, and those to show as images."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    listed: list[Reject] = field(default_factory=list)
    pictured_odd: list[Reject] = field(default_factory=list)
    pictured_rejects: list[Reject] = field(default_factory=list)

    @property
    def odd(self) -> int:
        """The number of images that are in the store."""
        return sum(number for (action, _), number in self.counts.items() if action == ODD)

    @property
    def rejected(self) -> int:
        """The number of images that are not."""
        return self.counts.total() - self.odd


def gather_rejects(store: Store) -> Rejects:
    """Read rejects.tsv; raise StoreError if a line is malformed."""
    found = Rejects()
    for reject in read_rejects(store.paths.rejects):
        kind = (reject.action, reject.reason.partition(":")[0])  # "garbled" of "garbled: Corrupt JPEG data"
        found.counts[kind] += 1
        if len(found.listed) < LISTED:
            found.listed.append(reject)
        pictured = found.pictured_odd if reject.action == ODD else found.pictured_rejects
        if found.counts[kind] <= OF_A_KIND and len(pictured) < PICTURED:
            pictured.append(reject)
    return found
