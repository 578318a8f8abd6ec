"""Loader(verify=True) yields the same batches, and never one with a damaged row."""

import re
import shutil
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from decodeonce import Loader, StoreError, open_store
from decodeonce.loader.order import Shuffle
from decodeonce.loader.readers import ReaderName
from decodeonce.store import part_rows, stage_store
from decodeonce.store.hashing import HASHED_AT_ONCE
from tests.conftest import COUNT
from tests.loader.deliveries import assert_same_batches, contents
from tests.store.signing import flip, flip_row
from tests.stores import make_store, random_images

KINDS = [name for name in get_args(ReaderName) if name != "auto"]


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "copy"))


def rows_before_error(loader: Loader, message: str) -> list[int]:
    """The rows that the Loader yields before it raises StoreError with this message."""
    seen: list[int] = []
    with pytest.raises(StoreError, match=re.escape(message)):
        seen.extend(row for batch in loader for row in batch.rows.tolist())
    return seen


@pytest.mark.parametrize("reader", KINDS)
@pytest.mark.parametrize("shuffle", get_args(Shuffle))
@pytest.mark.parametrize("tail", ["pad", "keep"])
def test_batches_and_state_are_as_without_verify(store: Path, reader: ReaderName, shuffle: Shuffle, tail: str) -> None:
    settings: dict[str, Any] = {"batch_size": 7, "shuffle": shuffle, "tail": tail, "reader": reader, "threads": 3}
    settings |= {"rank": 1, "world_size": 2}
    checked, plain = Loader(store, verify=True, **settings), Loader(store, **settings)
    assert_same_batches(checked, plain)
    assert checked.stats()["memory"]["slots"] == plain.stats()["memory"]["slots"]


@pytest.mark.parametrize("reader", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("row", [0, 24, 25, 41, COUNT - 1])
def test_no_batch_with_a_damaged_row_is_yielded(copy: Path, reader: ReaderName, threads: int, row: int) -> None:
    with Loader(copy, batch_size=10, shuffle="none", reader=reader, threads=threads, verify=True) as loader:
        path = flip_row(copy, row, at=-1)
        message = f"{path}: row {row} does not match its checksum; run `prep repair {copy} --from SRC`"
        assert rows_before_error(loader, message) == list(range(row // 10 * 10))
        flip_row(copy, row, at=-1)  # restores the row
        assert len(contents(loader, 1)) == COUNT // 10


@pytest.mark.parametrize("at", [0, HASHED_AT_ONCE - 1, HASHED_AT_ONCE, 2 * HASHED_AT_ONCE, 219_999])
@pytest.mark.parametrize("reader", KINDS)
def test_damage_anywhere_in_a_large_row_is_detected(tmp_path: Path, reader: ReaderName, at: int) -> None:
    store = make_store(tmp_path / "s", random_images(5, shape=(220, 500, 2)))
    with Loader(store, batch_size=2, shuffle="none", reader=reader, threads=1, tail="keep", verify=True) as loader:
        assert len(contents(loader, 1)) == 3
        flip_row(store, 3, at)
        assert rows_before_error(loader, "row 3 does not match its checksum") == [0, 1]


@pytest.mark.parametrize("name", ["checksums.npy", "weights.npy"])
def test_checksums_and_columns_are_checked_once_at_creation(tmp_path: Path, name: str) -> None:
    store = make_store(tmp_path / "s", random_images(8), columns={"weights": np.arange(8, dtype="<f4")})
    with Loader(store, batch_size=4, verify=True) as loader:
        assert len(contents(loader, 1)) == 2
    flip(store / name, 140)
    with pytest.raises(StoreError, match=rf"{name}: damaged: xxh3_64 is"):
        Loader(store, batch_size=4, verify=True)
    Loader(store, batch_size=4).close()


def test_cached_rows_are_checked_only_when_read(copy: Path) -> None:
    with Loader(copy, batch_size=10, shuffle="none", cache="device", verify=True) as loader:
        first = contents(loader, 1)
        flip_row(copy, 3)  # the row is cached and is not read again
        assert len(contents(loader, 1)) == len(first)
        assert loader.stats()["memory"]["cached_rows"] == COUNT
    with Loader(copy, batch_size=10, shuffle="none", cache="device", verify=True) as loader:
        assert rows_before_error(loader, "row 3 does not match its checksum") == []


def test_verify_with_a_staged_part(store: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    stage_store(open_store(store), part, rows=part_rows(COUNT, 1, 2))
    settings: dict[str, Any] = {"batch_size": 5, "partition": "range", "rank": 1, "world_size": 2, "shuffle": "none"}
    with Loader(part, verify=True, **settings) as staged, Loader(store, **settings) as whole:
        assert contents(staged, 1) == contents(whole, 1)
        flip_row(part, 37)
        assert rows_before_error(staged, "row 37 does not match its checksum") == [30, 31, 32, 33, 34]
