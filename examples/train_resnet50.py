"""Train ResNet-50 with one of three ways to load data, to compare their images/s.

    python examples/train_resnet50.py /data/imagenet --data jpeg-serial     # decode in the training loop
    python examples/train_resnet50.py /data/imagenet --data jpeg-threads    # decode in threads with two queues
    prep build imagenet /data/imagenet train.store                          # decode once, into a store
    python examples/train_resnet50.py train.store --data store              # load the store
    torchrun --standalone --nproc-per-node 4 examples/train_resnet50.py train.store     # on four devices

To train on several nodes, each with its part of the store on its own disk, use train.slurm or train.pbs.
This example is about loading data: it has no augmentation and a constant learning rate.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":  # before the imports, which take seconds: Ctrl-C ends this without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from queue import Empty, Full, Queue, SimpleQueue
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.profiler import profile, record_function, schedule
from tqdm import tqdm

from decodeonce import Loader, find_rank, open_store

File = tuple[Path, int]  # path and label
Image = tuple[NDArray[np.uint8], int]  # pixels (H, W, C) and label
Batch = tuple[Tensor, Tensor]  # images, uint8 (B, H, W, C), and labels, int64 (B,)


def main() -> None:
    options = parse_options()
    # find_rank reads the variables of torchrun. Those of srun and mpiexec work if you set MASTER_ADDR and MASTER_PORT.
    rank = find_rank()
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        local = int(os.environ.get("LOCAL_RANK", rank.rank))
        torch.accelerator.set_device_index(local % torch.accelerator.device_count())
        device = torch.accelerator.current_accelerator() or device
    if rank.world_size > 1:
        dist.init_process_group(rank=rank.rank, world_size=rank.world_size)
    feed, classes = make_feed(options, device)
    with feed:
        train(options, device, feed, classes)
    if rank.world_size > 1:
        dist.destroy_process_group()
        if device.type == "cpu":
            # Threads of gloo keep running. They aborted one of 21 runs while Python was exiting (torch 2.13).
            sys.stdout.flush()
            os._exit(0)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("source", type=Path, metavar="SRC", help="a store, or a tree SRC/train/<wnid>/*.JPEG")
    add("--data", choices=["jpeg-serial", "jpeg-threads", "store"], default="store", help="how to load data")
    add("--model", choices=list(MODELS), help="model to train (default: resnet50 on an accelerator, small on a CPU)")
    add("--partition", choices=["global", "range"], default="global", help="rows of each rank; range: for staged parts")
    add("--epochs", type=int, default=2)
    add("--steps", type=int, default=sys.maxsize, help="stop after this many steps, including those of earlier runs")
    add("--batch-size", type=int, default=256, help="images per step and rank")
    add("--size", type=int, default=256, help="side of decoded images in pixels; ignored for stores")
    add("--threads", type=int, help="threads that decode, with jpeg-threads (default: the rank's share of cores)")
    add("--lr", type=float, default=0.1, help="learning rate for 256 images per step; it is scaled with the batch size")
    add("--print-every", type=int, default=20, metavar="STEPS")
    add("--checkpoint", type=Path, metavar="FILE", help="save checkpoints to FILE, and resume from FILE if it exists")
    add("--checkpoint-every", type=int, default=500, metavar="STEPS")
    add("--profile", type=Path, metavar="DIR", help="write a trace of a few steps to DIR, for TensorBoard or Perfetto")
    return parser.parse_args()


def train(options: argparse.Namespace, device: torch.device, feed: Feed, classes: int) -> None:
    """Train for --epochs or --steps; resume from the checkpoint if it exists."""
    ranks = find_rank().world_size
    name = options.model or ("small" if device.type == "cpu" else "resnet50")
    torch.manual_seed(0)
    model = MODELS[name](classes).to(device)
    model.to(memory_format=torch.channels_last)
    lr = options.lr * options.batch_size * ranks / 256
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-5)
    step = resume(options.checkpoint, model, optimizer, feed)
    parallel = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    say(f"{options.data}: {len(feed)} steps per epoch, world size {ranks}, model {name} on {device}")

    def rate(since: tuple[int, float]) -> float:
        """Return the images/s of all ranks since this step and time."""
        images: int = (step - since[0]) * options.batch_size * ranks
        return images / (time.perf_counter() - since[1])

    def progress(epoch: int) -> tqdm[Any]:
        """Return the rest of the epoch, with a progress bar if rank 0 has a terminal. The logs of jobs have no bar."""
        hidden = True if find_rank().rank else None  # None: if standard error is not a terminal
        batches: Iterable[Any] = feed
        return tqdm(batches, f"epoch {epoch}", initial=len(feed) - feed.steps_left, disable=hidden, unit=" steps")

    terminated = threading.Event()  # by scancel, a requeue or a time limit
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    first = step + 1
    rates: list[float] = []  # images/s between two lines
    begun = printed = (step, time.perf_counter())
    with make_profiler(options.profile) as profiler:
        for epoch in range(feed.epoch, options.epochs):
            if step >= options.steps:
                break
            for images, labels in progress(epoch):
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type != "cpu"):
                    loss = nn.functional.cross_entropy(parallel(images.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == first:
                    loss.item()  # waits for the device, so that timing starts after the first step
                    begun = printed = (step, time.perf_counter())
                elif step % options.print_every == 0:
                    value = loss.item()  # waits for the device
                    rates.append(rate(printed))
                    say(f"epoch {epoch} step {step}: loss {value:.3f}, {rates[-1]:.0f} images/s")
                    printed = (step, time.perf_counter())
                if step % options.checkpoint_every == 0 or terminated.is_set():
                    save(options.checkpoint, step, model, optimizer, feed)
                if terminated.is_set() and find_rank().rank == 0:  # others would fail its last step if they ended
                    sys.exit(f"ended by SIGTERM after step {step}")
                if profiler:
                    profiler.step()
                if step >= options.steps:
                    break
            save(options.checkpoint, step, model, optimizer, feed)
            if isinstance(feed, Loader):
                say(f"limited by {feed.bottleneck()}")
    if device.type != "cpu":
        torch.accelerator.synchronize()
    mean = rate(begun)  # without the first step, which includes initialization
    deviation = f"{statistics.stdev(rates):.0f}" if len(rates) > 1 else "unknown"
    say(f"images/s: mean {mean:.0f}, standard deviation {deviation} ({len(rates)} times {options.print_every} steps)")


def save(path: Path | None, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, feed: Feed) -> None:
    """Write the checkpoint on rank 0. It is replaced atomically, so a complete one exists at any time."""
    if path is None or find_rank().rank != 0:
        return
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "feed": feed.state_dict()}
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def resume(path: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, feed: Feed) -> int:
    """Load the checkpoint if it exists and return its number of steps. All ranks must be able to read it."""
    if path is None or not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    feed.load_state_dict(state["feed"])
    step, epoch, rows = state["step"], state["feed"]["epoch"], state["feed"]["rows_consumed"]
    exact = feed.state_dict()["rows_consumed"] == rows
    say(f"resumed after step {step} in epoch {epoch} ({f'after {rows} rows' if exact else 'the epoch is restarted'})")
    return int(step)


def say(text: str) -> None:
    """Print on rank 0, above a progress bar."""
    if find_rank().rank == 0:
        with tqdm.external_write_mode():
            print(text, flush=True)


def make_feed(options: argparse.Namespace, device: torch.device) -> tuple[Feed, int]:
    """Return the feed for --data, and the number of classes.

    Each `for` loop over a feed is one epoch. All ranks have the same number of batches, with different images.
    """
    if options.data == "store":
        store = open_store(options.source)
        loader = Loader(store, batch_size=options.batch_size, device=device, partition=options.partition)
        return loader, len(store.classes)
    feed = Jpegs(options) if options.data == "jpeg-serial" else JpegThreads(options)
    if len(feed) == 0:
        sys.exit(f"{options.source}: {len(feed.files)} images are fewer than --batch-size times the number of ranks")
    return feed, feed.classes


class Jpegs:
    """A feed that decodes JPEGs in the training loop, one after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        folders = sorted(path for path in (options.source / "train").iterdir() if path.is_dir())
        self.files = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
        self.classes, self.batch_size, self.size = len(folders), options.batch_size, options.size
        self.rank = find_rank()
        self.stride: int = self.batch_size * self.rank.world_size  # images per step of all ranks
        self.epoch = self.steps_done = 0

    def __len__(self) -> int:
        return len(self.files) // self.stride

    @property
    def steps_left(self) -> int:
        return len(self) - self.steps_done

    def __iter__(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.epoch)  # the same order on every rank
        order = torch.randperm(len(self.files), generator=generator)[: len(self) * self.stride]
        mine = order.view(len(self), self.rank.world_size, self.batch_size)[:, self.rank.rank]
        self.steps_done = 0
        for batch in self.batches([self.files[index] for index in mine.flatten()]):
            self.steps_done += 1
            if self.steps_done == len(self):
                self.epoch, self.steps_done = self.epoch + 1, 0
            yield batch

    def batches(self, files: list[File]) -> Iterator[Batch]:
        """Yield batches of these images."""
        for first in range(0, len(files), self.batch_size):
            yield stack([decode(*file, self.size) for file in files[first : first + self.batch_size]])

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "rows_consumed": self.steps_done * self.stride}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]

    def __enter__(self) -> Jpegs:
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing, because no resources are open."""


class JpegThreads(Jpegs):
    """A feed whose threads decode JPEGs and put them on a queue; another thread makes batches for a second queue.

    Pillow releases the interpreter lock while it decodes and resizes. An image goes into the batch that is being made
    when it is ready. So batches differ from run to run, but the images of an epoch do not.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        share = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.threads = options.threads or max(1, share)
        self.running: list[threading.Thread] = []
        self.stop_reason: BaseException | None = None  # if set, all threads end

    def batches(self, files: list[File]) -> Iterator[Batch]:
        self.stop(RuntimeError("a new epoch was started"))
        self.stop_reason = None
        paths: SimpleQueue[File] = SimpleQueue()
        images: Queue[Image] = Queue(2 * self.batch_size)
        batches: Queue[Batch] = Queue(2)
        for file in files:
            paths.put(file)

        def decode_images() -> None:
            with suppress(Empty):
                while True:
                    self.put(images, decode(*paths.get_nowait(), self.size))

        def make_batches() -> None:
            for _ in range(len(self)):
                self.put(batches, stack([self.get(images) for _ in range(self.batch_size)]))

        for task in [make_batches] + [decode_images] * self.threads:
            self.running.append(threading.Thread(target=self.run, args=[task]))
            self.running[-1].start()
        for _ in range(len(self)):
            yield self.get(batches)

    def run(self, task: Callable[[], None]) -> None:
        """Run a task. An error is raised in the training loop when that waits for a batch."""
        try:
            task()
        except BaseException as error:
            self.stop_reason = self.stop_reason or error

    def put(self, queue: Queue[Any], item: Any) -> None:
        """Put an item, but stop waiting when the threads are to end (since Python 3.13, Queue.shutdown does this)."""
        while self.stop_reason is None:
            with suppress(Full):
                return queue.put(item, timeout=0.1)
        raise self.stop_reason

    def get(self, queue: Queue[Any]) -> Any:
        """Get an item, but stop waiting when the threads are to end."""
        while self.stop_reason is None:
            with suppress(Empty):
                return queue.get(timeout=0.1)
        raise self.stop_reason

    def stop(self, reason: BaseException) -> None:
        """End all threads."""
        self.stop_reason = self.stop_reason or reason
        while self.running:
            self.running.pop().join()

    def __exit__(self, *exc: object) -> None:
        self.stop(RuntimeError("the feed was closed"))


