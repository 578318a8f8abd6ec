"""`--dry-run`: its estimates of bytes, files, space, time and limits, and whether builds stay within them."""

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from decodeonce import cli
from decodeonce.build import Recipe, WorkSettings, build, make_plan
from decodeonce.cli import dryrun
from decodeonce.cli.dryrun import (
    SampledSource,
    Trial,
    dry_run,
    fair_sample,
    limit_of,
    run_trial,
    time_here,
    time_in_jobs,
    trials,
)
from decodeonce.cli.kinds import BuildRequest
from decodeonce.errors import BuildError
from decodeonce.host import usable_cores
from decodeonce.prep.building.free_space import Need
from decodeonce.prep.building.plan import scan
from decodeonce.prep.jobs.base import Chain
from decodeonce.sources import FolderSource, Source
from tests.command import kill_when, prep, prep_after
from tests.forms.all_forms import PICS, PLAIN_FORMS
from tests.images import make_tree, tree_bytes
from tests.prep.building import build_in_process

SMALL = Recipe(height=24, width=24)
pytestmark = pytest.mark.usefixtures("quick_trials")


def request(source: Source, out: Path, recipe: Recipe = SMALL, max_bad: str = "0") -> BuildRequest:
    return BuildRequest(source, out, recipe, WorkSettings(max_bad=max_bad), dry_run=True, expect=None)


def lines(source: Source, out: Path, recipe: Recipe = SMALL, max_bad: str = "0") -> list[str]:
    """Return the lines of a dry run; such small sources are sampled completely."""
    asked = request(source, out, recipe, max_bad)
    return own_lines(dry_run(asked, partial(time_here, 2), workers=2, seconds=30))


def own_lines(found: Iterable[str]) -> list[str]:
    """Return the lines that do not depend on what else this machine does."""
    return [line for line in found if not line.startswith("warning: other programs use ")]


@pytest.mark.parametrize("verb", ["build", "plan"])
def test_dry_run_estimates_bytes_files_time_and_space(verb: str, tree: Path, tmp_path: Path) -> None:
    flags = ("imagenet", tree, tmp_path / "out", "--dry-run", "--size", 24)
    result = prep(verb, *flags, *(("--workers", 3) if verb == "build" else ()))
    assert (result.returncode, result.stderr) == (0, "")
    found, planned, needed, time, basis, limit, room = own_lines(result.stdout.splitlines())
    assert found == f"{tree}: class folders in train, 3 classes"
    assert planned.startswith(
        "15 rows of 24x24x3 in 3 classes, 25.92 KB (12.96 KB as yuv420) in 1 npy shard; 0 files rejected; "
    )
    assert needed == "space: 25.92 KB for rows, up to 3.00 KB for other data; up to 13 files"
    assert time.startswith("time: ")
    assert verb == "plan" or " with one task of 3 workers here" in time
    assert "here read and decoded 15 images (all) at " in basis
    assert limit.startswith("limit: ")
    assert room.startswith(f"{tmp_path}: ")
    assert list(tmp_path.iterdir()) == []


def test_build_stays_within_estimate(tree: Path, tmp_path: Path) -> None:
    for container in ("npy", "hdf5"):
        recipe = Recipe(height=128, width=128, container=container, shard_size=8 * 128 * 128 * 3)
        source = FolderSource(tree / "train")
        needed = lines(source, tmp_path / container, recipe)[1]
        store = build_in_process(source, tmp_path / container, recipe)
        files = list(store.rglob("*"))
        assert len(files) <= int(needed.rpartition("up to ")[2].partition(" ")[0]) <= len(files) + 12
        assert needed.startswith("space: 0.74 MB for rows, ")
        assert sum(path.stat().st_size for path in files if path.name.startswith("images-")) < 0.8e6


