"""The commands of the page for a real Grid Engine: an array whose tasks each do their share, and a job that waits."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.builds import digests
from tests.cluster.gridengine import PROGRAMS, GridEngine, unpacked
from tests.cluster.until import until
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/other-schedulers.md"
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def grid_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GridEngine]:
    """A Grid Engine of one node with four slots."""
    with unpacked(tmp_path_factory.mktemp("packages")) as data:
        running = GridEngine(tmp_path_factory.mktemp("gridengine"), data)
        yield running
        running.close()


def test_commands_of_the_page_build_the_store(
    grid_engine: GridEngine, tree: Path, uninterrupted: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "train.store"
    [text] = [block.text for block in blocks(PAGE) if "qsub" in block.text]
    there = {
        "/scratch/imagenet": shlex.quote(str(tree)),
        "-t 1-16 -pe smp 32": "-t 1-4 -j y",
        "--workers 32": "--workers 1",
    }
    for words, here in there.items():
        text = text.replace(words, here)
    path = f"export PATH={Path(sys.executable).parent}:{PROGRAMS}:$PATH"
    grid_engine.run("/bin/bash", "-c", f"set -e; {path}; cd {shlex.quote(str(tmp_path))}\n{text}")
    until(lambda: not grid_engine.run("qstat"), lambda: grid_engine.run("qstat", "-f"), within=120)
    output = "\n".join(path.read_text() for path in tmp_path.glob("decode.o*"))
    for task in range(4):
        assert f"task {task} of 4 (SGE_TASK_ID={task + 1})" in output
    assert digests(out) == uninterrupted
