"""Augment whole batches on the device: `Loader(transform=Augment(RandomResizedCrop(224), RandomFlip()))`.

The names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodeonce.lazy import lazy_imports

if TYPE_CHECKING:
    from decodeonce.loader.augment.augment import Augment as Augment
    from decodeonce.loader.augment.augment import Draws as Draws
    from decodeonce.loader.augment.augment import Step as Step
    from decodeonce.loader.augment.color import ColorJitter as ColorJitter
    from decodeonce.loader.augment.color import GaussianBlur as GaussianBlur
    from decodeonce.loader.augment.color import RandomErasing as RandomErasing
    from decodeonce.loader.augment.color import RandomGrayscale as RandomGrayscale
    from decodeonce.loader.augment.color import Solarize as Solarize
    from decodeonce.loader.augment.crop import CenterCrop as CenterCrop
    from decodeonce.loader.augment.crop import RandomCrop as RandomCrop
    from decodeonce.loader.augment.crop import RandomResizedCrop as RandomResizedCrop
    from decodeonce.loader.augment.crop import ramp as ramp
    from decodeonce.loader.augment.flip import RandomFlip as RandomFlip
    from decodeonce.loader.augment.foreign import PerBatch as PerBatch
    from decodeonce.loader.augment.foreign import PerImage as PerImage
    from decodeonce.loader.augment.mix import CutMix as CutMix
    from decodeonce.loader.augment.mix import MixUp as MixUp
    from decodeonce.loader.augment.mix import OneOf as OneOf
    from decodeonce.loader.augment.normalize import Normalize as Normalize
    from decodeonce.loader.augment.views import Views as Views

__getattr__, __dir__ = lazy_imports(__name__)
