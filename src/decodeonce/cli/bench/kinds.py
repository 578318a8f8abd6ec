"""Which kind of source SRC is, for who does not say."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

from decodeonce.prep.sources import Source, find_opener

TARS = (".tar", ".tar.gz", ".tgz")
OF_IMAGENET = re.compile(r"ILSVRC.*|n\d{8}\.tar")
LOOKED_AT = 1000


def find_source(kind: str, src: str) -> Source:
    """The source of a kind, or of what SRC looks like for "auto"; BuildError where nothing is recognised."""
    return find_opener(_kind_of(src) if kind == "auto" else kind)(src)


def _kind_of(src: str) -> str:
    """By names alone. A tree of class folders is taken as ImageNet's, which differs in nothing that is measured."""
    names = _names(Path(src)) if os.path.isdir(src) else [os.path.basename(src)]
    if any(name.endswith((".parquet", ".parquet}")) for name in names):
        return "parquet"
    tars = [name for name in names if name.endswith(TARS)]
    if tars and not any(map(OF_IMAGENET.fullmatch, names)):
        return "webdataset"
    return "list" if os.path.isfile(src) and not tars and not src.endswith(".zip") else "imagenet"


def _names(folder: Path) -> list[str]:
    """The first names in a folder, and in its first folder."""
    with os.scandir(folder) as listing:
        items = sorted(islice(listing, LOOKED_AT), key=lambda item: os.fsencode(item.name))
    within = next((item.path for item in items if item.is_dir() and not item.name.startswith(".")), None)
    names = [item.name for item in items]
    if within is not None and not any(map(OF_IMAGENET.fullmatch, names)):
        with os.scandir(within) as listing:
            names += [item.name for item in islice(listing, LOOKED_AT) if item.name.endswith(".parquet")]
    return names
