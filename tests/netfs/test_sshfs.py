"""Commands of two nodes at the same time on sshfs, whose locks exclude nobody and which caches names for 20 s."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from decodeonce.store import open_store, verify_store
from tests.cluster.builds import digests
from tests.cluster.until import until
from tests.netfs.commands import build, ended, has_block, run, start
from tests.netfs.sshfs import Mount
from tests.stores import make_store, random_images

pytestmark = pytest.mark.release

PAIRS = 4
ROWS = 24


@pytest.fixture(scope="session")
def served(mounted: list[Mount]) -> Path:
    """The folder that both nodes mount."""
    return mounted[0].path.parent / "served"


@pytest.fixture(scope="session")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The images without the rejects, and the hashes of their store on a local disk."""
    root = tmp_path_factory.mktemp("built")
    shutil.copytree(tree, root / "tree", ignore=shutil.ignore_patterns("bad*"))
    ((code, output),) = run(build(root / "tree", root / "store"))
    assert code == 0, output
    return root / "tree", digests(root / "store")


def add_commands(mounted: list[Mount], store: str, names: list[str], folder: Path) -> list[list[str]]:
    """Return the command of each node that adds a column; the columns have different values."""
    for number in range(2):
        np.save(folder / f"{number}.npy", np.arange(ROWS) + 100 * number)
    nodes = enumerate(zip(mounted, names, strict=True))
    return [["column", "add", str(node.path / store), name, str(folder / f"{n}.npy")] for n, (node, name) in nodes]


@pytest.mark.parametrize("pair", range(PAIRS))
def test_two_nodes_add_a_column_each(mounted: list[Mount], served: Path, tmp_path: Path, pair: int) -> None:
    store = make_store(served / f"columns{pair}", random_images(ROWS))
    found = run(*add_commands(mounted, store.name, ["left", "right"], tmp_path))
    added = {n: name for n, (name, (code, _)) in enumerate(zip(["left", "right"], found, strict=True)) if code == 0}
    assert all(code in (0, 1) and ("again" in output or not code) for code, output in found), found
    assert verify_store(store).ok
    assert {*open_store(store).columns} == {*added.values()}
    for number, name in added.items():
        np.testing.assert_array_equal(open_store(store).columns[name], np.arange(ROWS) + 100 * number)


@pytest.mark.parametrize("pair", range(PAIRS))
def test_second_of_two_different_columns_with_one_name_is_refused(
    mounted: list[Mount], served: Path, tmp_path: Path, pair: int
) -> None:
    store = make_store(served / f"column{pair}", random_images(ROWS))
    found = run(*add_commands(mounted, store.name, ["score", "score"], tmp_path))
    codes = [code for code, _ in found]
    # The guarantee: at most one column is added; the other commands name it, or ask to be run again.
    assert sorted(codes) in ([0, 1], [1, 1]), found
    refused = [output for code, output in found if code]
    assert all("run the same command again" in output or "a different column" in output for output in refused)
    assert verify_store(store).ok
    columns = open_store(store).columns
    assert len(columns) == codes.count(0)
    for column in columns.values():
        np.testing.assert_array_equal(column, np.arange(ROWS) + 100 * codes.index(0))


@pytest.mark.parametrize("pair", range(PAIRS))
def test_equal_builds_of_a_name_that_nodes_have_cached(
    mounted: list[Mount], served: Path, built: tuple[Path, dict[str, str]], pair: int
) -> None:
    tree, expected = built
    if (served / "store").exists():  # finished by the pair before; both nodes still see its files for up to 20 s
        shutil.rmtree(served / "store")
    found = run(*(build(tree, node.path / "store") for node in mounted))
    # The guarantee: a command builds or finds the store, or asks to be run again.
    assert all(code in (0, 1, 75) and ("again" in output or not code) for code, output in found), found
    # Names that the nodes have cached are wrong for up to 20 s.
    until(lambda: run(build(tree, mounted[0].path / "store"))[0][0] == 0, "no command builds the store")
    assert digests(served / "store") == expected


@pytest.mark.parametrize("seconds", range(1, 7))
def test_server_of_two_nodes_that_stops_for_seconds(
    mounted: list[Mount], served: Path, built: tuple[Path, dict[str, str]], seconds: int
) -> None:
    (tree, expected), name = built, f"stopped{seconds}"
    started = [start(build(tree, node.path / name)) for node in mounted]
    until((served / name / ".build/journals").exists, "nothing is begun")
    for mount in mounted:
        mount.pause(stopped=True)
    with suppress(subprocess.TimeoutExpired):
        started[0].wait(seconds)
    for mount in mounted:
        mount.pause(stopped=False)
    found = ended(*started)
    assert sorted(code for code, _ in found) in ([0, 0], [0, 75]), found
    assert digests(served / name) == expected


def test_build_whose_server_hangs_while_another_node_finishes_it(
    mounted: list[Mount], served: Path, built: tuple[Path, dict[str, str]]
) -> None:
    tree, expected = built
    started = [start(build(tree, node.path / "paused")) for node in mounted]
    until(lambda: has_block(served / "paused"), "no block is done")
    mounted[0].pause(stopped=True)
    try:
        second = ended(started[1])
    finally:
        mounted[0].pause(stopped=False)
    found = [*ended(started[0]), *second]
    assert [code for code, _ in found] == [0, 0], found
    assert digests(served / "paused") == expected
