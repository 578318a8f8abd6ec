"""Invalid stores do not open: StoreError names the file, what was found and what was expected."""

import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from decodeonce import StoreError, open_store
from decodeonce.store import verify_store
from decodeonce.store.format import CONTAINERS, npy_header
from decodeonce.store.hashing import MAX_SIGNED_BYTES, hexdigest
from decodeonce.store.manifest import parse_manifest, read_manifest
from tests.fuzz import store as fuzz
from tests.store.signing import Facts, flip, replace_file, resign
from tests.stores import make_store, random_images

SHAPE = (2, 3, 3)
COUNT, SHARD_ROWS = 7, 3
LABELS = np.arange(COUNT, dtype=np.int64) % 3


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, images = tmp_path_factory.mktemp("whole"), random_images(COUNT, shape=SHAPE)
    columns = {"weights": np.arange(COUNT, dtype="<f4")}
    return {
        name: make_store(folder / name, images, LABELS, container=name, shard_rows=SHARD_ROWS, columns=columns)
        for name in CONTAINERS
    }


@pytest.fixture
def store(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["npy"], tmp_path / "tiny.store"))


@pytest.fixture(params=tuple(CONTAINERS))
def either(originals: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(originals[request.param], tmp_path / "tiny.store"))


def assert_refused(store: Path, *texts: str) -> str:
    """Check that opening `store` raises a StoreError that contains all `texts`, and return its message."""
    with pytest.raises(StoreError) as caught:
        open_store(store)
    message = str(caught.value)
    for text in texts:
        assert text in message, message
    assert message.count("\n") == 0
    return message


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def shard_file(store: Path, index: int = 0) -> Path:
    return store / read_manifest(store / "store.json").shards[index].file


# --- the folder


def test_path_without_a_store_is_refused(store: Path, tmp_path: Path) -> None:
    assert_refused(tmp_path / "gone.store", "gone.store: no such folder", "expected a store", "prep build")
    assert_refused(tmp_path, f"{tmp_path}: not a store", "no store.json", "prep build")
    assert_refused(store / "store.json", "store.json: a file; expected a store")


def test_unfinished_store_is_refused(store: Path) -> None:
    (store / "store.json").unlink()
    (store / ".build").mkdir()
    assert_refused(
        store, "tiny.store: an unfinished store", f"run the command that began it again, or see `prep status {store}`"
    )


# --- the bytes of the manifest


@pytest.mark.parametrize(
    "encoded",
    [b"", b"\0" * 100, b"{", b"not json", b"\xff\xfe", b"[" * 100_000, b'{"count": ' + b"9" * 5000 + b"}"],
    ids=["empty", "zeros", "truncated", "text", "bytes", "deep", "digits"],
)
def test_manifest_that_is_not_json_is_refused(store: Path, encoded: bytes) -> None:
    (store / "store.json").write_bytes(encoded)
    assert_refused(store, "store.json: not JSON", "restore it from a copy, or remove the store and build it again")


def test_json_without_our_format_is_refused(store: Path) -> None:
    others: list[Any] = [{}, [], None, 3, "decodeonce", {"format": "decode2"}, {"format": ["decodeonce"]}]
    for facts in others:
        (store / "store.json").write_text(json.dumps(facts))
        assert_refused(store, 'store.json: not a decodeonce file: "format" is not "decodeonce"; restore it from a copy')


def test_every_flipped_bit_of_manifest_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", random_images(2, shape=(1, 1, 1)), classes=1)
    encoded = (store / "store.json").read_bytes()
    assert parse_manifest(encoded, store / "store.json").count == 2
    for position in range(len(encoded)):
        for bit in range(8):
            flipped = bytearray(encoded)
            flipped[position] ^= 1 << bit
            with pytest.raises(StoreError, match=r"^store\.json: "):
                parse_manifest(bytes(flipped), Path("store.json"))


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e[:-1],
        lambda e: e.replace(b"\n", b"\r\n"),
        lambda e: e.replace(b'"count": 7', b'"count": 7,\n "count": 7'),
        lambda e: json.dumps(json.loads(e)).encode(),
        lambda e: e.replace(b'"recipe": {', b'"recipe": {"x": ' + b"[" * 900 + b"]" * 900 + b", "),
    ],
    ids=["truncated", "crlf", "repeated key", "compact", "deep"],
)
def test_manifest_in_other_bytes_is_refused(store: Path, change: Callable[[bytes], bytes]) -> None:
    before = (store / "store.json").read_bytes()
    rewrite(store / "store.json", change)
    assert (store / "store.json").read_bytes() != before
    assert_refused(store, "store.json: ")


