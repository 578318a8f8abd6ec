"""Where every file of a store lies: the one place that knows their names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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

    def shard(self, index: int, suffix: str) -> Path:
        return self.root / f"images-{index:05d}{suffix}"

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
    def plan_rejects(self) -> Path:
        return self.build / "plan-rejects.tsv"

    @property
    def journals(self) -> Path:
        return self.build / "journals"
