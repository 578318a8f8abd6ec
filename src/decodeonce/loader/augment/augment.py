"""Augment: a list of steps as the transform of a Loader. First what a step is, then what steps share.

Boxes are float32 (B, K, 4), left, top, right, bottom in pixels; absent boxes are zeros. Each coordinate is rounded
once, to float32: after a single float32 operation, or after several in float64. So a CPU and a device give the same
bits.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from types import NoneType
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from decodeonce.loader.arguments import check_probability, whole
from decodeonce.loader.augment import fused
from decodeonce.loader.augment.fused import Chain
from decodeonce.loader.augment.rows import PendingRows
from decodeonce.loader.delivery import Batch, name_of
from decodeonce.loader.order import derive_key
from decodeonce.loader.planes import Planes, to_rgb
from decodeonce.store.hashing import FACTOR_1, FACTOR_2, GOLDEN, signed
from decodeonce.store.manifest import Manifest

_BITS = 24  # the precision of float32

Resampling = Literal["nearest", "bilinear"]


class Step:
    """One step of ``Augment``. Your own step can be any callable ``(images, draws) -> images``, such as a function.

    It needs a class of its own only to move boxes or maps, or to mix labels: a class with ``__call__`` and those of the
    methods below that it needs. The class can inherit from ``Step``, but does not have to.

    Attributes:
        moves_pixels: False if the step leaves each pixel where it is. Boxes and maps then stay as they are, too.
            Default: True; then a store with boxes needs ``move_boxes``, and one with masks ``move_maps``.

    Example:
        >>> class RandomInvert(Step):
        ...     moves_pixels = False
        ...
        ...     def __call__(self, images, draws):
        ...         chosen = draws.uniform(1)[:, :, None, None] < 0.1
        ...         return torch.where(chosen, 255 - images, images)
        >>> class TurnOver(Step):
        ...     def __call__(self, images, draws):
        ...         return images.flip(1)
        ...
        ...     def move_boxes(self, boxes, draws, height, width):
        ...         left, top, right, bottom = boxes.unbind(2)
        ...         return torch.stack([left, height - bottom, right, height - top], 2)
        ...
        ...     def move_maps(self, maps, draws, resampling):
        ...         return maps.flip(1)
        >>> class SmoothLabels(Step):
        ...     def __call__(self, images, draws):
        ...         return images
        ...
        ...     def mix_labels(self, labels, draws, height, width):
        ...         return 0.9 * torch.nn.functional.one_hot(labels, 10) + 0.01
        >>> augment = Augment(RandomInvert(), TurnOver(), SmoothLabels())
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment)))
        <Batch images uint8 (16, 3, 256, 256), labels float32 (16, 10); 16 of 16 rows valid, epoch 0, on cpu>
    """

    moves_pixels: ClassVar[bool] = True
    crops: ClassVar[bool] = False  # only takes or averages pixels of a window, which can also be the channels of planes

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        """Return the augmented images.

        Args:
            images: (B, H, W, C), on the device: uint8, or the dtype that an earlier step returned. Do not write to it.
            draws: Random numbers of this step for each row of the batch.

        Returns:
            Tensor: (B, H', W', C), any dtype.
        """
        if images.device.type == "cpu" and (rows := self.on_rows(PendingRows.of(images), draws)):
            return rows.done()
        return self.on_device(images, draws)

    def on_rows(self, rows: PendingRows, draws: Draws, /) -> PendingRows | None:
        """Return `rows` with the work of this step added; None if it has no work for single rows of this dtype."""
        return None

    def on_kernel(self, chain: Chain, draws: Draws, /) -> Chain | None:
        """Return `chain` with the work of this step added; None if the kernel of an accelerator cannot do it."""
        return None

    def on_device(self, images: Tensor, draws: Draws, /) -> Tensor:
        """Return the new images, made from all images at once. This works on every device."""
        raise NotImplementedError

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Return the positions of `boxes` in the images that the step returns for the same `draws`.

        They can be outside of the image, because ``Augment`` clips them.

        Args:
            boxes: float32 (B, K, 4): left, top, right, bottom in pixels. Absent boxes are zeros, and must still have no
                area after the step. Do not write to it.
            draws: The same as in the call of the step.
            height: Height of the images before the step, in pixels.
            width: Width of the images before the step, in pixels.

        Returns:
            Tensor: float32 (B, K, 4), in pixels of the images after the step.
        """
        raise NotImplementedError

    def move_maps(self, maps: Tensor, draws: Draws, resampling: Resampling, /) -> Tensor:
        """Return `maps`, such as masks, moved as the step moves the images for the same `draws`.

        Args:
            maps: (B, H, W, C), any dtype, of the size of the images before the step. Do not write to it.
            draws: The same as in the call of the step.
            resampling: How to resize: "nearest", which makes no new values, or "bilinear".

        Returns:
            Tensor: (B, H', W', C), of the size of the images after the step.
        """
        raise NotImplementedError

    def mix_labels(self, labels: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Return the labels of the images that the step returns for the same `draws`.

        ``Augment`` also calls it for the `mixed` columns.

        Args:
            labels: int64 (B,), or soft labels (B, classes): a column, or labels that an earlier step mixed. Do not
                write to it.
            draws: The same as in the call of the step.
            height: Height of the images before the step, in pixels.
            width: Width of the images before the step, in pixels.

        Returns:
            Tensor: float32 (B, classes).
        """
        raise NotImplementedError


# A function of images (B, H, W, C) and drawn numbers, the uniform numbers (B,) to compare with p, and these numbers.
Plan = tuple[Callable[..., Tensor], Tensor, tuple[Tensor, ...]]


@dataclasses.dataclass(frozen=True)
class Change(Step):
    """Base of steps that change each image with probability `p`. Unless a step says otherwise, no pixel moves."""

    moves_pixels = False
    p: float = dataclasses.field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        check_probability(self.p)

    def on_rows(self, rows: PendingRows, draws: Draws, /) -> PendingRows:
        """Change the chosen images, one at a time."""
        change, uniform, drawn = self._plan(rows, draws)
        chosen = (uniform < self.p).tolist()

        def apply(image: Tensor, row: int, place: Tensor | None) -> Tensor:
            return change(image[None], *(each[row : row + 1] for each in drawn))[0] if chosen[row] else image

        return rows.then(apply, rows.shape, rows.dtype)

    def on_device(self, images: Tensor, draws: Draws, /) -> Tensor:
        """Change all images of a batch at once, and choose afterwards."""
        change, uniform, drawn = self._plan(PendingRows.of(images), draws)
        return torch.where((uniform < self.p)[:, None, None, None], change(images, *drawn), images)

    def _plan(self, rows: PendingRows, draws: Draws) -> Plan:
        """Draw for images of the shape and dtype of `rows`."""
        raise NotImplementedError


class Augment:
    """Apply augmentation steps in order; pass it to a Loader as `transform`.

    Called with a ``Batch``, it returns a new ``Batch`` whose images are (B, C, H, W) in channels_last memory format,
    with the dtype of the last step. The images of the given batch are not changed.

    Augmentation is reproducible: it depends only on seed, epoch, row and the steps, not on batch size or rank. With
    ``Loader(weights=...)``, the position in the epoch replaces the row, so that a row that is drawn twice gives two
    different images. On a CPU, uint8 images are bit-identical in any batch. On other devices, the batch can change the
    last bits of what ``RandomResizedCrop`` and ``ColorJitter`` compute and so, rarely, a pixel value by one level.
    ``MixUp`` and ``CutMix`` choose the other image from the batch, and ``PerBatch`` transforms the batch as a whole.

    If the store has the column "boxes", the boxes move with the images. They are float32 in pixels, can be fractional
    after a resize, and are bit-identical on every device. They are clipped to the image. A box outside of the image
    becomes zeros at its index, and its entry in "box_labels" becomes -1; "box_count" keeps its value. Columns in
    `paired` move, too.

    Args:
        *steps: Steps from this package, or callables ``(images, draws) -> images`` (see ``Step``). For a store with
            boxes, every step must move them. Without steps, images are only permuted.
        seed: Any whole number. Default: 0.
        paired: Columns of maps, (B, H, W) or (B, H, W, C) of the size of the images, that move with their images, and
            how to resize them: "nearest" for masks, "bilinear" for maps of numbers. Every step must move them.
            Default: none.
        mixed: Columns of soft labels (B, classes), such as the tags of each image as zeros and ones, that ``MixUp``,
            ``CutMix`` and ``OneOf`` mix like the labels, to float32. Default: none.

    Raises:
        ValueError: If a step is not callable or is a class, if steps have different `num_classes`, if a step does not
            move `paired` maps, or if there is `mixed` but no step that mixes. The Loader raises ValueError if the store
            has boxes that a step does not move, more classes than ``MixUp`` or ``CutMix``, masks of ``prep build
            --paired`` that are not in `paired` although a step moves pixels, or no such column as in `paired` or
            `mixed`.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), RandomFlip(), Normalize("train.store"), seed=0)
        >>> loader = Loader("train.store", batch_size=16, transform=augment)
        >>> next(iter(loader))
        <Batch images float32 (16, 3, 224, 224), labels int64 (16,); 16 of 16 rows valid, epoch 0, on cpu>
    """

    def __init__(
        self,
        *steps: Callable[[Tensor, Draws], Tensor],
        seed: int = 0,
        paired: Mapping[str, Resampling] | None = None,
        mixed: Collection[str] = (),
    ) -> None:
        for step in steps:
            _check_step(step)
        same_width(step for step in steps if hasattr(step, "num_classes"))
        self._steps = steps
        self._seed = whole("seed", seed)
        if not isinstance(paired, (Mapping, NoneType)):
            raise ValueError(f'paired is {paired!r}, expected how to resize each map, such as {{"mask": "nearest"}}')
        self._paired = dict(paired or {})
        if wrong := [name for name, resampling in self._paired.items() if resampling not in get_args(Resampling)]:
            raise ValueError(f"paired is {self._paired!r}, expected {wrong[0]!r} to be one of {get_args(Resampling)}")
        for step in steps if self._paired else ():
            _mover(step, "maps")
        self._mixed = (mixed,) if isinstance(mixed, str) else tuple(mixed)
        if self._mixed and not any(own_method(step, "mix_labels") for step in steps):
            raise ValueError(f"mixed is {mixed!r}, but no step mixes labels; add a step such as MixUp, or remove mixed")

    def __repr__(self) -> str:
        named = {"paired": self._paired, "mixed": self._mixed}
        parts = [*map(repr, self._steps), f"seed={self._seed}"]
        parts += [f"{name}={value!r}" for name, value in named.items() if value]
        return "Augment(\n" + "".join(f"    {part},\n" for part in parts) + ")"

    def check_store(self, manifest: Manifest) -> None:
        """Raise ValueError if a step does not support the columns, paired images or classes of a store."""
        stored, classes = [one.name for one in manifest.paired], len(manifest.classes)
        columns = [*(column.name for column in manifest.columns), *stored]
        for argument, names in (("paired", self._paired), ("mixed", self._mixed)):
            if missing := [name for name in names if name not in columns]:
                there = ", ".join(sorted(columns)) or "none"
                problem = f"{missing[0]!r}, which is not a column of the store"
                raise ValueError(f"{argument} has {problem}; its columns: {there}")
        unmoved = [name for name in stored if name not in self._paired]
        if unmoved and (moving := [step for step in self._steps if getattr(step, "moves_pixels", True)]):
            for step in moving:
                _mover(step, "maps")  # otherwise the advice below would lead to this error
            needed = json.dumps({**self._paired, **dict.fromkeys(unmoved, "nearest")})
            advice = f'pass paired={needed}, or "bilinear" if it holds no classes'
            problem = f"but not {unmoved[0]!r}, which the store holds with them"
            raise ValueError(f"the step {name_of(moving[0])} of Augment moves the images, {problem}; {advice}")
        for step in self._steps:
            if "boxes" in columns:
                _mover(step, "boxes")
            if (found := getattr(step, "num_classes", classes)) < classes:
                what = f"{type(step).__name__} has num_classes={found}"
                raise ValueError(f"{what}, expected at least the {classes} classes of the store")

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with its images, labels and boxes augmented."""
        rows, labels, columns = begin(batch.images, batch.planes), batch.labels, dict(batch.columns)
        for name in self._paired:
            columns[name] = _as_maps(name, columns[name], (len(batch.images), *rows.shape))
        drawn = batch.rows if batch.positions is None else batch.positions
        for number, step in enumerate(self._steps):
            draws = Draws(derive_key(self._seed, batch.epoch, number), drawn, batch.epoch)
            height, width, _ = rows.shape
            rows = _apply(step, rows, draws)
            for name, resampling in self._paired.items():
                columns[name] = _mover(step, "maps")(columns[name], draws, resampling)
            if mix := own_method(step, "mix_labels"):
                labels = mix(labels, draws, height, width)
                for name in self._mixed:
                    columns[name] = mix(_soft(name, columns[name]), draws, height, width)
            if "boxes" in columns:
                moved = _mover(step, "boxes")(columns["boxes"], draws, height, width)
                columns["boxes"] = clip_boxes(moved, *rows.shape[:2])
        if {"boxes", "box_labels"} <= columns.keys():
            columns["box_labels"] = columns["box_labels"].masked_fill(~present_boxes(columns["boxes"]), -1)
        for name in self._paired:
            columns[name] = columns[name][..., 0] if batch.columns[name].dim() == 3 else columns[name]
        images = rows.done().permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        return dataclasses.replace(batch, images=images, labels=labels, columns=columns, planes=None)


