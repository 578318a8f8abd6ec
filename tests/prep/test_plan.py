"""The plan: which sample goes to which row, and the errors for a changed source or recipe."""

import mmap
import os
import subprocess
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.build import Recipe, WorkSettings, make_plan, work
from decodeonce.errors import BuildError, Stopped
from decodeonce.formatting import quoted
from decodeonce.prep.building import free_space
from decodeonce.prep.building.plan import (
    PLAN_VERSION,
    Plan,
    checked_listing,
    plan_content,
    read_plan,
    shuffled,
    with_moved_source,
    write_plan,
)
from decodeonce.prep.listing import Listing, Scan
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.sources import files
from decodeonce.sources import Entry, FolderSource, Links, Source, open_imagenet
from decodeonce.store.manifest import ImageClass
from tests.command import prep
from tests.images import jpeg, make_tree, tree_bytes

SMALL = Recipe(height=16, width=16, shuffle_seed=0)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """15 images in 3 classes."""
    return make_tree(tmp_path / "src")


@pytest.fixture
def plan(tree: Path, tmp_path: Path) -> Plan:
    """A plan of these images."""
    return make_plan(open_imagenet(tree), tmp_path / "out", SMALL)


@given(st.integers(0, 3000), st.integers(0, 2**63))
def test_shuffle_is_a_permutation(count: int, seed: int) -> None:
    assert sorted(shuffled(count, seed).tolist()) == list(range(count))


def test_shuffle_never_changes() -> None:
    assert shuffled(12, 0).tolist() == GOLDEN_ORDER
    assert shuffled(12, None).tolist() == list(range(12))
    assert shuffled(1000, 1).tolist() != shuffled(1000, 0).tolist()


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_rows_are_in_the_order_of_the_seed(tree: Path, tmp_path: Path, seed: int) -> None:
    plan = make_plan(open_imagenet(tree), tmp_path / "out", Recipe(height=16, width=16, shuffle_seed=seed))
    listed = [entry.name for entry in open_imagenet(tree).scan().entries]
    rows = [plan.samples.entry(row).name for row in range(len(listed))]
    assert rows == [listed[place] for place in shuffled(len(listed), seed).tolist()]


GOLDEN_ORDER = [7, 3, 9, 2, 5, 4, 6, 0, 10, 1, 11, 8]


def test_different_recipe_is_an_error_that_names_the_settings(tree: Path, tmp_path: Path) -> None:
    make_plan(open_imagenet(tree), tmp_path / "out", SMALL)
    with pytest.raises(BuildError, match="--filter is box, the plan says bilinear; --size is 20x16, the plan says 16"):
        make_plan(open_imagenet(tree), tmp_path / "out", Recipe(height=20, width=16, filter="box", shuffle_seed=0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tree: (tree / "train/n00000001/new.JPEG").write_bytes(jpeg()),
            r"1 new \(first train/n00000001/new.JPEG",
        ),
        (lambda tree: (tree / "train/n00000001/n00000001_0.JPEG").unlink(), "1 gone .*n00000001_0.JPEG"),
        (lambda tree: os.utime(tree / "train/n00000001/n00000001_0.JPEG", ns=(1, 1)), "1 changed .*n00000001_0.JPEG"),
        (lambda tree: (tree / "train/n00000001/empty.JPEG").touch(), "places or rejects"),
        (
            lambda tree: (tree / "LOC_synset_mapping.txt").write_text("n00000000 tench\n"),
            "same images with other classes",
        ),
    ],
)
def test_changed_source_is_an_error_that_names_the_file(tree: Path, tmp_path: Path, change: Any, message: str) -> None:
    make_plan(open_imagenet(tree), tmp_path / "out", SMALL)
    change(tree)
    with pytest.raises(BuildError, match=message):
        make_plan(open_imagenet(tree), tmp_path / "out", SMALL)


