"""Benchmarks that need what this machine may lack still run here, if for nothing but to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.stores import make_store, random_images

BENCH = Path(__file__).resolve().parent.parent / "bench"


def test_the_one_for_accelerators_runs_on_a_cpu(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", random_images(9, shape=(32, 32, 3)))
    options = ["--device", "cpu", "--batch-size", "2", "--steps", "1", "--repeats", "1", "--json"]
    command = [sys.executable, str(BENCH / "gpu.py"), str(store), *options]
    facts = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (facts["device"], facts["batch_size"]) == ("cpu", 2)
    assert len(facts["rates"]) == 6
    assert all(rate > 0 for rate in facts["rates"].values())
    assert 0 <= facts["share_of_steps_that_waited"] <= 1
    assert facts["bottleneck"]
