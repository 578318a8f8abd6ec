"""A store with a changed manifest whose digests match its files. It is opened, read and verified."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from decodeonce.errors import DecodeonceError
from decodeonce.prep.convert.convert import check_mergeable
from decodeonce.prep.convert.rows import StoreRows
from decodeonce.store import Store, open_store, verify_store
from decodeonce.store.hashing import hexdigest
from decodeonce.store.manifest import part_bytes
from decodeonce.store.table import read_rejects
from tests.fuzz import scratch
from tests.fuzz.trees import mutate_tree
from tests.store.signing import sign
from tests.stores import make_store, random_images

ROOT = scratch("store") / "s.store"
SMALL = ("labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv", "weights.npy")
STORE = make_store(
    ROOT, random_images(5, shape=(2, 2, 3)), shard_rows=3, columns={"weights": random_images(5, shape=(1, 1, 2))}
)
mutate = mutate_tree
FACTS = json.loads((ROOT / "store.json").read_bytes())


def seeds() -> Iterator[bytes]:
    """Yield a store, a part of it, and the same rows as planes, as JSON with the text of each file."""
    whole = {"facts": FACTS} | {name: (ROOT / name).read_bytes().decode("latin-1") for name in SMALL}
    yield json.dumps(whole).encode()
    part = json.loads(part_bytes(FACTS["digest"], range(1, 3)))
    yield json.dumps({**whole, "part": part}).encode()
    for pixels, shape in (("yuv420", [2, 4, 3]), ("bc4", [8, 8, 3])):
        yield json.dumps({**whole, "facts": {**FACTS, "version": 3, "pixels": pixels, "shape": shape}}).encode()


def TestOneInput(data: bytes) -> None:
    """Write the store, sign its manifest with the sizes and digests of the files, and use it."""
    try:
        tree = json.loads(data)
        _write(tree["facts"], tree)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return
    assert verify_store(ROOT).rows >= 0
    try:
        store = open_store(ROOT)
    except DecodeonceError:
        return
    for use in (_read_rows, _read_columns, _read_samples, _convert):
        with suppress(DecodeonceError):
            use(store)


def _write(facts: dict[str, Any], files: dict[str, Any]) -> None:
    for name in SMALL:
        content = files[name].encode("latin-1", "replace")
        (ROOT / name).write_bytes(content)
        if name in facts["files"]:
            facts["files"][name].update({"bytes": len(content), "xxh3": hexdigest(content)})
    encoded = sign({key: value for key, value in facts.items() if key != "digest"})
    (ROOT / "store.json").write_bytes(encoded)
    part = files.get("part")
    if part is None:
        (ROOT / "stage.json").unlink(missing_ok=True)
    else:
        digest = json.loads(encoded)["digest"]
        (ROOT / "stage.json").write_bytes(sign({**part, "store": digest}))


def _read_rows(store: Store) -> None:
    rows = range(store.rows[0], store.rows[-1] + 1)
    assert store.take(list(rows)).shape == (len(rows), *store.manifest.shape)
    assert 0 <= store.labels.min() <= store.labels.max() < len(store.classes)


def _read_columns(store: Store) -> None:
    for column in store.columns.values():
        assert len(column) == len(store)
        column.sum()


def _read_samples(store: Store) -> None:
    for sample in (*store.samples, store.samples[-1]):
        assert 0 <= sample.row < len(store)


def _convert(store: Store) -> None:
    """Check a store as `prep convert` does before it reads rows."""
    rows = StoreRows(Path(ROOT), store.manifest.digest)
    rows.check_files()
    check_mergeable([store])
    for row in store.rows:
        rows.sample(row)
        rows.read(row)
    for reject in read_rejects(store.paths.rejects):
        str(reject)
