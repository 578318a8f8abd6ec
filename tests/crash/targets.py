"""What is crashed: commands of `prep`, each in a world of its own, a folder that holds all that it writes."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decodeonce.errors import BuildError, StoreError
from decodeonce.prep.build import blocks
from decodeonce.prep.build.status import read_status
from decodeonce.store import StorePaths, open_store, verify_store
from decodeonce.store.manifest import DATA_OFFSET, read_manifest
from tests.forms.boxed import XML
from tests.images import jpeg, make_tree, tree_bytes

BLOCK_BYTES = 12 << 10  # four rows of 32x32: several blocks and shards of what takes milliseconds to decode
SIZE = ("--size", "32", "--shard-size", "24KiB")  # eight rows a shard
ROW_BYTES = 32 * 32 * 3
ALL = 1 << 30
STORE = "store"  # what is converted, staged and exported, below `base`
HERE = "is here already"
DAMAGED = "damaged"  # what is repaired
VALUES = "values.npy"  # what is added as a column


@dataclass(frozen=True)
class Target(ABC):
    """A command; `world` is where it writes, `expected` what an undisturbed one leaves there, by path."""

    name: str
    world: Path
    arguments: tuple[str, ...]
    # Whether a worker that dies is replaced, so that the command comes to its end.
    replaces_workers: bool = True
    # What the command says where it finds all done before; nothing where that is no failure.
    refusal: str = ""
    # Whether what cannot be read is taken for damage, and repaired.
    repairs: bool = False

    def begin(self) -> None:
        """Make the world in which the command is to be run."""
        self.world.mkdir()

    @abstractmethod
    def look(self, expected: dict[str, bytes]) -> None:
        """Before it is run again: AssertionError where anything calls whole what is not, or another exception."""

    def durable(self) -> int:
        """How many units of work would not be done again."""
        return 0


class Build(Target):
    """`prep build` or `prep convert`."""

    @property
    def paths(self) -> StorePaths:
        """Where the store is made."""
        return StorePaths(self.world / "out")

    def look(self, expected: dict[str, bytes]) -> None:
        """Open, verify and ask for the status."""
        try:
            finished = read_status(self.paths.root).finished
        except BuildError:
            finished = False
        look_at_store(self.paths.root, expected, self.world, finished)

    def durable(self) -> int:
        """Blocks that are done; of a finished store more than any plan has."""
        try:
            status = read_status(self.paths.root)
        except BuildError:
            return 0
        return ALL if status.finished else status.blocks_done


class Stage(Target):
    """`prep stage`."""

    def look(self, expected: dict[str, bytes]) -> None:
        """Open and verify."""
        part = self.world / "part"
        look_at_store(part, expected, self.world, (part / "store.json").exists())


class Export(Target):
    """`prep export`; DEST is there when it is whole."""

    def look(self, expected: dict[str, bytes]) -> None:
        """All of it, or nothing."""
        if (self.world / "out").exists():
            assert {name: data for name, data in tree_bytes(self.world).items() if ".export" not in name} == expected


class Repair(Target):
    """`prep repair` of a store with a flipped bit, a shard that was cut and one small file less."""

    def begin(self) -> None:
        """A damaged store, the same each time."""
        shutil.copytree(self.world.with_name(DAMAGED), self.world)

    def look(self, expected: dict[str, bytes]) -> None:
        """What is verified is whole; in what opens a row is right, or damaged as before, never a hole."""
        store = self.world / "out"
        if verify_store(store).ok:
            assert {name: data for name, data in tree_bytes(self.world).items() if ".repair" not in name} == expected
        try:
            open_store(store)
        except StoreError:
            return
        for name, data in expected.items():
            if "images-" in name:
                found, damaged = ((top / name).read_bytes() for top in (self.world, self.world.with_name(DAMAGED)))
                for at in range(DATA_OFFSET, len(data), ROW_BYTES):
                    row = slice(at, at + ROW_BYTES)
                    assert found[row] in (data[row], damaged[row]), f"it opens, and {name} has something else at {at}"


class AddColumn(Target):
    """`prep column add` to a whole store."""

    def begin(self) -> None:
        """The store, the same each time."""
        self.world.mkdir()
        shutil.copytree(self.world.with_name(STORE), self.world / "out")

    def look(self, expected: dict[str, bytes]) -> None:
        """The store as it was, or with the column; at most its file is there already."""
        assert verify_store(self.world / "out").ok
        found, before = tree_bytes(self.world / "out"), tree_bytes(self.world.with_name(STORE))
        wanted = {name.removeprefix("out/"): data for name, data in expected.items()}
        if found["store.json"] != wanted["store.json"]:
            assert found["store.json"] == before["store.json"], "another store than before or after"
            del wanted["store.json"], found["store.json"]
        left = {name: data for name, data in found.items() if ".repair" not in name}
        assert left.items() <= wanted.items(), "another file than before or after"


def look_at_store(root: Path, expected: dict[str, bytes], world: Path, finished: bool) -> None:
    """What opens is whole to the byte, but for what lies past a shard's last row; what does not is said to be none."""
    report = verify_store(root)
    try:
        open_store(root)
    except StoreError:
        assert not report.ok, "verify_store calls whole what does not open"
        assert not finished, "its status is finished, and it does not open"
        return
    longer = set()
    for name, data in expected.items():
        found = (world / name).read_bytes()
        if name.rpartition("/")[2].startswith("images-") and len(found) > len(data):
            longer.add(name.rpartition("/")[2])
        else:
            assert found == data, f"it opens, and {name} is another"
        assert found.startswith(data), f"it opens, and {name} is another"
    assert set(report.bad_files) == longer, f"it opens, and verify_store says {report}"
    assert not report.bad_rows


