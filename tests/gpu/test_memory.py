"""Memory of the device and pinned memory of the host do not grow over 200 epochs, and a closed Loader keeps none."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from decodeonce import Loader
from decodeonce.augment import Augment, Normalize, RandomFlip, RandomResizedCrop
from tests.gpu.consumer import LATE, weigh

BATCH = 128
# torch's cuBLAS keeps up to 32 MiB for each pair of a stream and a thread's handle. An epoch's new thread can get a
# second handle, if the thread of the epoch before has not returned its own yet.
WORKSPACES = 2**26
# A leak of one batch of images per epoch would be 283 MB in 180 epochs; one of labels 0.2 MB, and more if pinned.
SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "copies": ({}, 0),
    "cache": ({"cache": "device"}, 0),
    "augmentation": ({"transform": Augment(RandomResizedCrop(48), RandomFlip(), Normalize("imagenet"))}, WORKSPACES),
}
# Pinned labels whose copies are not known to be done yet. Each takes 1 KiB.
PINNED = 2**16
# Two of the segments in which torch's allocator takes memory of this size from the device.
SEGMENTS = 40 * 2**20


def run(loader: Loader, epochs: int) -> tuple[int, int, int]:
    """Run epochs; return bytes of device memory in use, bytes that torch reserved of it, and pinned bytes."""
    for _ in range(epochs):
        for batch in loader:
            weigh(batch.images)
            del batch
    torch.accelerator.synchronize()
    pinned: int = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), pinned


@pytest.mark.skipif(
    not hasattr(torch.cuda, "host_memory_stats"), reason="counting the pinned memory of an accelerator needs torch 2.7"
)
@pytest.mark.parametrize(("settings", "spare"), SETTINGS.values(), ids=SETTINGS)
def test_memory_is_bounded_in_200_epochs(
    larger: Path, cuda: torch.device, settings: dict[str, Any], spare: int
) -> None:
    with Loader(larger, batch_size=BATCH, device=cuda, **settings) as loader:
        before = run(loader, 20)
        after = run(loader, 180)
    assert after[0] <= before[0] + spare
    assert after[1] <= before[1] + spare + SEGMENTS
    assert after[2] <= before[2] + PINNED


def most_in_use(loader: Loader, *, wait: bool) -> int:
    """Run epochs whose steps take longer on the device than on the host; return the most bytes in use."""
    torch.cuda.reset_peak_memory_stats()
    for _ in range(5):
        for batch in loader:
            torch.cuda._sleep(LATE // 40)
            del batch
            if wait:
                torch.accelerator.synchronize()
    torch.accelerator.synchronize()
    most: int = torch.cuda.memory_stats()["active_bytes.all.peak"]
    return most


@pytest.mark.parametrize(("settings", "spare"), SETTINGS.values(), ids=SETTINGS)
def test_memory_is_bounded_while_the_device_is_behind(
    larger: Path, cuda: torch.device, settings: dict[str, Any], spare: int
) -> None:
    with Loader(larger, batch_size=BATCH, device=cuda, **settings) as loader:
        run(loader, 2)
        waited = most_in_use(loader, wait=True)
        images = loader.peek().images.nbytes
        assert most_in_use(loader, wait=False) <= waited + 6 * (images + 2**21) + spare  # not 40 batches


@pytest.mark.parametrize("cache", [None, "device"])
def test_closed_loader_frees_the_memory_of_the_device(larger: Path, cuda: torch.device, cache: Any) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    for steps in (0, 1, 3, 8):
        with Loader(larger, batch_size=BATCH, device=cuda, cache=cache) as loader:
            batches = iter(loader)
            kept = [next(batches) for _ in range(steps)]
            assert torch.cuda.memory_allocated() >= before + steps * BATCH * 64 * 64 * 3
        del kept
        assert torch.cuda.memory_allocated() == before


# ---- Batches are right with the allocators that torch offers for CUDA

HERE = Path(__file__).parent
# No test that asks for more memory than the device has: with expandable segments, torch would first take all of it.
TESTS = ["test_batches.py", "test_waits.py::test_batches_are_complete_on_late_streams"]
TOO_LARGE = "--deselect=tests/gpu/test_batches.py::test_rows_that_do_not_fit_are_an_error"


RUN = """
import sys
import pytest
import torch

kept = torch.zeros(1, device="cuda")
assert {check}
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("setting", "check"),
    [
        ("expandable_segments:True", "torch.cuda.memory_snapshot()[0]['is_expandable']"),
        ("backend:cudaMallocAsync", "torch.cuda.get_allocator_backend() == 'cudaMallocAsync'"),
    ],
)
def test_tests_pass_with_the_allocator(cuda: torch.device, setting: str, check: str) -> None:
    """Run some tests of this folder in another process, because the allocator is chosen when a process starts."""
    if torch.version.hip:
        pytest.skip("ROCm does not have these allocators on every accelerator")
    # Every torch reads this variable; newer ones also read PYTORCH_ALLOC_CONF.
    environ = {name: value for name, value in os.environ.items() if name != "PYTORCH_ALLOC_CONF"}
    environ["PYTORCH_CUDA_ALLOC_CONF"] = setting
    command = [sys.executable, "-c", RUN.format(check=check), "-q", "-p", "no:cacheprovider", TOO_LARGE]
    command += [str(HERE / name) for name in TESTS]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=HERE.parent.parent, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
