"""A file with the measurements of a run, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """Measurements by name, one line of JSON each. Measurements with other settings are discarded."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {}
        lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the last line may be incomplete
        if lines and json.loads(lines[0]) == settings:
            self.found = dict(json.loads(line) for line in lines[1:])
        self._write(settings)

    def _write(self, settings: dict[str, Any]) -> None:
        """Write the file with the complete lines only."""
        part = self.path.with_suffix(".part")
        part.write_text("".join(json.dumps(line) + "\n" for line in [settings, *self.found.items()]))
        os.replace(part, self.path)

    def add(self, name: str, value: dict[str, Any]) -> None:
        """Add a measurement and append it to the file."""
        self.found[name] = value
        with self.path.open("a") as file:
            file.write(json.dumps([name, value]) + "\n")

    def close(self) -> None:
        """Remove the file when the run is complete, so that the next run starts over."""
        self.path.unlink()
