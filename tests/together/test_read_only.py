"""On a read-only file system, commands that write print one line that names the path, and commands that read work."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from decodeonce import Loader, open_store
from decodeonce.build import Recipe, WorkSettings, make_plan, work
from decodeonce.prep.sources.imagenet import open_imagenet
from decodeonce.store import stage_store
from tests import disks
from tests.command import prep
from tests.images import tree_bytes
from tests.together.processes import build_arguments

ADVICE = "fix this and run the same command again"
# Commands, and the path that their error names. "store" is finished, "planned" and "worked" are not, "empty" is an
# empty folder, and the others do not exist.
WRITING = {
    "build imagenet TREE DISK/new FLAGS": "disk/new",
    "build imagenet TREE DISK/empty FLAGS": "disk/empty/.build",
    "build imagenet TREE DISK/worked FLAGS": "disk/worked/",
    "plan imagenet TREE DISK/new FLAGS": "disk/new",
    "work DISK/planned": "disk/planned/.build/journals/0of1",
    "finish DISK/worked --max-bad 2": "disk/worked/",
    "stage DISK/store DISK/new --node-rank 0 --node-count 1": "disk/new",
    "stage DISK/store DISK/empty --node-rank 0 --node-count 1": "disk/empty/.stage",
    "convert DISK/store DISK/converted --format hdf5": "disk/converted",
    "column add DISK/store score DISK/store/labels.npy": "disk/store/.repair",
    "show DISK/store --out DISK/sheet.png": "disk/sheet.png",
    "submit slurm build imagenet TREE DISK/new --tasks 2 --cpus 2": "disk/new.jobs",
}
# Commands, and a text that they print.
READING = {
    "build imagenet TREE DISK/store FLAGS": "already finished, nothing to do",
    "plan imagenet TREE DISK/store FLAGS": "already finished, nothing to do",
    "plan imagenet TREE DISK/planned FLAGS": "15 rows in 15 blocks planned",
    "work DISK/store": "already finished, nothing to do",
    "finish DISK/store": "already finished, nothing to do",
    "verify DISK/store": "13 rows intact",
    "info DISK/store": "384",
    "ls DISK/store": "n00000000_0.JPEG",
    "status DISK/store": "13",
    "status DISK/worked": "15",
    "show DISK/store --out HERE/sheet.png": "13 rows of ",
    "repair DISK/store": "13 rows intact",
    "stage DISK/store DISK/part --node-rank 0 --node-count 2": "rows 0..5 of the 13",
    "stage DISK/store HERE/part --node-rank 0 --node-count 2": "done",
}


@pytest.fixture(scope="module")
def disk(
    tree: Path, recipe: Recipe, expected_files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A read-only file system with a finished store, a planned one, and one whose finish is left to do."""
    with disks.small_disk(tmp_path_factory.mktemp("read-only"), "100m") as disk:
        for name in ("empty", "store"):
            (disk / name).mkdir()
        for name, data in expected_files.items():
            (disk / "store" / name).write_bytes(data)
        stage_store(open_store(disk / "store"), disk / "part", rows=range(6))
        make_plan(open_imagenet(tree), disk / "planned", recipe)
        shutil.copytree(disk / "planned", disk / "worked")
        work(disk / "worked", WorkSettings(max_bad="2"))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        yield disk


def arguments_of(line: str, tree: Path, disk: Path, here: Path) -> list[str]:
    flags = list(map(str, build_arguments(tree, disk)[4:]))
    values = {"TREE": str(tree), "DISK": str(disk), "HERE": str(here)}
    arguments = []
    for argument in line.split():
        for name, value in values.items():
            argument = argument.replace(name, value)
        arguments += flags if argument == "FLAGS" else [argument]
    return arguments


@pytest.mark.parametrize(("line", "path"), WRITING.items())
def test_commands_that_write_fail_with_one_line(line: str, path: str, tree: Path, disk: Path, tmp_path: Path) -> None:
    result = prep(*arguments_of(line, tree, disk, tmp_path))
    message = result.stderr
    assert (result.returncode, message.count("\n")) == (1, 1), message
    assert message.startswith("prep: error: ")
    assert path in message
    assert message.endswith(f"Read-only file system; {ADVICE}\n")


@pytest.mark.parametrize(("line", "text"), READING.items())
def test_commands_that_read_succeed(line: str, text: str, tree: Path, disk: Path, tmp_path: Path) -> None:
    result = prep(*arguments_of(line, tree, disk, tmp_path))
    assert result.returncode == 0
    assert text in result.stdout
    assert "error" not in result.stderr


def test_loader_reads_from_read_only_disk(disk: Path, expected_files: dict[str, bytes]) -> None:
    store = open_store(disk / "store")
    with Loader(disk / "store", batch_size=4, tail="keep") as loader:
        for batch in loader:
            assert np.array_equal(batch.images.numpy(), store.take(batch.rows.numpy()))
    assert tree_bytes(disk / "store") == expected_files
