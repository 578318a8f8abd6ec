"""Whole builds: the same bytes with any number of workers and tasks, after kills and resumes; limits on rejects."""

import math
import os
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from decodeonce.build import Plan, Recipe, WorkSettings, build, finish, make_plan, work
from decodeonce.errors import BuildError
from decodeonce.prep.building import build as build_module
from decodeonce.prep.building.journal import FACTS, Journal, Journals, journal_line
from decodeonce.prep.building.status import read_status
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.sources.imagenet import open_imagenet
from decodeonce.store import open_store, verify_store
from decodeonce.store.layout import ContainerName
from decodeonce.store.table import read_rejects
from tests import disks
from tests.command import prep, prep_after, printed
from tests.images import jpeg, make_tree, reference_row, tree_bytes

# Rows of 3 MB: one row per block, two blocks per shard, so that two rejects empty a whole shard.
LARGE_ROWS: dict[str, Any] = {"height": 1024, "width": 1024, "shard_size": 6 << 20, "shuffle_seed": 0}
ALL = "100%"
Bytes = dict[str, bytes]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """15 images in 3 classes, two of which are rejects."""
    root = make_tree(tmp_path_factory.mktemp("imagenet"))
    (root / "train/n00000000/n00000000_1.JPEG").write_bytes(b"no picture")
    short = jpeg(100, 100)
    (root / "train/n00000002/n00000002_3.JPEG").write_bytes(short[: len(short) // 2])
    (root / "train/n00000001/n00000001_2.JPEG").write_bytes(jpeg(50, 60, mode="CMYK"))
    return root


@pytest.fixture(scope="module")
def reference(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a store that one worker builds without interruption."""
    out = tmp_path_factory.mktemp("reference") / "store"
    build(open_imagenet(tree), out, Recipe(**LARGE_ROWS), WorkSettings(workers=1, max_bad="2"))
    assert verify_store(out).ok
    return tree_bytes(out)


@pytest.mark.parametrize("container", ["npy", "hdf5"])
def test_store_matches_pillow(tree: Path, tmp_path: Path, container: ContainerName) -> None:
    out = tmp_path / "store"
    build(
        open_imagenet(tree), out, Recipe(height=40, width=56, container=container), WorkSettings(workers=2, max_bad="2")
    )
    store = open_store(out)
    assert len(store) == 13
    for sample in store.samples:
        data = (tree / sample.source).read_bytes()
        np.testing.assert_array_equal(store.images[sample.row], reference_row(data, 40, 56))
        assert sample.source.split("/")[1] == sample.class_name == store.classes[store.labels[sample.row]].name
    if container == "npy":
        plain = np.load(out / "images-00000.npy", mmap_mode="r")
    else:
        with h5py.File(out / "images-00000.h5") as file:
            plain = file["images"][...]
    np.testing.assert_array_equal(plain, store.images[...])
    pixels = store.images[...].reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(store.manifest.pixel_mean, pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(store.manifest.pixel_std, pixels.std(0), rtol=1e-12)
    assert verify_store(out).ok


def test_rejects_leave_no_gaps_and_unusual_images_are_listed(tree: Path, reference: Bytes, tmp_path: Path) -> None:
    listed = reference["rejects.tsv"].decode().splitlines()[1:]
    found = [line.split("\t")[0].split("/")[-1] for line in listed]
    assert found == ["n00000000_1.JPEG", "n00000001_2.JPEG", "n00000002_3.JPEG"]
    assert [line.split("\t")[2] for line in listed] == ["rejected", "kept", "rejected"]
    assert "CMYK" in listed[1]
    assert sorted(name for name in reference if name.startswith("images")) == [f"images-0000{k}.npy" for k in range(7)]
    assert not any(name.startswith(".build") for name in reference)


@pytest.mark.parametrize("workers", [2, pytest.param(8, marks=pytest.mark.long)])
def test_number_of_workers_changes_no_byte(tree: Path, reference: Bytes, tmp_path: Path, workers: int) -> None:
    build(open_imagenet(tree), tmp_path / "store", Recipe(**LARGE_ROWS), WorkSettings(workers=workers, max_bad="2"))
    assert tree_bytes(tmp_path / "store") == reference


def test_order_and_number_of_tasks_change_no_byte(tree: Path, reference: Bytes, tmp_path: Path) -> None:
    out = tmp_path / "store"
    plan = make_plan(open_imagenet(tree), out, Recipe(**LARGE_ROWS))
    for task, tasks in ((3, 4), (0, 4), (3, 4), (1, 2)):
        work(out, WorkSettings(workers=1, task=task, tasks=tasks, max_bad="2"))
    assert read_status(out).blocks_done < len(plan.blocks)
    with pytest.raises(
        BuildError, match=rf"blocks are not done .*run: prep work (\S+ --max-bad {ALL}) && prep finish \1$"
    ):
        finish(out, ALL)
    BuildPaths(out).jobs.mkdir()
    BuildPaths(out).submit.touch()
    with pytest.raises(BuildError, match=r"run: bash .*/store.jobs/submit.sh$"):
        finish(out, ALL)
    work(out, WorkSettings(workers=1, max_bad="2"))
    finish(out, ALL)
    assert tree_bytes(out) == reference


CALLS = ["checked_listing", "check_free_space", "write_plan"]


# The second look at OUT is after the look for a plan.
@pytest.mark.parametrize(("call", "number"), [*((call, 1) for call in CALLS), ("check_output_dir", 2)])
def test_second_of_two_plans_finds_the_first(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    out, source, recipe = tmp_path / "store", open_imagenet(tree), Recipe(**LARGE_ROWS)
    called, calls, others = vars(build_module)[call], count(1), list[Plan]()

    def call_after_another_plan(*arguments: Any) -> Any:
        if next(calls) == number:
            monkeypatch.setattr(build_module, call, called)
            others.append(make_plan(source, out, recipe))
        return called(*arguments)

    monkeypatch.setattr(build_module, call, call_after_another_plan)
    assert make_plan(source, out, recipe).content == others[0].content
    assert len([*BuildPaths(out).build.glob("plan-*")]) == 1


def test_plan_whose_process_was_killed_before_the_shards_is_completed(
    tree: Path, reference: Bytes, tmp_path: Path
) -> None:
    plan = make_plan(open_imagenet(tree), tmp_path, Recipe(**LARGE_ROWS))
    plan.paths.journals.rmdir()
    plan.shard(1).unlink()
    for step in (work, finish, read_status):
        with pytest.raises(BuildError, match=r"journals: missing, because the plan is not complete; unless `prep"):
            step(tmp_path)
    build(open_imagenet(tree), tmp_path, Recipe(**LARGE_ROWS), WorkSettings(workers=1, max_bad="2"))
    assert tree_bytes(tmp_path) == reference


def test_disk_that_is_full_after_the_plan_was_written(
    tree: Path, reference: Bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, recipe = open_imagenet(tree), Recipe(**LARGE_ROWS)
    with disks.small_disk(tmp_path, "64m") as disk, monkeypatch.context() as patched:
        (disk / "other").write_bytes(bytes(32 << 20))
        patched.setattr(build_module, "check_free_space", lambda *_: None)  # as if a quota were unknown
        for _ in range(2):
            with pytest.raises(BuildError, match="No space left on device; make room"):
                build(source, disk / "store", recipe, WorkSettings(workers=1, max_bad="2"))
        (disk / "other").unlink()
        build(source, disk / "store", recipe, WorkSettings(workers=1, max_bad="2"))
        assert tree_bytes(disk / "store") == reference


def test_contradicting_journals_stop_the_build(tree: Path, reference: Bytes, tmp_path: Path) -> None:
    out = tmp_path / "store"
    make_plan(open_imagenet(tree), out, Recipe(**LARGE_ROWS))
    work(out, WorkSettings(workers=1, max_bad="2"))
    folder = BuildPaths(out).journals
    other = Journal(folder, 9, 10)
    other.append(journal_line(replace(next(Journals(folder).records([4])), facts=np.zeros(1, FACTS))))
    for step in (work, finish):
        with pytest.raises(BuildError, match="two processes decoded block 4 differently; remove both") as caught:
            step(out)
    one, both = str(caught.value).split(": ")[0].split(" and ")
    assert Path(both) == other.path
    Path(one).unlink()
    Path(both).unlink()
    work(out, WorkSettings(workers=1, max_bad="2"))
    finish(out, ALL)
    assert tree_bytes(out) == reference


def test_too_many_rejects_fail_and_higher_limit_resumes(tree: Path, reference: Bytes, tmp_path: Path) -> None:
    out = tmp_path / "store"
    source, recipe = open_imagenet(tree), Recipe(**LARGE_ROWS)
    with pytest.raises(BuildError, match=r"--max-bad 1 allows 1"):
        build(source, out, recipe, WorkSettings(workers=1, max_bad="1"))
    done = read_status(out).blocks_done
    assert done > 0
    with pytest.raises(BuildError, match=r"--max-bad 1 allows 1"):
        build(source, out, recipe, WorkSettings(workers=1, max_bad="1"))
    build(source, out, recipe, WorkSettings(workers=1, max_bad="15%"))
    assert tree_bytes(out) == reference


@pytest.mark.parametrize("planned", [0, 3])
def test_one_run_with_the_advised_max_bad_suffices(planned: int, tmp_path: Path) -> None:
    (folder := tmp_path / "src/a").mkdir(parents=True)
    for number in range(100):
        Image.new("L", (8, 8), number).save(folder / f"{number:03}.png")
    for number in range(0, 100, 5):
        (folder / f"{number:03}.png").write_bytes(b"no picture")
    for number in range(planned):
        (folder / f"empty{number}.png").touch()
    command = ("build", "folder", tmp_path / "src", tmp_path / "out", "--size", 512, "--workers", 1)
    failed = prep(*command, "--shuffle-seed", "none", "--max-bad", 9)
    status = read_status(tmp_path / "out")
    assert len(status.rejects) == 10
    assert 0 < status.rows_done < 100
    about = planned + math.ceil((10 - planned) * 100 / status.rows_done)  # by the rule of three
    assert status.expected_rejects == about
    rate = f"after {status.rows_done} of 100 were decoded; at this rate, {about} of all will be"
    assert f"{rate}, --max-bad 9 allows 9; " in failed.stderr
    assert f"the same command with --max-bad {2 * about}: completed" in failed.stderr
    (journal,) = BuildPaths(tmp_path / "out").journals.iterdir()
    journal.rename(str(journal).replace(f"-{os.getpid()}-", "-999999999-"))  # of a process that has ended
    assert f" --max-bad {2 * about}, or prep work" in printed("status", tmp_path / "out")
    printed(*command, "--shuffle-seed", "none", "--max-bad", 2 * about)
    assert open_store(tmp_path / "out").manifest.count == 80


def test_decoded_build_advises_the_exact_max_bad(tree: Path, tmp_path: Path) -> None:
    make_plan(open_imagenet(tree), tmp_path / "store", Recipe(**LARGE_ROWS))
    work(tmp_path / "store", WorkSettings(workers=1, max_bad="2"))
    with pytest.raises(BuildError, match=r"^2 of 15 images are rejects, --max-bad 1 .* command with --max-bad 2: "):
        finish(tmp_path / "store", "1")


def test_on_bad_fail_keeps_all_blocks_before_the_first_reject(tree: Path, tmp_path: Path) -> None:
    plan = make_plan(open_imagenet(tree), tmp_path / "store", Recipe(**LARGE_ROWS))
    names = [plan.samples.entry(row).name for row in range(plan.count)]  # each row is a block
    bad = [row for row, name in enumerate(names) if name.endswith((b"n00000000_1.JPEG", b"n00000002_3.JPEG"))]
    assert bad[0] > 1
    with pytest.raises(BuildError, match=r"n0000000\d_\d.JPEG: .*--on-bad reject"):
        work(plan.paths.root, WorkSettings(workers=1, on_bad="fail"))
    assert sorted(Journals(plan.paths.journals).lines) == list(range(bad[0]))


def test_on_bad_fail_counts_rejects_of_plan_and_journals(tree: Path, tmp_path: Path) -> None:
    gone = make_tree(tmp_path / "src", classes=1)
    (gone / "train/n00000000/gone.JPEG").symlink_to("nowhere")
    with pytest.raises(BuildError, match=r"gone.JPEG: No such file.*--on-bad reject"):
        build(open_imagenet(gone), tmp_path / "a", Recipe(), WorkSettings(on_bad="fail", max_bad="100%"))
    make_plan(open_imagenet(tree), tmp_path / "b", Recipe(**LARGE_ROWS))
    work(tmp_path / "b", WorkSettings(workers=1, max_bad="2"))
    with pytest.raises(BuildError, match="--on-bad reject"):
        work(tmp_path / "b", WorkSettings(on_bad="fail", max_bad="2"))


def test_plan_time_rejects_count_and_are_listed(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src")
    (tree / "train/n00000001/gone.JPEG").symlink_to("nowhere")
    with pytest.raises(BuildError, match="1 of 16 images is a reject"):
        build(open_imagenet(tree), tmp_path / "store", Recipe(height=8, width=8), WorkSettings(max_bad="0"))
    build(open_imagenet(tree), tmp_path / "store", Recipe(height=8, width=8), WorkSettings(max_bad="1"))
    (reject,) = read_rejects(tmp_path / "store/rejects.tsv")
    assert (reject.source, reject.action) == ("train/n00000001/gone.JPEG", "rejected")
    assert "dangling link" in reject.reason


def test_too_little_space_is_reported_before_decoding(tree: Path, tmp_path: Path) -> None:
    with disks.small_disk(tmp_path, "16m") as disk, pytest.raises(BuildError, match=r"free, .* needed for 15 rows"):
        make_plan(open_imagenet(tree), disk / "store", Recipe(**LARGE_ROWS))


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tree, the store `whole` of it, and the same store before `prep finish`, `decoded`."""
    root = tmp_path_factory.mktemp("decoded")
    tree = make_tree(root / "src")
    assert prep("plan", "imagenet", tree, root / "decoded", "--size", 256, "--shard-size", 1 << 20).returncode == 0
    assert prep("work", root / "decoded").returncode == 0
    shutil.copytree(root / "decoded", root / "whole")
    assert prep("finish", root / "whole").returncode == 0
    return root


@pytest.mark.parametrize("cut", [500_000, 0, None])
def test_advice_for_shard_cut_before_finish_restores_every_row(decoded: Path, tmp_path: Path, cut: int | None) -> None:
    out, whole = shutil.copytree(decoded / "decoded", tmp_path / "out"), tree_bytes(decoded / "whole")
    shard = out / "images-00001.npy"
    size = shard.stat().st_size
    if cut is None:  # a shard that grew loses nothing
        os.truncate(shard, size + 5000)
        assert prep("finish", out).returncode == 0
        assert tree_bytes(out) == whole
        return
    os.truncate(shard, cut)
    before = tree_bytes(out)
    failed = prep("finish", out)
    assert failed.returncode == 1
    assert f"{shard}: {cut} bytes, expected {size}: it was cut" in failed.stderr
    assert f"`truncate -s {size} {shard}`, finish the build, then run `prep verify {out}`" in failed.stderr
    assert tree_bytes(out) == before
    os.truncate(shard, size)
    assert prep("finish", out).returncode == 0
    assert prep("repair", out, "--from", decoded / "src").returncode == 0
    assert tree_bytes(out) == whole


def test_file_size_limit_of_libhdf5_exits_with_1(tmp_path: Path) -> None:
    tree, out = make_tree(tmp_path / "src"), tmp_path / "out"
    assert prep("plan", "imagenet", tree, out, "--size", 128, "--format", "hdf5").returncode == 0
    assert prep("work", out).returncode == 0
    failed = prep_after("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (99999, 99999))", "finish", out)
    assert failed.returncode == 1
    assert "File too large" in failed.stderr
    assert "raise `ulimit -f`" in failed.stderr
