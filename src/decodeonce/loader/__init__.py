"""Load the rows of a store as batches on a CPU or an accelerator. Imports neither prep nor Pillow."""

from decodeonce.loader.dataset import StoreDataset
from decodeonce.loader.delivery import Batch
from decodeonce.loader.loader import Loader

__all__ = ["Batch", "Loader", "StoreDataset"]
