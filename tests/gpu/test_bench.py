"""`prep bench load` and `prep doctor` on a machine with an accelerator. No speed is asserted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from decodeonce.cli.bench import commands
from decodeonce.cli.bench.epochs import LoaderSettings, find_share, open_loader, run_loader
from decodeonce.cli.bench.load import measure_load
from decodeonce.cli.bench.load_results import load_lines
from decodeonce.cli.bench.probes import transfer_rate
from decodeonce.cli.bench.steps import run_steps
from decodeonce.cli.doctor.devices import gpu_driver, numa_nodes, pinned_memory
from decodeonce.loader.delivery import find_device, open_device
from tests.command import prep, prep_process
from tests.stores import make_store, random_images

pytestmark = pytest.mark.skipif(not torch.accelerator.is_available(), reason="this test needs an accelerator")

ROWS, BATCH = 240, 16
ALL = find_share(range(ROWS), ROWS, ROWS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = random_images(ROWS, shape=(64, 64, 3))
    return make_store(tmp_path_factory.mktemp("stores") / "s", images, shard_rows=100)


@pytest.fixture
def how() -> LoaderSettings:
    return LoaderSettings(BATCH, str(torch.accelerator.current_accelerator()), "auto", None)


def test_store_is_measured(store: Path, how: LoaderSettings) -> None:
    facts = measure_load(store, how, 1e9, 0.1)
    assert facts["device"] == f"{how.device}:{torch.accelerator.current_device_index()}"
    assert all(facts[f"{name}_bytes_per_s"] > 0 for name in ("transfer", "loader_warm", "loader_host", "memcpy"))
    assert facts["transfer_over_copies"] == facts["loader_warm_bytes_per_s"] / facts["transfer_bytes_per_s"]
    assert facts["slot_bytes"] == 3 * BATCH * facts["row_bytes"]
    assert facts["steps_waited"] == facts["steps"] >= 5  # a step of 16 ns
    assert facts["limits"] in ("memory", "transfer")
    assert "None" not in "\n".join(load_lines(facts))


def test_command_prints_one_sentence(store: Path, how: LoaderSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "LOAD_SECONDS", 0.1)
    ended = prep("bench", "load", store, "--device", how.device, "--batch-size", BATCH, "--gpu-rate", 1000)
    assert (ended.returncode, ended.stderr) == (0, "")
    sentence = ended.stdout.splitlines()[-1]
    found = re.search(
        r"transfers reach \d+% of plain pinned copies and [\d,]+ of [\d,]+ training steps waited", sentence
    )
    assert found, sentence
    assert "plain pinned copies to " in ended.stdout


def test_first_batch_and_steps_wait_for_copies(
    store: Path, how: LoaderSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the time of a batch is taken, the consumer's stream has nothing left to do."""
    device = open_device(find_device(how.device))
    idle: list[bool] = []
    record = type(device).record

    class Noting:
        def __init__(self, event: torch.Event) -> None:
            self._event = event

        def synchronize(self) -> None:
            self._event.synchronize()
            idle.append(device.current_stream().query())

    monkeypatch.setattr(device, "record", lambda: Noting(record(device)))
    monkeypatch.setattr("decodeonce.cli.bench.epochs.open_device", lambda _: device)
    run_loader(store, how, ALL, epochs=1)
    assert idle == [True]
    with open_loader(store, how, ALL) as loader:
        found = run_steps(loader, device, 0.001, 0.05)
    assert all(idle)
    assert len(idle) > found.steps >= 5


def test_plain_copies_leave_the_current_stream(how: LoaderSettings) -> None:
    before = torch.accelerator.current_stream()
    assert transfer_rate(open_device(find_device(how.device)), (BATCH, 64, 64, 3), 0.05) > 0
    assert torch.accelerator.current_stream() == before


def test_doctor_reports_driver_memory_and_nodes() -> None:
    driver = gpu_driver()
    assert (driver.level, "no GPU" in driver.found) == ("ok", False), driver
    if torch.version.cuda:
        assert re.search(r"driver nvidia \d{3}\.\d+", driver.found), driver
    assert pinned_memory().found.startswith("ulimit -l ")
    assert re.search(r"this process on node \d|no NUMA nodes", numa_nodes().found), numa_nodes()
    checks = json.loads(prep_process("doctor", "--json").stdout)["checks"]
    assert {"gpu driver", "pinned memory", "numa nodes"} < {check["name"] for check in checks}