def make_sources(base: Path) -> None:
    """Draw what is built from: 19 pictures, four of them bad, a dangling link, and boxes; and a larger tree."""
    blocks.SMALLEST = BLOCK_BYTES
    train = make_tree(base / "tree", classes=3, per_class=6) / "train"
    (train / "n00000001/n00000001_9.JPEG").write_bytes(jpeg(50, 60, mode="CMYK"))
    (train / "n00000000/n00000000_1.JPEG").write_bytes(b"no picture")
    (train / "n00000001/n00000001_0.JPEG").write_bytes(jpeg(30, 30)[:300])
    (train / "n00000002/n00000002_3.JPEG").write_bytes(b"none either")
    (train / "n00000002/n00000002_0.JPEG").write_bytes(b"nor this")
    (train / "n00000002/gone.JPEG").symlink_to("nowhere")
    (base / "boxes").mkdir()
    for path in train.glob("*/*.JPEG"):
        (base / f"boxes/{path.stem}.xml").write_text(XML.format(path.parent.name))
    large = make_tree(base / "large", classes=4, per_class=60) / "train"
    for number in range(0, 60, 12):
        (large / f"n00000002/n00000002_{number}.JPEG").write_bytes(b"no picture")


def make_targets(base: Path) -> dict[str, Target]:
    """All of them by name, in the folder `base`; those that begin with a store have it made before (see STORE)."""
    world = base / "world"
    store, out = str(base / STORE), str(world / "out")
    tree = ("build", "imagenet", str(base / "tree"), out, *SIZE, "--max-bad", "5", "--workers", "1")
    large = ("build", "imagenet", str(base / "large"), out, *SIZE, "--max-bad", "5")
    targets = [
        Build("npy", world, tree),
        Build("hdf5", world, (*tree, "--format", "hdf5")),
        Build("boxes", world, (*tree, "--boxes", str(base / "boxes"), "--keep-boxes", "2")),
        Build("large", world, (*large, "--workers", "2")),
        Build("convert", world, ("convert", store, out, "--size", "16", "--format", "hdf5", "--workers", "1")),
        Stage("stage", world, ("stage", store, str(world / "part"), "--node-rank", "1", "--node-count", "3")),
        Export("folder", world, ("export", store, out, "--as", "folder", "--workers", "1"), refusal=HERE),
        Export(
            "webdataset",
            world,
            ("export", store, out, "--as", "webdataset", "--shard-rows", "5", "--workers", "1"),
            refusal=HERE,
        ),
        Export(
            "workers",
            world,
            ("export", store, out, "--as", "webdataset", "--shard-rows", "3", "--workers", "2"),
            replaces_workers=False,
            refusal=HERE,
        ),
        AddColumn("column", world, ("column", "add", out, "score", str(base / VALUES))),
        Repair("repair", world, ("repair", out, "--from", str(base / "tree")), repairs=True),
    ]
    return {target.name: target for target in targets}


def make_stores(built: Path, base: Path) -> None:
    """Put the store `built` where the targets look for one, and a damaged copy."""
    (base / DAMAGED).mkdir()
    shutil.copytree(built, base / DAMAGED / "out")
    shutil.move(built, base / STORE)
    np.save(base / VALUES, np.arange(read_manifest(base / STORE / "store.json").count, dtype="<f4"))
    first, second = (base / DAMAGED / "out" / f"images-0000{number}.npy" for number in (0, 1))
    flipped = bytearray(first.read_bytes())
    flipped[DATA_OFFSET + 2 * ROW_BYTES + 5] ^= 1
    first.write_bytes(flipped)
    os.truncate(second, DATA_OFFSET + 3 * ROW_BYTES + 100)
    (base / DAMAGED / "out/labels.npy").unlink()
