"""Temporary folders for targets that read files."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def scratch(name: str) -> Path:
    """Create a folder for the target `name`. It is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
