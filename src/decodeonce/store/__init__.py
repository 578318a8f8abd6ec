"""The store: its format, its reader and its checks. Imports neither prep nor loader."""

from decodeonce.store.layout import StorePaths
from decodeonce.store.manifest import Column, Manifest, PictureClass, Shard, SmallFile
from decodeonce.store.part import part_rows
from decodeonce.store.reader import Images, Store, open_store
from decodeonce.store.stage import Staged, stage_store
from decodeonce.store.table import Reject, Sample
from decodeonce.store.verify import Report, verify_store

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
