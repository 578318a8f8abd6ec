"""Stores of every released format version stay readable. Additions of later versions are ignored or refused by name.

`released/` holds small stores as each release wrote them. If a test here fails, the code can no longer read them.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import decodeonce
from decodeonce import DecodeonceError, StoreError, open_store
from decodeonce.build import Conversion, convert
from decodeonce.store import Reject, Store, stage_store, verify_store
from decodeonce.store.hashing import hexdigest
from decodeonce.store.select import Selection, select_lines
from decodeonce.store.table import read_rejects
from tests.packages import needs_torch
from tests.store.signing import Facts, resign, sign

RELEASED = Path(__file__).parent / "released"
WHOLE = ("v1/npy", "v1/hdf5")

# SHA-256 of 13 rows of 10x8x3, of rows 4 to 7 alone, and of the column "boxes", (13, 2, 4) <f4.
ROWS = "d35362fdd07e94e461a196c4bf9cdd31655354af89b65d1e46c7b6a2c667e8fe"
ROWS_4_TO_7 = "f048bec18d440dd86491a02083135fc764fb42b783492afa19b1dd508badae10"
BOXES = "eecf57778bdcdda0062ed80b71cfcf8ede0ce970bd18ff0100e2be3cde41df85"
BOX_COUNT = [2, 0, 2, 0, 2, 0, 1, 2, 2, 1, 1, 0, 1]
LABELS = [0, 2, 0, 1, 1, 2, 0, 2, 1, 2, 1, 0, 1]
CLASSES = ["not utf-8 \udcff\udce9", "plain", "tab\there"]
SOURCES = {
    0: ("not utf-8 \udcff\udce9/\udcf0\udc9f.jpg", "8c8b599a9413975a"),
    3: ("plain/back\\slash.jpg", "6a46870976084443"),
    7: ("tab\there/tab\tin it.jpg", "79a75b996f75316e"),
    9: ("tab\there/new\nline.jpg", "4e90a8a685521332"),
    10: ("plain/näme.jpg", "328bfa26c20f3cf0"),
    11: ("not utf-8 \udcff\udce9/carriage\rreturn.jpg", "2a59d75efb97ca66"),
}
REJECTS = [
    Reject("not utf-8 \udcff\udce9/cut \udce9.jpg", "truncated: Truncated File Read", "rejected"),
    Reject("plain/broken\tone.jpg", "not a picture: begins with b'no pictu'", "rejected"),
    Reject("plain/grey.jpg", "grey", "kept"),
]


def sha256(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def assert_facts(store: Store) -> None:
    """Check everything except the images, which a part holds for some rows only."""
    assert (len(store), store.manifest.shape, len(store.manifest.shards)) == (13, (10, 8, 3), 3)
    assert store.labels.tolist() == LABELS
    assert [cls.name for cls in store.classes] == CLASSES
    assert sha256(store.columns["boxes"]) == BOXES
    assert store.columns["box_count"].tolist() == BOX_COUNT
    samples = list(store.samples)
    found = [(sample.row, sample.label, sample.class_name) for sample in samples]
    assert found == [(row, label, CLASSES[label]) for row, label in enumerate(LABELS)]
    assert {row: (samples[row].source, samples[row].digest) for row in SOURCES} == SOURCES
    assert [(samples[row].width, samples[row].height) for row in (0, 12)] == [(51, 53), (42, 62)]
    assert list(read_rejects(store.paths.rejects)) == REJECTS


def loaded(store: Path, **options: Any) -> tuple[list[int], list[int], NDArray[np.uint8], NDArray[np.float32]]:
    """Return the rows of an epoch, sorted, and their labels, images and boxes."""
    with decodeonce.Loader(store, batch_size=3, tail="keep", **options) as loader:
        batches = [
            (batch.rows.numpy(), batch.labels.numpy(), batch.images.numpy(), batch.columns["boxes"].numpy())
            for batch in loader
        ]
    rows, labels, images, boxes = map(np.concatenate, zip(*batches, strict=True))
    order = np.argsort(rows)
    return rows[order].tolist(), labels[order].tolist(), images[order], boxes[order]


@pytest.mark.parametrize("name", WHOLE)
def test_released_store_is_readable(name: str) -> None:
    store = open_store(RELEASED / name)
    assert_facts(store)
    assert sha256(store.images[:]) == ROWS
    assert verify_store(RELEASED / name).ok


@needs_torch
@pytest.mark.parametrize("reader", ["mmap", "pread"])
@pytest.mark.parametrize("name", WHOLE)
def test_released_store_is_loadable(name: str, reader: str) -> None:
    rows, labels, images, boxes = loaded(RELEASED / name, reader=reader)
    assert (rows, labels, sha256(images), sha256(boxes)) == (list(range(13)), LABELS, ROWS, BOXES)


@needs_torch
def test_released_part_is_readable_and_loadable() -> None:
    store = open_store(RELEASED / "v1/part")
    assert_facts(store)
    assert store.rows == range(4, 8)
    assert sha256(store.images.take(range(4, 8))) == ROWS_4_TO_7
    assert verify_store(RELEASED / "v1/part").ok
    rows, labels, images, _ = loaded(RELEASED / "v1/part", partition="range", rank=1, world_size=3)
    assert (rows, labels, sha256(images)) == ([4, 5, 6, 7], LABELS[4:8], ROWS_4_TO_7)
    with pytest.raises(StoreError, match=r"holds rows 4\.\.7 of 13; asked for row 8"):
        store.images[8]


def test_h5py_alone_reads_released_store() -> None:
    with h5py.File(RELEASED / "v1/hdf5/store.h5", "r") as file:
        assert (sha256(file["images"][:]), file["labels"][:].tolist()) == (ROWS, LABELS)


# --- additions of later releases


def add_later_keys(facts: Facts) -> None:
    """Add an unknown key to every object of the manifest, and list an unknown file."""
    lists = [facts["shards"], facts["classes"], facts["columns"], facts["files"].values()]
    for entry in (facts, facts["recipe"], facts["source"], *(entry for entries in lists for entry in entries)):
        entry["from_later_version"] = {"a": [1, 2.5, None]}
    facts["files"]["later.bin"] = {"bytes": 5, "xxh3": hexdigest(b"later")}


@pytest.fixture(params=WHOLE)
def later(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A released store with unknown keys, an unknown file that is listed, and one that is not."""
    store = Path(shutil.copytree(RELEASED / request.param, tmp_path / "later.store"))
    (store / "later.bin").write_bytes(b"later")
    (store / "unlisted.txt").write_bytes(b"a note")
    resign(store, add_later_keys)
    return store


