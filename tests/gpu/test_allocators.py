"""Batches are right with the allocators that torch offers for CUDA.

Documentation: https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# No test that asks for more memory than the device has: with expandable segments, torch would first take all of it.
TESTS = ["test_batches.py", "test_waits.py::test_batches_are_complete_on_late_streams"]
OPTIONS = [
    "-q",
    "-p",
    "no:cacheprovider",
    "--deselect",
    "tests/gpu/test_batches.py::test_rows_that_do_not_fit_are_an_error",
]

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
    command = [sys.executable, "-c", RUN.format(check=check), *OPTIONS, *(str(HERE / name) for name in TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=HERE.parent.parent, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
