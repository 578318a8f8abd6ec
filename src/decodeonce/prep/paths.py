"""The paths of a build: those of the store, and the private files of `prep` in it and next to it."""

from __future__ import annotations

import os
from pathlib import Path

from decodeonce.store.layout import StorePaths


class BuildPaths(StorePaths):
    """The paths of a store at `root` that may be unfinished; `build` exists until it is finished."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self.build = self.root / ".build"
        self.plan = self.build / "plan.json"  # written last: the plan exists only with this file
        self.journals = self.build / "journals"  # created when the space of the shards is reserved

    @property
    def jobs(self) -> Path:
        """Folder for scripts and logs of jobs, next to the store. The store does not depend on it."""
        return self.root.absolute().with_name(f"{self.root.absolute().name}.jobs")

    @property
    def submit(self) -> Path:
        """The script that submits all jobs as a chain."""
        return self.jobs / "submit.sh"

    @property
    def submitted(self) -> Path:
        """The ids of the submitted jobs."""
        return self.jobs / "submitted"
