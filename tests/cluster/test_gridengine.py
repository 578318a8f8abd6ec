"""An array of a real Grid Engine, whose tasks each do their own share of a build."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.builds import BLOCKS, PREP, digests
from tests.cluster.gridengine import GridEngine, unpacked
from tests.cluster.until import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def grid_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GridEngine]:
    """A Grid Engine of one node with four slots."""
    with unpacked(tmp_path_factory.mktemp("packages")) as data:
        running = GridEngine(tmp_path_factory.mktemp("gridengine"), data)
        yield running
        running.close()


def test_array_of_four_writes_each_block_once(
    grid_engine: GridEngine, tree: Path, uninterrupted: dict[str, str], tmp_path: Path
) -> None:
    out, script = tmp_path / "store", tmp_path / "work.sh"
    subprocess.run([*PREP, "plan", "imagenet", str(tree), str(out)], check=True)
    script.write_text(f"#!/bin/bash\nexec {shlex.join([*PREP, 'work', str(out), '--workers', '1'])}\n")
    grid_engine.run("qsub", "-cwd", "-V", "-j", "y", "-o", str(tmp_path), "-t", "1-4", str(script))
    until(lambda: not grid_engine.run("qstat"), lambda: grid_engine.run("qstat", "-f"), within=120)
    output = "\n".join(path.read_text() for path in tmp_path.glob("work.sh.o*"))
    for task in range(4):
        assert f"task {task} of 4 (SGE_TASK_ID={task + 1})" in output
    records = [path.read_bytes().count(b"\n") for path in (out / ".build/journals").iterdir()]
    assert (len(records), sum(records)) == (4, BLOCKS)
    subprocess.run([*PREP, "finish", str(out)], check=True)
    assert digests(out) == uninterrupted
