"""A process that decodes as much of one image as possible, with little time and memory: the image may be hostile."""

from __future__ import annotations

import base64
import io
import resource

from decodeonce.prep.processes.isolated import answer_questions

MEMORY = 2 << 30
SECONDS = 10  # of processor time


def answer(data: str, side: int) -> str:
    """Return a PNG, at most `side` pixels a side, of what can be decoded of a file; both are in base64."""
    for limit, most in ((resource.RLIMIT_DATA, MEMORY), (resource.RLIMIT_CPU, SECONDS)):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
    from PIL import Image, ImageFile

    ImageFile.LOAD_TRUNCATED_IMAGES = True
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        image.draft("RGB", (4 * side, 4 * side))
        small = image.convert("RGB")
    small.thumbnail((side, side))
    png = io.BytesIO()
    small.save(png, "PNG")
    return base64.b64encode(png.getvalue()).decode()


def main(arguments: list[str]) -> int:
    """Answer the questions of broken.py."""
    return answer_questions(arguments, answer)
