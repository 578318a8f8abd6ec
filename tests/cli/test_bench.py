"""`prep bench`: measurements on real files, the sentences made from them, and the removal of scratch files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decodeonce import cli
from decodeonce.cli.bench import commands, epochs, sample
from decodeonce.cli.bench.build_results import BuildRates, build_lines, build_verdict
from decodeonce.cli.bench.epochs import LoaderSettings, find_share, run_loader
from decodeonce.cli.bench.load import LoadBench, measure_load
from decodeonce.cli.bench.load_results import load_lines, load_verdict
from decodeonce.cli.bench.pages import COLD, FilePosition, held_share, make_cold
from decodeonce.cli.bench.probes import random_rows, read_rate, rows_in_order, transfer_rate
from decodeonce.cli.bench.results import WHAT, limit_of, table
from decodeonce.cli.bench.sample import Run, fair_runs, measure_pace
from decodeonce.cli.bench.trial import scratch_folder, trial_rate, write_rate
from decodeonce.host import is_in_memory
from decodeonce.loader.delivery import HostDevice
from decodeonce.loader.partition import make_partition
from decodeonce.loader.readers import ShardFiles
from decodeonce.prep.build.plan import read_plan, scan
from decodeonce.prep.entry import Entry, Row
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import FolderSource, ListSource
from decodeonce.prep.sources.kinds import find_source
from decodeonce.store import StorePaths, open_store, part_rows, stage_store
from tests.command import Ended, prep
from tests.forms.all_forms import PICS, PLAIN_FORMS
from tests.images import make_tree, tree_bytes
from tests.stores import make_store, random_images

HOW = LoaderSettings(batch_size=4, device="cpu", reader="auto", threads=None)
rates = st.floats(1e-3, 1e9)
named_rates = st.dictionaries(st.sampled_from(sorted(WHAT)), rates, min_size=1)
builds = st.builds(BuildRates, st.integers(1, 256), rates, rates, rates, st.floats(0, 1), rates, st.none() | rates)


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


def bench(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Ended:
    """Run `prep bench` with very short probes."""
    monkeypatch.setattr(commands, "BUILD_SECONDS", 0.02)
    monkeypatch.setattr(commands, "LOAD_SECONDS", 0.02)
    return prep("bench", *arguments)


@given(named_rates)
def test_limit_is_the_smallest_rate(measured: dict[str, float]) -> None:
    limit = limit_of(measured)
    assert measured[limit] == min(measured.values())
    assert limit_of({**measured, limit: measured[limit] / 2}) == limit


@given(rates, rates, rates, st.booleans())
def test_large_store_is_limited_like_a_first_epoch(memory: float, training: float, storage: float, fits: bool) -> None:
    warm, cold = {"memory": memory, "training": training}, {"storage": storage}
    verdict = load_verdict(warm, cold, fits=fits, room="ROOM")
    first, later = limit_of({**warm, **cold}), limit_of(warm)
    assert verdict.first_epoch_limits == first
    assert verdict.limits == (later if fits else first)
    assert WHAT[verdict.limits] in verdict.sentence
    assert ("The first epoch" in verdict.sentence) == (fits and first != later)
    assert ("ROOM" in verdict.sentence) == (not fits)
    unknown = load_verdict(warm, {}, fits=fits, why_warm="WHY")
    assert (unknown.limits, unknown.first_epoch_limits) == (later, "")
    assert unknown.sentence.endswith(": WHY")


def test_verdict_sentences() -> None:
    warm, cold = {"memory": 88_000.0, "training": 3000.0}, {"storage": 2100.4}
    assert load_verdict(warm, cold, fits=True).sentence == (
        "The first epoch is limited by storage, at 2,100 images/s; later epochs, with all rows in memory, by "
        "the training step, at 3,000 images/s"
    )
    assert load_verdict(warm, {"storage": 7100.0}, fits=True).sentence == (
        "Every epoch is limited by the training step, at 3,000 images/s; the next limit is storage, at 7,100 images/s"
    )
    assert load_verdict(warm, cold, fits=False, room="4 GB of rows do not fit into 1 GB of memory").sentence == (
        "Every epoch is limited by storage, at 2,100 images/s, because 4 GB of rows do not fit into 1 GB of memory; "
        "the next limit is the training step, at 3,000 images/s"
    )
    made = BuildRates(2, reading=9000, made=1200, made_by_one=610, decode_share=0.7, writing=8000, whole=1000)
    assert build_verdict(made, rest="10 images in 1 s").sentence == (
        "A build is limited by decoding, at 1,200 images/s; the next limit is writing, at 8,000 images/s: 2 workers "
        "reach 1,000 images/s in total, 10 images in 1 s"
    )
    assert build_verdict(replace(made, decode_share=0.4), rest="").limits == "resizing"
    assert build_verdict(made, rest="", why_warm="WHY").sentence.endswith("; the source was read from memory: WHY")


@given(builds, st.sampled_from(["reading", "made", "made_by_one", "writing"]), st.floats(1, 1e3))
def test_build_rate_is_limited_by_every_part(measured: BuildRates, part: str, factor: float) -> None:
    parts = [*measured.named.values(), *([] if measured.whole is None else [measured.whole])]
    assert 0 < measured.expected <= min(parts)
    assert measured.expected <= measured.workers * measured.made_by_one
    faster = replace(measured, **{part: getattr(measured, part) * factor})
    assert faster.expected >= measured.expected * (1 - 1e-9)
    limit = build_verdict(measured, rest="").limits
    assert measured.named[limit] == min(measured.named.values())


@given(st.data())
def test_share_is_that_of_a_rank_within_held_rows(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 500))
    start = data.draw(st.integers(0, count - 1))
    held = range(start, data.draw(st.integers(start + 1, count)))
    most = data.draw(st.integers(1, 600))
    share = find_share(held, count, most)
    assert held.start <= share.rows.start < share.rows.stop <= held.stop
    assert len(share.rows) <= most
    part = make_partition("range", range(count), 1, share.rank, share.world_size, "drop")
    assert share.rows == part.rows
    assert share.least == part.steps()
    if most >= count and held == range(count):
        assert share.rows == held


def test_random_and_sequential_reads_cover_every_row_once(store: Path) -> None:
    opened = open_store(store)
    files, size = ShardFiles(opened), opened.manifest.row_bytes
    rows = range(20, 57)
    single, runs = list(random_rows(files, rows)), list(rows_in_order(files, rows))
    assert {piece.nbytes for piece in single} <= {size, 2 * size}
    assert [piece.offset for piece in single] != sorted(piece.offset for piece in single)
    for pieces in (single, runs):
        read = b"".join(os.pread(p.fd, p.nbytes, p.offset) for p in sorted(pieces, key=lambda p: (p.fd, p.offset)))
        assert read == opened.images[20:57].tobytes()
    assert len(runs) == 3  # one per shard
    left = iter(runs)
    assert read_rate(left, 4, 60) > 0
    assert next(left, None) is None


def test_pages_are_dropped_from_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    places = [FilePosition(path, offset) for offset in range(0, 1 << 20, 1 << 16)]
    why = make_cold(places)
    if is_in_memory(tmp_path):
        assert why == f"{tmp_path} is on a memory file system"
        return
    assert why == ""
    share = held_share(places)
    assert share is not None
    assert share <= COLD
    path.read_bytes()
    assert held_share(places) == 1


def test_pages_in_use_stay_and_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "file"
    np.save(path, np.ones(1 << 20, np.uint8))
    path = path.with_suffix(".npy")
    mapped = np.load(path, mmap_mode="r")
    assert int(mapped.sum()) == 1 << 20
    places = [FilePosition(path, 1 << 19)]
    if is_in_memory(tmp_path):
        pytest.skip("this is a memory file system")
    assert make_cold(places) == "100% of the pages stayed in memory, probably because another process uses them"


def test_pages_of_every_shard_are_dropped(tmp_path: Path) -> None:
    if is_in_memory(tmp_path):
        pytest.skip("this is a memory file system")
    path = make_store(tmp_path / "store", random_images(200, shape=(64, 64, 3)), shard_rows=2)
    shards = sorted(path.glob("images-*.npy"))
    assert len(shards) == 100  # more than the positions that are checked
    for shard in shards:
        shard.read_bytes()
    assert LoadBench(path, LoaderSettings(4, "cpu", "auto", None), 1).drop_pages() == ""
    assert held_share([FilePosition(shard, shard.stat().st_size // 2) for shard in shards]) == 0


def test_store_is_measured(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = bench(monkeypatch, "load", store, "--json", "--batch-size", 4, "--gpu-rate", 1e9)
    assert result.returncode == 0
    check_facts(json.loads(result.stdout), rows=60)


def test_staged_part_is_measured(store: Path, tmp_path: Path) -> None:
    opened = open_store(store)
    stage_store(opened, tmp_path / "part", rows=part_rows(len(opened), 1, 3))
    check_facts(measure_load(tmp_path / "part", HOW, 1e9, 0.02), rows=20)


def check_facts(facts: dict[str, Any], rows: int) -> None:
    """Check the measurements of a store with `rows` rows, batches of 4 and a training step without limit."""
    contract = {"samples_per_s", "bytes_per_s", "memcpy_bytes_per_s", "first_batch_s", "peak_anon_bytes"}
    assert all(facts[name] > 0 for name in contract)
    assert facts["samples_per_s"] * facts["row_bytes"] == pytest.approx(facts["bytes_per_s"])
    assert (facts["rows"], facts["row_bytes"], facts["bytes"]) == (rows, 64 * 64 * 3, rows * 64 * 64 * 3)
    assert (facts["batch_size"], facts["fits_memory"], facts["transfer_bytes_per_s"]) == (4, True, None)
    assert facts["limits"] == "memory"
    assert facts["slot_bytes"] == 5 * 4 * facts["row_bytes"]
    assert facts["loader_host_bytes_per_s"] == facts["loader_warm_bytes_per_s"]
    assert (facts["transfer_over_copies"], facts["why_no_steps"]) == (None, "")
    assert facts["steps_waited"] == facts["steps"] >= 5
    assert facts["processor_s_per_step"] > 0
    assert facts["sentence"].endswith(f"{facts['steps']:,} of {facts['steps']:,} training steps waited for a batch")
    assert (facts["first_epoch_limits"] is None) == bool(facts["why_not_cold"])
    output = "\n".join(load_lines(facts))
    assert f"{rows} rows of 12.29 KB, " in output
    assert "None" not in output


def test_batch_size_is_limited_by_store_and_training_can_be_the_limit(store: Path) -> None:
    facts = measure_load(store, replace(HOW, batch_size=256, reader="pread", threads=1), 0.5, 0.02)
    assert (facts["batch_size"], facts["reader"], facts["threads"]) == (60, "pread", 1)
    assert facts["limits"] == "training"
    assert facts["sentence"].startswith("Every epoch is limited by the training step, at 0 images/s")
    assert facts["why_no_steps"] == "the rows are a single batch; pass a smaller --batch-size"
    assert "training step waited" not in facts["sentence"]


def test_failed_read_is_an_error(store: Path) -> None:
    with closing(ShardFiles(open_store(store))) as files:
        pieces = [piece._replace(fd=-1) for piece in random_rows(files, range(9))]
        with pytest.raises(OSError, match="Bad file descriptor"):
            read_rate(pieces, 4, 60)


def test_transfer_sends_whole_batches() -> None:
    sent = []

    class Device(HostDevice):
        def upload(self, tensor: torch.Tensor) -> torch.Tensor:
            sent.append(tensor.nbytes)
            return super().upload(tensor)

    assert transfer_rate(Device(torch.device("cpu")), (2, 8, 8, 3), 0.01) > 0
    assert set(sent) == {2 * 8 * 8 * 3}


def test_table_is_aligned_and_shows_dashes_for_missing_rates() -> None:
    lines = list(table([("a", 1.5e9, None), ("long name", None, 12.4)]))
    assert lines == [
        "                 MB/s    images/s",
        "a               1,500           -",
        "long name           -          12",
    ]


def test_sample_is_evenly_spaced_or_complete(tree: Path) -> None:
    source = FolderSource(tree / "train")
    listing = scan(source)
    runs = fair_runs(source, listing, None, rows=4, most=3)
    entries = list(source.entries())
    assert sorted(entries.index(run.entries[0]) for run in runs) == [0, 12, 24]
    for run in runs:
        first = entries.index(run.entries[0])
        assert list(run.entries) == entries[first : first + 4]
    every = [entry for run in fair_runs(source, listing, 0) for entry in run.entries]
    assert sorted(every, key=entries.index) == entries
    assert every != entries


def test_sample_of_read_units_starts_with_units(tmp_path: Path) -> None:
    source = PLAIN_FORMS["webdataset-gzip"].make(tmp_path, PICS)
    listing = scan(source)
    units: list[int] = listing.samples.rows["unit"].tolist()
    assert len(set(units)) > 1
    runs = fair_runs(source, listing, 0, rows=1, most=100)
    assert sorted((run.entries[0].unit, len(run.entries), run.unit_rows) for run in runs) == [
        (unit, units.count(unit), units.count(unit)) for unit in sorted(set(units))
    ]


def test_processes_decode_each_image_once_and_report_rejects(tree: Path) -> None:
    source = FolderSource(tree / "train")
    runs = fair_runs(source, scan(source), 0, rows=4)
    pace = measure_pace(source, Recipe(height=24, width=24), runs, workers=2, seconds=60, part="decode")
    assert 1 <= len(pace.by_process) <= 2  # one may have finished before the other started
    assert (pace.total.images, pace.total.rejects) == (37, 1)
    assert pace.total.first_reject == "n00000001/bad.JPEG: not an image: begins with b'no pictu'"
    assert pace.total.bytes == sum(path.stat().st_size for path in tree.rglob("*.JPEG"))
    assert 0 < pace.total.decoding < pace.total.making
    assert pace.started == runs


def test_time_to_open_unit_is_spread_over_all_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def passes(seconds: float) -> None:
        clock[0] += seconds

    class Unit(FolderSource):
        def __init__(self) -> None:
            self.opened = False

        def read(self, entry: Entry) -> bytes:
            passes(1 if self.opened else 100)
            self.opened = True
            return b"12345"

    class Maker:
        def row(self, data: bytes, entry: Entry) -> Row:
            passes(10)
            return Row(b"", 1, 1, "", "")

    monkeypatch.setattr(sample, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    run = Run([Entry(b"%d" % number, 0, 5, 0) for number in range(50)], unit_rows=1000)
    done = sample._process(Unit(), cast(Any, Maker()), run.order(130.0, "make"))
    assert (done.images, done.bytes, done.making) == (3, 15, 30)  # the third image is the first that ends after 130 s
    assert done.reading == pytest.approx(2 + 100 * 3 / 1000)
    whole = sample._process(Unit(), cast(Any, Maker()), replace(run, unit_rows=0).order(1e9, "read"))
    assert (whole.images, whole.reading, whole.making) == (50, 149, 0)


def test_at_least_one_run_is_started() -> None:
    runs, started = [Run([]), Run([])], list[Run]()
    assert len(list(sample._orders(runs, -1.0, "make", started))) == len(started) == 1


def test_trial_builds_the_sample(tree: Path, tmp_path: Path) -> None:
    source = FolderSource(tree / "train")
    entries = [entry for entry in source.entries() if b"bad" not in entry.name]
    recipe = Recipe(height=24, width=24, shuffle_seed=0)
    made = trial_rate(source, entries, recipe, tmp_path / "out", rows=50, block_rows=100, workers=2)
    assert made is None or made > 0
    plan = read_plan(StorePaths(tmp_path / "out"))
    assert (plan.count, plan.blocks.block_rows, plan.recipe) == (50, 6, recipe)
    assert {plan.samples.entry(row).name for row in range(50)} == {entry.name for entry in entries}


def test_scratch_files_are_removed(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
        assert write_rate(folder, 3 << 12, 1 << 20, writers=3, seconds=0.02) > 0
        assert list(folder.iterdir()) == []
        (folder / "more").touch()
    assert list(tmp_path.iterdir()) == []


def test_signal_removes_scratch_folder(tmp_path: Path) -> None:
    script = """
