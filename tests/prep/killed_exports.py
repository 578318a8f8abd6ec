"""Kill an export at each of its steps: python -m tests.prep.killed_exports STORE FOLDER FORM."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import cast

from decodeonce.prep.export import export_store
from decodeonce.prep.export.images import ExportPaths, ExportSettings
from decodeonce.prep.recipe import ExportForm
from decodeonce.store import open_store
from tests.images import tree_bytes


def kill_at_each_step(store: Path, folder: Path, form: ExportForm) -> int:
    """Kill an export at each step, resume it and compare the result; return the number of steps.

    A step is a file system call that Python reports to audit hooks. Run this in a process without threads, because it
    forks.
    """
    source, settings = open_store(store), ExportSettings(form, shard_rows=5)
    export_store(source, folder / "uninterrupted", settings)
    expected, number, died = tree_bytes(folder / "uninterrupted"), 0, True
    while died:
        number += 1
        out = folder / str(number)
        child = os.fork()
        if not child:
            die_at(number)
            export_store(source, out, settings)
            os._exit(0)
        died = os.waitpid(child, 0)[1] != 0
        if out.exists():  # only the clean-up follows the rename
            assert tree_bytes(out) == expected
        if not out.exists() or ExportPaths(out).claim.exists():
            export_store(source, out, settings)
        assert tree_bytes(out) == expected
        assert [path.name for path in folder.glob(".*.export") if any(path.iterdir())] == []
        shutil.rmtree(out)
    return number


def die_at(number: int) -> None:
    """Kill this process with SIGKILL at its `number`-th call that changes a file system."""
    left = number

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        changes = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir")
        if changes or (event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    print(kill_at_each_step(Path(sys.argv[1]), Path(sys.argv[2]), cast(ExportForm, sys.argv[3])))
