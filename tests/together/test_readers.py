"""Reading a store that is removed, replaced or still being built gives the right rows, or an error that says why."""

import os
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from decodeonce import Batch, Loader, StoreError, open_store
from decodeonce.build import Recipe, WorkSettings, finish, make_plan, work
from decodeonce.loader import partition
from decodeonce.loader.readers import Reader, ReaderName
from decodeonce.prep.building.status import read_status
from decodeonce.prep.sources.imagenet import open_imagenet
from tests.command import app
from tests.stores import make_store, random_images
from tests.together.processes import Prep, build_arguments

COUNT, SHARD_ROWS, SHAPE = 60, 20, (64, 64, 3)
IMAGES, OTHERS = (random_images(COUNT, shape=SHAPE, seed=seed) for seed in (0, 1))
GONE = r"images-0000\d\.npy: missing|store\.json: missing|store\.json: .*No such file"
REPLACED = "the store was replaced after it was opened; open it again"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "s", IMAGES, shard_rows=SHARD_ROWS)


def read_rest(batches: Iterable[Batch], seen: list[int]) -> str:
    """Read the rest of an epoch, check its images, and return the message of the error that ended it, or ""."""
    try:
        for batch in batches:
            assert np.array_equal(batch.images.numpy(), IMAGES[batch.rows.numpy()])
            seen += batch.rows.tolist()
    except StoreError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("reader", ["pread", "mmap"])
@pytest.mark.parametrize("at", [1, 5])
@pytest.mark.parametrize("ahead", ["whole epoch", "no step"])
def test_store_removed_during_epoch(
    store: Path, monkeypatch: pytest.MonkeyPatch, reader: ReaderName, at: int, ahead: str
) -> None:
    if ahead == "no step":
        monkeypatch.setattr(partition, "AHEAD_BYTES", 1)
    with Loader(store, batch_size=5, shuffle="none", reader=reader, prefetch=1) as loader:
        batches = iter(loader)
        seen = [row for _ in range(at) for row in next(batches).rows.tolist()]
        shutil.rmtree(store)
        message = read_rest(batches, seen)
        assert seen == list(range(len(seen)))
        if ahead == "whole epoch":  # all shards were opened for read-ahead
            assert (message, len(seen)) == ("", COUNT)
        else:
            assert re.search(GONE, message)
            assert len(seen) % SHARD_ROWS == 0


@pytest.mark.parametrize("reader", ["pread", "mmap"])
@pytest.mark.parametrize("way", ["renamed", "copied"])
def test_store_replaced_during_epoch_gives_own_rows(store: Path, tmp_path: Path, reader: ReaderName, way: str) -> None:
    other = make_store(tmp_path / "other", OTHERS, shard_rows=SHARD_ROWS)
    with Loader(store, batch_size=5, shuffle="none", reader=reader, prefetch=1) as loader:
        batches = iter(loader)
        seen = next(batches).rows.tolist()
        files = Reader(opened := open_store(store), 1)
        assert np.array_equal(opened.images[3], IMAGES[3])
        os.rename(store, tmp_path / "old")
        if way == "renamed":
            os.rename(other, store)
        else:  # a copy in progress, without store.json
            shutil.copytree(other, store, ignore=shutil.ignore_patterns("store.json"))
        message, expected = read_rest(batches, seen), REPLACED if way == "renamed" else GONE
        assert seen == list(range(len(seen)))
        assert re.search(expected, message) if message else len(seen) == COUNT
        assert np.array_equal(opened.images[4], IMAGES[4])  # of the shard that is already mapped
        for read in (lambda: files.open(np.array([30])), lambda: opened.images[30], lambda: opened.take([0, 30])):
            with pytest.raises(StoreError, match=expected):
                read()


def test_unfinished_store_is_never_read_nor_called_undamaged(
    tree: Path, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, gate = tmp_path / "store", "replace:store.json"
    paused = Prep(*build_arguments(tree, out), "--workers", 1, folder=tmp_path, gates=(gate,))
    hold = paused.reached(gate)  # everything is written except store.json
    with pytest.raises(StoreError, match=r"store\.json"):
        open_store(out)
    with pytest.raises(StoreError, match=r"store\.json"):
        Loader(out, batch_size=1)
    for command in (["verify"], ["verify", "--json"], ["info"], ["ls"]):
        with suppress(StoreError):
            assert app([*command, str(out)], standalone_mode=False) == 1
        assert "whole" not in capsys.readouterr().out
    assert read_status(out).blocks_done == 15
    os.close(hold)
    assert paused.ended().returncode == 0
    assert open_store(out)


def test_status_at_any_moment_of_build(tree: Path, recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "store"
    make_plan(open_imagenet(tree), out, recipe)
    with ThreadPoolExecutor(1) as pool:

        def build() -> None:
            work(out, WorkSettings(workers=2, max_bad="2"))
            finish(out, "2")

        built, seen = pool.submit(build), []
        while not built.done():
            seen.append(read_status(out))
            assert seen[-1].rows_per_s >= 0
            if not seen[-1].finished:
                with suppress(StoreError):
                    assert open_store(out).manifest.count == 13  # finished in the meantime
        built.result()
    seen.append(read_status(out))
    unfinished = [status.blocks_done for status in seen if not status.finished]
    assert unfinished == sorted(unfinished)
    assert [status.finished for status in seen] == sorted(status.finished for status in seen)
    assert seen[-1].finished