import signal
from decodeonce import cli
from decodeonce.cli.bench.trial import scratch_folder
from pathlib import Path
signal.signal(signal.SIGTERM, cli._stop)
with scratch_folder(Path()) as folder:
    (folder / "file").touch()
    print("ready", flush=True)
    signal.pause()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert len(list(tmp_path.glob(".prep-bench-*/file"))) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait() == cli.EXIT_STOPPED
    assert list(tmp_path.iterdir()) == []


def test_build_is_measured_without_leftovers(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree_bytes(tree)
    result = bench(monkeypatch, "build", tree, "--out", tmp_path, "--size", "24x32", "--workers", 2, "--json")
    assert result.returncode == 0
    facts = json.loads(result.stdout)
    row_bytes = 24 * 32 * 3
    assert (facts["samples"], facts["workers"], facts["row_bytes"]) == (37, 2, row_bytes)
    positive = [name for name, value in facts.items() if name.endswith("_per_s") and value is not None]
    assert all(facts[name] > 0 for name in positive)
    assert len(positive) >= 10
    assert facts["samples_per_s"] * row_bytes == pytest.approx(facts["bytes_per_s"])
    assert facts["build_s"] == pytest.approx(37 / facts["samples_per_s"])
    assert facts["limits"] in ("reading", "decoding", "resizing", "writing")
    output = "\n".join(build_lines(facts))
    assert "37 images, listed in under a second; " in output
    assert "None" not in output
    assert tree_bytes(tree) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", sorted(PLAIN_FORMS.keys() - {"imagenet-train-tar-itself"})
)  # its name is not that of a tar
def test_kind_of_source_is_recognised(name: str, tmp_path: Path) -> None:
    source = PLAIN_FORMS[name].make(tmp_path, PICS)
    src = source.file if isinstance(source, ListSource) else source.root
    found = find_source("auto", str(src))
    wanted = "imagenet" if source.kind == "folder" else source.kind
    assert found.kind == wanted
    assert len(scan(found)) == len(scan(find_source(wanted.partition("-")[0], str(src))))


