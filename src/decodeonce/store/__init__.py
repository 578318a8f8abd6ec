"""The store: read, verify, stage and extend it. Imports neither prep nor loader.

The names below are imported when they are first used, so that `prep --help` needs no NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodeonce.lazy import lazy_imports

if TYPE_CHECKING:
    from decodeonce.store.columns import add_column as add_column
    from decodeonce.store.columns import remove_column as remove_column
    from decodeonce.store.layout import Paired as Paired
    from decodeonce.store.layout import StorePaths as StorePaths
    from decodeonce.store.manifest import Column as Column
    from decodeonce.store.manifest import ImageClass as ImageClass
    from decodeonce.store.manifest import Manifest as Manifest
    from decodeonce.store.manifest import Shard as Shard
    from decodeonce.store.manifest import SmallFile as SmallFile
    from decodeonce.store.manifest import part_rows as part_rows
    from decodeonce.store.origin import RemoteStore as RemoteStore
    from decodeonce.store.reader import Images as Images
    from decodeonce.store.reader import Store as Store
    from decodeonce.store.reader import open_store as open_store
    from decodeonce.store.stage import Staged as Staged
    from decodeonce.store.stage import stage_store as stage_store
    from decodeonce.store.table import Reject as Reject
    from decodeonce.store.table import Sample as Sample
    from decodeonce.store.table import Samples as Samples
    from decodeonce.store.verify import Report as Report
    from decodeonce.store.verify import verify_store as verify_store

__getattr__, __dir__ = lazy_imports(__name__)
