"""Where every file of a store lies: the one place that knows their names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from decodeonce.formatting import quoted
from decodeonce.host import network_file_system

# Folders that commands make for themselves: in a store, next to an export, next to a store.
PRIVATE_FOLDER = re.compile(r"\.(build|stage|repair)|\..+\.export|.+\.jobs", re.DOTALL)
# The folders in them, the last of which are the classes of an export.
INSIDE_PRIVATE = re.compile(r"|journals|scratch|pictures(/[^/]+)?", re.DOTALL)


@dataclass(frozen=True)
class StorePaths:
    """The paths of the store at `root`, finished or being built."""

    root: Path

    @property
    def manifest(self) -> Path:
        return self.root / "store.json"

    @property
    def labels(self) -> Path:
        return self.root / "labels.npy"

    @property
    def checksums(self) -> Path:
        return self.root / "checksums.npy"

    @property
    def samples(self) -> Path:
        return self.root / "samples.tsv"

    @property
    def rejects(self) -> Path:
        return self.root / "rejects.tsv"

    @property
    def virtual(self) -> Path:
        """The HDF5 file with one virtual dataset over all shards (hdf5 container only)."""
        return self.root / "store.h5"

    @property
    def part(self) -> Path:
        """Which rows are here; there only in a staged part of a store."""
        return self.root / "stage.json"

    @property
    def staging(self) -> Path:
        """There only while a part is unfinished: what it is to become, and temporary files."""
        return self.root / ".stage"

    @property
    def claim(self) -> Path:
        """What becomes stage.json when all rows are there."""
        return self.staging / "stage.json"

    @property
    def repair(self) -> Path:
        """There only while a repair runs: temporary files."""
        return self.root / ".repair"

    def shard(self, index: int, suffix: str) -> Path:
        return self.root / f"images-{index:05d}{suffix}"

    @property
    def jobs(self) -> Path:
        """Scripts and logs of jobs, beside the store: nothing in it depends on them."""
        return self.root.absolute().with_name(f"{self.root.absolute().name}.jobs")

    @property
    def submit(self) -> Path:
        """The script that submits them all as a chain."""
        return self.jobs / "submit.sh"

    @property
    def build(self) -> Path:
        """Plan and journals; there only while the store is unfinished."""
        return self.root / ".build"

    @property
    def plan(self) -> Path:
        """The plan's facts, written last: without it there is no plan."""
        return self.build / "plan.json"

    @property
    def plan_rows(self) -> Path:
        return self.build / "plan-rows.npy"

    @property
    def plan_names(self) -> Path:
        return self.build / "plan-names.bin"

    @property
    def plan_boxes(self) -> Path:
        return self.build / "plan-boxes.npy"

    @property
    def plan_rejects(self) -> Path:
        return self.build / "plan-rejects.tsv"

    @property
    def journals(self) -> Path:
        return self.build / "journals"


def verify_command(root: Path) -> str:
    """The command that finds all damage of the store, or of the staged part, at `root`."""
    return f"`prep verify {quoted(str(root))}`"


def repair_advice(path: Path) -> str:
    """What to do about a bad file of a store, or of a staged part."""
    return f"mend it with `prep repair {quoted(str(path.parent))} --source SRC`"


def missing_advice(folder: Path) -> str:
    """What to look at before a missing file of a folder is taken for lost: a server that is away hides its files."""
    kind = folder.is_dir() and network_file_system(folder)
    return f"its file server may be away ({kind}): look there first; else " if kind else ""
