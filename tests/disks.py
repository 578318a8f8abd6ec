"""Real file systems that are small enough to fill up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.packages import is_fatal


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of this size (as mount(8) takes it) in `folder`; where none can be mounted, the test is skipped.

    With CI set it fails instead: nothing may be skipped unseen there.
    """
    give_up = pytest.fail if is_fatal(os.environ) else pytest.skip
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        # Without folder and size, pytest shows the tests that are skipped for one reason as one.
        why = mounted.stderr.partition("\n")[0].rpartition(": ")[2]
        give_up(f"a tmpfs is needed, which takes root: {why}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
