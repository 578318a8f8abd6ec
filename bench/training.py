"""The training step of the GPU benchmarks, and what a run of steps takes: ResNet-50 in bf16 and channels_last."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import profile, schedule

from examples.train_resnet50 import resnet50

ROOT = Path(__file__).resolve().parent.parent

CLASSES = 1000
SKIPPED_STEPS, TRACED_STEPS = 4, 7  # the first steps of an epoch transfer the batches ahead
Batches = Iterable[Iterable[Tensor]]  # images and labels on the device
Run = dict[str, float]


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the flags that all benchmarks on a device have, and parse. Without a device, say so and exit with 0."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    parser.add_argument("--device", type=torch.device, default=found)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    if options.device is None:
        parser.exit(0, "nothing is measured, because torch finds no accelerator here\n")
    return options


class Training:
    """A model on a device. Images are uint8 (B, H, W, C), or (B, C, H, W) if they are normalized already."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.on_cpu = device, device.type == "cpu"
        torch.backends.cudnn.benchmark = True
        model = resnet50(CLASSES).to(device).to(memory_format=torch.channels_last)
        assert isinstance(model, nn.Sequential)
        self.normalize, self.layers = model[0], model[1:]
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    @property
    def name(self) -> str:
        """Name of the device."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Queue one training step on the current stream."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=not self.on_cpu):
            pixels = self.normalize(images) if images.dtype == torch.uint8 else images
            # The weights are float32. On a CPU, there is no autocast that would convert normalized images.
            loss = nn.functional.cross_entropy(self.layers(pixels.float() if self.on_cpu else pixels), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def finish(self) -> None:
        """Wait until the device has finished."""
        if not self.on_cpu:
            torch.accelerator.synchronize(self.device)

    def finish_stream(self) -> None:
        """Wait until the device has finished the work of the current stream."""
        if not self.on_cpu:
            torch.accelerator.current_stream(self.device).synchronize()

    def run(self, batches: Batches) -> Run:
        """Train on all batches; return what it took.

        Returns:
            - images: number of images.
            - images_per_s: includes the start of the epoch, if `batches` is an epoch.
            - device_waits: share of the time between the end of a step on the device and the start of the next one.
            - cores: processor seconds of this process and its workers per second.
            - processor_s_per_step: the same seconds per step.

        Raises:
            RuntimeError: If there is no batch.
        """
        self.finish()
        count, marks = 0, [self._mark()]
        start, processor = time.perf_counter(), processor_seconds()
        for images, labels in batches:
            marks.append(self._mark())  # the batch can be used: the loader has let this stream wait for its copy
            self.step(images, labels)
            marks.append(self._mark())
            count += len(images)
        self.finish()
        seconds, processor = time.perf_counter() - start, processor_seconds() - processor
        if not count:
            raise RuntimeError("an epoch had no batch")
        waits = [self._between(*marks[index : index + 2]) for index in range(0, len(marks) - 1, 2)]
        return {
            "images": count,
            "images_per_s": count / seconds,
            "device_waits": sum(waits) / seconds,
            "cores": processor / seconds,
            "processor_s_per_step": processor / len(waits),
        }

    def trace(self, batches: Batches, file: Path) -> None:
        """Train on TRACED_STEPS batches, and write a Chrome trace of the last three steps."""
        plan = schedule(wait=SKIPPED_STEPS - 1, warmup=1, active=TRACED_STEPS - SKIPPED_STEPS, repeat=1)
        with profile(schedule=plan, on_trace_ready=lambda found: found.export_chrome_trace(str(file))) as profiler:
            for images, labels in batches:
                self.step(images, labels)
                profiler.step()

    def _mark(self) -> Any:
        """Mark this place in the work of the current stream; on a CPU, it is the current time.

        See https://docs.pytorch.org/docs/stable/generated/torch.Event.html.
        """
        if self.on_cpu:
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self.device))
        return event

    def _between(self, first: Any, second: Any) -> float:
        """Return the seconds between two marks."""
        return float(second - first if self.on_cpu else first.elapsed_time(second) / 1e3)


def processor_seconds() -> float:
    """Return the processor time so far of this process and its worker processes."""
    return time.process_time() + sum(map(_worker_seconds, multiprocessing.active_children()))


def _worker_seconds(worker: Any) -> float:
    """Return the processor time of a running process, from fields 14 and 15 of proc_pid_stat(5)."""
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
