"""What tests of builds on a cluster share: pictures that take a while, and jobs stopped in the middle of them."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path

from decodeonce.prep.build.status import read_status
from decodeonce.store.hashing import hexdigest
from tests.cluster.slurm import Cluster
from tests.cluster.until import until
from tests.images import encoded, picture, tree_bytes

PREP = [sys.executable, "-m", "decodeonce.cli"]
BLOCKS = 48


def make_slow_tree(root: Path) -> Path:
    """240 pictures of some 5 ms each, five to a block."""
    for label in range(24):
        folder = root / "train" / f"n{label:08d}"
        folder.mkdir(parents=True)
        image = picture(1100 + 10 * label, 900, seed=label)
        for quality in range(50, 100, 5):
            (folder / f"{folder.name}_{quality}.JPEG").write_bytes(encoded(image, quality=quality))
    return root


def digests(root: Path) -> dict[str, str]:
    """A hash of each file."""
    return {name: hexdigest(data) for name, data in tree_bytes(root).items()}


def prep(*arguments: str | Path) -> str:
    """A line of a job's script; exec, so that signals for the script reach it."""
    return f"exec {shlex.join([*PREP, *map(str, arguments)])}"


def work(out: Path, tasks: int = 1) -> str:
    """The script of a job, or of each element of an array, that does its share."""
    task = "$SLURM_ARRAY_TASK_ID" if tasks > 1 else "0"
    return f"{prep('work', out, '--workers', '1')} --task {task} --tasks {tasks}"


def stop_in_the_middle(cluster: Cluster, out: Path, job: str, task: int = 0) -> list[int]:
    """Have a job's processes stand still once the task has done a block, so that what follows comes amid work."""

    def begun() -> bool:
        return any(begun.task == task and begun.blocks_done for begun in read_status(out).tasks)

    until(begun, lambda: f"the first block\n{cluster.queue(job)}\n{cluster.output()}")
    processes = cluster.signal(job, signal.SIGSTOP)
    (stopped,) = (begun for begun in read_status(out).tasks if begun.task == task)
    assert stopped.blocks_done < stopped.blocks
    return processes


def assert_finished(cluster: Cluster, out: Path, undisturbed: dict[str, str]) -> None:
    cluster.run(*PREP, "finish", out)
    assert digests(out) == undisturbed
