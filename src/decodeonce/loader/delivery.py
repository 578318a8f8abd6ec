"""Batches, and how filled slots become batches on the host. `streams.py` copies them to an accelerator."""

from __future__ import annotations

import mmap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import profiler

from decodeonce.loader.blocks import Blocks
from decodeonce.loader.buffers import Event, Pool, Slot, Slots, recycle_from
from decodeonce.loader.order import Rows
from decodeonce.loader.partition import StepRows
from decodeonce.loader.planes import Planes
from decodeonce.store.layout import PixelsName
from decodeonce.store.manifest import Manifest


@dataclass(frozen=True, eq=False)
class Batch:
    """The images, labels and further columns of up to `batch_size` rows, on the Loader's device.

    A batch unpacks to images and labels, so that ``for images, labels in loader`` works. ``batch["mask"]`` is the
    column "mask"; "images", "labels" and "rows" work, too.

    Attributes:
        images: uint8 (B, H, W, C), contiguous. ``images.permute(0, 3, 1, 2)`` is already channels_last, so it needs no
            copy. With paired masks or images, each row is contiguous, but not the batch. After ``Augment``: (B, C, H,
            W), channels_last, with the dtype of its last step. After ``Views``: no rows.
        labels: int64 (B,). After ``MixUp`` or ``CutMix``: float32 (B, classes).
        rows: int64 (B,), row numbers in the store. The first `valid` are in ascending order, and so is the padding.
            Rows in this order are faster to read, and the order within a batch has no meaning. With
            ``Loader(weights=...)``, a row can occur several times.
        valid: Number of rows that count. The rows after them are padding.
        epoch: Number of the epoch. A transform can derive its random numbers from it.
        columns: The store's other numeric columns by name, each (B, ...), and its paired masks, uint8 (B, H, W), and
            images, uint8 (B, H, W, 3).
        views: After ``Views``: the images of each view, like `images` after ``Augment``. Otherwise empty.
        planes: With ``Loader(pixels="stored")``, how images that are not RGB are stored (see ``Planes``); they are then
            uint8 (B, bytes). Otherwise None.
        positions: With ``Loader(weights=...)`` or ``Loader(steps=...)``, int64 (B,): a number of its own for each row
            of the epoch, where the same row can occur several times. Derive random numbers from it instead of from
            `rows`, as ``Augment`` does. Otherwise None.

    Example:
        >>> batch = next(iter(Loader("train.store", batch_size=16)))
        >>> batch
        <Batch images uint8 (16, 256, 256, 3), labels int64 (16,); 16 of 16 rows valid, epoch 0, on cpu>
        >>> images, labels = batch
    """

    images: Tensor
    labels: Tensor
    rows: Tensor
    valid: int
    epoch: int
    columns: dict[str, Tensor] = field(default_factory=dict)
    positions: Tensor | None = None
    views: tuple[Tensor, ...] = ()
    planes: Planes | None = None

    def __iter__(self) -> Iterator[Tensor]:
        yield self.images
        yield self.labels

    def __repr__(self) -> str:
        def kind(name: str, tensor: Tensor) -> str:
            return f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"

        named = self.as_dict().items()
        kinds = [kind(name, tensor) for name, tensor in named if len(tensor) or not self.views]
        views = Counter(kind("views of", view) for view in self.views)
        kinds += [f"{count} {view}" for view, count in views.items()]
        rows = f"{self.valid} of {len(self.rows)} rows valid, epoch {self.epoch}"
        return f"<Batch {', '.join(kinds)}; {rows}, on {self.images.device}>"

    def __getitem__(self, name: str) -> Tensor:
        if name not in self:
            raise KeyError(f"the batch has no {name!r}, expected one of: {', '.join(self._named())}")
        return self._named()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._named()

    def _named(self) -> dict[str, Tensor]:
        own = {"images": self.images, "labels": self.labels, "rows": self.rows}
        return {**own, **self.columns, **own}  # a column can have one of these names

    def as_dict(self, **names: str) -> dict[str, Tensor]:
        """Return images, labels and columns by name, for models that are called with keywords.

        The dict contains `rows` only under a new name. It does not contain `views`, `valid` or `epoch`.

        Args:
            **names: New names. With ``images="pixel_values"``, the images are the entry "pixel_values". A new name
                replaces an entry that already has it: with ``mask="labels"``, the masks are the labels.

        Raises:
            KeyError: If the batch has no tensor of this name.

        Example:
            >>> batch = next(iter(Loader("train.store", batch_size=16)))
            >>> sorted(batch.as_dict(images="pixel_values"))
            ['labels', 'pixel_values']
        """
        kept = {name: tensor for name, tensor in self._named().items() if name not in ("rows", *names)}
        return {**kept, **{new: self[name] for name, new in names.items()}}

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> Batch:
        """Return a batch with every tensor on `device`. Lightning and accelerate call this.

        Args:
            device: Target device.
            non_blocking: As in ``torch.Tensor.to``. Default: False.
        """

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return replace(
            self,
            images=move(self.images),
            labels=move(self.labels),
            rows=move(self.rows),
            columns={name: move(column) for name, column in self.columns.items()},
            views=tuple(map(move, self.views)),
            positions=None if self.positions is None else move(self.positions),
        )

    def tensors(self) -> list[Tensor]:
        """All tensors of the batch: images, labels, rows, columns, views and, if there are any, positions."""
        positions = [] if self.positions is None else [self.positions]
        return [self.images, self.labels, self.rows, *self.columns.values(), *self.views, *positions]


