"""Mount file systems that are small enough to fill up."""

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
    """Mount a tmpfs of this size (in the units of mount(8)) in `folder`, or skip the test if that is not possible.

    If CI is set, the test fails instead, because a skipped test would go unnoticed there.
    """
    give_up = pytest.fail if is_fatal(os.environ) else pytest.skip
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        # The reason contains no folder or size, so that pytest reports all skipped tests in one line.
        reason = mounted.stderr.partition("\n")[0].rpartition(": ")[2]
        give_up(f"mounting a tmpfs requires root: {reason}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
