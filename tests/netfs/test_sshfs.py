"""Commands of two nodes at the same time on sshfs, whose locks exclude nobody and which caches names for 20 s."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from decodeonce.store import open_store, verify_store
from tests.cluster.builds import PREP, digests
from tests.cluster.until import until
from tests.images import jpeg
from tests.netfs.sshfs import Mount
from tests.stores import make_store, random_images

pytestmark = pytest.mark.long

PAIRS = 8
ROWS = 24
FLAGS = ["--size", "384x1024", "--shard-size", str(2 * 384 * 1024 * 3), "--workers", "1"]


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([*PREP, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(*commands: list[str]) -> list[tuple[int, str]]:
    """Run commands at the same time; return exit codes and outputs."""
    started = [start(words) for words in commands]
    outputs = [process.communicate()[0] for process in started]
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


@pytest.fixture(scope="session")
def served(mounted: list[Mount]) -> Path:
    """The folder that both nodes mount."""
    return mounted[0].path.parent / "served"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Images, and the hashes of their store on a local disk."""
    root = tmp_path_factory.mktemp("images")
    for number in range(ROWS):
        path = root / "tree" / f"class{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(200, 150, seed=number))
    ((code, output),) = run(["build", "folder", str(root / "tree"), str(root / "store"), *FLAGS])
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
    ended = run(*add_commands(mounted, store.name, ["left", "right"], tmp_path))
    assert [code for code, _ in ended] == [0, 0], ended
    assert verify_store(store).ok
    for number, name in enumerate(["left", "right"]):
        np.testing.assert_array_equal(open_store(store).columns[name], np.arange(ROWS) + 100 * number)


@pytest.mark.parametrize("pair", range(PAIRS))
def test_second_of_two_different_columns_with_one_name_is_refused(
    mounted: list[Mount], served: Path, tmp_path: Path, pair: int
) -> None:
    store = make_store(served / f"column{pair}", random_images(ROWS))
    ended = run(*add_commands(mounted, store.name, ["score", "score"], tmp_path))
    codes = [code for code, _ in ended]
    assert sorted(codes) == [0, 1], ended
    assert "already has a different column" in ended[codes.index(1)][1]
    assert verify_store(store).ok
    np.testing.assert_array_equal(open_store(store).columns["score"], np.arange(ROWS) + 100 * codes.index(0))


@pytest.mark.parametrize("pair", range(PAIRS))
def test_equal_builds_of_a_name_that_nodes_have_cached(
    mounted: list[Mount], served: Path, built: tuple[Path, dict[str, str]], pair: int
) -> None:
    tree, expected = built
    if (served / "store").exists():  # finished by the pair before; both nodes still see its files for up to 20 s
        shutil.rmtree(served / "store")
    ended = run(*(["build", "folder", str(tree), str(node.path / "store"), *FLAGS] for node in mounted))
    # The guarantee: one builds the store, and the other finds it or asks to be run again.
    assert sorted(code for code, _ in ended) in ([0, 0], [0, 75]), "\n".join(output for _, output in ended)
    assert digests(served / "store") == expected


@pytest.mark.parametrize("pair", range(PAIRS // 2))
def test_exports_to_one_folder_write_every_image_once(mounted: list[Mount], served: Path, pair: int) -> None:
    name = f"export{pair}"
    make_store(served / f"{name}.store", random_images(ROWS))
    words = [[str(node.path / f"{name}.store"), str(node.path / name), "--as", "folder"] for node in mounted]
    ended = run(*(["export", *one] for one in words))
    # The second finds the finished export of the first, which is exit code 1 with locks, too.
    assert sorted(code for code, _ in ended) in ([0, 0], [0, 1], [0, 75]), ended
    assert all(code != 1 or "already exists" in output for code, output in ended)
    assert len(list((served / name).rglob("*.png"))) == ROWS


def test_build_whose_server_hangs_while_another_node_finishes_it(
    mounted: list[Mount], served: Path, built: tuple[Path, dict[str, str]]
) -> None:
    tree, expected = built
    started = [start(["build", "folder", str(tree), str(node.path / "paused"), *FLAGS]) for node in mounted]
    journals = served / "paused/.build/journals"
    until(lambda: any(path.stat().st_size for path in journals.glob("*.log")), "no block is done")
    mounted[0].pause(stopped=True)
    try:
        output = started[1].communicate(timeout=120)[0]
    finally:
        mounted[0].pause(stopped=False)
    assert started[1].returncode == 0, output
    output = started[0].communicate(timeout=120)[0]
    assert started[0].returncode == 0, output
    assert digests(served / "paused") == expected


@pytest.mark.parametrize("command", ["work PATH", "finish PATH", "column remove PATH score", "repair PATH --from SRC"])
def test_wrong_path_is_reported_at_once(mounted: list[Mount], command: str) -> None:
    wrong = str(mounted[0].path / "wrong")
    ((code, output),) = run([wrong if word == "PATH" else word for word in command.split()])
    assert (code, "trying again" in output) == (1, False), output
