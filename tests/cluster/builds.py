"""Helpers for tests of builds on a cluster: slow images, and jobs that are stopped in the middle of a build."""

import signal
import sys
from pathlib import Path

from decodeonce.prep.building.status import read_status
from decodeonce.store.hashing import hexdigest
from tests.cluster.slurm import Cluster
from tests.cluster.until import until
from tests.images import encoded, make_image, tree_bytes

PREP = [sys.executable, "-m", "decodeonce.cli"]
BLOCKS = 48


def make_slow_tree(root: Path) -> Path:
    """Write 240 images that take about 5 ms each; a block has five of them."""
    for label in range(24):
        folder = root / "train" / f"n{label:08d}"
        folder.mkdir(parents=True)
        image = make_image(1100 + 10 * label, 900, seed=label)
        for quality in range(50, 100, 5):
            (folder / f"{folder.name}_{quality}.JPEG").write_bytes(encoded(image, quality=quality))
    return root


def digests(root: Path) -> dict[str, str]:
    """Return a hash of each file."""
    return {name: hexdigest(data) for name, data in tree_bytes(root).items()}


def stop_in_the_middle(cluster: Cluster, out: Path, job: str, task: int = 0) -> list[int]:
    """Stop the processes of a job after its task has finished a block but not all; return their process ids."""

    def has_finished_block() -> bool:
        return any(status.task == task and status.blocks_done for status in read_status(out).tasks)

    until(has_finished_block, lambda: f"the first block\n{cluster.queue(job)}\n{cluster.output()}")
    processes = cluster.signal(job, signal.SIGSTOP)
    (stopped,) = (status for status in read_status(out).tasks if status.task == task)
    assert stopped.blocks_done < stopped.blocks
    return processes
