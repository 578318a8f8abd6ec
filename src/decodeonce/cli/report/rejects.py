"""What rejects.tsv says, told by kind: how many of each, and the first of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from decodeonce.store import Reject, Store
from decodeonce.store.table import read_rejects

LISTED = 500  # lines in the page
PICTURED = 24  # of the odd, and as many of the rejected
OF_A_KIND = 4  # pictures
ODD = "kept"  # the action of a picture that is in the store


@dataclass
class Rejects:
    """The lines of a rejects.tsv: how many of each (action, kind of reason), and the first as they stand."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    listed: list[Reject] = field(default_factory=list)
    pictured: list[Reject] = field(default_factory=list)

    @property
    def odd(self) -> int:
        """How many are in the store all the same."""
        return sum(number for (action, _), number in self.counts.items() if action == ODD)

    @property
    def rejected(self) -> int:
        """How many are not."""
        return self.counts.total() - self.odd


def kind_of(reason: str) -> str:
    """What a reason has in common with others: "garbled" of "garbled: Corrupt JPEG data"."""
    return reason.partition(":")[0]


def gather_rejects(store: Store) -> Rejects:
    """Read rejects.tsv; StoreError where a line is none."""
    found, pictured = Rejects(), Counter[bool]()
    for reject in read_rejects(store.paths.rejects):
        kind, odd = (reject.action, kind_of(reject.reason)), reject.action == ODD
        found.counts[kind] += 1
        if len(found.listed) < LISTED:
            found.listed.append(reject)
        if found.counts[kind] <= OF_A_KIND and pictured[odd] < PICTURED:
            pictured[odd] += 1
            found.pictured.append(reject)
    return found