def _check_step(step: object) -> None:
    """Raise ValueError if a step cannot be called as one."""
    if isinstance(step, type) or not callable(step):
        advice = "; pass Augment(*steps)" if isinstance(step, (list, tuple)) else ""
        raise ValueError(f"a step is {step!r}, expected a callable object such as RandomFlip(){advice}")
    name, library = name_of(step), type(step).__module__.partition(".")[0]
    if library in ("albumentations", "kornia", "torchvision"):
        use = f'PerImage({name}(...)), with takes="pil" if it needs images of Pillow, or PerBatch({name}(...))'
        raise ValueError(f"the step {name} is of {library}; use {use}")
    try:
        inspect.signature(step).bind(None, None)
    except TypeError:
        advice = "for a function of an image or a batch, use PerImage or PerBatch"
        raise ValueError(f"the step {name} does not take two arguments, images and draws; {advice}") from None


def same_width(steps: Iterable[object]) -> int:
    """Return the num_classes of the steps, 0 if there are none; raise ValueError if they differ."""
    widths = {step.num_classes: type(step).__name__ for step in steps}  # type: ignore[attr-defined]
    if len(widths) > 1:
        found = " and ".join(f"{name} has num_classes={width}" for width, name in widths.items())
        raise ValueError(f"{found}, expected the same for all steps")
    return next(iter(widths), 0)