def test_load_prints_table_and_sentence(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = bench(monkeypatch, "load", store, "--batch-size", 8, "--gpu-rate", 1)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("Every epoch is limited by the training step, at 1 images/s")
    assert "training step (--gpu-rate)" in "\n".join(lines)
    assert "waits of training steps were not measured: a step of 8 s is too long to try several" in "\n".join(lines)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["load", "nowhere"], 1, "nowhere"),
        (["load", "STORE", "--device", "abacus"], 2, "--device abacus: "),
        (["load", "STORE", "--batch-size", "0"], 2, "--batch-size"),
        (["load", "STORE", "--gpu-rate", "0"], 2, "--gpu-rate"),
        (["load", "STORE", "--gpu-rate", "inf"], 2, "--gpu-rate"),
        (["load", "STORE", "--threads", "100000"], 2, "--threads"),
        (["build", "TREE", "--out", "nowhere"], 2, "--out nowhere: no such folder"),
        (["build", "TREE", "--size", "x"], 2, "--size x: expected pixels"),
        (["build", "TREE", "--out", "TREE/train"], 1, "is inside the source"),
        (["build", "nowhere"], 1, "nowhere: No such file"),
        (["build", "EMPTY", "--kind", "folder"], 1, "no images found"),
    ],
)
def test_error_is_one_line(
    arguments: list[str],
    code: int,
    expected: str,
    store: Path,
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty/n0").mkdir(parents=True)
    words = {"STORE": str(store), "TREE": str(tree), "EMPTY": "empty", "TREE/train": str(tree / "train")}
    result = bench(monkeypatch, *(words.get(word, word) for word in arguments))
    error = result.stderr
    assert result.returncode == code
    assert error.startswith("prep: error: ")
    assert expected in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_first_write_to_slots_counts_only_for_whole_epochs(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock on which the first six batches, one per slot, take 100 s each and all others 1 s."""
    share = find_share(range(60), 60, 60)
    for passes, seconds_per_batch in ((None, 1.0), (2, (6 * 100 + 24) / 30)):
        steps = chain([0.0, 0.0], repeat(100.0, 6), repeat(1.0))
        monkeypatch.setattr(epochs, "time", SimpleNamespace(perf_counter=accumulate(steps).__next__))
        found = run_loader(store, HOW, share, 30.0 if passes is None else 1e9, epochs=passes)
        assert found.stats["slots"] <= 6
        assert found.bytes_per_s == pytest.approx(4 * 64 * 64 * 3 / seconds_per_batch)
        assert found.first_batch_s == 100
