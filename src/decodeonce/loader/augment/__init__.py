"""Augment whole batches on the device: `Loader(transform=Augment(RandomResizedCrop(224), RandomFlip()))`.

Except for PerImage and PerBatch, nothing here waits for the device or copies from the host to it, apart from a few
constants on the first use of a device.
"""