def _soft(name: str, values: Tensor) -> Tensor:
    if values.dim() != 2:
        shape = tuple(values.shape)
        raise ValueError(f"the column {name!r} of mixed has the shape {shape}, expected soft labels: (rows, classes)")
    return values


def begin(images: Tensor, planes: Planes | None = None) -> PendingRows | Chain:
    """The images of a batch, to which nothing is to be done yet."""
    return Chain.of(images, planes) or PendingRows.of(images, planes)


def _apply(step: Callable[[Tensor, Draws], Tensor], rows: PendingRows | Chain, draws: Draws) -> PendingRows | Chain:
    """Apply a step to the rows of a batch: later, together with other steps, if it can, or else at once."""
    images = None
    if isinstance(step, Step) and type(step).__call__ is Step.__call__:  # a subclass can have its own
        if then := _later(step, rows, draws):
            return then
        if step.crops and rows.planes and not rows.work:
            images = _on_planes(step, rows.planes, draws, rows.images)
    images = step(rows.done(), draws) if images is None else images
    if not isinstance(images, Tensor):
        problem = f"the step {name_of(step)} returned {type(images).__name__}, expected a Tensor"
        raise TypeError(f"{problem}; for a transform of another library, use PerImage(...) or PerBatch(...)")
    return begin(images)


