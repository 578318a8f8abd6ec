"""Decode as much of each rejected image as possible, in a separate process because the image may crash its decoder."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

from PIL import Image

from decodeonce.cli.report import lenient_decoder
from decodeonce.cli.thumbnail import SIDE
from decodeonce.errors import DecodeonceError
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.processes.isolated import Isolated
from decodeonce.prep.sources.kinds import read_images, reopen_source
from decodeonce.store import Manifest, Reject

MAX_FILE_BYTES = 64 << 20
SECONDS = 60.0  # wall-clock time after which a decoder counts as hung


def decode_rejected_images(manifest: Manifest, source: str, rejects: Iterable[Reject]) -> dict[str, Image.Image]:
    """Map names in rejects.tsv to small images, for the rejects that are in `source` and can be decoded in part.

    `source` is the source of the build, as for `prep repair`. Links that lead out of it are not followed. Raises
    BuildError if it cannot be opened, and Stopped.
    """
    names = {name_bytes(reject.source): reject.source for reject in rejects}
    images: dict[str, Image.Image] = {}
    for name, data in read_images(reopen_source(manifest, source), names, {}):
        if len(data) <= MAX_FILE_BYTES and (image := _decode(data)):
            images[names[name]] = image
    return images


def _decode(data: bytes) -> Image.Image | None:
    """Return a small image of the part that can be decoded, or None if there is no such part."""
    decoder = Isolated(lenient_decoder.__name__, SECONDS)
    try:
        png = decoder.ask("", data=base64.b64encode(data).decode(), side=SIDE)
    except (DecodeonceError, OSError):
        return None
    finally:
        decoder.close()
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        image.load()
        return image
