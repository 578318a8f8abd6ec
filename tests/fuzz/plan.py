"""plan.json, with its own digest and with a valid one."""

import json
from collections.abc import Iterator

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.building.plan import checked_listing, plan_content, read_plan
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.folder import FolderSource
from tests.fuzz import scratch
from tests.fuzz.trees import mutate_tree, reencode
from tests.images import make_tree
from tests.store.signing import sign

FOLDER = scratch("plan")
PATHS = BuildPaths(FOLDER / "out")
PATHS.build.mkdir(parents=True)
mutate = mutate_tree
SOURCE = FolderSource(make_tree(FOLDER / "src", classes=2, per_class=1) / "train")


def seeds() -> Iterator[bytes]:
    """Yield the plan of a small tree."""
    facts = plan_content(SOURCE, checked_listing(SOURCE), Recipe(8, 8), {"simplejpeg": "1"})
    facts["source"]["root"] = "images"  # not the name of this folder, which is different in every run
    yield sign(json.loads(json.dumps(facts)))
    yield b"[" * 100_000


def TestOneInput(data: bytes) -> None:
    """Reading gives a valid plan, or raises BuildError, or Stopped for an empty file.

    `prep work` and `prep status` read plans in the same way.
    """
    for encoded in (data, reencode(data, lambda facts: sign(dict(facts)))):
        PATHS.plan.write_bytes(encoded)
        try:
            facts = read_plan(PATHS).content
        except (BuildError, Stopped):
            continue
        assert "digest" in facts
