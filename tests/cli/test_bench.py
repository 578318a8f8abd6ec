"""`prep bench`: measurements on real files, the sentences made from them, and the removal of scratch files."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodeonce import cli
from decodeonce.build import Recipe, WorkSettings
from decodeonce.cli import bench
from decodeonce.cli.bench import build, load, machine
from decodeonce.cli.bench.build import SampledSource, Trial, build_lines, fair_sample, measure_build, run_trial
from decodeonce.cli.bench.load import Timed, load_lines, measure_load
from decodeonce.cli.bench.machine import busy_share, core_times, drop_pages, others_text
from decodeonce.cli.kinds import BuildRequest
from decodeonce.host import is_in_memory
from decodeonce.prep.building.plan import scan
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.store import open_store, part_rows, stage_store
from tests.command import assert_fails, kill_when, prep, prep_after, printed
from tests.forms.all_forms import PICS, PLAIN_FORMS
from tests.images import make_tree, tree_bytes
from tests.stores import make_store, random_images

HOW: dict[str, Any] = {"batch_size": 4, "device": "cpu", "reader": "auto", "threads": None}
SMALL = Recipe(height=24, width=24)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 rows of three pages in shards of 25, 25 and 10 rows."""
    images = random_images(60, shape=(64, 64, 3))
    return make_store(tmp_path_factory.mktemp("stores") / "s", images, shard_rows=25)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = make_tree(tmp_path_factory.mktemp("src"), per_class=12)
    (tree / "train/n00000001/bad.JPEG").write_bytes(b"no picture")
    return tree


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SCRATCH_BYTES", 1 << 20)  # the default would plan 600,000 rows
    monkeypatch.setattr(bench, "BUILD_SECONDS", 0.02)
    monkeypatch.setattr(bench, "LOAD_SECONDS", 0.02)
    monkeypatch.setattr(machine, "LOOK_SECONDS", 0.02)


def request(source: Any, out: Path) -> BuildRequest:
    return BuildRequest(source, out, SMALL, WorkSettings(workers=2), dry_run=False, expect=None)


def test_sample_is_the_source_in_runs_of_random_order(tree: Path) -> None:
    source = FolderSource(tree / "train")
    entries = list(source.entries())
    every = fair_sample(source, scan(source), None, 100)
    assert sorted(every, key=entries.index) == entries
    places = [entries.index(entry) for entry in every]
    assert sorted(place for place in places if place % 16 == 0) == [0, 16, 32]
    assert all(b == a + 1 or b % 16 == 0 for a, b in pairwise(places))
    assert fair_sample(source, scan(source), None, 5) == every[:5]


def test_sample_of_read_units_has_whole_units(tmp_path: Path) -> None:
    source = PLAIN_FORMS["webdataset-gzip"].make(tmp_path, PICS)
    units = [entry.unit for entry in fair_sample(source, scan(source), 0, 100)]
    assert len(set(units)) > 1
    assert sum(a != b for a, b in pairwise(units)) == len(set(units)) - 1


def test_trial_builds_repeated_sample_and_counts_rejects(tree: Path, tmp_path: Path) -> None:
    source = FolderSource(tree / "train")
    found = run_trial(source, list(source.entries()), SMALL, tmp_path, workers=2, seconds=60, rows=74)
    assert (found.samples, found.rejects) == (74, 2)
    assert found.first_reject == "n00000001/bad.JPEG: not an image: begins with b'no pictu'"
    assert found.samples_per_s > 0
    assert list(tmp_path.iterdir()) == []


