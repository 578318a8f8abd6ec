"""Augment whole batches on the device: `Loader(transform=Augment(RandomResizedCrop(224), RandomFlip()))`.

Except for PerImage and PerBatch, nothing here waits for the device or copies from the host to it, apart from a few
constants on the first use of a device.
"""

from decodeonce.loader.augment.augment import Augment, BoxStep, Draws, LabelStep, MapStep, Step
from decodeonce.loader.augment.color import ColorJitter, GaussianBlur, RandomErasing, RandomGrayscale, Solarize
from decodeonce.loader.augment.crop import CenterCrop, RandomCrop, RandomResizedCrop, ramp
from decodeonce.loader.augment.flip import RandomFlip
from decodeonce.loader.augment.foreign import PerBatch, PerImage
from decodeonce.loader.augment.mix import CutMix, MixUp, OneOf
from decodeonce.loader.augment.normalize import Normalize
from decodeonce.loader.augment.views import Views

__all__ = [
    "Augment",
    "BoxStep",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "Draws",
    "GaussianBlur",
    "LabelStep",
    "MapStep",
    "MixUp",
    "Normalize",
    "OneOf",
    "PerBatch",
    "PerImage",
    "RandomCrop",
    "RandomErasing",
    "RandomFlip",
    "RandomGrayscale",
    "RandomResizedCrop",
    "Solarize",
    "Step",
    "Views",
    "ramp",
]
