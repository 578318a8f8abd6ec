"""`prep bench load` and `prep doctor` on a machine with an accelerator. No speed is asserted."""

import json
from pathlib import Path

import pytest
import torch

from decodeonce.cli import bench
from decodeonce.cli.bench.load import WHAT
from tests.command import prep, prep_process
from tests.stores import make_store, random_images

pytestmark = pytest.mark.skipif(not torch.accelerator.is_available(), reason="this test needs an accelerator")


def test_store_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "s", random_images(240, shape=(64, 64, 3)), shard_rows=100)
    monkeypatch.setattr(bench, "LOAD_SECONDS", 0.1)
    device = str(torch.accelerator.current_accelerator())
    flags = ["--device", device, "--batch-size", 16, "--gpu-rate", 1e9]
    facts = json.loads(prep("bench", "load", store, *flags, "--json").stdout)
    warm = facts["loader_warm"]
    assert facts["device"] == device
    assert facts["limits"] in {*WHAT} - {"training"}
    assert warm["stats"]["memory"]["slots"] == 3
    assert warm["samples_per_s"] > 0 < warm["first_batch_s"]
    ended = prep("bench", "load", store, *flags)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert " is limited by " in ended.stdout.splitlines()[-1]


def test_doctor_finds_the_devices() -> None:
    checks = {check["name"]: check for check in json.loads(prep_process("doctor", "--json").stdout)["checks"]}
    assert checks["torch"]["level"] == "ok"
    assert f"{torch.accelerator.device_count()} x " in checks["torch"]["found"]
