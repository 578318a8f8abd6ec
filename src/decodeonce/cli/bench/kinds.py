"""Recognise the kind of source of SRC."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

from decodeonce.prep.sources import Source, find_opener

TARS = (".tar", ".tar.gz", ".tgz")
IMAGENET_NAME = re.compile(r"ILSVRC.*|n\d{8}\.tar")
MOST_NAMES = 1000


def find_source(kind: str, src: str) -> Source:
    """Open SRC as `kind`, or as the kind that its names suggest for "auto". Raises BuildError if none fits."""
    return find_opener(_kind_of(src) if kind == "auto" else kind)(src)


def _kind_of(src: str) -> str:
    """Recognise the kind by names only. Class folders count as ImageNet, which is measured in the same way."""
    names = _names(Path(src)) if os.path.isdir(src) else [os.path.basename(src)]
    if any(name.endswith((".parquet", ".parquet}")) for name in names):
        return "parquet"
    tars = [name for name in names if name.endswith(TARS)]
    if tars and not any(map(IMAGENET_NAME.fullmatch, names)):
        return "webdataset"
    return "list" if os.path.isfile(src) and not tars and not src.endswith(".zip") else "imagenet"


def _names(folder: Path) -> list[str]:
    """Return the first names in a folder and in its first subfolder."""
    with os.scandir(folder) as listing:
        items = sorted(islice(listing, MOST_NAMES), key=lambda item: os.fsencode(item.name))
    within = next((item.path for item in items if item.is_dir() and not item.name.startswith(".")), None)
    names = [item.name for item in items]
    if within is not None and not any(map(IMAGENET_NAME.fullmatch, names)):
        with os.scandir(within) as listing:
            names += [item.name for item in islice(listing, MOST_NAMES) if item.name.endswith(".parquet")]
    return names
