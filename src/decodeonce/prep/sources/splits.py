"""Detect class folders that are probably splits: SRC/train/<class>, SRC/val/<class>."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from decodeonce.formatting import counted, quoted
from decodeonce.prep.entry import name_bytes, name_text
from decodeonce.prep.sources.folder import SUFFIXES
from decodeonce.prep.sources.links import Links
from decodeonce.prep.sources.safe_open import expecting

SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")
WNID = re.compile(r"n\d{8}")


def split_warnings(root: Path, names: Sequence[str], links: Links) -> list[str]:
    """Return a warning, with the command that was probably meant, if these class folders of `root` look like splits.

    Only the first level of folders with the names of splits is listed.
    """
    splits = [name for name in names if name.lower() in SPLITS]
    if len(splits) < min(2, len(names)):  # a single "train" among other classes is a vehicle
        return []
    for split in sorted(splits, key=lambda name: SPLITS.index(name.lower())):
        if held := _subfolders(root, split, links):
            command = f"prep build folder {quoted(str(root / split))} OUT"
            if split in ("train", "val") and all(map(WNID.fullmatch, held)):
                command = f"prep build imagenet {quoted(str(root))} OUT"
            contents = f"{split} contains {counted(len(held), 'folder')} (first {quoted(held[0])}) and no images"
            return [f"{', '.join(splits)} may be splits, not classes: {contents}; if so, run: {command}"]
    return []


def _subfolders(root: Path, name: str, links: Links) -> list[str]:
    """Return the names of the folders in a class folder; none if it also contains images."""
    path = os.path.join(os.fsencode(root), name_bytes(name))
    if links.folder_leads_outside(path):
        return []
    with expecting(path, "expected a class folder"), os.scandir(path) as listing:
        found = sorted((item.name, item.is_dir()) for item in listing if not item.name.startswith(b"."))
    if any(name.lower().endswith(SUFFIXES) for name, _ in found):
        return []
    return [name_text(name) for name, is_folder in found if is_folder]
