"""Images of rejects: as much of each as Pillow decodes, in a process of its own, since it may crash its decoder."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable

from PIL import Image

from decodeonce.cli.report import leniently
from decodeonce.cli.thumbnail import SIDE
from decodeonce.errors import DecodeonceError
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.processes.isolated import Isolated
from decodeonce.prep.repair.images import ImageSearch, roots_of
from decodeonce.store import Manifest, Reject

MOST_BYTES = 64 << 20  # of a file
SECONDS = 60.0  # by the clock, for a decoder that hangs


def broken_pictures(manifest: Manifest, source: str, rejects: Iterable[Reject]) -> dict[str, Image.Image]:
    """Return a small image of each reject that is in `source` and decodes in part, by its name in rejects.tsv.

    `source` is the source of the build, as for `prep repair`. Raises BuildError if it does not exist, and Stopped.
    """
    roots = roots_of(str(manifest.source.get("kind", "")), source)
    names = {name_bytes(reject.source): reject.source for reject in rejects}
    search = ImageSearch(roots, [n for n in names if all(_inside(os.fsencode(root), n) for root in roots)])
    found: dict[str, Image.Image] = {}
    for name, data in search.find():
        search.names.discard(name)
        if len(data) <= MOST_BYTES and (seen := _seen(data)):
            found[names[name]] = seen
    return found


def _inside(root: bytes, name: bytes) -> bool:
    """Whether a name leads to a place in the folder; a link that leads out of it is not followed."""
    real = os.path.realpath(root)
    return (
        b"\0" not in name
        and os.path.commonpath([real, os.path.realpath(os.path.join(root, *name.split(b"/")))]) == real
    )


def _seen(data: bytes) -> Image.Image | None:
    """A small image of what can be decoded; None for nothing."""
    decoder = Isolated(leniently.__name__, SECONDS)
    try:
        png = decoder.ask("", data=base64.b64encode(data).decode(), side=SIDE)
    except (DecodeonceError, OSError):
        return None
    finally:
        decoder.close()
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        image.load()
        return image
