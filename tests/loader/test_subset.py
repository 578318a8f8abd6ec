"""`Loader(rows=...)`: a subset of a store is loaded like a store that has only these rows."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from decodeonce import Loader, StoreError
from decodeonce.loader import readers
from decodeonce.loader.order import WINDOW_BLOCKS, Shuffle, WindowOrder, derive_key
from decodeonce.loader.partition import AHEAD_BYTES, blocks_ahead, make_partition, plan_steps
from decodeonce.store import open_store, part_rows, stage_store
from tests.conftest import COUNT
from tests.loader.deliveries import assert_same_batches
from tests.stores import make_store

ROWS = np.array([row for row in range(COUNT) if row % 7 not in (2, 3)])  # 43 of 60, in all shards
BATCH = 4


@pytest.fixture(scope="module")
def separate_store(images: NDArray[np.uint8], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that contains only ROWS."""
    return make_store(tmp_path_factory.mktemp("stores") / "separate_store", images[ROWS], ROWS % 3, shard_rows=10)


def batches(loader: Loader, numbers: NDArray[np.int64]) -> list[tuple[list[int], int, list[int], bytes]]:
    """The rows (as `numbers[row]`), valid rows, labels and pixels of each batch."""
    return [(numbers[b.rows.numpy()].tolist(), b.valid, b.labels.tolist(), b.images.numpy().tobytes()) for b in loader]


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
@pytest.mark.parametrize("partition", ["global", "range"])
@pytest.mark.parametrize("tail", ["drop", "pad", "keep"])
def test_subset_is_loaded_and_resumed_like_a_separate_store(
    store: Path, separate_store: Path, shuffle: str, partition: str, tail: str
) -> None:
    settings: dict[str, Any] = {"shuffle": shuffle, "partition": partition, "tail": tail}
    settings |= {"batch_size": BATCH, "world_size": 2, "seed": 3}
    for rank in range(2):
        loader, expected = (
            Loader(store, rows=ROWS, rank=rank, **settings),
            Loader(separate_store, rank=rank, **settings),
        )
        assert (len(loader), loader.count, loader.steps_left) == (len(expected), len(ROWS), len(expected))
        for _ in range(2):
            assert batches(loader, np.arange(COUNT)) == batches(expected, ROWS)
        for loaded in (loader, expected):
            loaded.load_state_dict(loaded.state_dict() | {"rows_consumed": 2 * BATCH})
        assert batches(loader, np.arange(COUNT)) == batches(expected, ROWS)


def test_rows_can_be_in_any_order_or_a_mask(store: Path) -> None:
    numbers, mask = [40, 5, 4, 3], np.isin(np.arange(COUNT), [3, 4, 5, 40])
    forms: list[Any] = [numbers, tuple(numbers), torch.tensor(numbers), mask, mask.tolist()]
    forms += [np.array(numbers, dtype) for dtype in (np.uint8, ">i4")]
    state = Loader(store, batch_size=3, rows=[3, 4, 5, 40], shuffle="none", tail="keep").state_dict()
    for rows in forms:
        with Loader(store, batch_size=3, rows=rows, shuffle="none", tail="keep") as loader:
            loader.load_state_dict(state)
            assert [batch.rows.tolist() for batch in loader] == [[3, 4, 5], [40]]


def test_invalid_subsets_are_rejected(store: Path) -> None:
    wrong: dict[str, Any] = {
        "rows contains row 1 more than once, expected each row once": [1, 2, 1],
        "rows contains -1, expected numbers from 0 to 59": [-1, 2],
        "rows contains 60, expected numbers from 0 to 59": [60],
        r"rows has shape \(59,\) of bool, expected row numbers or 60 booleans": [True] * 59,
        r"rows has shape \(2,\) of float64": [0.0, 1.0],
        r"rows has shape \(\) of int64": 7,
        "there are no rows to load": [],
        r"batch_size is 3, but a rank gets only 2 rows \(2 rows in all, world_size 1\)": [0, 1],
    }
    for message, rows in wrong.items():
        with pytest.raises(ValueError, match=message):
            Loader(store, batch_size=3, rows=rows)


def test_state_of_a_different_subset_is_rejected(store: Path) -> None:
    loader, other, whole = (Loader(store, batch_size=3, rows=rows) for rows in (range(20), range(20, 40), None))
    for left, right in [(loader, other), (loader, whole), (whole, loader)]:
        with pytest.raises(ValueError, match=f"rows {left.state_dict()['rows']!r}, here "):
            right.load_state_dict(left.state_dict())


def test_part_without_the_rows_of_a_subset_is_rejected_at_once(store: Path, tmp_path: Path) -> None:
    stage_store(open_store(store), tmp_path / "part", rows=range(30))
    with Loader(tmp_path / "part", batch_size=3, rows=range(10, 30), tail="keep") as loader:
        assert sorted(row for batch in loader for row in batch.rows.tolist()) == list(range(10, 30))
    with pytest.raises(StoreError, match=r"asked for rows 10\.\.30: choose rows that it holds"):
        Loader(tmp_path / "part", batch_size=3, rows=range(10, 31))


