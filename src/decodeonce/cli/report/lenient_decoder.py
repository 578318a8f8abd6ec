"""A process that decodes as much of one image as possible, with limited time and memory: the image may be hostile."""

from __future__ import annotations

import base64
import io
import resource

from decodeonce.prep.processes.isolated import answer_questions

MEMORY_BYTES = 2 << 30
CPU_SECONDS = 10


def answer(data: str, side: int) -> str:
    """Decode an image file as far as possible.

    Args:
        data: The file in base64.
        side: Largest height and width of the result, in pixels.

    Returns:
        A PNG in base64.
    """
    for limit, value in ((resource.RLIMIT_DATA, MEMORY_BYTES), (resource.RLIMIT_CPU, CPU_SECONDS)):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard < 0 else min(value, hard), hard))
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
    """Answer the requests of rejected_images.py."""
    return answer_questions(arguments, answer)
