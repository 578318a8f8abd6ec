"""The commands under test, each with a sandbox: a folder for everything that it writes."""

import os
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decodeonce.errors import BuildError, StoreError
from decodeonce.prep.building import plan as plan_module
from decodeonce.prep.building.status import read_status
from decodeonce.store import StorePaths, open_store, verify_store
from decodeonce.store.manifest import DATA_OFFSET, read_manifest
from tests.forms.boxed import whole
from tests.images import jpeg, make_tree, tree_bytes
from tests.store.signing import flip

BLOCK_BYTES = 12 << 10  # four rows of 32x32, so that images that decode in milliseconds fill several blocks and shards
SIZE = ("--size", "32", "--shard-size", "24KiB")  # eight rows per shard
ROW_BYTES = 32 * 32 * 3
ALL = 1 << 30
STORE = "store"  # the store to convert and stage, below `base`
DAMAGED = "damaged"  # the store to repair
VALUES = "values.npy"  # the column to add


@dataclass(frozen=True)
class Target(ABC):
    """A command under test."""

    name: str
    sandbox: Path  # the folder that the command writes to
    arguments: tuple[str, ...]
    repairs: bool = False  # repairs what it cannot read

    def set_up(self) -> None:
        self.sandbox.mkdir()

    @abstractmethod
    def check(self, expected: dict[str, bytes]) -> None:
        """Raise an exception if anything reports files as complete that differ from those of a run without faults."""

    def durable(self) -> int:
        """Return how many units of work would not be done again."""
        return 0


class Build(Target):
    """`prep build` or `prep convert`."""

    @property
    def paths(self) -> StorePaths:
        return StorePaths(self.sandbox / "out")

    def check(self, expected: dict[str, bytes]) -> None:
        try:
            finished = read_status(self.paths.root).finished
        except BuildError:
            finished = False
        check_store(self.paths.root, expected, self.sandbox, finished)

    def durable(self) -> int:
        """Return the number of completed blocks; ALL for a finished store."""
        try:
            status = read_status(self.paths.root)
        except BuildError:
            return 0
        return ALL if status.finished else status.blocks_done


class Stage(Target):
    """`prep stage`."""

    def check(self, expected: dict[str, bytes]) -> None:
        part = self.sandbox / "part"
        check_store(part, expected, self.sandbox, (part / "store.json").exists())


class Repair(Target):
    """`prep repair` of a store with a flipped bit, a truncated shard and a missing small file."""

    def set_up(self) -> None:
        shutil.copytree(self.sandbox.with_name(DAMAGED), self.sandbox)

    def check(self, expected: dict[str, bytes]) -> None:
        """Check that a verified store is complete, and that rows are right or damaged as before, but never holes."""
        store = self.sandbox / "out"
        if verify_store(store).ok:
            assert {name: data for name, data in tree_bytes(self.sandbox).items() if ".repair" not in name} == expected
        try:
            open_store(store)
        except StoreError:
            return
        for name, data in expected.items():
            if "images-" in name:
                found, damaged = ((top / name).read_bytes() for top in (self.sandbox, self.sandbox.with_name(DAMAGED)))
                for at in range(DATA_OFFSET, len(data), ROW_BYTES):
                    row = slice(at, at + ROW_BYTES)
                    assert found[row] in (data[row], damaged[row]), f"opens, but {name} has another row at {at}"


class AddColumn(Target):
    """`prep column add` to a complete store."""

    def set_up(self) -> None:
        self.sandbox.mkdir()
        shutil.copytree(self.sandbox.with_name(STORE), self.sandbox / "out")

    def check(self, expected: dict[str, bytes]) -> None:
        """Check that the store is as before or has the column; the column's file may be there early."""
        assert verify_store(self.sandbox / "out").ok
        found, before = tree_bytes(self.sandbox / "out"), tree_bytes(self.sandbox.with_name(STORE))
        wanted = {name.removeprefix("out/"): data for name, data in expected.items()}
        if found["store.json"] != wanted["store.json"]:
            assert found["store.json"] == before["store.json"], "store.json is neither the old nor the new one"
            del wanted["store.json"], found["store.json"]
        left = {name: data for name, data in found.items() if ".repair" not in name}
        assert left.items() <= wanted.items(), "a file is neither the old nor the new one"


