"""Small pictures as they stand in a page: the bytes of a PNG or JPEG, and the address that holds them."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

QUALITY = 82


def encoded(image: Image) -> bytes:
    """A PNG or a JPEG, whichever is smaller: drawings and enlarged pixels stay exact."""
    png, jpeg = io.BytesIO(), io.BytesIO()
    image.save(png, "PNG")
    image.save(jpeg, "JPEG", quality=QUALITY, optimize=True)
    return min(png.getvalue(), jpeg.getvalue(), key=len)


def data_uri(data: bytes) -> str:
    """The address of an image that holds it."""
    kind = "png" if data.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
