"""Decode images once into fixed-shape arrays; train from them at memory speed.

Only the names below and those of ``decodeonce.augment``, ``build``, ``sources`` and ``store`` are public. They are
imported on first use, so ``import decodeonce`` does not import NumPy and ``prep --help`` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodeonce.lazy import lazy_imports

if TYPE_CHECKING:
    from decodeonce.errors import BuildError as BuildError
    from decodeonce.errors import DecodeonceError as DecodeonceError
    from decodeonce.errors import StageError as StageError
    from decodeonce.errors import Stopped as Stopped
    from decodeonce.errors import StoreError as StoreError
    from decodeonce.launch import Rank as Rank
    from decodeonce.launch import find_rank as find_rank
    from decodeonce.loader.dataset import StoreDataset as StoreDataset
    from decodeonce.loader.delivery import Batch as Batch
    from decodeonce.loader.loader import Loader as Loader
    from decodeonce.loader.planes import Planes as Planes
    from decodeonce.store import Store as Store
    from decodeonce.store import open_store as open_store

_NAMES = {
    "decodeonce.errors": ("BuildError", "DecodeonceError", "StageError", "Stopped", "StoreError"),
    "decodeonce.launch": ("Rank", "find_rank"),
    "decodeonce.loader.dataset": ("StoreDataset",),
    "decodeonce.loader.delivery": ("Batch",),
    "decodeonce.loader.loader": ("Loader",),
    "decodeonce.loader.planes": ("Planes",),
    "decodeonce.store": ("Store", "open_store"),
}
__version__ = "0.1.0"
__getattr__, __dir__ = lazy_imports(__name__, _NAMES)
