"""A process that decodes one picture as far as that goes, with little time and memory: it may be made to do harm.

What it imports is all that it takes to start: Pillow and nothing else.
"""

from __future__ import annotations

import io
import os
import resource
import sys

MEMORY = 2 << 30
SECONDS = 10  # of a processor


def main(arguments: list[str]) -> int:
    """Standard input to a PNG of at most so many pixels a side on standard output; what is raised ends it with 1."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libraries complain of is known
    for limit, most in ((resource.RLIMIT_DATA, MEMORY), (resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
    from PIL import Image, ImageFile

    ImageFile.LOAD_TRUNCATED_IMAGES = True
    side = int(arguments[0])
    with Image.open(io.BytesIO(sys.stdin.buffer.read())) as image:
        image.draft("RGB", (4 * side, 4 * side))
        small = image.convert("RGB")
    small.thumbnail((side, side))
    small.save(sys.stdout.buffer, "PNG")
    return 0
