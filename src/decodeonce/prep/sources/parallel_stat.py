"""Asking a file system for much: one by one, or by threads where each question is a round trip."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Protocol, TypeVar

from decodeonce.host import network_file_system
from decodeonce.prep.entry import Entry
from decodeonce.prep.sources.base import file_entry
from decodeonce.prep.sources.links import Links

# A stat takes a network file system 0.2 to 1 ms. With 0.5 ms each 50,000 files took 35 to 78 s one by one and 4 to 9 s
# with 16 threads; from a local disk's cache 1.0 s one by one and 1.8 s with threads: hence one by one there.
STAT_THREADS = 16
STATS_AT_ONCE = 4096  # what is asked for ahead, a few megabytes
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Map(Protocol):
    """What the built-in `map` does, by threads or not: answers come in the order of what is asked."""

    def __call__(self, ask: Callable[[Asked], Answer], what: Sequence[Asked], /) -> Iterator[Answer]: ...


@contextmanager
def asking(top: Path) -> Iterator[Map]:
    """How to ask the file system of `top` much: by threads where each question is a round trip."""
    with ThreadPoolExecutor(STAT_THREADS) as threads:
        yield threads.map if network_file_system(top) else map


def file_entries(root: Path, paths: Sequence[bytes], label: int, each: Map, links: Links) -> Iterator[Entry]:
    """The entries of these files below root, in their order."""
    entry_of = partial(file_entry, root, label=label, links=links)
    for first in range(0, len(paths), STATS_AT_ONCE):
        yield from each(entry_of, paths[first : first + STATS_AT_ONCE])


def stat_entries(root: Path, listed: Iterable[Entry], links: Links) -> Iterator[Entry]:
    """Entries, in their order, with size and mtime of their files below `root`; those with a problem stay as they are.

    The first says whether they lie on a network file system.
    """
    entries = iter(listed)
    first = next(entries, None)
    if first is None:
        return
    entries, looked_at = chain([first], entries), partial(_stat_entry, root, links)
    folder = os.path.dirname(os.path.join(os.fsencode(root), first.name))
    with asking(Path(os.fsdecode(folder)) if os.path.isdir(folder) else root) as each:
        while some := list(islice(entries, STATS_AT_ONCE)):
            yield from each(looked_at, some)


def _stat_entry(root: Path, links: Links, entry: Entry) -> Entry:
    return entry if entry.problem else file_entry(root, entry.name, entry.label, links)
