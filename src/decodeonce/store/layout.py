"""Where every file of a store lies: the one place that knows their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from decodeonce.formatting import quoted
from decodeonce.host import network_file_system

ContainerName = Literal["npy", "hdf5"]  # of the shards; here, since recipe and command line need it before NumPy
# Folders that commands make for themselves: in a store, next to an export, next to a store.
PRIVATE_FOLDER = re.compile(r"\.(build|stage|repair)|\..+\.export|.+\.jobs", re.DOTALL)
# The folders in them, the last of which are the classes of an export.
INSIDE_PRIVATE = re.compile(r"|journals|scratch|pictures(/[^/]+)?", re.DOTALL)
# The arrays that a build writes; other .npy files are columns of the user's own.
BUILT_ARRAY = re.compile(r"(images-\d+|labels|checksums|boxes|box_count|box_labels)\.npy")


class StorePaths:
    """The paths of the store at `root`, finished or being built.

    The private folders `staging`, `repair` and `build` are there only while a part, a repair or a build is unfinished.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = root / "store.json"
        self.labels = root / "labels.npy"
        self.checksums = root / "checksums.npy"
        self.samples = root / "samples.tsv"
        self.rejects = root / "rejects.tsv"
        self.virtual = root / "store.h5"  # one virtual dataset over all shards; in the hdf5 container only
        self.part = root / "stage.json"  # which rows are here; in a staged part only
        self.staging = root / ".stage"
        self.claim = self.staging / "stage.json"  # becomes `part` when all rows are here
        self.repair = root / ".repair"
        self.build = root / ".build"
        self.plan = self.build / "plan.json"  # written last: without it there is no plan
        self.plan_rows = self.build / "plan-rows.npy"
        self.plan_names = self.build / "plan-names.bin"
        self.plan_boxes = self.build / "plan-boxes.npy"
        self.plan_box_labels = self.build / "plan-box-labels.npy"
        self.plan_rejects = self.build / "plan-rejects.tsv"
        self.journals = self.build / "journals"

    def plan_column(self, number: int) -> Path:
        """The values of one of the columns that the plan has."""
        return self.build / f"plan-column-{number}.npy"

    def shard(self, index: int, suffix: str) -> Path:
        return self.root / f"images-{index:05d}{suffix}"

    @property
    def jobs(self) -> Path:
        """Scripts and logs of jobs, next to the store: nothing in it depends on them."""
        return self.root.absolute().with_name(f"{self.root.absolute().name}.jobs")

    @property
    def submit(self) -> Path:
        """The script that submits them all as a chain."""
        return self.jobs / "submit.sh"


def verify_command(root: Path) -> str:
    """The command that finds all damage of the store, or of the staged part, at `root`."""
    return f"`prep verify {quoted(str(root))}`"


def repair_advice(path: Path) -> str:
    """What to do about a bad file of a store, or of a staged part; `prep repair` cannot make an added column again."""
    store = quoted(str(path.parent))
    if path.suffix == ".npy" and not BUILT_ARRAY.fullmatch(path.name):
        add = f"prep column add {store} {quoted(path.stem)} FILE.npy"
        return f"restore it from a copy of the store, or add its numbers again: `{add}`"
    return f"run `prep repair {store} --from SRC`"


def missing_advice(folder: Path) -> str:
    """What to look at before a missing file of a folder is taken for lost: a server that is away hides its files."""
    kind = folder.is_dir() and network_file_system(folder)
    return f"its file server may be away ({kind}): look there first; else " if kind else ""
