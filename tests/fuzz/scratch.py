"""A folder for what a target must have as a file; it goes when the process ends."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def scratch(name: str) -> Path:
    """A new folder for the target `name`."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
