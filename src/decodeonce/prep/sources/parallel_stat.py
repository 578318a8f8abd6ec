"""Read size and mtime of many files: one by one, or with threads if each call is a round trip to a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from decodeonce.host import network_file_system
from decodeonce.prep.entry import Entry
from decodeonce.prep.sources.base import file_entry
from decodeonce.prep.sources.links import Links

# A stat takes 0.2 to 1 ms on a network file system. At 0.5 ms each, 50,000 files took 35 to 78 s one by one and 4 to
# 9 s with 16 threads. From a local disk's cache they took 1.0 s one by one and 1.8 s with threads, so threads are only
# used on network file systems.
STAT_THREADS = 16
STATS_AT_ONCE = 4096  # entries requested ahead: a few megabytes
Item = TypeVar("Item")
Result = TypeVar("Result")


def parallel_map(
    top: Path, function: Callable[[Item], Result], items: Iterable[Item], at_once: int | None = None
) -> Iterator[Result]:
    """Map a function over items in their order, with threads if `top` is on a network file system.

    Args:
        top: A path on the file system that `function` reads.
        function: The function to call for each item.
        items: The items. Up to `at_once` of them are taken ahead.
        at_once: Items per round of the threads; default `STATS_AT_ONCE`, 4096.
    """
    if not network_file_system(top):
        yield from map(function, items)
        return
    left = iter(items)
    with ThreadPoolExecutor(STAT_THREADS) as threads:
        while some := list(islice(left, at_once or STATS_AT_ONCE)):
            yield from threads.map(function, some)


def stat_entries(root: Path, listed: Iterable[Entry], links: Links) -> Iterator[Entry]:
    """Yield the entries in their order, with size and mtime of their files below `root`.

    Entries with a problem stay as they are. The folder of the first entry decides whether threads are used.
    """
    entries = iter(listed)
    first = next(entries, None)
    if first is None:
        return
    folder = os.path.dirname(os.path.join(os.fsencode(root), first.name))
    top = Path(os.fsdecode(folder)) if os.path.isdir(folder) else root
    yield from parallel_map(top, partial(_stat_entry, root, links), chain([first], entries))


def _stat_entry(root: Path, links: Links, entry: Entry) -> Entry:
    if entry.problem:
        return entry
    found = file_entry(root, entry.name, entry.label, links)
    return replace(found, values=entry.values) if entry.values else found
