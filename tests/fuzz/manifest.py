"""Changed store.json and stage.json with a valid digest, so that the checks after the digest are reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from decodeonce.errors import StoreError
from decodeonce.store.manifest import parse_manifest, part_bytes, read_part
from tests.fuzz import Mutate
from tests.fuzz.scratch import scratch
from tests.fuzz.trees import mutate_tree, reencode
from tests.store.signing import sign

GOLDEN = Path(__file__).parent.parent / "store" / "golden"
PART = scratch("manifest") / "stage.json"
WHOLE = parse_manifest((GOLDEN / "npy" / "store.json").read_bytes(), GOLDEN)


def seeds() -> Iterator[bytes]:
    """Yield a manifest of each container, and a stage.json of the first."""
    for name in ("npy", "hdf5"):
        yield (GOLDEN / name / "store.json").read_bytes()
    yield part_bytes(WHOLE.digest, range(1, 3))
    yield b"[" * 5000


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Change the JSON."""
    return mutate_tree(data, size, random, mutate)


def TestOneInput(data: bytes) -> None:
    """Parse the bytes, with their own digest and with a valid one, as a store.json and as a stage.json."""
    for encoded in (data, reencode(data, lambda facts: sign(dict(facts)))):
        try:
            manifest = parse_manifest(encoded, Path("store.json"))
        except StoreError:
            pass
        else:
            columns = [column.file for column in manifest.columns]
            names = [*manifest.files, *(shard.file for shard in manifest.shards), *columns]
            assert all(Path(name).name == name for name in names), names
            assert sum(shard.rows for shard in manifest.shards) == manifest.count > 0
        PART.write_bytes(encoded)
        try:
            held = read_part(PART, WHOLE)
        except StoreError:
            continue
        assert held is not None
        assert 0 <= held[0] <= held[-1] < WHOLE.count