def test_only_rows_of_the_subset_are_read_ahead() -> None:
    rows = np.arange(0, 3 * 40 * WINDOW_BLOCKS, 3)
    partition = make_partition("global", rows, 8, 0, 1, "keep")
    order = WindowOrder(len(rows), 4, derive_key(5))
    steps = blocks_ahead(plan_steps(order, partition, 0, 0), order, partition, 0, AHEAD_BYTES // 100)
    requested = [row for step in steps for hint in step.hints for row in hint.tolist()]
    assert sorted(requested) == rows.tolist()


# ---- A Loader yields the same batches from a staged part as from the whole store

# Pairs of (nodes, ranks per node).
WORLDS = [(2, 3), (4, 1)]
Parts = dict[int, list[Path]]


@pytest.fixture(scope="module")
def parts(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """For each number of nodes, the staged part of each node."""
    folder, whole = tmp_path_factory.mktemp("parts"), open_store(store)
    parts = {nodes: [folder / f"{node}-of-{nodes}" for node in range(nodes)] for nodes, _ in WORLDS}
    for nodes, paths in parts.items():
        for node, path in enumerate(paths):
            stage_store(whole, path, rows=part_rows(COUNT, node, nodes))
    return parts


@given(st.integers(1, 10**7), st.integers(1, 5000), st.data())
def test_rows_of_a_rank_are_those_of_its_part(count: int, world_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    assume(count >= world_size)
    assert part_rows(count, rank, world_size) == make_partition("range", range(count), 1, rank, world_size, "keep").rows


@pytest.mark.parametrize("shuffle", get_args(Shuffle))
@pytest.mark.parametrize(("tail", "reader"), [("drop", "mmap"), ("pad", "pread"), ("keep", "mmap")])
def test_batches_are_those_of_the_store(store: Path, parts: Parts, shuffle: Shuffle, tail: str, reader: str) -> None:
    for nodes, ranks in WORLDS:
        for rank in range(nodes * ranks):
            settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": shuffle, "tail": tail, "reader": reader}
            settings |= {"seed": 3, "partition": "range", "rank": rank, "world_size": nodes * ranks}
            staged = Loader(parts[nodes][rank // ranks], cache="device" if tail == "keep" else None, **settings)
            assert_same_batches(staged, Loader(store, **settings))


def test_part_with_all_rows_works_with_any_partition(store: Path, tmp_path: Path) -> None:
    stage_store(open_store(store), tmp_path / "part", rows=range(COUNT))
    settings: dict[str, Any] = {"batch_size": BATCH, "partition": "global", "rank": 1, "world_size": 2}
    assert_same_batches(Loader(tmp_path / "part", **settings), Loader(store, **settings))


def test_rank_without_its_rows_is_rejected_at_once(parts: Parts) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, r'asked for rows 0\.\.59: pass partition="range", and the rank and world_size that it was staged for'),
        ({"partition": "range", "rank": 0, "world_size": 1}, r"asked for rows 0\.\.59: these belong to rank 0 of 1"),
        ({"partition": "range", "rank": 1, "world_size": 2}, r"asked for rows 30\.\.59: these belong to rank 1 of 2"),
        ({"partition": "range", "rank": 1, "world_size": 3}, r"asked for rows 20\.\.39: these belong to rank 1 of 3"),
    ]
    for settings, message in wrong:
        with pytest.raises(StoreError, match=rf"0-of-2: a staged part that holds rows 0\.\.29 of 60; {message}"):
            Loader(parts[2][0], batch_size=2, **settings)
        with pytest.raises(StoreError, match=message):
            Loader(open_store(parts[2][0]), batch_size=2, cache=None, **settings)


def test_reader_choice_counts_only_staged_rows(store: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = 2 * 30 * 8 * 6 * 3  # twice the size of the part, which is half of the store
    monkeypatch.setattr(readers, "available_memory", lambda: memory)
    monkeypatch.setattr(readers, "network_file_system", lambda path: None)
    for path, name in ((store, "direct"), (parts[2][0], "mmap")):
        loader = Loader(path, batch_size=1, partition="range", rank=0, world_size=2)
        assert loader.stats()["reader"]["name"] == name
        assert sum(len(batch.rows) for batch in loader) == 30


def test_staged_parts_are_read_directly(parts: Parts) -> None:
    for rank, part in enumerate(parts[2]):
        settings: dict[str, Any] = {"partition": "range", "rank": rank, "world_size": 2, "reader": "direct"}
        with Loader(part, batch_size=1, **settings) as loader:
            assert loader.stats()["reader"]["name"] == "direct"
            assert sorted(row for batch in loader for row in batch.rows.tolist()) == list(
                range(30 * rank, 30 * rank + 30)
            )
