"""Decode images once into fixed-shape arrays; train from them at memory speed.

The names below are imported on first use, so ``import decodeonce`` does not import NumPy and ``prep --help`` does not
import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodeonce.lazy import lazy_imports

if TYPE_CHECKING:
    from decodeonce.errors import DecodeonceError, Stopped, StoreError
    from decodeonce.loader import Batch, Loader, StoreDataset
    from decodeonce.store import Store, open_store

__version__ = "0.1.0"

_HOME = {
    "Batch": "decodeonce.loader",
    "DecodeonceError": "decodeonce.errors",
    "Loader": "decodeonce.loader",
    "Stopped": "decodeonce.errors",
    "Store": "decodeonce.store",
    "StoreDataset": "decodeonce.loader",
    "StoreError": "decodeonce.errors",
    "open_store": "decodeonce.store",
}
__all__ = ["Batch", "DecodeonceError", "Loader", "Stopped", "Store", "StoreDataset", "StoreError", "open_store"]

__getattr__, __dir__ = lazy_imports(__name__, _HOME)