def test_trial_ends_after_its_time(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FolderSource(tree / "train")
    monkeypatch.setattr(SampledSource, "block_rows", lambda *_: 1)
    found = run_trial(source, list(source.entries())[:12], SMALL, tmp_path, workers=1, seconds=0.0, rows=5000)
    assert 1 <= found.samples < 5000
    assert list(tmp_path.iterdir()) == []


# One form for each way to read, next to test_build_command_...: a tar, a gzip stream, a row group.
@pytest.mark.parametrize("name", ["imagenet-train-tar", "webdataset-gzip", "parquet"])
def test_build_is_measured_for_every_way_to_read(name: str, tmp_path: Path) -> None:
    source = PLAIN_FORMS[name].make(tmp_path, PICS)
    before = tree_bytes(tmp_path)
    facts = measure_build(request(source, tmp_path / "out"), 0.02)
    assert facts["samples_per_s"] > 0
    assert facts["samples"] == facts["warm"]["samples"] > 0 or facts["warm"]["samples"] > facts["samples"]
    assert tree_bytes(tmp_path) == before


@pytest.mark.parametrize(
    ("cold", "busy", "limits", "rate"),
    [(100, (0.2, 1.0), "reading", 100), (500, (0.9, 1.0), "processor", 500), (1200, (0.1, 0.1), "writing", 1000)],
)
def test_limit_of_build(
    cold: float, busy: Any, limits: str, rate: float, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = iter([Trial(37, 0, "", cold, busy[0], 10**9), Trial(37, 0, "", 1000.0, busy[1], 0)])
    monkeypatch.setattr(build, "is_in_memory", lambda _: False)
    monkeypatch.setattr(build, "run_trial", lambda *_, **__: next(trials))
    facts = measure_build(request(FolderSource(tree / "train"), tmp_path / "out"), 1.0)
    assert (facts["limits"], facts["samples_per_s"], facts["build_s"]) == (limits, rate, 37 / rate)
    assert facts["sentence"].startswith(f"A build is limited by {build.WHAT[limits]}: 2 workers reach {rate:,} images")


def test_build_command_has_the_kinds_and_flags_of_a_build(tree: Path, tmp_path: Path) -> None:
    before = tree_bytes(tree)
    flags = ["--size", "24x32", "--workers", 2, "--split", "train", "--json"]
    result = prep("bench", "build", "imagenet", tree, tmp_path / "out", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    facts = json.loads(result.stdout)
    assert (facts["samples"], facts["workers"], facts["row_bytes"]) == (37, 2, 24 * 32 * 3)
    assert facts["limits"] in build.WHAT
    assert "None" not in "\n".join(build_lines(facts))
    dry = prep("bench", "build", "imagenet", tree, tmp_path / "out", *flags[:-1], "--dry-run")
    assert dry.stdout.splitlines()[2].startswith("space: ")
    assert tree_bytes(tree) == before
    assert list(tmp_path.iterdir()) == []


def test_signal_removes_scratch_folder(tree: Path, tmp_path: Path) -> None:
    moment = kill_when("event == 'open' and '.prep-bench-' in str(args[0])", "SIGTERM", 3)
    ended = prep_after(moment, "bench", "build", "imagenet", tree, tmp_path / "out", "--size", 24)
    assert (ended.returncode, list(tmp_path.iterdir())) == (cli.EXIT_STOPPED, [])


def check_facts(facts: dict[str, Any], rows: int) -> None:
    """Check the measurements of a store with `rows` rows, batches of 4 and a training step without limit."""
    assert facts["samples_per_s"] * facts["row_bytes"] == pytest.approx(facts["bytes_per_s"])
    assert (facts["rows"], facts["row_bytes"], facts["bytes"]) == (rows, 64 * 64 * 3, rows * 64 * 64 * 3)
    assert (facts["batch_size"], facts["fits_memory"]) == (4, True)
    assert facts["limits"] in ("copy", "storage")
    assert (facts["loader_cold"] is None) == (facts["first_epoch_limits"] is None) == bool(facts["why_not_cold"])
    for timed in filter(None, (facts["loader_cold"], facts["loader_warm"])):
        assert timed["samples_per_s"] > 0 < timed["first_batch_s"]
    output = "\n".join(load_lines(facts))
    assert f"{rows} rows of 12.29 KB, " in output
    assert f"threads {facts['loader_warm']['stats']['reader']['threads']}\n  memory: slots 5, cached_rows 0\n" in output
    assert facts["loader_warm"]["bottleneck"] in output


def test_store_is_measured(store: Path) -> None:
    check_facts(json.loads(printed("bench", "load", store, "--json", "--batch-size", 4, "--gpu-rate", 1e9)), rows=60)
    assert "is limited by " in prep("bench", "load", store, "--batch-size", 8).stdout.splitlines()[-1]


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
TRAINING = "limited by the training step, at 3,000 images/s"
STAYED = ", if the rows are in memory: rows stayed in memory, or the file system does not tell whether they did"


@pytest.mark.parametrize(
    ("cold", "memory", "limits", "sentence"),
    [
        (2100.4, 10**10, ("storage", "training"), f"{FIRST}{TRAINING}"),
        (2100.4, 1000, ("storage", "storage"), STORAGE),
        (None, 10**10, (None, "training"), f"Every epoch is {TRAINING}{STAYED}"),
    ],
)
def test_sentence_names_the_limit_of_first_and_later_epochs(
    cold: float | None, memory: int, limits: Any, sentence: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(path: Path, how: Any, rows: range, *, seconds: float, epochs: int = 0, skip: int = 0) -> Timed:
        if skip or cold is None:
            return Timed(88_000.0, 0.1, "copy: 99%", {"threads": {"cold_share": 0.0}})
        return Timed(cold, 0.1, "storage: 99%", {"threads": {"cold_share": 1.0}})

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


def test_error_is_one_line(store: Path, tree: Path, tmp_path: Path) -> None:
    def refused(code: int, expected: str, *arguments: object) -> None:
        assert_fails(prep("bench", *arguments, "-q", cwd=tmp_path), code, expected)

    refused(1, "nowhere", "load", "nowhere")
    refused(2, "--device abacus: ", "load", store, "--device", "abacus")
    refused(2, "OUT nowhere/out: there is no folder ", "build", "imagenet", tree, "nowhere/out")
    refused(1, "but --expect is 3", "build", "imagenet", tree, "out", "--expect", "3")
    refused(1, "is inside the source", "build", "imagenet", tree, tree / "train/out")
    assert list(tmp_path.iterdir()) == []
