"""The store: its format, its reader and its checks. Imports neither prep nor loader.

The names below are imported when first used, so that a command that reads only store.json needs no NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodeonce.lazy import importing

if TYPE_CHECKING:
    from decodeonce.store.layout import StorePaths
    from decodeonce.store.manifest import Column, Manifest, PictureClass, Shard, SmallFile
    from decodeonce.store.part import part_rows
    from decodeonce.store.reader import Images, Store, open_store
    from decodeonce.store.stage import Staged, stage_store
    from decodeonce.store.table import Reject, Sample
    from decodeonce.store.verify import Report, verify_store

_HOME = {
    "Column": "decodeonce.store.manifest",
    "Images": "decodeonce.store.reader",
    "Manifest": "decodeonce.store.manifest",
    "PictureClass": "decodeonce.store.manifest",
    "Reject": "decodeonce.store.table",
    "Report": "decodeonce.store.verify",
    "Sample": "decodeonce.store.table",
    "Shard": "decodeonce.store.manifest",
    "SmallFile": "decodeonce.store.manifest",
    "Staged": "decodeonce.store.stage",
    "Store": "decodeonce.store.reader",
    "StorePaths": "decodeonce.store.layout",
    "open_store": "decodeonce.store.reader",
    "part_rows": "decodeonce.store.part",
    "stage_store": "decodeonce.store.stage",
    "verify_store": "decodeonce.store.verify",
}
__all__ = [
    "Column",
    "Images",
    "Manifest",
    "PictureClass",
    "Reject",
    "Report",
    "Sample",
    "Shard",
    "SmallFile",
    "Staged",
    "Store",
    "StorePaths",
    "open_store",
    "part_rows",
    "stage_store",
    "verify_store",
]
__getattr__, __dir__ = importing(__name__, _HOME)
