"""What a source has that its plan has not, told by the first change of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.prep.build.plan import Plan
from decodeonce.prep.build.row_order import CHUNK
from decodeonce.prep.build.scan import Listing
from decodeonce.prep.entry import name_text
from decodeonce.prep.recipe import differences

# Two listings are compared by these, 16 bytes a sample: as Python objects they would take 700, 10 GB for 14 million.
PRINT = np.dtype([("name", "<u8"), ("facts", "<u8")])
hashed = xxhash.xxh3_64_intdigest
Samples = Iterator[tuple[bytes, int, int]]


def check_matches_plan(plan: Plan, listing: Listing, facts: dict[str, Any]) -> None:
    """Raise BuildError unless these facts are the plan's own but for the place of the source, which may have moved."""
    if plan.facts["recipe"] != facts["recipe"]:
        raise BuildError(
            f"{plan.paths.root}: planned with another recipe: "
            f"{'; '.join(differences(facts['recipe'], plan.facts['recipe']))}; go on with the plan's, or remove OUT"
        )
    columns = [[column["name"] for column in some["columns"]] for some in (facts, plan.facts)]
    if columns[0] != columns[1]:
        asked, there = (", ".join(names) or "none" for names in columns)
        told = f"planned with the columns {there}, this asks for {asked}; give the plan's --column, or remove OUT"
        raise BuildError(f"{plan.paths.root}: {told}")
    planned, found = plan.facts["source"], facts["source"]
    if planned["frozen"] != found["frozen"]:
        told, out = changes(plan, listing), plan.paths.root
        if planned["root"] != found["root"]:
            raise BuildError(
                f"{out}: planned from {planned['root']} ({planned['kind']}), this is {found['root']} "
                f"({found['kind']}): {told}; give that, or remove OUT and build again"
            )
        raise BuildError(
            f"{planned['root']}: the source changed since the plan: {told}; put it back, or remove {out} and build "
            "again"
        )
    if plan.facts["classes"] != facts["classes"] or planned["kind"] != found["kind"]:
        raise BuildError(
            f"{plan.paths.root}: planned as {planned['kind']} with {len(plan.facts['classes'])} classes, now "
            f"{found['kind']} with {len(facts['classes'])}, or with other names; give the same, or remove OUT"
        )


def changes(plan: Plan, listing: Listing) -> str:
    """What a source scanned again has that the plan has not: a sentence for the first change of each kind."""
    planned, found = _prints(_planned(plan), plan.count), _prints(_found(listing), len(listing))
    _, here, there = np.intersect1d(planned["name"], found["name"], assume_unique=True, return_indices=True)
    told = [
        _told("new", np.setdiff1d(found["name"], planned["name"], assume_unique=True), _found(listing)),
        _told("gone", np.setdiff1d(planned["name"], found["name"], assume_unique=True), _planned(plan)),
        _told("changed", planned["name"][here[planned["facts"][here] != found["facts"][there]]], _planned(plan)),
    ]
    return (
        "; ".join(filter(None, told))
        or "the same pictures under other classes, with other boxes or values or at other places, or other rejects"
    )


def _told(kind: str, names: NDArray[np.uint64], samples: Samples) -> str:
    if not len(names):
        return ""
    wanted = set(names.tolist())
    first = min(name for name, _, _ in samples if hashed(name) in wanted)
    return f"{len(names)} {kind} (first {name_text(first)})"


def _prints(samples: Samples, count: int) -> NDArray[np.void]:
    """One of each name, ascending: a picture with several boxes has as many samples."""
    each = ((hashed(name), hashed(b"%d %d" % (size, mtime_ns))) for name, size, mtime_ns in samples)
    prints = np.fromiter(each, PRINT, count)
    return prints[np.unique(prints["name"], return_index=True)[1]]


def _planned(plan: Plan) -> Samples:
    for first in range(0, plan.count, CHUNK):
        for name, _, size, mtime_ns in plan.values(first, min(first + CHUNK, plan.count)):
            yield name, size, mtime_ns


def _found(listing: Listing) -> Samples:
    start = 0
    for length, size, mtime_ns in zip(listing.name_bytes, listing.sizes, listing.mtimes_ns, strict=True):
        yield bytes(listing.names[start : start + length]), int(size), int(mtime_ns)
        start += int(length)
