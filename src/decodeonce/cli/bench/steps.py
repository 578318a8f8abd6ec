"""Take batches at the pace of training, and see how many training steps wait for their batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from decodeonce.cli.bench.epochs import WARM_UP_BATCHES
from decodeonce.formatting import duration_text
from decodeonce.loader import Batch, Loader
from decodeonce.loader.delivery import Device
from decodeonce.loader.meter import SLIGHT

FEWEST = 5  # steps that are counted
LONGEST = 2.0  # times `seconds` that these may take


@dataclass(frozen=True)
class Steps:
    """How many training steps were tried and how many of them waited; mean wait and processor time of a step."""

    steps: int
    steps_waited: int
    step_wait_s: float
    processor_s_per_step: float


def why_no_steps(loader: Loader, step_s: float, seconds: float) -> str:
    """Return why training steps of `step_s` cannot be tried in about `seconds`; "" if they can."""
    if len(loader) < 2:
        return "the rows are a single batch; pass a smaller --batch-size"
    if FEWEST * step_s > LONGEST * seconds:
        return f"a step of {duration_text(step_s)} is too long to try several; pass a smaller --batch-size"
    return ""


def run_steps(loader: Loader, device: Device, step_s: float, seconds: float) -> Steps:
    """Take batches for about `seconds`, and sleep for `step_s` after each, as if the device worked on it.

    A step waits if its batch is on the device more than 5% of a step late. The first step of each epoch always waits.
    It is not counted, because the epochs here are much shorter than those of training. The processor time is that of
    the whole process; waiting for a CUDA device keeps a core busy.
    """
    waits: list[float] = []
    start = asked = processor = 0.0
    # `_` holds the batch during its step, as training does.
    for number, (place, _) in enumerate(_batches(loader), 1 - WARM_UP_BATCHES):
        device.record().synchronize()
        now = time.perf_counter()
        if number < 1:  # the first write to a slot is slow, and batches that were prepared before would hide waits
            start, processor = now, time.process_time()
        elif place:
            waits.append(now - asked)
        if len(waits) >= FEWEST and now - start >= seconds:
            break
        if number >= 0:
            time.sleep(step_s)
        asked = time.perf_counter()
    late = sum(wait > SLIGHT * step_s for wait in waits)
    return Steps(len(waits), late, sum(waits) / len(waits), (time.process_time() - processor) / number)


def _batches(loader: Loader) -> Iterator[tuple[int, Batch]]:
    """Yield batches of epoch after epoch, each with its place in its epoch."""
    for _ in count():
        yield from enumerate(loader)
