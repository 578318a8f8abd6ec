"""Train ResNet-50, fed in one of three ways; all else is the same, so that images/s tell them apart.

    python examples/train_resnet50.py /data/imagenet --data jpeg-serial     # decode in the training loop
    python examples/train_resnet50.py /data/imagenet --data jpeg-threads    # decode in threads, behind two queues
    prep build imagenet /data/imagenet train.store                          # decode once
    python examples/train_resnet50.py train.store --data store              # and never again
    torchrun --standalone --nproc-per-node 4 examples/train_resnet50.py train.store     # on four devices

On many nodes, each with its part of the store on its own disk: train.slurm, train.pbs.
It shows feeding: there is no augmentation, and the learning rate is constant.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
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

from decodeonce import Loader, open_store
from decodeonce.host import usable_cores
from decodeonce.launch import find_rank

File = tuple[Path, int]  # and its label
Picture = tuple[NDArray[np.uint8], int]  # (H, W, C) and its label
Batch = tuple[Tensor, Tensor]  # uint8 (B, H, W, C) and int64 (B,)


def main() -> None:
    """Find out which rank this is and what device it has; feed it, train it."""
    options = parse_options()
    place = find_rank()  # torchrun's variables; srun's and mpiexec's too, where MASTER_ADDR and MASTER_PORT are set
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        local = int(os.environ.get("LOCAL_RANK", place.rank))
        torch.accelerator.set_device_index(local % torch.accelerator.device_count())
        device = torch.accelerator.current_accelerator() or device
    if place.world_size > 1:
        dist.init_process_group(rank=place.rank, world_size=place.world_size)
    feed, classes = make_feed(options, device)
    with feed:
        train(options, device, feed, classes)
    if place.world_size > 1:
        dist.destroy_process_group()
        if device.type == "cpu":
            # Threads of gloo's outlive that, and as Python ends, one run of 21 was aborted by them (torch 2.13).
            sys.stdout.flush()
            os._exit(0)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SRC", help="a store, or a tree SRC/train/<wnid>/*.JPEG")
    parser.add_argument("--data", choices=["jpeg-serial", "jpeg-threads", "store"], default="store")
    parser.add_argument("--model", choices=list(MODELS), help="default: resnet50 on an accelerator, else small")
    parser.add_argument("--partition", choices=["global", "range"], default="global", help="range: for a staged part")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="stop after so many, earlier runs' counted in")
    parser.add_argument("--batch-size", type=int, default=256, help="images a step on each rank")
    parser.add_argument("--size", type=int, default=256, help="side of a decoded picture; a store has its own")
    parser.add_argument("--threads", type=int, help="that decode (jpeg-threads; default: the rank's share of cores)")
    parser.add_argument("--lr", type=float, default=0.1, help="for 256 images a step; it grows with them")
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="save here, and go on from here if it exists")
    parser.add_argument("--checkpoint-every", type=int, default=500, metavar="STEPS")
    parser.add_argument(
        "--profile", type=Path, metavar="DIR", help="trace a few steps into it, for TensorBoard or Perfetto"
    )
    return parser.parse_args()


def train(options: argparse.Namespace, device: torch.device, feed: Feed, classes: int) -> None:
    """All epochs, or --steps; from the checkpoint on, where there is one."""
    ranks = find_rank().world_size
    name = options.model or ("small" if device.type == "cpu" else "resnet50")
    torch.manual_seed(0)
    model = MODELS[name](classes).to(device)
    model.to(memory_format=torch.channels_last)
    lr = options.lr * options.batch_size * ranks / 256
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-5)
    step = resume(options.checkpoint, model, optimizer, feed)
    parallel = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    say(f"{options.data}: {len(feed)} steps an epoch on each of {ranks} ranks, {name} on {device}")

    def rate(since: tuple[int, float]) -> float:
        """Images a second since this step and time, of all ranks."""
        return (step - since[0]) * options.batch_size * ranks / (time.perf_counter() - since[1])

    first = step + 1
    begun = printed = (step, time.perf_counter())
    with make_profiler(options.profile) as profiler:
        for epoch in range(feed.epoch, options.epochs):
            if step >= options.steps:
                break
            for images, labels in feed:
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type != "cpu"):
                    loss = nn.functional.cross_entropy(parallel(images.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == first:
                    loss.item()  # waits for the device; before that a clock would tell nothing
                    begun = printed = (step, time.perf_counter())
                elif step % options.print_every == 0:
                    say(f"epoch {epoch} step {step}: loss {loss.item():.3f}, {rate(printed):.0f} images/s")
                    printed = (step, time.perf_counter())
                if step % options.checkpoint_every == 0:
                    save(options.checkpoint, step, model, optimizer, feed)
                if profiler:
                    profiler.step()
                if step >= options.steps:
                    break
            save(options.checkpoint, step, model, optimizer, feed)
            if isinstance(feed, Loader):
                say(f"limited by {feed.bottleneck()}")
    if device.type != "cpu":
        torch.accelerator.synchronize()
    say(f"images/s: {rate(begun):.0f}")  # without the first step, in which everything is set up


def save(path: Path | None, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, feed: Feed) -> None:
    """Rank 0 writes the checkpoint, so that whenever it is stopped there is a whole one."""
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
    """Go on from the checkpoint, if there is one, where every rank sees it; returns the steps that are done."""
    if path is None or not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    feed.load_state_dict(state["feed"])
    step, epoch, rows = state["step"], state["feed"]["epoch"], state["feed"]["rows_consumed"]
    exact = feed.state_dict()["rows_consumed"] == rows
    say(f"resumed after step {step} in epoch {epoch}, {f'after {rows} rows of it' if exact else 'from its beginning'}")
    return int(step)


def say(text: str) -> None:
    """Print it, once for all ranks."""
    if find_rank().rank == 0:
        print(text, flush=True)


def make_feed(options: argparse.Namespace, device: torch.device) -> tuple[Feed, int]:
    """What --data asks for, and the number of classes.

    Each `for` over a feed is an epoch, in which every rank has the same number of batches, of pictures of its own.
    """
    if options.data == "store":
        store = open_store(options.source)
        loader = Loader(store, batch_size=options.batch_size, device=device, partition=options.partition)
        return loader, len(store.classes)
    feed = Jpegs(options) if options.data == "jpeg-serial" else JpegThreads(options)
    if len(feed) == 0:
        sys.exit(f"{options.source}: {len(feed.files)} pictures do not make a batch of --batch-size for every rank")
    return feed, feed.classes


class Jpegs:
    """Decodes in the training loop, one picture after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        folders = sorted(path for path in (options.source / "train").iterdir() if path.is_dir())
        self.files = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
        self.classes, self.batch_size, self.size = len(folders), options.batch_size, options.size
        self.place = find_rank()
        self.stride = self.batch_size * self.place.world_size  # pictures a step of all ranks
        self.epoch = self.steps_done = 0

    def __len__(self) -> int:
        return len(self.files) // self.stride

    def __iter__(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.epoch)  # the same order on every rank
        order = torch.randperm(len(self.files), generator=generator)[: len(self) * self.stride]
        mine = order.view(len(self), self.place.world_size, self.batch_size)[:, self.place.rank]
        self.steps_done = 0
        for batch in self.batches([self.files[index] for index in mine.flatten()]):
            self.steps_done += 1
            if self.steps_done == len(self):
                self.epoch, self.steps_done = self.epoch + 1, 0
            yield batch

    def batches(self, files: list[File]) -> Iterator[Batch]:
        """Batches of these pictures."""
        for first in range(0, len(files), self.batch_size):
            yield stack([decode(*file, self.size) for file in files[first : first + self.batch_size]])

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "rows_consumed": self.steps_done * self.stride}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]

    def __enter__(self) -> Jpegs:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is open."""


class JpegThreads(Jpegs):
    """Threads take paths and put pictures on a queue; one more makes batches of those and puts them on another.

    Pillow lets other threads run while it decodes and resizes. A picture gets into the batch that is being made when it
    is ready: batches differ from run to run, the pictures of an epoch do not.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        share = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.threads = options.threads or max(1, share)
        self.running: list[threading.Thread] = []
        self.ended: BaseException | None = None  # why all threads are to end

    def batches(self, files: list[File]) -> Iterator[Batch]:
        self.end(RuntimeError("another epoch was begun"))
        self.ended = None
        paths: SimpleQueue[File] = SimpleQueue()
        pictures: Queue[Picture] = Queue(2 * self.batch_size)
        batches: Queue[Batch] = Queue(2)
        for file in files:
            paths.put(file)

        def make_pictures() -> None:
            with suppress(Empty):
                while True:
                    self.put(pictures, decode(*paths.get_nowait(), self.size))

        def make_batches() -> None:
            for _ in range(len(self)):
                self.put(batches, stack([self.get(pictures) for _ in range(self.batch_size)]))

        for task in [make_batches] + [make_pictures] * self.threads:
            self.running.append(threading.Thread(target=self.run, args=[task]))
            self.running[-1].start()
        for _ in range(len(self)):
            yield self.get(batches)

    def run(self, task: Callable[[], None]) -> None:
        """Whatever goes wrong in a thread is raised in the training loop, where it waits for a batch."""
        try:
            task()
        except BaseException as error:
            self.ended = self.ended or error

    def put(self, queue: Queue[Any], item: Any) -> None:
        """Wait for room, but not for ever: the training loop may be over (from Python 3.13 on see Queue.shutdown)."""
        while self.ended is None:
            with suppress(Full):
                return queue.put(item, timeout=0.1)
        raise self.ended

    def get(self, queue: Queue[Any]) -> Any:
        """Wait for an item, likewise."""
        while self.ended is None:
            with suppress(Empty):
                return queue.get(timeout=0.1)
        raise self.ended

    def end(self, why: BaseException) -> None:
        """End the threads, wherever they are."""
        self.ended = self.ended or why
        while self.running:
            self.running.pop().join()

    def __exit__(self, *exc: object) -> None:
        self.end(RuntimeError("the feed was closed"))


