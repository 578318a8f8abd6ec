"""Signed but wrong manifests and tables raise StoreError when they are read, not NumPy's errors later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodeonce import open_store
from decodeonce.errors import StoreError
from decodeonce.store.hashing import MAX_BYTES
from decodeonce.store.table import REJECT_COLUMNS, line, read_rejects
from tests.store.signing import resign
from tests.stores import make_store, random_images


@pytest.fixture
def store(tmp_path: Path) -> Path:
    columns = {"weights": np.zeros((3, 2), "<f4")}
    return make_store(tmp_path / "s.store", random_images(3, shape=(2, 2, 3)), columns=columns)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("shape", [1] * 70, "does not fit in 128 bytes"),
        ("shape", [2**62, 0], r"more than 2\*\*63 bytes"),
        ("dtype", "<f1", "expected a number type"),
        ("dtype", "<b8", "expected a number type"),
        ("dtype", "|f4", "expected a number type"),
        ("dtype", "<complex7", "expected a number type"),
    ],
)
def test_impossible_column_is_refused(store: Path, key: str, value: Any, message: str) -> None:
    resign(store, lambda facts: facts["columns"][0].update({key: value}))
    with pytest.raises(StoreError, match=f"store.json: .*{message}"):
        open_store(store)


@pytest.mark.parametrize("content", [b"one\n", b"a\tb\tc\td\n", b"a\xff\tb\tc\n", b"\n", b"half"])
def test_invalid_reject_line_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rejects.tsv"
    path.write_bytes(line(REJECT_COLUMNS) + line(["a.jpg", "broken", "rejected"]) + content)
    with pytest.raises(StoreError, match=r"rejects.tsv: line 3 is not a valid reject; run `prep verify .*`$"):
        list(read_rejects(path))


@pytest.mark.parametrize("name", ["store.json", "stage.json"])
def test_oversized_manifest_is_not_read(store: Path, name: str) -> None:
    with open(store / name, "ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(StoreError, match=rf"{name}: 1099511627776 bytes, expected at most {MAX_BYTES}; restore it"):
        open_store(store)
