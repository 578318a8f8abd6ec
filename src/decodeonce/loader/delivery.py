"""Batches, and how filled slots become batches: on the host, or on an accelerator through copies on a side stream."""

from __future__ import annotations

import math
import mmap
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import profiler

from decodeonce.loader.blocks import Blocks
from decodeonce.loader.buffers import Event, Pool, Slot, Slots, page_aligned_slot, recycle_from
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

# One slot is copied to the device, one is being filled, and one is started while that finishes. More would only wait.
STREAM_SLOTS = 3
# A thread that waits for a device with synchronize() keeps a core busy, and does not notice that its epoch has ended.
DEVICE_POLL_SECONDS = 0.001


class Device:
    """CUDA, ROCm, XPU and other accelerators. "Current stream" means the current stream of the calling thread.

    The loader uses a device only through this class, so that tests can use a device whose copies finish late.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self) -> Any:
        """Create a stream, which has `wait_event(event)`."""
        return torch.Stream(device=self._device)

    def current_stream(self) -> Any:
        """The current stream."""
        return torch.accelerator.current_stream(self._device)

    def set_stream(self, stream: Any) -> None:
        """Make `stream` (and its device) the current one."""
        torch.accelerator.set_stream(stream)

    def record(self) -> Event:
        """Record a new event on the current stream. It has `synchronize()` and `query()`."""
        event: Event = self.current_stream().record_event()
        return event

    def pinned(self, shape: Shape) -> Tensor:
        """Allocate page-locked uint8 host memory."""
        return torch.empty(shape, dtype=torch.uint8, pin_memory=self._device.type != "cpu")

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a page-locked copy. torch reuses its memory only after copies from it to the device are done."""
        return tensor if self._device.type == "cpu" else tensor.pin_memory()

    def upload(self, tensor: Tensor) -> Tensor:
        """Copy page-locked memory to the device, queued on the current stream."""
        return tensor.to(self._device, non_blocking=True, copy=True)

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """When `tensor` is freed, do not reuse its memory until `stream` has done the work queued by then."""
        if tensor.device.type != "cpu":  # a transform can leave a tensor on the host
            tensor.record_stream(stream)

    def empty(self, shape: Shape) -> Tensor:
        """Allocate uninitialized uint8 device memory."""
        return torch.empty(shape, dtype=torch.uint8, device=self._device)

    def put(self, target: Tensor, places: Tensor, rows: Tensor) -> None:
        """Set target[places[i]] = rows[i], queued on the current stream."""
        _wide(target).index_copy_(0, places, _wide(rows))

    def gather(self, source: Tensor, places: Tensor) -> Tensor:
        """Return a new tensor with source[places[i]], queued on the current stream."""
        return _wide(source).index_select(0, places).view(torch.uint8).view(len(places), *source.shape[1:])


def _wide(rows: Tensor) -> Tensor:
    """The same memory of uint8 rows as rows of int64, if their bytes divide: torch moves one element per thread."""
    flat = rows.flatten(1)
    return flat.view(torch.int64) if flat.shape[1] % 8 == 0 else flat


