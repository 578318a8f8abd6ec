"""The bytes of format version 1: golden stores, and every file read by NumPy or h5py alone.

`golden/` holds what `write_golden` wrote when version 1 was fixed. Never write it again for that version: if a test
here fails, the code has changed the format.
"""

import io
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.store import ImageClass, StorePaths
from decodeonce.store.format import CONTAINERS, npy_header
from decodeonce.store.manifest import DATA_OFFSET, parse_manifest, read_manifest
from decodeonce.store.writer import seal_store, trim_shards, virtual_bytes
from tests.images import tree_bytes
from tests.stores import make_store

GOLDEN = Path(__file__).parent / "golden"
ROWS, SHARD_ROWS = 5, 3
IMAGES = np.arange(ROWS * 18, dtype=np.uint8).reshape(ROWS, 2, 3, 3)
LABELS = np.array([0, 1, 2, 0, 1], np.int64)
WEIGHTS = np.array([[0.5, -1.0], [2.0, 0.25], [0.0, 3.0], [1.5, 1.5], [-8.0, 1e6]], "<f4")
CONTAINER_NAMES = tuple(CONTAINERS)

NAMES = {"store.json", "labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv", "weights.npy"}


def write_golden(root: Path, container: str) -> Path:
    return make_store(root, IMAGES, LABELS, container=container, shard_rows=SHARD_ROWS, columns={"weights": WEIGHTS})


@pytest.fixture(params=CONTAINER_NAMES)
def container(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(tmp_path: Path, container: str) -> Path:
    return write_golden(tmp_path / "tiny.store", container)


# --- written bytes


def test_npy_store_matches_golden_bytes(tmp_path: Path) -> None:
    written, golden = tree_bytes(write_golden(tmp_path / "tiny.store", "npy")), tree_bytes(GOLDEN / "npy")
    assert written.keys() == golden.keys() == NAMES | {"images-00000.npy", "images-00001.npy"}
    for name in golden:
        assert written[name] == golden[name], name


def test_hdf5_store_matches_golden_bytes_outside_hdf5_metadata(tmp_path: Path) -> None:
    written, golden = tree_bytes(write_golden(tmp_path / "tiny.store", "hdf5")), tree_bytes(GOLDEN / "hdf5")
    assert written.keys() == golden.keys() == NAMES | {"images-00000.h5", "images-00001.h5", "store.h5"}
    for name in NAMES - {"store.json"}:
        assert written[name] == golden[name], name
    for name in ("images-00000.h5", "images-00001.h5"):
        assert len(written[name]) == len(golden[name])
        assert written[name][DATA_OFFSET:] == golden[name][DATA_OFFSET:], name
    assert _without_hdf5_digests(written["store.json"]) == _without_hdf5_digests(golden["store.json"])


def _without_hdf5_digests(encoded: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(encoded)
    del facts["digest"], facts["files"]["store.h5"]
    for shard in facts["shards"]:
        del shard["meta_xxh3"]
    return facts


# --- NumPy and h5py alone


def test_h5py_alone_reads_hdf5_shards(tmp_path: Path) -> None:
    store = write_golden(tmp_path / "tiny.store", "hdf5")
    for name, first, rows in (("images-00000.h5", 0, 3), ("images-00001.h5", 3, 2)):
        with h5py.File(store / name, "r") as file:
            assert list(file) == ["images"]
            dataset = file["images"]
            assert (dataset.dtype, dataset.shape) == (np.uint8, (rows, 2, 3, 3))
            assert (dataset.chunks, dataset.compression) == (None, None)
            assert (dataset.id.get_offset(), dataset.id.get_storage_size()) == (DATA_OFFSET, rows * 18)
            np.testing.assert_array_equal(dataset[:], IMAGES[first : first + rows])
        assert (store / name).stat().st_size == DATA_OFFSET + rows * 18


def test_h5py_alone_reads_all_rows_through_store_h5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_golden(tmp_path / "tiny.store", "hdf5")
    moved = store.rename(tmp_path / "moved")  # the virtual dataset has paths relative to its own file
    monkeypatch.chdir("/")
    with h5py.File(moved / "store.h5", "r") as file:
        assert sorted(file) == ["classes", "images", "labels"]
        assert (file["images"].dtype, file["images"].shape, file["labels"].dtype) == (np.uint8, IMAGES.shape, "<i8")
        assert [one.file_name for one in file["images"].virtual_sources()] == ["images-00000.h5", "images-00001.h5"]
        np.testing.assert_array_equal(file["images"][:], IMAGES)
        np.testing.assert_array_equal(file["labels"][:], LABELS)
        assert file["classes"].asstr()[:].tolist() == ["class0", "class1", "class2"]


def test_store_h5_has_every_class_name_in_valid_utf8() -> None:
    names = {"n02110185": "n02110185", "Größe 汽车": "Größe 汽车", "": "", "long" * 20000: "long" * 20000}
    names |= {"not \udcff": "not \\xff", "tab\t\\": "tab\\t\\\\", "a\0b": "a?b", "half \ud800": "half ?"}
    manifest = replace(read_manifest(GOLDEN / "hdf5" / "store.json"), classes=tuple(map(ImageClass, names)))
    image = virtual_bytes(manifest, labels=LABELS)
    assert image == virtual_bytes(manifest, labels=LABELS)
    with h5py.File(io.BytesIO(image), "r") as file:
        assert file["classes"].asstr()[:].tolist() == list(names.values())


def test_code_on_format_page_reads_store(store: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "format.md").read_text()
    code, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    given = 'pathlib.Path("train.store"), 3\n'
    assert code.count(given) == 1
    for row in range(ROWS):
        names: dict[str, Any] = {}
        exec(code.replace(given, f"pathlib.Path({str(store)!r}), {row}\n"), names)
        np.testing.assert_array_equal(names["image"], IMAGES[row])
        assert names["label"] == LABELS[row]


def test_format_page_names_every_manifest_key(store: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "format.md").read_text()
    table = page.partition("## store.json")[2].partition("## Shards")[0]
    facts = json.loads((store / "store.json").read_bytes())
    lists = ("shards", "classes", "columns")
    keys = {*facts, *facts["files"]["labels.npy"], *(key for name in lists for key in facts[name][0])}
    assert [key for key in sorted(keys) if f"`{key}`" not in table] == []


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2048, 1, 1), (7, 256, 256, 3), (500_000, 256, 256, 3)])
def test_hdf5_headers_for_tiny_and_huge_shards(tmp_path: Path, shape: tuple[int, int, int, int]) -> None:
    head = CONTAINERS["hdf5"].head(shape, size=DATA_OFFSET, scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with open(tmp_path / "sparse.h5", "wb") as file:
        file.write(head)
        file.truncate(DATA_OFFSET + int(np.prod(shape)))
    with h5py.File(tmp_path / "sparse.h5", "r") as opened:
        assert (opened["images"].shape, opened["images"].id.get_offset()) == (shape, DATA_OFFSET)
        assert opened["images"][shape[0] - 1].sum() == 0


def test_hdf5_files_contain_no_timestamps(tmp_path: Path) -> None:
    store = write_golden(tmp_path / "tiny.store", "hdf5")
    for path in store.glob("*.h5"):
        with h5py.File(path, "r") as file:
            for name in file:
                assert h5py.h5g.get_objinfo(file.id, name.encode()).mtime == 0, f"{path.name} /{name}"


# --- npy headers


@given(
    st.lists(st.integers(0, 2**62), max_size=5).map(tuple),
    st.sampled_from(["|u1", "<i8", "<u8", "<f4", "|b1", "|S7"]),
    st.sampled_from([256, 4096]),
)
def test_numpy_reads_every_header(shape: tuple[int, ...], descr: str, size: int) -> None:
    header = npy_header(shape, descr, size=size)
    file = io.BytesIO(header)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype(descr))
    assert file.tell() == len(header) == size


