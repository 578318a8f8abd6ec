"""`prep` in processes of its own that stop at gates (see gates.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from decodeonce.prep.recipe import Recipe

ROOT = Path(__file__).parents[2]
MAP = "tests.together.gates:unchanged"
# Rows of 1.1 MB, whole pages, are blocks of their own; two go into a shard. Row k is the k-th picture of the tree.
RECIPE = Recipe(height=384, width=1024, shard_size=2 * 384 * 1024 * 3, shuffle_seed=None)
FLAGS = ["--size", "384x1024", "--shard-size", str(RECIPE.shard_size), "--shuffle-seed", "none"]
FLAGS += ["--max-bad", "2", "--map", MAP]
START = "from decodeonce.cli import main\nmain()"


class Ended(NamedTuple):
    """How a process ended, and what it said."""

    code: int
    said: str
    told: str


class Prep:
    """A running `prep`; `gates` are points of gates.py at which it is to wait."""

    def __init__(self, *arguments: object, folder: Path, gates: tuple[str, ...] = ()) -> None:
        self._fifos = {gate: folder / f"{os.urandom(8).hex()}.fifo" for gate in gates}
        for fifo in self._fifos.values():
            os.mkfifo(fifo)
        environ = {**os.environ, "GATES": "\n".join(f"{gate} {fifo}" for gate, fifo in self._fifos.items())}
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *map(str, arguments)],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def reached(self, gate: str) -> int:
        """Wait until it, or a worker of its, is at the gate; returns what is to be closed to let it go on."""
        return os.open(self._fifos[gate], os.O_WRONLY)

    def ended(self) -> Ended:
        """Wait for its end, and for that of all that it started."""
        said, told = self.process.communicate()
        return Ended(self.process.returncode, said, told)


def prep(*arguments: object, folder: Path) -> Ended:
    """Run `prep` to its end."""
    return Prep(*arguments, folder=folder).ended()


def build_words(tree: Path, out: Path) -> list[object]:
    """The words of the build that these tests are about."""
    return ["build", "imagenet", tree, out, *FLAGS]