def _later(step: Step, rows: PendingRows | Chain, draws: Draws) -> PendingRows | Chain | None:
    if isinstance(rows, PendingRows):
        return step.on_rows(rows, draws) if rows.images.device.type == "cpu" else None
    planes = None if rows.work else rows.planes
    if chain := step.on_kernel(rows, draws):
        work = partial(_on_planes, step, planes, draws) if planes else lambda images: step.on_device(images, draws)
        return dataclasses.replace(chain, work=(*rows.work, work))
    return None


def _on_planes(step: Step, planes: Planes, draws: Draws, images: Tensor) -> Tensor:
    """The RGB images that a step makes of images in planes."""
    if step.crops:
        return to_rgb(step.on_device(planes.channels(images), draws))
    return step.on_device(planes.unpack(images), draws)


def own_method(step: object, name: str) -> Callable[..., Tensor] | None:
    """Return the method of a step; None if it has none but that of ``Step``, which only says what the method is for."""
    method = getattr(step, name, None)
    return None if getattr(method, "__func__", None) is getattr(Step, name) else method


def _mover(step: object, what: Literal["boxes", "maps"]) -> Callable[..., Tensor]:
    """Return the method that moves boxes or maps. ValueError if the step moves pixels, but has no such method."""
    if method := own_method(step, f"move_{what}"):
        return method
    if not getattr(step, "moves_pixels", True):
        return lambda moved, *_: moved
    advice = f"give its class the method move_{what} or, if it moves no pixel, moves_pixels = False (see Step)"
    if own_method(step, "mix_labels"):
        advice = f"remove it, or use a store without {what}"
    raise ValueError(f"the images have {what}, but the step {name_of(step)} of Augment does not move {what}; {advice}")