def check_store(root: Path, expected: dict[str, bytes], sandbox: Path, finished: bool) -> None:
    """Check that a store that opens is complete to the byte, and that one that does not open is reported as such.

    Bytes after a shard's last row may differ.
    """
    report = verify_store(root)
    try:
        open_store(root)
    except StoreError:
        assert not report.ok, "does not open, but verify_store finds no damage"
        assert not finished, "does not open, but its status is finished"
        return
    longer = set()
    for name, data in expected.items():
        found = (sandbox / name).read_bytes()
        if name.rpartition("/")[2].startswith("images-") and len(found) > len(data):
            longer.add(name.rpartition("/")[2])
        else:
            assert found == data, f"opens, but {name} differs"
        assert found.startswith(data), f"opens, but {name} differs"
    assert set(report.bad_files) == longer, f"opens, but verify_store reports {report}"
    assert not report.bad_rows


def make_sources(base: Path) -> None:
    """Make the sources: 19 images, four of them bad, a dangling link, boxes, and a larger tree."""
    plan_module.SMALLEST = BLOCK_BYTES
    train = make_tree(base / "tree", classes=3, per_class=6) / "train"
    (train / "n00000001/n00000001_9.JPEG").write_bytes(jpeg(50, 60, mode="CMYK"))
    (train / "n00000000/n00000000_1.JPEG").write_bytes(b"no picture")
    (train / "n00000001/n00000001_0.JPEG").write_bytes(jpeg(30, 30)[:300])
    (train / "n00000002/n00000002_3.JPEG").write_bytes(b"none either")
    (train / "n00000002/n00000002_0.JPEG").write_bytes(b"nor this")
    (train / "n00000002/gone.JPEG").symlink_to("nowhere")
    (base / "boxes").mkdir()
    for path in train.glob("*/*.JPEG"):
        (base / f"boxes/{path.stem}.xml").write_text(whole(path.parent.name))
    large = make_tree(base / "large", classes=4, per_class=60) / "train"
    for number in range(0, 60, 12):
        (large / f"n00000002/n00000002_{number}.JPEG").write_bytes(b"no picture")


def make_targets(base: Path) -> dict[str, Target]:
    """Return all targets by name, in the folder `base`. Targets that need a store get it from `make_stores`."""
    sandbox = base / "sandbox"
    store, out = str(base / STORE), str(sandbox / "out")
    tree = ("build", "imagenet", str(base / "tree"), out, *SIZE, "--max-bad", "5", "--workers", "1")
    large = ("build", "imagenet", str(base / "large"), out, *SIZE, "--max-bad", "5")
    targets = [
        Build("npy", sandbox, tree),
        Build("hdf5", sandbox, (*tree, "--format", "hdf5", "--pixels", "yuv420")),
        Build("boxes", sandbox, (*tree, "--boxes", str(base / "boxes"), "--keep-boxes", "2")),
        Build("large", sandbox, (*large, "--workers", "2")),
        Build("convert", sandbox, ("convert", store, out, "--size", "16", "--pixels", "bc4", "--workers", "1")),
        Stage("stage", sandbox, ("stage", store, str(sandbox / "part"), "--node-rank", "1", "--node-count", "3")),
        AddColumn("column", sandbox, ("column", "add", out, "score", str(base / VALUES))),
        Repair("repair", sandbox, ("repair", out, "--from", str(base / "tree")), repairs=True),
    ]
    return {target.name: target for target in targets}


def make_stores(built: Path, base: Path) -> None:
    """Move the store `built` to where the targets expect it, and make a damaged copy."""
    (base / DAMAGED).mkdir()
    shutil.copytree(built, base / DAMAGED / "out")
    shutil.move(built, base / STORE)
    np.save(base / VALUES, np.arange(read_manifest(base / STORE / "store.json").count, dtype="<f4"))
    first, second = (base / DAMAGED / "out" / f"images-0000{number}.npy" for number in (0, 1))
    flip(first, DATA_OFFSET + 2 * ROW_BYTES + 5)
    os.truncate(second, DATA_OFFSET + 3 * ROW_BYTES + 100)
    (base / DAMAGED / "out/labels.npy").unlink()
