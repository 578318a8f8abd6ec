"""`prep bench load` and `prep doctor` on a machine with an accelerator. No speed is asserted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from decodeonce.cli.bench import commands
from decodeonce.cli.bench.load import WHAT
from decodeonce.cli.doctor.devices import gpu_driver, numa_nodes, pinned_memory
from tests.command import prep, prep_process
from tests.stores import make_store, random_images

pytestmark = pytest.mark.skipif(not torch.accelerator.is_available(), reason="this test needs an accelerator")


def test_store_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "s", random_images(240, shape=(64, 64, 3)), shard_rows=100)
    monkeypatch.setattr(commands, "LOAD_SECONDS", 0.1)
    device = str(torch.accelerator.current_accelerator())
    flags = ["--device", device, "--batch-size", 16, "--gpu-rate", 1e9]
    facts = json.loads(prep("bench", "load", store, *flags, "--json").stdout)
    warm = facts["loader_warm"]
    assert facts["device"] == device
    assert facts["limits"] in {*WHAT} - {"training"}
    assert warm["stats"]["slots"] == 3
    assert warm["samples_per_s"] > 0 < warm["first_batch_s"]
    ended = prep("bench", "load", store, *flags)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert " is limited by " in ended.stdout.splitlines()[-1]


def test_doctor_reports_driver_memory_and_nodes() -> None:
    driver = gpu_driver()
    assert (driver.level, "no GPU" in driver.found) == ("ok", False), driver
    if torch.version.cuda:
        assert re.search(r"driver nvidia \d{3}\.\d+", driver.found), driver
    assert pinned_memory().found.startswith("ulimit -l ")
    assert re.search(r"this process on node \d|no NUMA nodes", numa_nodes().found), numa_nodes()
    checks = json.loads(prep_process("doctor", "--json").stdout)["checks"]
    assert {"gpu driver", "pinned memory", "numa nodes"} < {check["name"] for check in checks}