def test_another_source_or_recipe_is_told_how_to_start_again_and_what_is_lost(tree: Path, tmp_path: Path) -> None:
    out, recipe = tmp_path / "a store", Recipe(height=1024, width=1024, shuffle_seed=0)  # a block is a row
    plan = make_plan(open_imagenet(tree), out, recipe)
    advice = f"unless another process builds there, run: rm -r '{out}', then this command again"
    other = make_tree(tmp_path / "other", classes=1)
    for lost in ("no image was decoded yet", f"decoded so far: {plan.count} of {plan.count} blocks"):
        for source, wanted in ((open_imagenet(tree), replace(recipe, width=32)), (open_imagenet(other), recipe)):
            with pytest.raises(BuildError) as error:
                make_plan(source, out, wanted)
            assert str(error.value).endswith(f", or {advice} ({lost})")
        work(out, WorkSettings(workers=1, max_bad="100%"))
    subprocess.run(["bash", "-c", f"rm -r {quoted(out)}"], check=True)
    assert make_plan(open_imagenet(other), out, recipe).count == 5


def test_image_changed_after_plan_stops_the_task(tree: Path, tmp_path: Path) -> None:
    make_plan(open_imagenet(tree), tmp_path / "out", SMALL)
    image = tree / "train/n00000001/n00000001_0.JPEG"

    def link_to_itself() -> None:
        image.rmdir()
        image.symlink_to(image)

    changes: list[tuple[Callable[[], object], str]] = [
        (lambda: image.write_bytes(jpeg()), "changed since the plan"),
        (image.unlink, "No such file or directory, although it was listed before; put it back"),
        (image.mkdir, "Is a directory; fix this and run"),
        (link_to_itself, "Too many levels of symbolic links; replace the link"),
    ]
    for change, message in changes:
        change()
        with pytest.raises(BuildError, match=f"^{image}: {message}"):
            work(tmp_path / "out", WorkSettings(workers=1))


def test_different_decoders_are_an_error(plan: Plan, tree: Path, tmp_path: Path) -> None:
    facts = {**plan.content, "recipe": {**plan.content["recipe"], "decoders": {"simplejpeg": "0.1"}}}
    with_moved_source(plan, facts)
    with pytest.raises(BuildError, match=r"the installed decoders differ from the plan's: .*simplejpeg is .*, the"):
        work(tmp_path / "out")


def test_files_that_were_removed_while_open_do_not_block_out(tree: Path, tmp_path: Path) -> None:
    plan = make_plan(open_imagenet(tree), tmp_path / "out", SMALL)
    plan.paths.plan.unlink()
    plan.paths.journals.rmdir()
    for renamed in ("out/.fuse_hidden000001c100000032", "out/.build/.nfs0000000000bc2e1a00000002"):
        (tmp_path / renamed).touch()
    make_plan(open_imagenet(tree), tmp_path / "out", SMALL)


def test_files_that_appear_in_out_during_listing_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = open_imagenet(make_tree(tmp_path / "src")), tmp_path / "out"
    listing = source.listing

    def listing_while_a_store_is_copied_to_out() -> Listing:
        out.mkdir(exist_ok=True)
        (out / "images-00000.npy").write_bytes(b"mine")
        return listing()

    monkeypatch.setattr(source, "listing", listing_while_a_store_is_copied_to_out)
    with pytest.raises(BuildError, match="not an unfinished build: it is not empty"):
        make_plan(source, out, SMALL)
    assert tree_bytes(out) == {"images-00000.npy": b"mine"}


def test_build_with_done_blocks_but_no_plan_stays_unchanged(plan: Plan, tree: Path, tmp_path: Path) -> None:
    work(tmp_path / "out", WorkSettings(workers=1))
    plan.paths.plan.unlink()
    before = tree_bytes(tmp_path / "out")
    with pytest.raises(BuildError, match=r"plan.json: missing, although this build has begun; remove .*out"):
        make_plan(open_imagenet(tree), tmp_path / "out", SMALL)
    assert tree_bytes(tmp_path / "out") == before


def test_different_source_is_an_error(tmp_path: Path) -> None:
    tree, other = (make_tree(tmp_path / name, classes=classes) for name, classes in (("tree", 2), ("other", 1)))
    make_plan(open_imagenet(tree), tmp_path / "out", SMALL)
    both = rf"planned from {tree} \(imagenet\), SRC is {other}/train \(folder\)"
    with pytest.raises(BuildError, match=rf"5 new \(first .*; 10 gone \(first .*; {both}; pass the planned SRC"):
        make_plan(FolderSource(other / "train"), tmp_path / "out", SMALL)