@pytest.mark.parametrize("name", ["store.json", "stage.json"])
def test_oversized_manifest_is_not_read(store: Path, name: str) -> None:
    with open(store / name, "ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(StoreError, match=rf"{name}: 1099511627776 bytes, expected at most {MAX_SIGNED_BYTES}"):
        open_store(store)


# --- signed but wrong manifests


def _set(key: str, value: Any) -> Callable[[Facts], None]:
    return lambda facts: facts.update({key: value})


def _delete(key: str) -> Callable[[Facts], None]:
    return lambda facts: facts.__delitem__(key)


def _set_shard(index: int, **values: Any) -> Callable[[Facts], None]:
    return lambda facts: facts["shards"][index].update(values)


def _set_column(**values: Any) -> Callable[[Facts], None]:
    return lambda facts: facts["columns"][0].update(values)


def _set_file(name: str, value: Any) -> Callable[[Facts], None]:
    return lambda facts: facts["files"].update({name: value})


def test_manifest_without_a_key_is_refused(store: Path) -> None:
    whole = (store / "store.json").read_bytes()
    for key in json.loads(whole).keys() - {"format", "version", "digest", "decoder_crashes"}:
        (store / "store.json").write_bytes(whole)
        resign(store, _delete(key))
        assert_refused(store, f"store.json: invalid manifest: the key '{key}' is missing")


@pytest.mark.parametrize(
    "change",
    [_delete("digest"), _set("digest", "0" * 16), _set("digest", 7), _set("count", float("1e300"))],
    ids=["no digest", "zeros", "number", "facts"],
)
def test_manifest_with_wrong_digest_is_refused(store: Path, change: Callable[[Facts], None]) -> None:
    facts = json.loads((store / "store.json").read_bytes())
    change(facts)
    text = json.dumps(facts, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    (store / "store.json").write_text(text)
    assert_refused(store, "store.json: ")


WRONG_FACTS: dict[str, tuple[Callable[[Facts], object], str]] = {
    **{
        f"version {version!r}": (
            _set("version", version),
            f"format version {version!r}, this decodeonce reads 1, 2 and 3",
        )
        for version in (0, "1", 1.0, True, None)
    },
    "count too high": (_set("count", 8), "the shards hold 7 rows, expected count 8"),
    "count negative": (_set("count", -7), "count is -7, expected an integer"),
    "count true": (_set("count", True), "count is True, expected an integer"),
    "count beyond 63 bits": (_set("count", 2**63), f"count is {2**63}, expected an integer from 0 to 2**63 - 1"),
    "no classes": (_set("classes", []), "0 classes"),
    "no block": (_set("block_rows", 0), "blocks of 0 rows"),
    "height 0": (_set("shape", [0, 3, 3]), "shape (0, 3, 3)"),
    "two dimensions": (_set("shape", [6, 3]), "shape is [6, 3], expected 3 numbers"),
    "wrong shape": (_set("shape", [3, 3, 3]), "first_row 0, 4177 bytes and a data_offset that is a multiple of 4096"),
    "unknown dtype": (_set("dtype", "float32"), "dtype is 'float32', expected uint8"),
    "unknown container": (_set("container", "zarr"), "container is 'zarr', expected npy or hdf5"),
    "wrong container": (_set("container", "hdf5"), "images-00000.npy: does not begin like an hdf5 file"),
    "mean of one channel": (_set("pixel_mean", [1.0]), "pixel_mean is [1.0], expected 3 numbers"),
    "mean too large for float": (_set("pixel_mean", [10**400, 0, 0]), "store.json: invalid manifest"),
    "std of text": (_set("pixel_std", ["1", "2", "3"]), "pixel_std[0] is '1', expected a number"),
    "std null": (_set("pixel_std", None), "pixel_std is None, expected list"),
    "class name null": (_set("classes", [{"name": None, "description": ""}]), "classes[0]: name is None, expected str"),
    "box class a number": (_set("box_classes", [3]), "box_classes[0] is 3, expected str"),
    "box classes alone": (_set("box_classes", ["cat"]), '"box_classes" requires a column box_labels of dtype <i4'),
    "gap": (_set_shard(1, first_row=4), "Shard(file='images-00001.npy', first_row=4, rows=3"),
    "empty shard": (_set_shard(2, rows=0, bytes=4096), "images-00002.npy', first_row=6, rows=0"),
    "bytes alone": (_set_shard(0, bytes=4151), "bytes=4151"),
    "offset 0": (_set_shard(0, data_offset=0, bytes=54), "data_offset=0, bytes=54"),
    "offset unaligned": (_set_shard(0, data_offset=4000, bytes=4054), "data_offset=4000, bytes=4054"),
    "offset huge": (_set_shard(0, data_offset=2**40, bytes=2**40 + 54), f"data_offset={2**40}"),
    "shard a number": (_set("shards", [3]), "store.json: invalid manifest"),
    "a shard is the labels": (_set_shard(1, file="labels.npy"), "labels.npy is listed more than once"),
    "files a list": (_set("files", []), "files is [], expected dict"),
    "file size negative": (_set_file("labels.npy", {"bytes": -1, "xxh3": "0" * 16}), "files: bytes is -1, expected"),
    "file outside": (_set_file("../labels.npy", {"bytes": 1, "xxh3": "0" * 16}), "'../labels.npy' is not a file name"),
    "column outside": (
        _set("columns", [{"name": "w", "file": "/w.npy", "dtype": "<f4", "shape": []}]),
        "'/w.npy' is not a file name",
    ),
    "column of 70 dimensions": (_set_column(shape=[1] * 70), "does not fit in 128 bytes"),
    "column of 2**64 bytes": (_set_column(shape=[2**62, 0]), "more than 2**63 bytes"),
    **{
        f"column of {dtype}": (_set_column(dtype=dtype), f"dtype is {dtype!r}, expected a number type such as <f4")
        for dtype in ("<f1", "<b8", "|f4", "<complex7")
    },
    "labels not listed": (lambda facts: facts["files"].pop("labels.npy"), '"files" does not list labels.npy'),
    "column not listed": (
        _set("columns", [{"name": "w", "file": "w.npy", "dtype": "<f4", "shape": []}]),
        '"files" does not list w.npy',
    ),
}


@pytest.mark.parametrize(("change", "text"), WRONG_FACTS.values(), ids=WRONG_FACTS)
def test_signed_but_wrong_manifest_is_refused(store: Path, change: Callable[[Facts], object], text: str) -> None:
    resign(store, change)
    assert_refused(store, str(store), text)


@pytest.mark.long
def test_changed_store_is_refused_or_used_without_other_errors() -> None:
    """Change a store and a part of it at random, as `make fuzz` does, and sign the manifest again."""
    seeds, random = [*fuzz.seeds()], Random(0)
    for number in range(1000):
        changed = fuzz.mutate(seeds[number % 2], 1 << 16, random, lambda data, size: data[::-1][:size])
        fuzz.TestOneInput(changed)


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "a/b", "..", ".", "", "x\0y", "sub/", "\ud800.npy", "x\x1b[2J.npy", "x\ny", "x" * 256],
)
def test_shard_path_outside_store_is_refused(store: Path, name: str) -> None:
    resign(store, _set_shard(0, file=name))
    message = assert_refused(store, "store.json: invalid manifest: ", "expected")
    assert message.isprintable()


