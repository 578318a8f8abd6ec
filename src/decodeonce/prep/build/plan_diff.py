"""Compare a source with its plan, and name the first change of each kind."""

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

# Listings are compared by hashes of 16 bytes per sample. Python objects would take 700 bytes, 10 GB for 14 million.
HASHES = np.dtype([("name", "<u8"), ("facts", "<u8")])
hash_of = xxhash.xxh3_64_intdigest
Samples = Iterator[tuple[bytes, int, int]]


def check_matches_plan(plan: Plan, listing: Listing, facts: dict[str, Any]) -> None:
    """Raise BuildError unless `facts` match the plan; only the location of the source may differ."""
    if plan.facts["recipe"] != facts["recipe"]:
        raise BuildError(
            f"{plan.paths.root}: planned with a different recipe: "
            f"{'; '.join(differences(facts['recipe'], plan.facts['recipe']))}; use the plan's settings, or remove OUT "
            "and build again"
        )
    columns = [[column["name"] for column in some["columns"]] for some in (facts, plan.facts)]
    if columns[0] != columns[1]:
        asked, there = (", ".join(names) or "none" for names in columns)
        message = f"planned with the columns {there}, but this command asks for {asked}"
        advice = "pass the plan's --column, or remove OUT and build again"
        raise BuildError(f"{plan.paths.root}: {message}; {advice}")
    planned, found = plan.facts["source"], facts["source"]
    if planned["frozen"] != found["frozen"]:
        summary, out = changes(plan, listing), plan.paths.root
        if planned["root"] != found["root"]:
            raise BuildError(
                f"{out}: planned from {planned['root']} ({planned['kind']}), but SRC is {found['root']} "
                f"({found['kind']}): {summary}; pass the planned SRC, or remove OUT and build again"
            )
        raise BuildError(
            f"{planned['root']}: the source changed since the plan: {summary}; restore it, or remove {out} and build "
            "again"
        )
    if plan.facts["classes"] != facts["classes"] or planned["kind"] != found["kind"]:
        raise BuildError(
            f"{plan.paths.root}: planned as {planned['kind']} with {len(plan.facts['classes'])} classes, now "
            f"{found['kind']} with {len(facts['classes'])}, or class names differ; pass the same source, or remove OUT "
            "and build again"
        )


def changes(plan: Plan, listing: Listing) -> str:
    """Summarize how a newly scanned source differs from the plan, with the first change of each kind."""
    planned, found = _hashes(_planned(plan), plan.count), _hashes(_found(listing), len(listing))
    _, here, there = np.intersect1d(planned["name"], found["name"], assume_unique=True, return_indices=True)
    parts = [
        _count("new", np.setdiff1d(found["name"], planned["name"], assume_unique=True), _found(listing)),
        _count("gone", np.setdiff1d(planned["name"], found["name"], assume_unique=True), _planned(plan)),
        _count("changed", planned["name"][here[planned["facts"][here] != found["facts"][there]]], _planned(plan)),
    ]
    return "; ".join(filter(None, parts)) or "the same images with other classes, boxes, values, places or rejects"


def _count(kind: str, names: NDArray[np.uint64], samples: Samples) -> str:
    if not len(names):
        return ""
    wanted = set(names.tolist())
    first = min(name for name, _, _ in samples if hash_of(name) in wanted)
    return f"{len(names)} {kind} (first {name_text(first)})"


def _hashes(samples: Samples, count: int) -> NDArray[np.void]:
    """Return one record per name, sorted: an image with several boxes has several samples."""
    each = ((hash_of(name), hash_of(b"%d %d" % (size, mtime_ns))) for name, size, mtime_ns in samples)
    hashes = np.fromiter(each, HASHES, count)
    return hashes[np.unique(hashes["name"], return_index=True)[1]]


def _planned(plan: Plan) -> Samples:
    for first in range(0, plan.count, CHUNK):
        for name, _, size, mtime_ns in plan.values(first, min(first + CHUNK, plan.count)):
            yield name, size, mtime_ns


def _found(listing: Listing) -> Samples:
    start = 0
    for length, size, mtime_ns in zip(listing.name_bytes, listing.sizes, listing.mtimes_ns, strict=True):
        yield bytes(listing.names[start : start + length]), int(size), int(mtime_ns)
        start += int(length)
