"""`prep bench load`: measurements on real files, and the sentences made from them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodeonce.cli import bench
from decodeonce.cli.bench import load, machine
from decodeonce.cli.bench.load import Timed, load_lines, measure_load
from decodeonce.cli.bench.machine import busy_share, core_times, drop_pages, others_text
from decodeonce.host import is_in_memory
from decodeonce.store import open_store, part_rows, stage_store
from tests.command import assert_fails, prep, printed
from tests.stores import make_store, random_images

HOW: dict[str, Any] = {"batch_size": 4, "device": "cpu", "reader": "auto", "threads": None}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 rows of three pages in shards of 25, 25 and 10 rows."""
    images = random_images(60, shape=(64, 64, 3))
    return make_store(tmp_path_factory.mktemp("stores") / "s", images, shard_rows=25)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LOAD_SECONDS", 0.02)
    monkeypatch.setattr(machine, "LOOK_SECONDS", 0.02)


def check_facts(facts: dict[str, Any], rows: int) -> None:
    """Check the measurements of a store with `rows` rows, batches of 4 and a training step without limit."""
    assert facts["samples_per_s"] * facts["row_bytes"] == pytest.approx(facts["bytes_per_s"])
    assert (facts["rows"], facts["row_bytes"], facts["bytes"]) == (rows, 64 * 64 * 3, rows * 64 * 64 * 3)
    assert (facts["batch_size"], facts["fits_memory"]) == (4, True)
    assert facts["limits"] in ("copy", "storage")
    assert (facts["loader_cold"] is None) == (facts["first_epoch_limits"] is None) == bool(facts["why_not_cold"])
    for timed in filter(None, (facts["loader_cold"], facts["loader_warm"])):
        assert timed["samples_per_s"] > 0 < timed["first_batch_s"]
    assert next(load_lines(facts, verbose=False)) == facts["sentence"]
    output = "\n".join(load_lines(facts, verbose=True))
    assert f"{rows} rows of 12.29 KB, " in output
    assert f"threads {facts['loader_warm']['stats']['reader']['threads']}\n  memory: slots 5, cached_rows 0\n" in output
    assert facts["loader_warm"]["bottleneck"] in output


def test_store_is_measured(store: Path) -> None:
    check_facts(json.loads(printed("bench", "load", store, "--json", "--batch-size", 4, "--gpu-rate", 1e9)), rows=60)
    assert "is limited by " in prep("bench", "load", store, "--batch-size", 8).stdout.splitlines()[0]


def test_staged_part_is_measured(store: Path, tmp_path: Path) -> None:
    opened = open_store(store)
    stage_store(opened, tmp_path / "part", rows=part_rows(len(opened), 1, 3))
    check_facts(measure_load(tmp_path / "part", HOW, 1e9, 0.02), rows=20)


def test_batch_size_is_limited_by_store_and_training_can_be_the_limit(store: Path) -> None:
    facts = measure_load(store, {**HOW, "batch_size": 256, "reader": "pread", "threads": 1}, 0.5, 0.02)
    stats = facts["loader_warm"]["stats"]
    assert (facts["batch_size"], stats["reader"]["name"], stats["reader"]["threads"]) == (60, "pread", 1)
    assert facts["limits"] == "training"
    assert "limited by the training step, at 0 images/s" in facts["sentence"]


FIRST = "The first epoch is limited by storage, at 2,100 images/s; with all rows in memory, later epochs are "
STORAGE = (
    "Every epoch is limited by storage, at 2,100 images/s, because 0.74 MB of rows do not fit into 1.00 KB of memory"
)
KEPT = "The first epoch is limited by storage, at 2,100 images/s; later epochs read 84% of the rows from memory"
TRAINING = "limited by the training step, at 3,000 images/s"
STAYED = ", if the rows are in memory: rows stayed in memory, or the file system does not tell whether they did"


@pytest.mark.parametrize(
    ("cold", "kept", "memory", "limits", "sentence"),
    [
        (2100.4, 1.0, 10**10, ("storage", "training"), f"{FIRST}{TRAINING}"),
        (2100.4, 1.0, 1000, ("storage", "storage"), STORAGE),
        (2100.4, 0.0, 1000, ("storage", "storage"), STORAGE),
        (2100.4, 0.84, 10**10, ("storage", "storage"), KEPT),
        (None, 1.0, 10**10, (None, "training"), f"Every epoch is {TRAINING}{STAYED}"),
    ],
)
def test_sentence_names_the_limit_of_first_and_later_epochs(
    cold: float | None,
    kept: float,
    memory: int,
    limits: Any,
    sentence: str,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def timed(path: Path, how: Any, rows: range, *, seconds: float, epochs: int = 0, skip: int = 0) -> Timed:
        if skip or cold is None:
            return Timed(88_000.0, 0.1, "copy: 99%", {"threads": {"cold_share": 0.0}})
        return Timed(cold, 0.1, "storage: 99%", {"threads": {"cold_share": 1.0}, "reader": {"kept": kept}})

    monkeypatch.setattr(load, "_timed", timed)
    monkeypatch.setattr(load, "is_in_memory", lambda _: False)
    monkeypatch.setattr(load, "available_memory", lambda: memory)
    facts = measure_load(store, HOW, 3000.0, 0.02)
    assert facts["sentence"] == sentence
    assert (facts["first_epoch_limits"], facts["limits"]) == limits


def test_pages_are_dropped_from_page_cache(tmp_path: Path) -> None:
    if is_in_memory(tmp_path):
        pytest.skip("this is a memory file system")
    path = make_store(tmp_path / "store", random_images(1000, shape=(64, 64, 3)))
    for shard in path.glob("images-*"):
        shard.read_bytes()
    drop_pages(path.glob("images-*"))
    assert measure_load(path, HOW, 1e9, 0.02)["loader_cold"]["stats"]["threads"]["cold_share"] == 1


def test_store_in_use_is_not_called_cold(store: Path) -> None:
    if is_in_memory(store):
        pytest.skip("this is a memory file system")
    held = open_store(store)
    assert int(np.asarray(held.images[:]).sum()) > 0  # maps the shards, so their pages cannot be dropped
    facts = measure_load(store, HOW, 1e9, 0.02)
    assert facts["loader_cold"] is None
    assert facts["sentence"].endswith("rows stayed in memory, or the file system does not tell whether they did")


def test_other_programs_are_reported() -> None:
    idle, total = core_times()
    assert busy_share(np.array([idle, total - 10_000])) > 0.9
    assert busy_share(np.array([idle - 10_000, total - 10_000])) < 0.1
    assert others_text(0.05) == []
    [warning] = others_text(0.5)
    assert warning.startswith("warning: other programs use 50% of the cores, so these rates are too low; ")


def test_error_is_one_line(store: Path, tmp_path: Path) -> None:
    def refused(code: int, expected: str, *arguments: object) -> None:
        assert_fails(prep("bench", *arguments, "-q", cwd=tmp_path), code, expected)

    refused(1, "nowhere", "load", "nowhere")
    refused(2, "--device abacus: ", "load", store, "--device", "abacus")
    assert list(tmp_path.iterdir()) == []
