"""Several augmented views of each image: Views."""

from __future__ import annotations

import copy
import dataclasses

from decodeonce.loader.augment.augment import Augment, begin, own_method
from decodeonce.loader.delivery import Batch, name_of
from decodeonce.loader.order import derive_key


class Views:
    """Augment each image several times; pass it to a Loader as `transform`. Each row is read once.

    Called with a ``Batch``, it returns a batch that has the images of each ``Augment`` in ``batch.views``, in order.
    Each view has its own random numbers, even if the same ``Augment`` is passed several times. They depend on the seed
    of the ``Augment``, the number of the view, epoch and row. Labels and columns, including boxes and masks, stay as
    they are in the store.

    Args:
        *augments: An ``Augment`` for each view, without ``MixUp`` and ``CutMix``.
        images: If True, ``batch.images`` are the images of the store. Default: False. It then has no rows, so that its
            memory can be reused.

    Raises:
        ValueError: If an argument is not an ``Augment``, mixes labels or moves `paired` maps.

    Example:
        >>> large, small = (Augment(RandomResizedCrop(size), RandomFlip()) for size in (224, 96))
        >>> loader = Loader("train.store", batch_size=16, transform=Views(large, large, *[small] * 8))
        >>> batch = next(iter(loader))
        >>> len(batch.views), batch.views[0].shape, batch.views[9].shape
        (10, torch.Size([16, 3, 224, 224]), torch.Size([16, 3, 96, 96]))
    """

    def __init__(self, *augments: Augment, images: bool = False) -> None:
        if not augments or not all(isinstance(augment, Augment) for augment in augments):
            raise ValueError(f"the views are {augments!r}, expected an Augment(...) for each view")
        steps = [step for augment in augments for step in augment._steps]
        if mixing := [step for step in steps if own_method(step, "mix_labels")]:
            problem = "mixes labels, and the views of an image share its label"
            raise ValueError(f"{name_of(mixing[0])} {problem}; remove the step")
        if paired := [name for augment in augments for name in augment._paired]:
            raise ValueError(f"a view has the paired map {paired[0]!r}, but Views changes no columns; remove paired")
        self._given = augments
        self.augments = tuple(map(_with_own_draws, augments, range(len(augments))))
        self.images = images

    def __repr__(self) -> str:
        return f"Views({', '.join(map(repr, self._given))}, images={self.images})"

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with its views."""
        plain = dataclasses.replace(batch, columns={})  # no boxes to move
        views = tuple(augment(plain).images for augment in self.augments)
        shape = batch.planes.shape if batch.planes else batch.images.shape[1:]
        images = begin(batch.images, batch.planes).done() if self.images else batch.images.new_empty((0, *shape))
        return dataclasses.replace(batch, images=images, views=views, planes=None)


def _with_own_draws(augment: Augment, number: int) -> Augment:
    other = copy.copy(augment)
    other._seed = derive_key(augment._seed, number)
    return other