Feed = Loader | Jpegs


def decode(path: Path, label: int, size: int) -> Image:
    """Decode an image to the same row as `prep build`: resize its shorter side to `size` and crop the center."""
    import PIL.Image  # imported here, because `--data store` does not need Pillow
    import PIL.ImageFile

    PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True  # a truncated file must not end the training; `prep build` skips it
    with record_function("decode"), PIL.Image.open(path) as file:
        image = file.convert("RGB")
        width, height = (side * size // min(image.size) for side in image.size)
        left, top = round((width - size) / 2), round((height - size) / 2)
        image = image.resize((width, height), PIL.Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return np.asarray(image), label


def stack(samples: list[Image]) -> Batch:
    """Make a batch."""
    images, labels = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)


class Normalized(nn.Module):
    """Convert uint8 (B, H, W, C) to float32 (B, C, H, W) in channels_last, with ImageNet's mean and deviation.

    `every`: use only every n-th pixel in both directions.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        self.every = every
        self.register_buffer("mean", 255 * torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("deviation", 255 * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        images = images[:, :: self.every, :: self.every].permute(0, 3, 1, 2)
        return images.to(torch.float32).sub_(self.mean).div_(self.deviation)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution and its batch norm."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut. The middle convolution has the stride (ResNet v1.5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        narrow, middle = convolution(inputs, width, 1), convolution(width, width, 3, stride)
        self.path = nn.Sequential(narrow, nn.ReLU(), middle, nn.ReLU(), convolution(width, 4 * width, 1))
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.path(x) + self.shortcut(x))


def resnet50(classes: int) -> nn.Module:
    """Return ResNet-50 of He et al., Deep Residual Learning for Image Recognition, table 1."""
    layers = [Normalized(), convolution(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride=2 if block == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def small(classes: int) -> nn.Module:
    """Return a model so small that loading limits images/s even on a CPU. It uses every eighth pixel."""
    layers = [Normalized(every=8), convolution(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16 * 4 * 4, classes))


MODELS = {"resnet50": resnet50, "small": small}


def make_profiler(folder: Path | None) -> AbstractContextManager[profile | None]:
    """Return a profiler that traces the third to the eighth step of each rank, including the feed's threads."""
    if folder is None:
        return nullcontext()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank{find_rank().rank}.pt.trace.json"  # the name that TensorBoard's profiler looks for
    try:
        every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # older releases of torch do not have this option
        every_thread = None
    return profile(
        schedule=schedule(wait=1, warmup=1, active=6, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        experimental_config=every_thread,
    )


if __name__ == "__main__":
    main()
