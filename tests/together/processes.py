"""Run `prep` in processes that pause at gates (see gates.py)."""

import os
import subprocess
import sys
from pathlib import Path

from decodeonce.prep.recipe import Recipe

ROOT = Path(__file__).parents[2]
MAP = "tests.together.gates:unchanged"
# Rows have 1.1 MB (whole pages). Each row is a block, a shard has two rows, and row k is the k-th image of the tree.
RECIPE = Recipe(height=384, width=1024, shard_size=2 * 384 * 1024 * 3, shuffle_seed=None)
FLAGS = ["--size", "384x1024", "--shard-size", str(RECIPE.shard_size), "--shuffle-seed", "none"]
FLAGS += ["--max-bad", "2", "--map", MAP]
START = "from decodeonce.cli import main\nmain()"


class Prep:
    """A running `prep` that pauses at the given gates of gates.py."""

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
        """Wait until the process or a worker reaches the gate. Close the returned descriptor to let it continue."""
        return os.open(self._fifos[gate], os.O_WRONLY)

    def ended(self) -> subprocess.CompletedProcess[str]:
        """Wait until the process and all processes that it started have ended."""
        outputs = self.process.communicate()
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, *outputs)


def build_arguments(tree: Path, out: Path) -> list[object]:
    """Return the command line of the build of these tests."""
    return ["build", "imagenet", tree, out, *FLAGS]