class NoWait:
    """A stream and an event for a device whose calls never need waiting."""

    def wait_event(self, event: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class HostDevice(Device):
    """The host as a device without streams: each call returns when its work is done."""

    def stream(self) -> NoWait:
        return NoWait()

    current_stream = record = stream

    def set_stream(self, stream: object) -> None:
        pass


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
        """Wait until the next batch can be made, because the device still works on earlier ones; return the seconds."""
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


def pinned_slots(device: Device, shape: Shape) -> Slots:
    """Slots in one block of page-locked memory, which is allocated when the first slot is taken.

    torch rounds each block up to a power of two: as blocks of their own, three batches of 256 rows of 320x320 would
    take 384 MiB instead of 256. In the block, which starts at a page boundary, every slot does (see
    `page_aligned_slot`).
    """
    nbytes = math.prod(shape)
    stride = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    left: list[Slot] = []

    def make() -> Slot:
        if not left:
            block = device.pinned((STREAM_SLOTS, stride))
            left.extend(Slot(memory[:nbytes].view(shape)) for memory in block.unbind())
        return left.pop(0)

    return Slots(make, STREAM_SLOTS)


class StreamDelivery(Delivery):
    """Batches that are copied to an accelerator on a side stream while the consumer's stream works.

    The filler's thread queues all its device work (copies and transform) on the side stream, in the order of batches.

    The memory of a dropped batch is free only when the consumer's stream has done its work on it. The host can queue
    the work of many steps, so the filler waits until the device has followed. Then at most `prefetch + 2` batches use
    memory, besides those that the user keeps: one is being made, `prefetch` were not received or have a receipt whose
    event is not done, and the consumer's stream still works on the batch that was received before these.
    """

    transfers = True

    def __init__(self, shape: Shape, device: Device, prefetch: int) -> None:
        super().__init__(pinned_slots(device, shape))
        self._device, self._prefetch = device, prefetch
        self._stream = device.stream()
        self._begun: Event | None = None
        # In an epoch. The filler counts the batches that it made, the consumer those that it received.
        self._made = self._received = 0
        # Events on the consumer's stream, also of earlier epochs. It has done its work on all batches that were
        # received before one of them when that event is done.
        self._receipts: deque[Event] = deque()

    def begin(self) -> None:
        self._made = self._received = 0  # batches that were not received are gone
        # Tensors that a transform reads (a mean, a model's weights) may not be ready yet on the consumer's stream.
        self._begun = self._device.record()

    def enter(self) -> None:
        self._device.set_stream(self._stream)  # each thread has its own current stream
        self._stream.wait_event(self._begun)

    def take(self) -> Slot:
        slot = super().take()
        if slot.copied is not None:
            slot.copied.synchronize()  # otherwise the next rows could overwrite data that is not copied yet
        return slot

    def hold(self, must_stop: Callable[[], bool]) -> float:
        start = time.perf_counter()
        # The left side is read first, because the consumer adds a receipt before it counts the batch as received.
        while self._prefetch - (self._made - self._received) < len(self._receipts):
            if self._receipts[0].query():
                self._receipts.popleft()
            elif must_stop():
                break
            else:
                time.sleep(DEVICE_POLL_SECONDS)
        return time.perf_counter() - start

    def make_batch(self, pending: PendingBatch, labels: Array, columns: dict[str, Array]) -> None:
        self._made += 1
        super().make_batch(pending, labels, columns)
        pending.usable_after = self._device.record()

    def receive(self, pending: PendingBatch) -> Batch:
        stream = self._device.current_stream()
        stream.wait_event(pending.usable_after)
        # The tensors were allocated on the side stream. When the user drops one, the allocator would give its memory to
        # the next copy on that stream at once, while kernels on the consumer's stream may still read it. `keep` delays
        # the reuse until the consumer's stream has done the work queued by then. To use a batch on a third stream,
        # the user must synchronize streams, as for any other tensor.
        for tensor in pending.batch.tensors():
            self._device.keep(tensor, stream)
        self._receipts.append(self._device.record())
        self._received += 1  # after the event, so that the batch counts all the time
        return pending.batch

    def _images(self, pending: PendingBatch) -> Tensor:
        slot = pending.slot
        try:
            uploaded = self._device.upload(slot.memory[: len(pending.rows)])
            slot.copied = self._device.record()
        finally:
            self.slots.give_back(slot)
        return uploaded

    def _move(self, array: Array) -> Tensor:
        return self._device.upload(self._device.pin(torch.from_numpy(array)))


class CachedDelivery(StreamDelivery):
    """Batches that are gathered from a cache in device memory. `rows`, ascending, all fit; each is uploaded once."""

    def __init__(self, shape: Shape, device: Device, prefetch: int, rows: range | Rows) -> None:
        super().__init__(shape, device, prefetch)
        try:
            self._cache = device.empty((len(rows), *shape[1:]))
        except RuntimeError as error:  # or its subclass torch.OutOfMemoryError
            nbytes = len(rows) * math.prod(shape[1:])
            advice = "use more ranks, a smaller store, or no cache"
            raise ValueError(f'cache="device": {nbytes / 1e9:.1f} GB of rows do not fit; {advice} ({error})') from error
        # The cache was allocated on the consumer's stream. When it is freed, the allocator of that stream would reuse
        # its memory at once, while rows are still gathered from it on the side stream.
        device.keep(self._cache, self._stream)
        self._rows = rows
        self._uploaded = np.zeros(len(rows), np.bool_)

    def lacking(self, rows: Rows) -> Rows:
        return np.unique(rows[~self._uploaded[self._places(rows)]])  # padding and weights repeat rows

    def close(self) -> None:
        super().close()
        del self._cache

    def _images(self, pending: PendingBatch) -> Tensor:
        uploaded, indexes = super()._images(pending), self._places(pending.rows)
        if len(indexes):
            self._device.put(self._cache, self._move(indexes), uploaded)
            # Another batch can have uploaded some of these rows after `lacking` was called.
            self.cached_rows += len(indexes) - int(np.count_nonzero(self._uploaded[indexes]))
            self._uploaded[indexes] = True
        return self._device.gather(self._cache, self._move(self._places(pending.step.rows)))

    def _places(self, rows: Rows) -> Rows:
        """The positions of these rows in the cache."""
        return rows - self._rows.start if isinstance(self._rows, range) else self._rows.searchsorted(rows)


def split_rows(manifest: Manifest, unpack: bool, rows: Tensor) -> tuple[Arrays, Planes | None]:
    """Return the arrays of a batch of rows, "images" and those paired with them, and how images are stored.

    With `unpack`, they are RGB.
    """
    arrays, form = manifest.views(rows), PLANES[manifest.pixels]
    planes = form(*manifest.shape[:2]) if form else None
    if planes and unpack:
        return {**arrays, "images": planes.unpack(arrays["images"])}, None
    return arrays, planes


def make_delivery(device: torch.device, shape: Shape, prefetch: int, cached: range | Rows | None = None) -> Delivery:
    """Create the delivery to a device, with slots of `shape`. `cached`: rows to keep in device memory, or None."""
    if device.type == "cpu" and cached is None:
        # Up to `prefetch` batches are ready or in progress. The user holds one batch while the next is received.
        return Delivery(Slots(partial(page_aligned_slot, shape), prefetch + 2))
    target = (HostDevice if device.type == "cpu" else Device)(device)
    if cached is None:
        return StreamDelivery(shape, target, prefetch)
    return CachedDelivery(shape, target, prefetch, cached)


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
