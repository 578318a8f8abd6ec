"""store.json and stage.json, signed again after they were changed: what is checked behind the digest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from decodeonce.errors import StoreError
from decodeonce.store.manifest import parse_manifest
from decodeonce.store.part import Part, read_part
from tests.fuzz import Mutate
from tests.fuzz.scratch import scratch
from tests.fuzz.trees import mutate_tree, rewritten
from tests.store.signing import sign

GOLDEN = Path(__file__).parent.parent / "store" / "golden"
PART = scratch("manifest") / "stage.json"
WHOLE = parse_manifest((GOLDEN / "npy" / "store.json").read_bytes(), GOLDEN)


def seeds() -> Iterator[bytes]:
    """A manifest of each container, and a part of the first."""
    for name in ("npy", "hdf5"):
        yield (GOLDEN / name / "store.json").read_bytes()
    yield Part(WHOLE.digest, 1, 2).to_bytes()
    yield b"[" * 5000


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Other facts, mostly."""
    return mutate_tree(data, size, random, mutate)


def TestOneInput(data: bytes) -> None:
    """The bytes as they are, then with a digest of their own, as either file."""
    for encoded in (data, rewritten(data, lambda facts: sign(dict(facts)))):
        try:
            found = parse_manifest(encoded, Path("store.json"))
        except StoreError:
            pass
        else:
            names = [*found.files, *(shard.file for shard in found.shards), *(c.file for c in found.columns)]
            assert all(Path(name).name == name for name in names), names
        PART.write_bytes(encoded)
        try:
            part = read_part(PART, WHOLE)
        except StoreError:
            continue
        assert part is not None
        assert 0 <= part.held[0] <= part.held[-1] < WHOLE.count
