"""How fast blocks become durable in a folder: as a build's workers write them, several at a time."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from decodeonce.store import disk
from decodeonce.store.files import ShardFile, page_aligned_buffer, remove_file

WRITERS = 8  # at most


def write_rate(folder: Path, block_bytes: int, most_bytes: int, *, writers: int, seconds: float) -> float:
    """Bytes a second of blocks that are written and flushed to a scratch file, for about so long."""
    path = folder / "writes"
    block = page_aligned_buffer(block_bytes)
    block[:] = os.urandom(block_bytes)  # else a file system that compresses would be faster than with pictures
    os.close(disk.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    with ShardFile(path) as shard:
        remove_file(path)  # open still: whatever ends this process frees its space
        writers = min(writers, WRITERS)
        each = max(1, most_bytes // block_bytes // writers)
        shares = [range(writer * each, (writer + 1) * each) for writer in range(writers)]
        start = time.perf_counter()
        with ThreadPoolExecutor(writers) as threads:
            written = sum(threads.map(lambda share: _write(shard, block, share, start + seconds), shares))
        return written / (time.perf_counter() - start)


def _write(shard: ShardFile, block: memoryview, numbers: range, until: float) -> int:
    """Write the block at these places, at least one, until time is over; returns the bytes."""
    written = 0
    for number in numbers:
        shard.write(block, number * len(block))
        shard.sync()
        written += len(block)
        if time.perf_counter() > until:
            break
    return written