def test_readers_ignore_unknown_keys_and_files(later: Path) -> None:
    store = open_store(later)
    assert_facts(store)
    assert sha256(store.images[:]) == ROWS
    assert verify_store(later).ok
    assert len(list(select_lines(store, Selection(classes=("plain",))))) == LABELS.count(1)
    (later / "later.bin").write_bytes(b"Later")  # verify checks files that it does not know
    assert verify_store(later).bad_files == ["later.bin"]


@needs_torch
def test_loader_ignores_unknown_keys_and_files(later: Path) -> None:
    assert sha256(loaded(later)[2]) == ROWS


def test_stage_keeps_unknown_keys_and_files(later: Path, tmp_path: Path) -> None:
    stage_store(open_store(later), tmp_path / "part", rows=range(4, 8))
    assert (tmp_path / "part/store.json").read_bytes() == (later / "store.json").read_bytes()
    assert (tmp_path / "part/later.bin").read_bytes() == b"later"
    facts = json.loads((tmp_path / "part/stage.json").read_bytes())
    (tmp_path / "part/stage.json").write_bytes(sign({**facts, "from_later_version": 1}))
    part = open_store(tmp_path / "part")
    assert_facts(part)
    assert sha256(part.images.take(range(4, 8))) == ROWS_4_TO_7
    assert verify_store(tmp_path / "part").ok


def test_store_with_unknown_keys_can_be_converted(tmp_path: Path) -> None:
    store = Path(shutil.copytree(RELEASED / "v1/npy", tmp_path / "later.store"))
    (store / "later.bin").write_bytes(b"later")
    resign(store, add_later_keys)
    convert([store], tmp_path / "converted", Conversion(container="hdf5"), workers=1)
    converted = open_store(tmp_path / "converted")
    assert (sha256(converted.images[:]), sha256(converted.columns["boxes"])) == (ROWS, BOXES)
    assert list(read_rejects(converted.paths.rejects)) == REJECTS
    assert converted.manifest.recipe["from_later_version"] == {"a": [1, 2.5, None]}


READERS: dict[str, Callable[[Path, Path], object]] = {
    "open_store": lambda store, out: open_store(store),
    "Loader": lambda store, out: decodeonce.Loader(store, batch_size=2),
    "stage": lambda store, out: stage_store(open_store(store), out, rows=range(4, 8)),
    "convert": lambda store, out: convert([store], out),
}


@pytest.mark.parametrize(
    "reader", [pytest.param(name, marks=[needs_torch] if name == "Loader" else []) for name in READERS]
)
@pytest.mark.parametrize(
    ("name", "file", "newer", "read"), [("v1/npy", "store.json", 4, "1, 2 and 3"), ("v1/part", "stage.json", 2, "1")]
)
def test_newer_version_is_refused(name: str, file: str, newer: int, read: str, reader: str, tmp_path: Path) -> None:
    store, out = Path(shutil.copytree(RELEASED / name, tmp_path / "s")), tmp_path / "out"
    facts = json.loads((store / file).read_bytes())
    (store / file).write_bytes(sign({**facts, "version": newer}))
    message = f"{store / file}: format version {newer}, this decodeonce reads {read}; install a newer decodeonce, or "
    with pytest.raises(DecodeonceError) as caught:
        READERS[reader](store, out)
    assert str(caught.value).startswith(message)
    assert not out.exists()
    assert verify_store(store).problems == [str(caught.value)]
