"""Decode images once into fixed-shape arrays; train from them at memory speed.

Example:
    >>> from decodeonce import Loader, open_store  # `prep build folder photos/train train.store` built the store
    >>> from decodeonce.augment import Augment, Normalize, RandomFlip, RandomResizedCrop
    >>> augment = Augment(RandomResizedCrop(224), RandomFlip(), Normalize("imagenet"), seed=0)
    >>> for images, labels in Loader("train.store", batch_size=32, transform=augment):  # on a GPU, add device="cuda"
    ...     pass  # images are float32 (32, 3, 224, 224), and labels int64 (32,)
    >>> open_store("train.store").classes[3].description
    'tabby, tabby cat'

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

__version__ = "0.1.0"
__getattr__, __dir__ = lazy_imports(__name__, modules=("augment", "build", "sources", "store"))
