"""What Isolated is asked in test_bounds.py: it dies as libraries do; and a map that stops its worker."""

from __future__ import annotations

import os
import signal

from decodeonce.errors import BuildError
from decodeonce.prep.pixels import memory_limit
from decodeonce.prep.pixels.user_map import MapSample, Pixels
from decodeonce.prep.processes.isolated import MEMORY_BYTES, answer_questions
from decodeonce.prep.sources.formats import tables


def answer(what: str, file: str = "") -> object:
    """Dies, waits, takes memory, reads a table with 64 MiB more than it says, fails or answers."""
    if what == "dies":
        os.abort()
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "waits":
        signal.pause()
    if what == "much":
        return len(bytearray(MEMORY_BYTES))
    if what == "unpacks":
        tables.MORE_BYTES, memory_limit.SPARE_BYTES = 64 << 20, 0
        with open(file, "rb") as opened:
            table = tables.open_table(file, opened.fileno())
        return len(tables.read_group(file, table, 0, ["image"]))
    if what == "fails":
        raise BuildError("x: damaged")
    print("this is no answer")
    return what


def main(arguments: list[str]) -> int:
    """Answer questions."""
    return answer_questions(arguments, answer)


def stops(pixels: Pixels, sample: MapSample) -> Pixels:
    """Stop this process at the picture hostile.jpg, as a debugger would; all others stay as they are."""
    if sample.source.endswith("hostile.jpg"):
        os.kill(os.getpid(), signal.SIGSTOP)
    return pixels
