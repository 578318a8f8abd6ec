"""plan.json, as it is and signed again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from decodeonce.errors import BuildError
from decodeonce.prep.build.plan import plan_facts, read_plan
from decodeonce.prep.build.scan import scan
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import FolderSource
from decodeonce.store import StorePaths
from tests.fuzz import Mutate
from tests.fuzz.scratch import scratch
from tests.fuzz.trees import mutate_tree, rewritten
from tests.images import make_tree
from tests.store.signing import sign

FOLDER = scratch("plan")
PATHS = StorePaths(FOLDER / "out")
PATHS.build.mkdir(parents=True)
SOURCE = FolderSource(make_tree(FOLDER / "src", classes=2, per_class=1) / "train")


def seeds() -> Iterator[bytes]:
    """The plan of a small tree."""
    facts = plan_facts(SOURCE, scan(SOURCE), Recipe(8, 8), {"simplejpeg": "1"})
    facts["source"]["root"] = "pictures"  # not this folder's name, which is another every time
    yield sign(json.loads(json.dumps(facts)))
    yield b"[" * 5000


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Other facts, mostly."""
    return mutate_tree(data, size, random, mutate)


def TestOneInput(data: bytes) -> None:
    """Read as `prep work` and `prep status` do: a plan that checks, or a BuildError."""
    for encoded in (data, rewritten(data, lambda facts: sign(dict(facts)))):
        PATHS.plan.write_bytes(encoded)
        try:
            facts = read_plan(PATHS).facts
        except BuildError:
            continue
        assert "digest" in facts
