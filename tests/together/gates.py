"""A map that pauses a process at gates chosen by a test. The variable `GATES` has one line `gate fifo` per gate.

Gates are `map:NAME` (before the image NAME is processed), `replace:FILE` and `unlink:FILE` (before this call of disk.py
on a file with this name), `half:FILE@OFFSET` and `wrote:FILE@OFFSET` (after half, or all, of a pwrite). A process that
reaches a gate opens its pipe for reading, and continues when the test closes the other end. A gate pauses only once.
"""

import os
from typing import Any

from decodeonce.prep.pixels.user_map import MapSample
from decodeonce.store import disk
from decodeonce.store.pixels import Pixels

gates = dict(line.split(" ", 1) for line in os.environ.get("GATES", "").splitlines())
pwrite, replace, unlink = disk.pwrite, disk.replace, disk.unlink


def unchanged(pixels: Pixels, sample: MapSample) -> Pixels:
    """Return every image unchanged. This is the map that builds import."""
    wait_at(f"map:{os.path.basename(sample.source)}")
    return pixels


def wait_at(gate: str) -> None:
    """Wait until the test opens and closes the gate's pipe. Return at once if there is no such gate."""
    if fifo := gates.pop(gate, None):
        with open(fifo, "rb") as pipe:
            pipe.read()


def _pwrite(fd: int, data: Any, offset: int) -> int:
    position = f"{os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}@{offset}"
    if f"half:{position}" in gates:
        done = pwrite(fd, data[: len(data) // 2], offset)
        wait_at(f"half:{position}")
        return done
    done = pwrite(fd, data, offset)
    wait_at(f"wrote:{position}")
    return done


def _replace(source: Any, target: Any) -> None:
    wait_at(f"replace:{os.path.basename(target)}")
    replace(source, target)


def _unlink(path: Any) -> None:
    wait_at(f"unlink:{os.path.basename(path)}")
    unlink(path)


if gates:
    vars(disk).update(pwrite=_pwrite, replace=_replace, unlink=_unlink)
