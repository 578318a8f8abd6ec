"""A Loader yields the same batches from a staged part as from the whole store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from decodeonce import Loader, open_store
from decodeonce.errors import StoreError
from decodeonce.loader import readers
from decodeonce.loader.order import Shuffle
from decodeonce.loader.partition import Tail, make_partition
from decodeonce.store import part_rows, stage_store
from tests.conftest import COUNT
from tests.loader.deliveries import assert_same_batches
from tests.stores import make_store, random_images

BATCH = 7
# Pairs of (nodes, ranks per node).
WORLDS = [(1, 2), (2, 1), (2, 3), (4, 1)]
Parts = dict[int, list[Path]]


@pytest.fixture(scope="module")
def parts(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """For each number of nodes, the staged part of each node."""
    folder, whole = tmp_path_factory.mktemp("parts"), open_store(store)
    for nodes in (1, 2, 4):
        for node in range(nodes):
            stage_store(whole, folder / f"{node}-of-{nodes}", rows=part_rows(COUNT, node, nodes))
    return {nodes: [folder / f"{node}-of-{nodes}" for node in range(nodes)] for nodes in (1, 2, 4)}


@given(st.integers(1, 10**7), st.integers(1, 5000), st.data())
def test_rows_of_a_rank_are_those_of_its_part(count: int, world_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    assume(count >= world_size)
    assert part_rows(count, rank, world_size) == make_partition("range", range(count), 1, rank, world_size, "keep").rows


@pytest.mark.parametrize("shuffle", get_args(Shuffle))
@pytest.mark.parametrize("tail", get_args(Tail))
@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_batches_equal_those_of_the_whole_store(
    store: Path, parts: Parts, shuffle: Shuffle, tail: Tail, reader: str
) -> None:
    for nodes, ranks in WORLDS:
        for rank in range(nodes * ranks):
            settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": shuffle, "tail": tail, "reader": reader}
            settings |= {"seed": 3, "partition": "range", "rank": rank, "world_size": nodes * ranks}
            staged = Loader(parts[nodes][rank // ranks], cache="device" if tail == "keep" else None, **settings)
            assert_same_batches(staged, Loader(store, **settings))


def test_staged_hdf5_with_columns(tmp_path: Path) -> None:
    columns = {"weight": np.linspace(0, 1, 30, dtype="<f4")}
    whole = make_store(tmp_path / "s", random_images(30), shard_rows=7, container="hdf5", columns=columns)
    stage_store(open_store(whole), tmp_path / "p", rows=part_rows(30, 1, 2))
    settings: dict[str, Any] = {"batch_size": 4, "partition": "range", "rank": 1, "world_size": 2, "tail": "pad"}
    with Loader(tmp_path / "p", **settings) as staged, Loader(whole, **settings) as other:
        for batch, expected in zip(staged, other, strict=True):
            assert torch.equal(batch.images, expected.images)
            assert torch.equal(batch.columns["weight"], expected.columns["weight"])


def test_part_with_all_rows_works_with_any_partition(store: Path, parts: Parts) -> None:
    for rank in range(2):
        settings: dict[str, Any] = {"batch_size": BATCH, "partition": "global", "rank": rank, "world_size": 2}
        assert_same_batches(Loader(parts[1][0], **settings), Loader(store, **settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r'asked for rows 0\.\.59: pass partition="range" and the world size that it was staged for'),
        ({"rank": 0, "world_size": 2}, r'asked for rows 0\.\.59: pass partition="range"'),
        ({"partition": "range", "rank": 0, "world_size": 1}, r"asked for rows 0\.\.59: these belong to rank 0 of 1"),
        ({"partition": "range", "rank": 1, "world_size": 2}, r"asked for rows 30\.\.59: these belong to rank 1 of 2"),
        ({"partition": "range", "rank": 1, "world_size": 3}, r"asked for rows 20\.\.39: these belong to rank 1 of 3"),
    ],
)
def test_rank_without_its_rows_is_rejected_at_once(parts: Parts, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(StoreError, match=rf"0-of-2: a staged part that holds rows 0\.\.29 of 60; {message}"):
        Loader(parts[2][0], batch_size=2, **settings)
    with pytest.raises(StoreError, match=message):
        Loader(open_store(parts[2][0]), batch_size=2, cache=None, **settings)


def test_reader_choice_counts_only_staged_rows(store: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = 2 * 30 * 8 * 6 * 3  # twice the size of the part, which is half of the store
    monkeypatch.setattr(readers, "available_memory", lambda: memory)
    monkeypatch.setattr(readers, "network_file_system", lambda path: None)
    for path, name in ((store, "pread"), (parts[2][0], "mmap")):
        with Loader(path, batch_size=1, partition="range", rank=0, world_size=2) as loader:
            assert loader.stats()["reader"]["name"] == name
