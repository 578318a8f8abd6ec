"""Errors that pass on network file systems, and changes by two nodes whose locks do not exclude each other."""

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodeonce.build import Recipe, make_plan, work
from decodeonce.errors import DecodeonceError, Stopped, StoreError
from decodeonce.prep.building import build as building
from decodeonce.prep.building import output_dir
from decodeonce.prep.export.export import ExportSettings, export_store
from decodeonce.prep.sources.imagenet import open_imagenet
from decodeonce.store import StorePaths, add_column, columns, disk, open_store, remove_column, sharing, writer
from decodeonce.store.sharing import LOCK, patient, patient_if_there
from decodeonce.store.verify import verify_store
from tests.disks import small_disk
from tests.stores import make_store, random_images

COUNT = 20
SCORES = np.arange(COUNT)


@pytest.fixture(autouse=True)
def as_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """All folders are on sshfs, where flock(2) excludes no other node. A thread would stand for a node."""
    monkeypatch.setattr(sharing, "network_file_system", lambda path: "FUSE")
    monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)


def failing(path: Path, times: int) -> tuple[Callable[[], int], list[int]]:
    """Return a function that cannot open `path` the first times, and a list that its calls are added to."""
    calls: list[int] = []

    def call() -> int:
        calls.append(len(calls))
        if len(calls) <= times:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return len(calls)

    return call, calls


def test_missing_file_on_local_disk_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    call, calls = failing(tmp_path / "store.json", 2)
    with pytest.raises(FileNotFoundError):
        patient(tmp_path, call)
    assert len(calls) == 1


