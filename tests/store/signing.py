"""Damage stores, and write validly signed manifests with any facts, as a faulty writer or a later release might."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decodeonce.store.hashing import canonical, digest_of, hexdigest

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


def flip(path: Path, offset: int, bit: int = 4) -> None:
    """Flip a bit of a file in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
