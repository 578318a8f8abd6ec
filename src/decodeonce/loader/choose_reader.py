"""Choose how to read a store, by its file system and by its size compared with memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from decodeonce.host import available_memory, is_in_memory, network_file_system

ReaderName = Literal["auto", "pread", "mmap", "direct"]
# Of the memory that is available when a Loader is created. The rest is for other files and for the program itself.
KEPT_MEMORY = 0.8


class Choice(NamedTuple):
    """The name of a reader, why it was chosen, and the share of the rows that it leaves in the page cache."""

    name: ReaderName
    why: str
    kept: float = 1.0


def choose_reader(root: Path, nbytes: int, name: ReaderName = "auto", slots: int = 0) -> Choice:
    """Choose a reader for the store at `root` with `nbytes` of rows; `slots` are the bytes of a Loader's batches."""
    network, memory = network_file_system(root), available_memory()
    if network is not None and name != "pread":
        mmap = "mmap would read page by page, and kill the process if the server is lost"
        return Choice("pread", f"on {network}, {mmap}; direct reads would not use the node's cache")
    why = "requested"
    if name == "auto":
        if memory is None or nbytes <= memory / 2:
            return Choice("mmap", "a local file system, and the rows fit into half of the available memory")
        why = f"{nbytes / 1e9:.1f} GB of rows exceed half of the {memory / 1e9:.1f} GB of available memory"
        name = "pread" if is_in_memory(root) else "direct"
    if name != "direct":
        return Choice(name, why)
    kept = kept_share(nbytes, (memory or 0) - slots)
    return Choice(name, why, kept) if kept < 1 else Choice("pread", f"{why}, but all rows can stay in memory")


def kept_share(nbytes: int, memory: int) -> float:
    """The share of `nbytes` of rows to keep in `memory` bytes, with three decimals."""
    return round(min(1.0, max(0.0, KEPT_MEMORY * memory / nbytes)), 3)
