"""Augment whole batches on the device: `Loader(transform=Augment(RandomResizedCrop(224), RandomFlip()))`."""

from decodeonce.loader.augment import *  # noqa: F403
from decodeonce.loader.augment import __all__ as __all__