# --- store.json


@given(st.lists(st.binary(max_size=12).map(os.fsdecode) | st.text(max_size=12), min_size=1, max_size=4))
def test_manifest_is_utf8_for_any_class_name(names: list[str]) -> None:
    classes = tuple(ImageClass(name, name[::-1]) for name in names)
    manifest = replace(read_manifest(GOLDEN / "npy" / "store.json"), classes=classes)
    encoded = manifest.to_bytes()
    assert encoded.decode("utf-8").endswith("}\n")
    assert parse_manifest(encoded, Path("store.json")) == manifest


# --- sealing


def test_bytes_do_not_depend_on_folder_or_repetition(tmp_path: Path, container: str) -> None:
    first = write_golden(tmp_path / "a", container)
    second = write_golden(tmp_path / "a much longer name" / "b", container)
    before = tree_bytes(first)
    assert before == tree_bytes(second)
    draft = read_manifest(first / "store.json")
    (first / "store.json").unlink()
    (tmp_path / "scratch").mkdir()
    seal_store(
        StorePaths(first),
        draft,
        shard_rows=SHARD_ROWS,
        scratch=tmp_path / "scratch",
        files=draft.files,
        labels=[np.load(first / "labels.npy")],
    )
    assert tree_bytes(first) == before


def test_trimming_leaves_only_rows(store: Path, container: str) -> None:
    before, paths, suffix = tree_bytes(store), StorePaths(store), CONTAINERS[container].suffix
    with open(paths.shard(1, suffix), "ab") as file:
        file.write(b"past the last row")
    shutil.copy(paths.shard(0, suffix), paths.shard(2, suffix))
    shutil.copy(paths.shard(0, suffix), paths.shard(3, suffix))
    trim_shards(paths, read_manifest(paths.manifest))
    assert tree_bytes(store) == before