Transform = Callable[[Batch], Batch]


def mark(name: str) -> AbstractContextManager[object]:
    """Mark the code inside as decodeonce.<name> in the trace of a running profiler (TensorBoard, Perfetto)."""
    # record_function takes 5 us even without a profiler, and runs four times per step. torch itself reads this flag.
    if getattr(profiler, "_is_profiler_enabled", True):
        return profiler.record_function(f"decodeonce.{name}")
    return nullcontext()


def name_of(function: object) -> str:
    """The name of a function, or of the class of another callable, for messages."""
    return str(getattr(function, "__name__", type(function).__name__))


def _versions(batch: Batch) -> list[tuple[int, int]]:
    """What changes when a tensor of the batch is replaced, or when torch writes to it."""
    return [(id(tensor), tensor._version) for tensor in batch.tensors() if isinstance(tensor, Tensor)]


# Advice for a transform that ignores its first Batch, or fails with it.
USE_PER_IMAGE = "If it is a transform for single images, such as those of torchvision, use Augment(PerImage(...))."

Array = NDArray[np.generic]
Shape = tuple[int, ...]
Arrays = dict[str, Tensor]
PLANES: dict[PixelsName, type[Planes] | None] = {"rgb": None, "yuv420": Planes, "bc4": Blocks}
Split = Callable[[Tensor], tuple[Arrays, Planes | None]]
Result = tuple[float, float] | BaseException  # the times of a copying thread (see epoch.timed), or its error


@dataclass(eq=False)
class PendingBatch:
    """A step on its way to the user: its rows are read into a slot, and then become a batch.

    `rows` are all rows of the step, or only those that the device does not have yet. They are read into the first rows
    of `slot` by `calls` calls. `results` gives one item for each call that is finished. On a device, the batch can be
    used after the event `usable_after`.
    """

    step: StepRows
    rows: Rows
    slot: Slot
    calls: int = 0
    results: SimpleQueue[Result] = field(default_factory=SimpleQueue)
    batch: Batch = field(init=False)
    usable_after: Event | None = None
    seconds_transforming: float = 0.0


