"""Damage stores, and write validly signed manifests with any facts, as a faulty writer or a later release might."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decodeonce.store.hashing import canonical, digest_of, hexdigest
from decodeonce.store.manifest import read_manifest

Facts = dict[str, Any]


def sign(facts: Facts) -> bytes:
    """Return the bytes of store.json for these facts, valid or not."""
    return canonical({**facts, "digest": digest_of(facts)})


def resign(store: Path, change: Callable[[Facts], object]) -> None:
    """Change facts of a store's manifest in place, and sign it again."""
    facts = json.loads((store / "store.json").read_bytes())
    change(facts)
    (store / "store.json").write_bytes(sign(facts))


def replace_file(store: Path, name: str, content: bytes) -> None:
    """Replace the contents of a small file, and update its size and digest in the manifest."""
    (store / name).write_bytes(content)
    entry = {"bytes": len(content), "xxh3": hexdigest(content)}
    resign(store, lambda facts: facts["files"].update({name: entry}))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of a file in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def damage_rows(store: Path, *rows: int) -> None:
    """Overwrite some bytes of each of these rows, to the same bytes each time."""
    manifest = read_manifest(store / "store.json")
    for row in rows:
        shard = manifest.shard_of(row)
        overwrite(store / shard.file, shard.offset(row) + 7, b"damage")


def flip_row(store: Path, row: int, at: int = 0) -> Path:
    """Flip a bit of a row in place, in this byte of the row; return the file of its shard."""
    manifest = read_manifest(store / "store.json")
    shard = manifest.shard_of(row)
    flip(store / shard.file, shard.offset(row) + at % manifest.row_bytes)
    return store / shard.file


def flip(path: Path, offset: int, bit: int = 4) -> None:
    """Flip a bit of a file in place."""
    with open(path, "rb") as file:
        file.seek(offset)
        (byte,) = file.read(1)
    overwrite(path, offset, bytes([byte ^ 1 << bit]))
