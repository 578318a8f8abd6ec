"""The store: its format, its reader and its checks. Imports neither prep nor loader."""

from decodeonce.store.layout import StorePaths
from decodeonce.store.manifest import Column, Manifest, PictureClass, Shard, SmallFile
from decodeonce.store.reader import Images, Store, open_store
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
    "Store",
    "StorePaths",
    "open_store",
    "verify_store",
]