class Delivery:
    """Batches on the host. A batch uses the memory of its slot, which is given back when the user drops the batch.

    The consumer's thread calls `begin`, `receive` and `close`; the filler's thread calls all other methods.
    """

    transfers = False  # whether batches are copied to a device
    cached_rows = 0  # rows that do not need to be read again
    transform: Transform | None = None
    split: Split | None = None  # what makes arrays of rows that are not RGB images alone

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._transform_checked = False
        self.blocks: Pool[mmap.mmap] = Pool(4)  # for a transform on a CPU; an augmented batch needs three

    def begin(self) -> None:
        """Prepare for an epoch."""

    def enter(self) -> None:
        """Prepare the filler's thread."""

    def lacking(self, rows: Rows) -> Rows:
        """The part of `rows` that must be read."""
        return rows

    def take(self) -> Slot:
        """Take a slot that can be overwritten."""
        return self.slots.take()

    def hold(self, must_stop: Callable[[], bool]) -> float:
        """Wait while the device still works on as many batches as memory is for; return the seconds that this took."""
        return 0.0

    def make_batch(self, pending: PendingBatch, labels: Array, columns: dict[str, Array]) -> None:
        """Make the batch on its device, and transform it. The slot is given back automatically."""
        step, images = pending.step, self._images(pending)
        moved = {name: self._move(column) for name, column in columns.items()}
        planes = None
        if self.split:  # one transfer, of which images and masks are views
            arrays, planes = self.split(images)
            images = arrays.pop("images")
            moved |= arrays
        # In one transfer, too, because the cost of these small ones does not depend on their size.
        numbers = [step.rows, labels] if step.positions is None else [step.rows, labels, step.positions]
        rows, moved_labels, *positions = self._move(np.stack(numbers))
        where = positions[0] if positions else None
        pending.batch = Batch(images, moved_labels, rows, step.valid, step.epoch, moved, where, planes=planes)
        if self.transform is not None:
            self._apply(self.transform, pending)

    def receive(self, pending: PendingBatch) -> Batch:
        """Return the batch. From now on the consumer can use it, and keep it."""
        return pending.batch

    def close(self) -> None:
        """Free slots and cache."""
        self.slots.clear()
        self.blocks.clear()

    def _apply(self, transform: Transform, pending: PendingBatch) -> None:
        start, batch = time.perf_counter(), pending.batch
        recycle_from(self.blocks)
        before = _versions(batch)
        with torch.no_grad(), mark("transform"):
            result = self._call(transform, batch)
        # Only the first batch counts, because a transform may leave later epochs unchanged on purpose.
        if not self._transform_checked and result is batch and _versions(batch) == before:
            raise ValueError(
                f"transform {name_of(transform)} returned its Batch unchanged. {USE_PER_IMAGE} A transform that only "
                "looks at a Batch must return dataclasses.replace(batch)"
            )
        self._transform_checked = True
        if not isinstance(result, Batch):
            raise TypeError(f"transform returned {type(result).__name__}, expected a Batch (see dataclasses.replace)")
        if wrong := {type(part).__name__ for part in result.tensors() if not isinstance(part, Tensor)}:
            raise TypeError(f"transform returned a Batch that contains {', '.join(wrong)}, expected only tensors")
        pending.batch = result
        pending.seconds_transforming = time.perf_counter() - start

    def _call(self, transform: Transform, batch: Batch) -> Batch:
        """Call a transform. If it is not one of ours and fails at the first batch, add advice to its error."""
        try:
            return transform(batch)
        except StopIteration as error:  # it would look like the end of the epoch
            raise RuntimeError("transform raised StopIteration") from error
        except (AttributeError, TypeError, ValueError) as error:
            if self._transform_checked or type(transform).__module__.startswith(__package__):
                raise
            found = f"transform {name_of(transform)} failed at its first Batch"
            kind = ValueError if isinstance(error, ValueError) else TypeError
            raise kind(f"{found}. {USE_PER_IMAGE} It raised {type(error).__name__}: {error}") from error

    def _images(self, pending: PendingBatch) -> Tensor:
        return torch.from_numpy(self.slots.lend_rows(pending.slot, len(pending.rows)))

    def _move(self, array: Array) -> Tensor:
        return torch.from_numpy(array)


def split_rows(manifest: Manifest, unpack: bool, rows: Tensor) -> tuple[Arrays, Planes | None]:
    """Return the arrays of a batch of rows, "images" and those paired with them, and how images are stored.

    With `unpack`, they are RGB.
    """
    arrays, form = manifest.views(rows), PLANES[manifest.pixels]
    planes = form(*manifest.shape[:2]) if form else None
    if planes and unpack:
        return {**arrays, "images": planes.unpack(arrays["images"])}, None
    return arrays, planes


def find_device(device: str | torch.device) -> torch.device:
    """Return the device with its index. Raise ValueError if this machine does not have it."""
    try:
        device = torch.device(device)
    except RuntimeError:
        raise ValueError(f'device is {device!r}, expected "cpu", "cuda", "cuda:1" or another device of torch') from None
    return device if device.type == "cpu" else _find_accelerator(device)


def _find_accelerator(device: torch.device) -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None or found.type != device.type:
        available = f"torch {torch.__version__} finds only {found or 'cpu'} here"
        raise ValueError(f'device "{device}" is not available: {available}; pass device="cpu"')
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    if index >= (count := torch.accelerator.device_count()):
        last = f"{device.type}:{count - 1}"
        raise ValueError(f'device "{device}" does not exist: this machine has {count}, "{device.type}:0" to "{last}"')
    return torch.device(device.type, index)
