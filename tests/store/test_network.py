"""Changes by two nodes whose locks do not exclude each other. One of them may fail, but no byte is wrong."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodeonce.build import Recipe, build, make_plan
from decodeonce.errors import BuildError, StoreError
from decodeonce.prep.building import plan as planning
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.sources.imagenet import open_imagenet
from decodeonce.store import add_column, columns, disk, files, open_store, remove_column, sharing, writer
from decodeonce.store.verify import verify_store
from tests.disks import small_disk
from tests.images import tree_bytes
from tests.stores import make_store, random_images

COUNT = 20
SCORES = np.arange(COUNT)


@pytest.fixture(autouse=True)
def as_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """All folders are on sshfs, where flock(2) excludes no other node. A thread would stand for a node."""
    monkeypatch.setattr(sharing, "network_file_system", lambda path: "FUSE")
    monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)


@pytest.mark.parametrize("seed", [0, 1])
def test_of_two_plans_that_are_published_at_once_one_is_the_plan(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The other node publishes first, with the same or another recipe."""
    source, out, first = open_imagenet(tree), tmp_path / "out", Recipe(height=8, width=8, shuffle_seed=seed)

    def publish_late(path: Path, data: bytes) -> bool:
        monkeypatch.setattr(planning, "publish", files.publish)
        make_plan(source, out, first)
        return files.publish(path, data)

    monkeypatch.setattr(planning, "publish", publish_late)
    if seed == 0:
        make_plan(source, out, first)
    else:
        with pytest.raises(BuildError, match=r"a different recipe: --shuffle-seed is none, the plan says 1"):
            make_plan(source, out, Recipe(height=8, width=8))
    assert len(list((out / ".build").glob("plan-*"))) == 1
    assert build(source, out, first).recipe["shuffle_seed"] == seed
    build(source, tmp_path / "alone", first)
    assert tree_bytes(out) == tree_bytes(tmp_path / "alone")


def test_plan_that_is_published_while_another_node_plans_is_used(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other node publishes after this one."""
    source, out, recipe = open_imagenet(tree), tmp_path / "out", Recipe(height=8, width=8)

    def publish(path: Path, data: bytes) -> bool:
        def publish_second(its_path: Path, its_data: bytes) -> bool:
            assert files.publish(path, data)
            return files.publish(its_path, its_data)

        monkeypatch.setattr(planning, "publish", publish_second)
        make_plan(source, out, recipe)
        return True

    monkeypatch.setattr(planning, "publish", publish)
    assert build(source, out, recipe).count == 15
    assert verify_store(out).ok


def test_file_is_published_once_also_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = disk.link

    def nfs(source: Path, dest: Path) -> None:
        link(source, dest)  # the answer is lost, so the request is sent again
        raise FileExistsError(errno.EEXIST, "File exists", str(dest))

    def without_links(source: Path, dest: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(dest))

    systems: list[Callable[[Path, Path], None]] = [link, nfs, without_links]
    for number, system in enumerate(systems):
        monkeypatch.setattr(disk, "link", system)
        folder = tmp_path / str(number)
        folder.mkdir()
        assert files.publish(folder / "file", b"first")
        monkeypatch.setattr(disk, "link", without_links if system is without_links else link)
        assert not files.publish(folder / "file", b"second")
        assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("file", b"first")]


def test_file_that_cannot_be_published_without_links_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, dest: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "link", lambda source, dest: (_ for _ in ()).throw(PermissionError(errno.EPERM, "no")))
    monkeypatch.setattr(disk, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        files.publish(tmp_path / "file", b"first")
    assert list(tmp_path.iterdir()) == []


def test_shards_that_another_node_may_use_stay_when_the_disk_is_full(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source, out, recipe = open_imagenet(tree), tmp_path / "out", Recipe(height=8, width=8)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            make_plan(source, out, recipe)
    assert (out / "images-00000.npy").exists()
    assert build(source, out, recipe).count == 15


def test_space_that_a_killed_plan_reserved_is_used(tree: Path, tmp_path: Path) -> None:
    recipe = Recipe(height=128, width=128)  # 15 rows need 0.74 MB
    with small_disk(tmp_path, "1m") as disk:
        make_plan(open_imagenet(tree), disk / "out", recipe).paths.journals.rmdir()
        make_plan(open_imagenet(tree), disk / "out", recipe)


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
    with pytest.raises(FileNotFoundError):  # the other call removed the prepared file
        add_column(store, "score", SCORES + 1)
    add_column(store, "score", SCORES + 1)
    assert [*open_store(store).columns] == (["weight", "other", "score"] if change == "add" else ["score"])
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
    changing, calls = columns._changing, list[int]()

    def add_before_the_second(paths: BuildPaths) -> Any:
        calls.append(len(calls))
        if len(calls) == 2:
            monkeypatch.setattr(columns, "_changing", changing)
            add_column(store, "score", SCORES)
        return changing(paths)

    monkeypatch.setattr(columns, "_changing", add_before_the_second)
    with pytest.raises(FileNotFoundError):  # the other call removed the private folder
        remove_column(store, "score")
    assert verify_store(store).ok
    assert [*open_store(store).columns] == ["score"]


def test_second_of_two_changes_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, write_manifest = make_store(tmp_path / "s", random_images(COUNT)), columns._write_manifest
    mark = store / ".repair/lock-column"

    def write_late(*args: Any) -> None:
        monkeypatch.setattr(columns, "_write_manifest", write_manifest)
        with pytest.raises(StoreError, match=rf"^{mark}: .*; if none is running on any node, remove this file"):
            add_column(store, "other", SCORES)
        write_manifest(*args)

    monkeypatch.setattr(columns, "_write_manifest", write_late)
    add_column(store, "score", SCORES)
    assert [*open_store(store).columns] == ["score"]
    add_column(store, "other", SCORES)
    assert verify_store(store).ok
    assert not mark.parent.exists()