Feed = Loader | Jpegs


def decode(path: Path, label: int, size: int) -> Picture:
    """A file as the row that `prep build` makes of it: the shorter side resized to `size`, the square in its middle."""
    from PIL import Image, ImageFile  # not above: `--data store` needs no Pillow

    ImageFile.LOAD_TRUNCATED_IMAGES = True  # a file that was cut would end the training; `prep build` leaves it out
    with record_function("decode"), Image.open(path) as file:
        image = file.convert("RGB")
        width, height = (side * size // min(image.size) for side in image.size)
        left, top = round((width - size) / 2), round((height - size) / 2)
        image = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return np.asarray(image), label


def stack(pictures: list[Picture]) -> Batch:
    """One batch."""
    images, labels = zip(*pictures, strict=True)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)


class Normalised(nn.Module):
    """From uint8 (B, H, W, C) to float32 (B, C, H, W), channels_last as it lies, with ImageNet's mean and deviation."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        self.every = every  # that many pixels one is looked at
        self.register_buffer("mean", 255 * torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("deviation", 255 * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        images = images[:, :: self.every, :: self.every].permute(0, 3, 1, 2)
        return images.to(torch.float32).sub_(self.mean).div_(self.deviation)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution and its batch norm."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the middle one has the stride (ResNet v1.5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        narrow, middle = convolution(inputs, width, 1), convolution(width, width, 3, stride)
        self.path = nn.Sequential(narrow, nn.ReLU(), middle, nn.ReLU(), convolution(width, 4 * width, 1))
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.path(x) + self.shortcut(x))


def resnet50(classes: int) -> nn.Module:
    """He et al., Deep Residual Learning for Image Recognition, table 1."""
    layers = [Normalised(), convolution(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride=2 if block == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def small(classes: int) -> nn.Module:
    """So little work, on every eighth pixel, that on a CPU too images/s shows the feeding."""
    layers = [Normalised(every=8), convolution(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16 * 4 * 4, classes))


MODELS = {"resnet50": resnet50, "small": small}


def make_profiler(folder: Path | None) -> AbstractContextManager[profile | None]:
    """Traces the third to the eighth step into a file for each rank, the threads of the feed included."""
    if folder is None:
        return nullcontext()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank{find_rank().rank}.pt.trace.json"  # the name TensorBoard's profiler looks for
    try:
        every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # a torch that is older than this option
        every_thread = None
    return profile(
        schedule=schedule(wait=1, warmup=1, active=6, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        experimental_config=every_thread,
    )


if __name__ == "__main__":
    main()
