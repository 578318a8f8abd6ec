"""Benchmarks that need special hardware or much time run here with small settings, to show that they work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores import make_store, random_images

BENCH = Path(__file__).resolve().parent.parent / "bench"


@pytest.mark.long
def test_gpu_benchmark_runs_on_cpu(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", random_images(9, shape=(32, 32, 3)))
    options = ["--device", "cpu", "--batch-size", "2", "--steps", "1", "--repeats", "1", "--json"]
    command = [sys.executable, str(BENCH / "gpu.py"), str(store), *options]
    facts = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (facts["device"], facts["batch_size"]) == ("cpu", 2)
    assert len(facts["rates"]) == 6
    assert all(rate > 0 for rate in facts["rates"].values())
    assert 0 <= facts["share_of_steps_that_waited"] <= 1
    assert facts["bottleneck"]


@pytest.mark.long
def test_plan_and_finish_use_little_memory_per_sample(tmp_path: Path) -> None:
    counts = 30_000, 200_000
    options = ["--counts", *map(str, counts), "--scratch", str(tmp_path), "--json"]
    command = [sys.executable, str(BENCH / "scale.py"), *options]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    few, many = (found[str(count)] for count in counts)
    bytes_per_sample = {
        step: (many[step]["peak"] - few[step]["peak"]) / (counts[1] - counts[0]) for step in many if step != "journals"
    }
    assert bytes_per_sample["plan"] < 200
    assert bytes_per_sample["finish"] < 200  # mostly the files of the plan, which are memory-mapped
    assert (many["finish"]["anon"] - few["finish"]["anon"]) / (counts[1] - counts[0]) < 50
    assert bytes_per_sample["a task's start"] < 20
    assert not list(tmp_path.iterdir())