# --- the shards


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "missing, expected a file of 4150 bytes; run `prep repair {store} --from"),
    "short": (lambda path: os.truncate(path, 4113), "4113 bytes, expected 4150; run `prep repair {store} --from"),
    "folder": (_make_folder, "a folder, pipe or device, expected a file of 4150 bytes"),
    "pipe": (
        _make_pipe,
        "a folder, pipe or device, expected a file of 4150 bytes; remove it, then run `prep repair {store} --from",
    ),
    "magic": (lambda path: flip(path, 1), "does not begin like an {container} file; run `prep repair"),
    **{
        f"bit of byte {position}": (
            partial(flip, offset=position),
            "its header (first 4096 bytes) is damaged; run `prep repair {store} --from",
        )
        for position in (9, 40, 1000, 4095)
    },
}


@pytest.mark.parametrize(("damage", "text"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_shard_is_refused(either: Path, damage: Callable[[Path], object], text: str) -> None:
    path, container = shard_file(either, 1), read_manifest(either / "store.json").container
    damage(path)
    assert_refused(either, f"{path}: {text.format(store=either, container=container)}")


def test_signed_but_wrong_header_is_refused(store: Path) -> None:
    path, head = shard_file(store), bytes(4096)
    rewrite(path, lambda content: head + content[4096:])
    resign(store, _set_shard(0, meta_xxh3=hexdigest(head)))
    assert_refused(store, f"{path}: does not begin like an npy file")


# --- the small files


@pytest.mark.parametrize("name", ["labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv", "weights.npy"])
def test_missing_or_short_small_file_is_refused(either: Path, name: str) -> None:
    path = either / name
    size = path.stat().st_size
    os.truncate(path, size - 1)
    assert_refused(either, f"{path}: {size - 1} bytes, expected {size}")
    path.unlink()
    assert_refused(either, f"{path}: missing, expected a file of {size} bytes")


NOT_LABELS = "labels.npy: not an npy file of dtype <i8 and shape (7,); run `prep verify"


def _npy(array: Any, descr: str, shape: tuple[int, ...]) -> bytes:
    return npy_header(shape, descr) + np.asarray(array).tobytes()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (_npy(LABELS.astype("<u8"), "<u8", (7,)), NOT_LABELS),
        (_npy(LABELS.astype(">i8"), ">i8", (7,)), NOT_LABELS),
        (_npy(LABELS.astype("<i4"), "<i4", (7,)), NOT_LABELS),
        (_npy(LABELS[:6], "<i8", (6,)), NOT_LABELS),
        (_npy(LABELS, "<i8", (7, 1)), NOT_LABELS),
        (_npy(LABELS[:6], "<i8", (7,)), "176 bytes, expected 184"),
        (_npy(LABELS, "|O", (7,)), NOT_LABELS),
        (b"", NOT_LABELS),
        (b"PK\x03\x04" + bytes(200), NOT_LABELS),
        (b"\x80\x04N." + bytes(200), NOT_LABELS),
        (b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118, NOT_LABELS),
        (_npy(LABELS + 3, "<i8", (7,)), "labels from 3 to "),
        (_npy(LABELS - 1, "<i8", (7,)), "labels from -1 to "),
    ],
    ids=[
        *("unsigned", "big-endian", "narrow", "short", "matrix", "truncated", "objects", "empty", "zip", "pickle"),
        *("brackets", "too high", "negative"),
    ],
)
def test_signed_but_invalid_labels_are_refused(store: Path, content: bytes, found: str) -> None:
    replace_file(store, "labels.npy", content)
    opened = open_store(store)
    with pytest.raises(StoreError, match=re.escape(f"{store / 'labels.npy'}: ")) as caught:
        _ = opened.labels
    assert found in str(caught.value)
    report = verify_store(store)
    assert (report.ok, report.bad_files, report.problems) == (False, ["labels.npy"], [str(caught.value)])