def _as_maps(name: str, column: Tensor, images: tuple[int, ...]) -> Tensor:
    """(B, H, W, C) of a column of maps. `images` is the shape of the images."""
    if column.dim() not in (3, 4) or tuple(column.shape[:3]) != images[:3]:
        sizes = f"{tuple(column.shape)}, expected (B, H, W) or (B, H, W, C) as images {images}"
        raise ValueError(f"paired has {name!r}, but this column is {sizes}")
    return column if column.dim() == 4 else column[..., None]


def mix_words(words: Tensor) -> Tensor:
    """Mix 64-bit words, held in int64, as ``mix`` of ``store/hashing.py`` does, on any device."""
    words = (words ^ _shift_right(words, 30)) * signed(FACTOR_1)
    words = (words ^ _shift_right(words, 27)) * signed(FACTOR_2)
    return words ^ _shift_right(words, 31)


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """The random numbers of one step for the rows of a batch.

    The numbers of a row depend only on `key` and the row, not on the batch. ``Augment`` creates the draws and passes
    them to its steps.

    Args:
        key: 64-bit key, derived from seed, epoch and the number of the step.
        rows: int64 (B,), row numbers in the store, or the positions of the batch if it has some.
        epoch: Epoch of the batch. Default: 0.

    Example:
        >>> draws = Draws(key=0, rows=torch.tensor([7, 8]))
        >>> draws.uniform(3).shape
        torch.Size([2, 3])
        >>> torch.equal(draws.uniform(3)[1:], Draws(key=0, rows=torch.tensor([8])).uniform(3))
        True
    """

    key: int
    rows: Tensor
    epoch: int = 0

    def uniform(self, count: int) -> Tensor:
        """Return uniform random numbers for each row. Calling it again returns the same numbers.

        Number i of a row consists of the upper bits of ``derive_key(seed, epoch, step, row, i)``.

        Args:
            count: Numbers per row.

        Returns:
            Tensor: float32 (B, count) in [0, 1), multiples of 2**-24, on the device of the batch.
        """

        def uniform() -> Tensor:
            words = self.seeds() + signed(GOLDEN)
            words = mix_words(words[:, None] ^ torch.arange(count, device=words.device))
            return _shift_right(words, 64 - _BITS).to(torch.float32) * 2.0**-_BITS

        return fused.either(self.rows.device, lambda: fused.uniform(self.rows, self.word, count), uniform)

    @property
    def word(self) -> int:
        """The int64 with which the rows are hashed."""
        return signed(self.key + GOLDEN)

    def seeds(self) -> Tensor:
        """Return a seed for each row, for a random number generator: ``derive_key(seed, epoch, step, row)``.

        Returns:
            Tensor: int64 (B,), all 64 bits random, on the device of the batch.
        """
        return mix_words(self.rows ^ self.word)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; `>>` would repeat the sign bit."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def map_boxes(boxes: Tensor, x: Callable[[Tensor], Tensor], y: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `x` to the left and right of boxes, and `y` to the top and bottom, each (B, K)."""
    left, top, right, bottom = boxes.unbind(2)
    return torch.stack([x(left), y(top), x(right), y(bottom)], 2)


def clip_boxes(boxes: Tensor, height: int, width: int) -> Tensor:
    """Clip boxes to an image of this size. Boxes outside of the image become zeros."""
    clipped = map_boxes(boxes, lambda x: x.clamp(0, width), lambda y: y.clamp(0, height))
    return clipped.masked_fill(~present_boxes(clipped)[:, :, None], 0)


def present_boxes(boxes: Tensor) -> Tensor:
    """(B, K) bool: which boxes are present, that is, have an area."""
    left, top, right, bottom = boxes.unbind(2)
    return (left < right) & (top < bottom)