def test_shards_that_another_node_reserves_meanwhile_are_kept(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both nodes plan the same build, and the other one starts a journal while this one empties .build."""
    source, out, recipe = open_imagenet(tree), tmp_path / "out", Recipe(height=8, width=8)

    def clear_late(paths: StorePaths, **kwargs: Any) -> None:
        monkeypatch.setattr(building, "clear_leftovers", output_dir.clear_leftovers)
        make_plan(source, out, recipe)
        with monkeypatch.context() as patch:
            patch.setattr(output_dir, "empty_folder", not_empty)
            output_dir.clear_leftovers(paths, **kwargs)

    def not_empty(folder: Path, **kwargs: Any) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(folder / "journals"))

    monkeypatch.setattr(sharing, "CACHE_SECONDS", 0.05)
    monkeypatch.setattr(building, "clear_leftovers", clear_late)
    assert patient(out, building.build, source, out, recipe).count == 15
    assert verify_store(out).ok


@pytest.mark.parametrize(("code", "kept"), [(errno.ENOENT, True), (errno.ENOSPC, False)])
def test_failed_plan_releases_its_shards_unless_another_node_may_use_them(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kept: bool
) -> None:
    def fail(paths: StorePaths, *args: Any) -> None:
        raise OSError(code, os.strerror(code), str(paths.plan_rows))

    monkeypatch.setattr(building, "write_plan", fail)
    with pytest.raises(OSError, match=os.strerror(code)):
        make_plan(open_imagenet(tree), tmp_path / "out", Recipe(height=8, width=8))
    assert (tmp_path / "out/images-00000.npy").exists() == kept


def test_task_that_does_not_find_a_shard_in_time_can_be_repeated(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "CACHE_SECONDS", 0.05)
    out = tmp_path / "out"
    make_plan(open_imagenet(tree), out, Recipe(height=8, width=8))
    shard = (out / "images-00000.npy").rename(tmp_path / "later.npy")
    with pytest.raises(Stopped, match=r"images-00000\.npy: No such file or directory; .* run the same command"):
        patient_if_there(out, work, out)
    shard.rename(out / "images-00000.npy")
    patient_if_there(out, work, out)


def test_space_that_a_killed_plan_reserved_counts_as_free(tree: Path, tmp_path: Path) -> None:
    recipe = Recipe(height=128, width=128)  # 15 rows need 0.74 MB
    with small_disk(tmp_path, "1m") as disk:
        make_plan(open_imagenet(tree), disk / "out", recipe).paths.plan.unlink()
        make_plan(open_imagenet(tree), disk / "out", recipe)


def test_call_is_repeated_until_network_shows_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, calls = failing(tmp_path / "store.json", 2)
    assert patient(tmp_path, call) == 3
    call, calls = failing(tmp_path / "source/0.jpg", 2)  # of another folder
    with pytest.raises(FileNotFoundError):
        patient(tmp_path / "store", call)
    assert len(calls) == 1
    monkeypatch.setattr(sharing, "CACHE_SECONDS", 0.15)
    call, calls = failing(tmp_path / "store.json", 1000)
    with pytest.raises(Stopped, match=r"store.json: No such file or directory; .*; run the same command again$"):
        patient(tmp_path, call)
    assert 2 < len(calls) < 8  # pauses of 10, 15, 22, 34 and 51 ms


@pytest.mark.parametrize(("name", "calls_made"), [("store.json", 3), (".build", 3), ("other", 1)])
def test_folder_without_store_and_build_is_not_waited_for(tmp_path: Path, name: str, calls_made: int) -> None:
    (tmp_path / name).touch()
    call, calls = failing(tmp_path / "labels.npy", 2)
    with pytest.raises(FileNotFoundError) if calls_made == 1 else nullcontext():
        patient_if_there(tmp_path, call)
    assert len(calls) == calls_made


@pytest.mark.parametrize("change", ["add", "remove"])
def test_change_by_another_node_during_an_add_is_kept(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write_array = (
        make_store(tmp_path / "s", random_images(COUNT), columns={"weight": SCORES}),
        writer.write_array,
    )

    def write_and_change(*args: Any, **kwargs: Any) -> Any:
        written = write_array(*args, **kwargs)
        monkeypatch.setattr(columns, "write_array", write_array)
        add_column(store, "other", SCORES) if change == "add" else remove_column(store, "weight")
        return written

    monkeypatch.setattr(columns, "write_array", write_and_change)
    patient(store, add_column, store, "score", SCORES + 1)
    assert [*open_store(store).columns] == (["weight", "other", "score"] if change == "add" else ["score"])
    assert verify_store(store).ok


def test_manifest_that_another_node_replaces_before_the_claim_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, claimed = make_store(tmp_path / "s", random_images(COUNT)), sharing.claimed

    def claimed_late(path: Path) -> Any:
        monkeypatch.setattr(columns, "claimed", claimed)
        (prepared,) = (store / ".repair").glob("column-*")
        before = prepared.read_bytes()
        add_column(store, "other", SCORES)
        (store / ".repair").mkdir(exist_ok=True)
        prepared.write_bytes(before)  # which the other call removed
        return claimed(path)

    monkeypatch.setattr(columns, "claimed", claimed_late)
    add_column(store, "score", SCORES + 1)
    assert [*open_store(store).columns] == ["other", "score"]
    assert verify_store(store).ok


def test_column_that_another_node_prepares_with_this_name_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write_array = make_store(tmp_path / "s", random_images(COUNT)), writer.write_array

    def write_twice(path: Path, *args: Any, **kwargs: Any) -> Any:
        written = write_array(path, *args, **kwargs)
        monkeypatch.setattr(columns, "write_array", write_array)
        monkeypatch.setattr(columns, "_changing", refuse)  # the other node is killed before it changes the manifest
        with monkeypatch.context() as other:
            other.setattr(columns, "empty_folder", lambda *args, **kwargs: None)  # it began before this one wrote
            other.setattr(columns, "remove_file", lambda path: None)
            with pytest.raises(KeyboardInterrupt):
                add_column(store, "score", SCORES + 7)
        monkeypatch.setattr(columns, "_changing", changing)
        return written

    def refuse(paths: Any) -> Any:
        raise KeyboardInterrupt

    changing = columns._changing
    monkeypatch.setattr(columns, "write_array", write_twice)
    add_column(store, "score", SCORES)
    assert verify_store(store).ok
    np.testing.assert_array_equal(open_store(store).columns["score"], SCORES)


def test_column_that_another_node_adds_again_after_a_removal_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "s", random_images(COUNT), columns={"score": SCORES})
    write_manifest = columns._write_manifest

    def write_and_add(*args: Any) -> None:
        write_manifest(*args)
        monkeypatch.setattr(columns, "_write_manifest", write_manifest)
        add_column(store, "score", SCORES)

    monkeypatch.setattr(columns, "_write_manifest", write_and_add)
    patient(store, remove_column, store, "score")
    assert verify_store(store).ok
    assert [*open_store(store).columns] == ["score"]


def test_claim_of_a_killed_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "s", random_images(COUNT))
    monkeypatch.setattr(columns, "CACHE_SECONDS", 0.05)
    claim = store / f".repair/{LOCK}-{open_store(store).manifest.digest}"
    claim.parent.mkdir()
    claim.touch()
    with pytest.raises(StoreError, match=rf"^{claim}: .*; if none is running on any node, remove this file"):
        add_column(store, "score", SCORES)
    assert [*open_store(store).columns] == []
    claim.unlink()
    add_column(store, "score", SCORES)


def test_claim_that_sshfs_cannot_create_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, open_file = make_store(tmp_path / "s", random_images(COUNT)), disk.open_file
    refused: list[Path] = []

    def as_sshfs(path: Path, flags: int) -> int:
        if path.name.startswith(f"{LOCK}-") and not refused:
            refused.append(path)
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        return open_file(path, flags)

    monkeypatch.setattr(disk, "open_file", as_sshfs)
    add_column(store, "score", SCORES)
    assert refused
    assert verify_store(store).ok


def test_export_that_another_overtakes_leaves_one_complete_export(tmp_path: Path) -> None:
    store, dest, rows = open_store(make_store(tmp_path / "s", random_images(COUNT))), tmp_path / "images", list[int]()

    def overtake(row: int) -> None:
        rows.append(row)
        if len(rows) == 5:  # another node, which listed the folder at the same time
            export_store(store, tmp_path / "other", ExportSettings("folder"))
            (tmp_path / "other").rename(dest)

    with pytest.raises(DecodeonceError, match="images: already exists"):
        export_store(store, dest, ExportSettings("folder"), progress=overtake)
    assert len(list(dest.rglob("*.png"))) == COUNT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "s"]