def test_invalid_column_file_is_refused_without_quoting_it(store: Path, tmp_path: Path) -> None:
    name, whole = open_store(store).manifest.columns[0].file, verify_store(store)
    assert whole.ok
    (tmp_path / "foreign").write_bytes(b"root:secret" * 90)
    for content in ((tmp_path / "foreign").read_bytes(), _npy(np.zeros(7, "<f8"), "<f8", (7,))):
        replace_file(store, name, content)
        (store / name).unlink()
        (tmp_path / "foreign").write_bytes(content)
        (store / name).symlink_to(tmp_path / "foreign")
        with pytest.raises(StoreError, match=f"{name}: not an npy file of ") as caught:
            _ = open_store(store).columns
        assert "secret" not in str(caught.value)
        report = verify_store(store)
        assert (report.ok, report.bad_files, report.problems) == (False, [name], [str(caught.value)])


@pytest.mark.parametrize(("label", "found"), [(2, "labels from -1 to 2"), (-2, "labels from -2 to 1")])
def test_box_labels_without_class_are_refused(tmp_path: Path, label: int, found: str) -> None:
    labels = np.array([[0, 1], [1, -1], [0, label]], "<i4")
    store = make_store(tmp_path / "store", random_images(3), columns={"box_labels": labels})
    assert verify_store(store).ok  # without box_classes, any label is valid
    resign(store, lambda facts: facts.update(box_classes=["cat", "dog"]))
    with pytest.raises(StoreError, match=f"box_labels.npy: {found}, expected -1 to 1; run `prep verify") as caught:
        _ = open_store(store).columns
    report = verify_store(store)
    assert (report.bad_files, report.problems) == (["box_labels.npy"], [str(caught.value)])


def test_flipped_bit_in_labels_is_found_before_training(store: Path) -> None:
    flip(store / "labels.npy", (store / "labels.npy").stat().st_size - 8, 0)
    with pytest.raises(StoreError, match=r"labels\.npy: damaged: xxh3_64 is"):
        _ = open_store(store).labels


def test_checksums_of_wrong_length_are_bad_file(store: Path) -> None:
    replace_file(store, "checksums.npy", _npy(np.zeros(6, "<u8"), "<u8", (6,)))
    report = verify_store(store)
    assert (report.ok, report.bad_files) == (False, ["checksums.npy"])
    assert "checksums.npy: not an npy file of dtype <u8 and shape (7,)" in report.problems[0]


# --- additions of later releases


def test_optional_key_may_be_missing(either: Path) -> None:
    resign(either, _delete("decoder_crashes"))
    assert verify_store(either).ok


def test_rows_may_begin_at_any_page(store: Path) -> None:
    path = shard_file(store)
    head = npy_header((SHARD_ROWS, *SHAPE), "|u1", size=8192)
    rewrite(path, lambda content: head + content[4096:])
    resign(store, _set_shard(0, data_offset=8192, bytes=8192 + 54, meta_xxh3=hexdigest(head)))
    np.testing.assert_array_equal(open_store(store).images[:], random_images(COUNT, shape=SHAPE))
    assert verify_store(store).ok
