"""Adding and removing columns of a finished store leaves all its other files unchanged, and the store valid."""

import json
import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodeonce.errors import StoreError
from decodeonce.store import add_column, open_store, remove_column, stage_store, verify_store
from decodeonce.store.columns import read_numbers
from decodeonce.store.manifest import read_manifest
from tests.images import tree_bytes
from tests.store.signing import resign
from tests.stores import make_store, random_images

COUNT = 20
SCORES = np.linspace(0, 1, COUNT, dtype=np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "s", random_images(COUNT), columns={"weight": np.arange(COUNT, dtype="<i4")})


ARRAYS = [SCORES, SCORES.astype(">f8"), SCORES.astype(np.float16), np.arange(COUNT) % 2 == 0]
ARRAYS += [np.arange(COUNT, dtype=np.int8), np.arange(COUNT, dtype=">u8"), np.arange(2 * COUNT)[::2]]
ARRAYS += [np.asfortranarray(np.arange(COUNT * 6).reshape(COUNT, 2, 3))]


@pytest.mark.parametrize("values", ARRAYS, ids=lambda values: f"{values.dtype.str}{values.shape}")
def test_adding_and_removing_column_changes_nothing_else(values: np.ndarray[Any, Any], store: Path) -> None:
    before = tree_bytes(store)
    np.save(store.parent / "values.npy", values)
    column = add_column(store, "clip score", read_numbers(store.parent / "values.npy"))
    assert verify_store(store).ok
    opened = open_store(store)
    assert opened.manifest.columns[-1] == column
    assert column.dtype[0] in "<|"
    np.testing.assert_array_equal(opened.columns["clip score"], values)
    np.testing.assert_array_equal(np.load(store / "clip score.npy"), values)
    after = tree_bytes(store)
    found = {name: data for name, data in after.items() if before.get(name) != data}.keys()
    assert found == {"store.json", "clip score.npy"}
    remove_column(store, "clip score")
    assert tree_bytes(store) == before


def test_adding_same_column_again_rewrites_it(store: Path) -> None:
    add_column(store, "score", SCORES)
    before = tree_bytes(store)
    add_column(store, "score", SCORES)
    assert tree_bytes(store) == before
    (store / "score.npy").unlink()
    assert verify_store(store).bad_files == ["score.npy"]
    add_column(store, "score", SCORES)
    assert tree_bytes(store) == before


def test_column_of_large_entries_needs_little_memory(store: Path) -> None:
    entry = np.arange(1 << 21, dtype=np.uint8)
    tracemalloc.start()
    add_column(store, "depth", np.broadcast_to(entry, (COUNT, len(entry))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20  # the column has 40 MiB
    assert (open_store(store).columns["depth"] == entry).all()


def test_unknown_keys_are_kept(store: Path) -> None:
    def add_keys(facts: dict[str, Any]) -> None:
        facts["later"] = {"a": [1.5, "ü"]}
        facts["columns"][0]["unit"] = "kg"

    resign(store, add_keys)
    add_column(store, "score", SCORES)
    remove_column(store, "score")
    facts = json.loads((store / "store.json").read_bytes())
    assert (facts["later"], facts["columns"][0]["unit"]) == ({"a": [1.5, "ü"]}, "kg")
    assert verify_store(store).ok


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("score", SCORES[1:], r"values of shape \(19,\), expected one entry for each of the 20 rows of"),
        ("score", np.float32(1), r"values of shape \(\), expected one entry"),
        ("score", SCORES[:, None][:, :0], r"values of shape \(20, 0\), expected one entry"),
        ("score", np.array(["a"] * COUNT), "values of dtype <U1, expected numbers .* for text, store its token ids"),
        ("score", np.zeros(COUNT, [("a", "<f4")]), "expected numbers"),
        ("weight", SCORES, r"has a different column or file 'weight.npy'; remove it first \(`prep column remove"),
        ("labels", SCORES, "column name 'labels': a build writes box_count, box_labels, boxes, .*; choose another"),
        ("", SCORES, "column name '': expected at least one character"),
        ("images-00000", SCORES, "column name 'images-00000': expected .* not starting with '.' or 'images-'"),
        ("a/b", SCORES, "column name 'a/b'"),
        ("a\n", SCORES, r"column name 'a\\n'"),
        ("a" * 252, SCORES, "at most 251 bytes"),
    ],
)
def test_invalid_column_is_refused_and_nothing_written(name: str, values: Any, message: str, store: Path) -> None:
    before = tree_bytes(store)
    with pytest.raises((ValueError, StoreError), match=message):
        add_column(store, name, np.asarray(values))
    assert tree_bytes(store) == before


def test_removing_box_labels_removes_box_classes(tmp_path: Path) -> None:
    labels = np.zeros((3, 2), "<i4")
    store = make_store(tmp_path / "store", random_images(3), columns={"box_labels": labels})
    resign(store, lambda facts: facts.update(box_classes=["cat"]))
    remove_column(store, "box_labels")
    assert (open_store(store).manifest.box_classes, open_store(store).columns) == (None, {})


def test_other_file_is_not_overwritten(store: Path) -> None:
    file = store / "score.npy"
    np.save(file, SCORES + 1)
    before = file.read_bytes()
    with pytest.raises(StoreError, match=r"has a different column or file 'score\.npy'"):
        add_column(store, "score", SCORES)
    assert file.read_bytes() == before
    add_column(store, "score", read_numbers(file))
    assert verify_store(store).ok


def test_part_or_missing_store_is_refused(store: Path) -> None:
    part = store.parent / "part"
    stage_store(open_store(store), part, rows=range(5))
    for change in (lambda path: add_column(path, "score", SCORES), lambda path: remove_column(path, "weight")):
        with pytest.raises(StoreError, match="a staged part; change the columns of the whole store, then stage it"):
            change(part)
        with pytest.raises(StoreError, match="no such folder"):
            change(store.parent / "nothing")
    with pytest.raises(StoreError, match="no column 'score', expected one of its columns: weight"):
        remove_column(store, "score")
    assert not (store / ".repair").exists()


def test_file_left_by_killed_removal_is_named(store: Path) -> None:
    data = (store / "weight.npy").read_bytes()
    remove_column(store, "weight")
    (store / "weight.npy").write_bytes(data)  # as if the process had been killed before it removed the file
    with pytest.raises(StoreError, match=r"no column 'weight', .*; weight\.npy is not part of the store; .* run: rm "):
        remove_column(store, "weight")
    assert (store / "weight.npy").read_bytes() == data


@pytest.mark.parametrize("content", [b"", b"no npy", b"\x93NUMPY\x01\x00", None])
def test_invalid_npy_file_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    if content is None:
        np.save(path, np.array([{}], dtype=object))
    else:
        path.write_bytes(content)
    with pytest.raises(StoreError, match=r"x.npy: .*; expected an npy file of numbers"):
        read_numbers(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="a folder, pipe or device"):
        read_numbers(path)


def test_concurrent_adds_all_succeed(store: Path) -> None:
    names = [f"c{number}" for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: add_column(store, name, SCORES), names))
    assert {column.name for column in read_manifest(store / "store.json").columns} == {"weight", *names}
    assert verify_store(store).ok