def test_empty_source_is_the_error_of_a_build(tmp_path: Path) -> None:
    for name in ("empty", "dangling", "broken"):
        (tmp_path / name / "train/n0").mkdir(parents=True)
    (tmp_path / "dangling/train/n0/1.JPEG").symlink_to("nowhere")
    (tmp_path / "broken/train/n0/1.JPEG").write_bytes(b"no picture")
    for name, expected in (("empty", "no images found; "), ("dangling", "all 1 candidates are rejects, first")):
        source = FolderSource(tmp_path / name / "train")
        with pytest.raises(BuildError, match=expected) as of_a_build:
            make_plan(source, tmp_path / "out", Recipe())
        with pytest.raises(BuildError) as error:
            lines(source, tmp_path / "out")
        assert str(error.value) == str(of_a_build.value)
    with pytest.raises(BuildError, match=r"1 image was tried and none can be decoded, for example n0/1\.JPEG: not an "):
        lines(FolderSource(tmp_path / "broken/train"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_many_rejects_are_predicted(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src") / "train"
    (tree / "n00000001/bad.JPEG").write_bytes(b"no picture")
    (tree / "n00000001/empty.JPEG").touch()
    for most, allowed in (("1", 1), ("6%", 1)):
        basis, warning = lines(FolderSource(tree), tmp_path / "none", max_bad=most)[3:6:2]
        assert basis.endswith(
            "; 1 of them cannot be decoded, first n00000001/bad.JPEG: not an image: begins with b'no pictu'"
        )
        rejects = f"about 2 of 17 images would be rejected, but --max-bad {most} allows {allowed}"
        assert warning == f"this build would fail: {rejects}; repair or remove them, or pass a higher --max-bad"
        with pytest.raises(BuildError, match=f"2 of 17 images are rejects, --max-bad {most} allows {allowed}; "):
            build(FolderSource(tree), tmp_path / "out", Recipe(height=8, width=8), WorkSettings(max_bad=most))
    enough = lines(FolderSource(tree), tmp_path / "none", max_bad="2")
    assert not any("this build would fail" in line for line in enough)


def test_unfinished_build_needs_no_more_space_and_the_same_recipe(tree: Path, tmp_path: Path) -> None:
    source, out = FolderSource(tree / "train"), tmp_path / "out"
    make_plan(source, out, Recipe(height=24, width=24))
    before = tree_bytes(tmp_path)
    found = lines(source, out)[5:]
    assert found == [f"{out}: an unfinished build is here; the same command without --dry-run resumes it"]
    for recipe, place, message in (
        (Recipe(height=24, width=32), out, "--size is 24x32, the plan says 24"),
        (SMALL, tree / "train/out", "is inside the source"),
    ):
        with pytest.raises(BuildError, match=message):
            lines(source, place, recipe)
    assert tree_bytes(tmp_path) == before


def test_missing_space_is_the_error_of_a_build(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dryrun, "space_needed", lambda plan: Need(plan.count, 10**18, 13))
    with pytest.raises(BuildError, match=r"1000000000\.00 GB needed for 15 rows; make room"):
        lines(FolderSource(tree / "train"), tmp_path / "out")


def test_dry_run_of_jobs_estimates_time_per_task(tree: Path, tmp_path: Path) -> None:
    flags = ["build", "imagenet", tree, tmp_path / "out", "--size", "24", "--dry-run"]
    result = prep("submit", "slurm", *flags, "--tasks", 2, "--nodes", 2, "--cpus", 5, "--time", "1:00:00", "--submit")
    assert (result.returncode, result.stderr) == (0, "")
    time = result.stdout.splitlines()[3]
    each = "for each of 4 tasks of 5 workers, on cores as fast as these"
    assert time == f"time: under a second {each}; fits --time 1:00:00"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, "time: about 2.8 h for each of 4 tasks of 5 workers, on cores as fast as these"),
        ({"seconds": 14400}, "; fits --time 4:00:00"),
        ({"seconds": 7200}, "; does not fit --time 2:00:00: increase --time or --tasks, or pass --rounds 2"),
        ({"seconds": 7200, "rounds": 3}, "; fits 2 of the 3 rounds of --time 2:00:00"),
        ({"max_running": 3}, ", 3 at a time: 5.5 h in total"),
    ],
)
def test_task_is_compared_with_time_limit(facts: dict[str, Any], expected: str) -> None:
    chain = Chain(tasks=4, cpus=5, **facts)
    assert time_in_jobs(chain, 5, 200_000, 1.0).endswith(expected)


