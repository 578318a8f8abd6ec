"""A map that holds a process where a test wants it: `GATES` has lines `point fifo`, each point is passed once.

A point is `map:NAME` (before the picture of this name is done), or `CALL:FILE` for a call of disk.py on a file of this
name: before it; `half:FILE@OFFSET`, `wrote:FILE@OFFSET`: when half, or all, of a pwrite there is done. A process that
comes there opens the pipe for reading, which whoever opens it for writing waits for, and stays until that is closed.
"""

from __future__ import annotations

import os
from typing import Any

from decodeonce.prep.pixels.user_map import MapSample, Pixels
from decodeonce.store import disk

gates = dict(line.split(" ", 1) for line in os.environ.get("GATES", "").splitlines())
pwrite, replace, unlink = disk.pwrite, disk.replace, disk.unlink


def unchanged(pixels: Pixels, sample: MapSample) -> Pixels:
    """The map: every picture as it is."""
    wait_at(f"map:{os.path.basename(sample.source)}")
    return pixels


def wait_at(point: str) -> None:
    """Wait for whoever opens this point's pipe to close it; at once where the point has none."""
    if fifo := gates.pop(point, None):
        with open(fifo, "rb") as pipe:
            pipe.read()


def _pwrite(fd: int, data: Any, offset: int) -> int:
    place = f"{os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}@{offset}"
    if f"half:{place}" in gates:
        done = pwrite(fd, data[: len(data) // 2], offset)
        wait_at(f"half:{place}")
        return done
    done = pwrite(fd, data, offset)
    wait_at(f"wrote:{place}")
    return done


def _replace(source: Any, target: Any) -> None:
    wait_at(f"replace:{os.path.basename(target)}")
    replace(source, target)


def _unlink(path: Any) -> None:
    wait_at(f"unlink:{os.path.basename(path)}")
    unlink(path)


if gates:
    vars(disk).update(pwrite=_pwrite, replace=_replace, unlink=_unlink)
