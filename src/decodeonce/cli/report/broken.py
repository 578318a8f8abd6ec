"""What can still be seen of a picture that became no row: as much of it as Pillow decodes, in a process of its own.

A reject may be one that ended its decoder, or was made to do harm: see `leniently`.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable

from PIL import Image

from decodeonce.cli.report import leniently
from decodeonce.cli.report.pictures import encoded
from decodeonce.cli.thumbnail import SIDE
from decodeonce.errors import DecodeonceError
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.processes.isolated import Isolated
from decodeonce.prep.repair.pictures import Wanted, find_pictures, roots_of
from decodeonce.store import Manifest, Reject

MOST_BYTES = 64 << 20  # of a file


def broken_pictures(manifest: Manifest, source: str, rejects: Iterable[Reject]) -> dict[str, bytes]:
    """A small picture of each of these that can be found in `source` and decoded in part, by its name in rejects.tsv.

    `source` is what the store was built from, as `prep repair` takes it. BuildError where nothing is there, Stopped.
    """
    roots = roots_of(str(manifest.source.get("kind", "")), source)
    names = {name_bytes(reject.source): reject.source for reject in rejects}
    search = Wanted({name for name in names if all(_inside(os.fsencode(root), name) for root in roots)})
    found: dict[str, bytes] = {}
    for name, data in find_pictures(roots, search):
        search.names.discard(name)
        if len(data) <= MOST_BYTES and (seen := _seen(data)):
            found[names[name]] = seen
    return found


def _inside(root: bytes, name: bytes) -> bool:
    """Whether no link leads out of the folder on the way to a name: such pictures are rejects, and are not read."""
    real = os.path.realpath(root)
    return (
        b"\0" not in name
        and os.path.commonpath([real, os.path.realpath(os.path.join(root, *name.split(b"/")))]) == real
    )


def _seen(data: bytes) -> bytes:
    """A small picture of what can be decoded; b"" for nothing."""
    decoder = Isolated(leniently.__name__)
    try:
        png = decoder.ask("", data=base64.b64encode(data).decode(), side=SIDE)
    except (DecodeonceError, OSError):
        return b""
    finally:
        decoder.close()
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        return encoded(image)