def test_planning_again_writes_nothing_and_moved_source_is_the_same(plan: Plan, tree: Path, tmp_path: Path) -> None:
    before = plan.paths.plan.stat().st_mtime_ns
    make_plan(open_imagenet(tree), tmp_path / "out", SMALL)
    assert plan.paths.plan.stat().st_mtime_ns == before
    tree.rename(tmp_path / "moved")
    make_plan(open_imagenet(tmp_path / "moved"), tmp_path / "out", SMALL)
    work(tmp_path / "out", WorkSettings(workers=1))


def test_out_inside_source_or_in_foreign_folder_is_an_error(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="is inside the source"):
        make_plan(FolderSource(tree / "train"), tree / "train/store", SMALL)
    make_plan(open_imagenet(tree), tree / "train.store", SMALL)
    for mine in ("project/.build/debug", "project/images-2024"):
        (tmp_path / mine).mkdir(parents=True)
    for foreign in ("images-2024", "debug"):
        with pytest.raises(BuildError, match=f"not an unfinished build: it contains {foreign}"):
            make_plan(open_imagenet(tree), tmp_path / "project", SMALL)
        if foreign == "images-2024":
            (tmp_path / "project/images-2024").rmdir()
    assert (tmp_path / "project/.build/debug").exists()


def test_plan_time_rejects_have_reasons(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", classes=1)
    folder = tree / "train/n00000000"
    (folder / "dir.JPEG").mkdir()
    (folder / "gone.JPEG").symlink_to("nowhere")
    (folder / "empty.JPEG").touch()
    os.mkfifo(folder / "fifo.JPEG")
    (folder / ".hidden").touch()
    with open(folder / "film.JPEG", "wb") as film:
        film.truncate((1 << 30) + 1)
    (folder / "linked.JPEG").symlink_to(folder / "n00000000_0.JPEG")
    listing = checked_listing(open_imagenet(tree))
    assert {reject.source.rsplit("/", 1)[1]: reject.reason for reject in listing.rejects} == {
        "dir.JPEG": "a directory",
        "gone.JPEG": "No such file or directory (a dangling link)",
        "empty.JPEG": "empty file",
        "fifo.JPEG": "not a regular file",
        "film.JPEG": "1073741825 bytes, more than any image has",
    }
    assert len(listing) == 6


def test_threads_on_network_file_system_list_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make_tree(tmp_path / "src", per_class=20)
    (tree / "train/n00000001/deep/er").mkdir(parents=True)
    (tree / "train/n00000001/deep/er/x.JPEG").write_bytes(jpeg())
    (tree / "train/n00000001/dir.JPEG").mkdir()
    (tree / "train/n00000002/gone.JPEG").symlink_to("nowhere")
    (tree / "train/n00000002/n00000002_11.JPEG").write_bytes(b"")
    expected = list(open_imagenet(tree).scan().entries)
    threads, stat = set(), files.LOCAL_FILES.entry

    def recorded(root: Path, name: bytes, label: int, links: Links) -> Entry:
        threads.add(threading.current_thread())
        return stat(root, name, label, links)

    monkeypatch.setattr(files.LOCAL_FILES, "entry", recorded)
    monkeypatch.setattr(files, "network_file_system", lambda top: "NFS")
    for at_once in (3, 4096):
        monkeypatch.setattr(files, "STATS_AT_ONCE", at_once)
        assert list(open_imagenet(tree).scan().entries) == expected
    assert sum(bool(entry.problem) for entry in expected) == 3
    assert threads
    assert threading.main_thread() not in threads

    def fails(root: Path, name: bytes, label: int, links: Links) -> Entry:
        raise Stopped(f"{name.decode()}: Stale file handle")

    monkeypatch.setattr(files.LOCAL_FILES, "entry", fails)
    with pytest.raises(Stopped, match=r"n00000000_0.JPEG: Stale"):
        checked_listing(open_imagenet(tree))


def test_nfs_warns_if_blocks_share_pages(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(free_space, "network_file_system", lambda place: "NFS")
    for size, page, warns in ((24, 4096, 0), (24, 65536, 1), (64, 65536, 0), (1025, 4096, 1), (1025, 65536, 1)):
        monkeypatch.setattr(mmap, "PAGESIZE", page)
        caplog.clear()
        make_plan(open_imagenet(tree), tmp_path / f"{size}-{page}", Recipe(height=size, width=size))
        assert sum("share pages" in message for message in caplog.messages) == warns


class _Synthetic(Source):
    """A source of `count` samples without files."""

    kind = "folder"

    def __init__(self, count: int) -> None:
        super().__init__(Path("/"))
        self._count = count

    def arguments(self) -> dict[str, Any]:
        return {}

    def scan(self) -> Scan:
        entries = (Entry(b"train/n01440764/n01440764_%d.JPEG" % k, 0, 110_000, 1) for k in range(self._count))
        return Scan(entries, [ImageClass("n01440764")])


@pytest.mark.long
def test_plan_takes_less_than_200_bytes_per_sample(tmp_path: Path) -> None:
    count, paths = 100_000, BuildPaths(tmp_path)
    paths.journals.mkdir(parents=True)
    tracemalloc.start()
    listing = checked_listing(_Synthetic(count))
    write_plan(paths, listing, plan_content(_Synthetic(count), listing, SMALL, {}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / count < 200


def test_summarizing_changes_takes_less_than_200_bytes_per_sample(tmp_path: Path) -> None:
    count, paths = 30_000, BuildPaths(tmp_path)
    paths.journals.mkdir(parents=True)
    listing, more = checked_listing(_Synthetic(count)), checked_listing(_Synthetic(count + 2))
    write_plan(paths, listing, plan_content(_Synthetic(count), listing, SMALL, {}))
    plan = read_plan(paths)
    tracemalloc.start()
    summary = plan.samples.changes_in(more)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert summary == f"2 new (first train/n01440764/n01440764_{count}.JPEG)"
    assert peak / count < 200


def test_plan_of_another_release_is_an_error(plan: Plan, tmp_path: Path) -> None:
    with_moved_source(plan, {**plan.content, "version": 1})
    message = f"plan version is 1, expected {PLAN_VERSION}; "
    message += "finish with the decodeonce release that made it, or remove .*out and build again$"
    with pytest.raises(BuildError, match=message):
        work(tmp_path / "out")


def test_plan_time_rejects_are_part_of_the_digest(tree: Path, tmp_path: Path) -> None:
    empty = tree / "train/n00000001/a.JPEG"
    empty.mkdir()
    with_problem = checked_listing(open_imagenet(tree)).digest
    empty.rmdir()
    empty.touch()
    assert checked_listing(open_imagenet(tree)).digest == with_problem
    found = open_imagenet(tree).scan()
    listed = list(found.entries)
    (number,) = [number for number, entry in enumerate(listed) if entry.problem]
    listed[number] = replace(listed[number], problem="")
    assert Listing.of(replace(found, entries=listed)).digest != with_problem


def test_decoder_versions_include_format_libraries() -> None:
    names = {name.partition("'s ")[2] for name in decoder_versions("npy")}
    assert {"libjpeg", "libwebp", "libtiff"} <= names


def test_plan_file_damaged_before_a_step_is_named_without_its_content(tmp_path: Path) -> None:
    listed = [f"{number}.jpg\t0\t{number}" for number in range(9)]
    (tmp_path / "list.tsv").write_text("\n".join(["path\tlabel\tweight", *listed]))
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg())
    out, names = tmp_path / "out", ["*/names.bin", "*/records.npy", "plan.json"]
    assert prep("plan", "list", tmp_path / "list.tsv", out, "--size", 16, "--column", "weight").returncode == 0
    for command, read in (("work", names), ("finish", [*names, "*/column-0.npy"])):
        for path in (next((out / ".build").glob(name)) for name in read):
            whole = path.read_bytes()
            damaged = [b"", whole[: len(whole) * 9 // 10]]
            if path.suffix == ".json":
                damaged.append(whole.replace(b'"count": ', b'"count": 1'))
            if path.name == "records.npy":
                damaged += [b"root:secret", b"PK\3\4", b"\x93NUMPY\1\0\x06\0secret"]
            for content in damaged:
                path.write_bytes(content)
                failed = prep(command, out, "--max-bad", 1)
                code, error = 1, f"prep: error: {path}: damaged; remove {out} and build again\n"
                if not content and path.suffix == ".json":
                    advice = f"run the same command again; if this is printed again, remove {out} first"
                    what = "empty: another process is writing it, or was killed"
                    code, error = 75, f"prep: stopped: {path}: {what}; {advice}\n"
                assert (failed.returncode, failed.stderr) == (code, error)
            path.write_bytes(whole)
        assert prep(command, out, "--max-bad", 1).returncode == 0
