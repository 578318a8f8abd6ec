"""What a run has measured so far, so that one that was interrupted goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """Measurements by name, a line of JSON each; those of other settings are forgotten."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {}
        lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the last one may be cut
        if lines and json.loads(lines[0]) == settings:
            self.found = dict(json.loads(line) for line in lines[1:])
        self._write(settings)

    def _write(self, settings: dict[str, Any]) -> None:
        """Begin the file, whole lines alone in it."""
        part = self.path.with_suffix(".part")
        part.write_text("".join(json.dumps(line) + "\n" for line in [settings, *self.found.items()]))
        os.replace(part, self.path)

    def add(self, name: str, value: dict[str, Any]) -> None:
        """One more, kept at once."""
        self.found[name] = value
        with self.path.open("a") as file:
            file.write(json.dumps([name, value]) + "\n")

    def close(self) -> None:
        """The run is complete: another one begins anew."""
        self.path.unlink()