def test_more_workers_than_cores_do_not_help() -> None:
    chain = Chain(tasks=4, cpus=5)
    assert time_in_jobs(chain, 50, 200_000, 1.0).startswith("time: about 2.8 h for each of 4 tasks of 50 workers, ")
    few, many = (time_here(workers, 10**9, 1.0).split(" with ") for workers in (usable_cores(), 10**6))
    assert few[0] == many[0]
    assert time_here(1, 7200, 1.0).startswith("time: about 2.0 h with one task of 1 worker here; 30 min with 4, ")


def tree_with_reject(tmp_path: Path) -> Path:
    """Make 37 images, one of which cannot be decoded."""
    tree = make_tree(tmp_path / "src", per_class=12)
    (tree / "train/n00000001/bad.JPEG").write_bytes(b"no picture")
    return tree


def test_sample_is_the_source_in_runs_of_random_order(tmp_path: Path) -> None:
    source = FolderSource(tree_with_reject(tmp_path) / "train")
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


def test_trial_ends_after_its_time(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FolderSource(tree / "train")
    monkeypatch.setattr(SampledSource, "block_rows", lambda *_: 1)
    found = run_trial(source, [*source.entries()] * 300, SMALL, tmp_path, workers=1, seconds=0.0)
    assert 1 <= found.samples < 4500
    assert list(tmp_path.iterdir()) == []


# One form for each way to read: a tar, a gzip stream, a row group.
@pytest.mark.parametrize("name", ["imagenet-train-tar", "webdataset-gzip", "parquet"])
def test_build_is_measured_for_every_way_to_read(name: str, tmp_path: Path) -> None:
    source = PLAIN_FORMS[name].make(tmp_path, PICS)
    before = tree_bytes(tmp_path)
    first, warm = trials(request(source, tmp_path / "out"), scan(source), 2, 0.02)
    assert first.samples_per_s > 0
    assert warm is None or warm.samples_per_s > 0
    assert tree_bytes(tmp_path) == before


@pytest.mark.parametrize(
    ("cold", "busy", "limit"),
    [
        (100, (0.2, 1.0), "reading the source, at 100 images/s"),
        (500, (0.9, 1.0), "the cores, which decode and resize; they were 100% busy"),
        (1200, (0.1, 0.1), "writing; the cores were 10% busy"),
    ],
)
def test_limit_of_build(cold: float, busy: tuple[float, float], limit: str) -> None:
    first, warm = Trial(37, [], cold, busy[0], 10**9, {}), Trial(37, [], 1000.0, busy[1], 0, {})
    assert limit_of(first, warm) == limit
    assert not limit_of(first, None).startswith("reading")


def test_folder_for_temporary_files_holds_trial_without_folder_of_out(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = prep("build", "imagenet", tree, tmp_path / "none/out", "--size", 24, "--dry-run")
    assert (found.returncode, list(tmp_path.iterdir())) == (0, [])


def test_signal_removes_scratch_folder(tree: Path, tmp_path: Path) -> None:
    moment = kill_when("event == 'open' and '.prep-trial-' in str(args[0])", "SIGTERM", 3)
    ended = prep_after(moment, "build", "imagenet", tree, tmp_path / "out", "--size", 24, "--dry-run")
    assert (ended.returncode, list(tmp_path.iterdir())) == (cli.EXIT_STOPPED, [])
