"""`prep export` as a person runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.command import assert_fails, prep
from tests.conftest import COUNT
from tests.images import tree_bytes
from tests.stores import make_store, random_images


def test_a_store_becomes_a_folder(store: Path, images: NDArray[np.uint8], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = prep("export", store, out, "--as", "folder")
    assert (result.returncode, result.stdout) == (0, f"{out}: {COUNT} pictures in 3 classes\n")
    with Image.open(out / "class1/00000004_4.png") as image:
        np.testing.assert_array_equal(np.asarray(image), images[4])
    assert prep("export", store, tmp_path / "jpegs", "--as", "folder", "--quality", 95).returncode == 0
    assert (tmp_path / "jpegs/class1/00000004_4.jpg").read_bytes()[:2] == b"\xff\xd8"


def test_a_store_becomes_tars_whatever_the_workers(store: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        options = ("--as", "webdataset", "--shard-rows", 20, "--workers", workers)
        result = prep("export", store, tmp_path / f"out{workers}", *options)
        assert (result.returncode, result.stdout) == (0, f"{tmp_path}/out{workers}: {COUNT} pictures in 3 classes\n")
    assert list(tree_bytes(tmp_path / "out1")) == ["classes.txt", *(f"shard-{k:06d}.tar" for k in range(3))]
    assert tree_bytes(tmp_path / "out1") == tree_bytes(tmp_path / "out2")


def test_labels_that_do_not_follow_the_names_are_told(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", random_images(11), classes=11)  # class10 comes before class2
    told = prep("export", store, tmp_path / "out", "--as", "folder").stdout
    assert told.startswith(f"{tmp_path}/out: 11 pictures in 11 classes; labels are not in the order of the names")
    assert "--classes" in told
    assert prep("export", store, tmp_path / "tars", "--as", "webdataset").stdout.endswith(" in 11 classes\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--as"),
        (("--as", "zip"), "zip"),
        (("--as", "folder", "--quality", 0), "--quality"),
        (("--as", "folder", "--quality", 101), "--quality"),
        (("--as", "folder", "--workers", 0), "--workers"),
        (("--as", "folder", "--shard-rows", 10), "--shard-rows is for --as webdataset"),
        (("--as", "webdataset", "--shard-rows", 0), "--shard-rows"),
    ],
)
def test_wrong_usage(store: Path, tmp_path: Path, arguments: tuple[object, ...], told: str) -> None:
    result = prep("export", store, tmp_path / "out", *arguments)
    assert result.returncode == 2
    assert told in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_failures_are_one_line(store: Path, tmp_path: Path) -> None:
    assert_fails(prep("export", store, tmp_path, "--as", "folder"), 1, f"{tmp_path}: is here already")
    assert_fails(prep("export", store, "/proc/out", "--as", "folder"), 1, "/proc/.out.export")
    damaged = Path(shutil.copytree(store, tmp_path / "damaged"))
    with open(damaged / "images-00001.npy", "r+b") as shard:
        shard.seek(4096 + 3 * 144)
        shard.write(bytes(144))
    command = ("export", damaged, tmp_path / "out", "--as", "webdataset", "--shard-rows", 20)
    assert_fails(prep(*command, "--workers", 2), 1, "damaged: row 28 is not what was written; run `prep verify")
    told = "an unfinished export is here: --shard-rows 20, not 30; go on as it was begun, or remove "
    assert_fails(prep(*command[:-1], 30), 1, f"{told}{tmp_path}/.out.export")


@pytest.mark.parametrize("group", [False, True])
def test_a_signal_stops_it_with_75_and_the_same_command_goes_on(store: Path, tmp_path: Path, group: bool) -> None:
    """As `kill` sends SIGTERM, to the parent, or a terminal SIGINT, to all; at the 25th picture."""
    out = tmp_path / "out"
    command = ["prep", "export", str(store), str(out), "--as", "webdataset", "--shard-rows", "10", "--workers", "2"]
    name = "SIGINT" if group else "SIGTERM"
    script = (
        "import os, signal, sys\n"
        "from decodeonce.cli import main, progress\n"
        "left, count_bar = 25, progress.count_bar\n"
        "def bar(*arguments, **options):\n"
        "    made = count_bar(*arguments, **options)\n"
        "    made.update = update\n"
        "    return made\n"
        "def update(rows):\n"
        "    global left\n"
        "    left -= rows\n"
        "    if left == 0:\n"
        f"        os.kill({'0' if group else 'os.getpid()'}, signal.{name})\n"
        "progress.count_bar = bar\n"
        f"sys.argv = {command!r}\n"
        "main()"
    )
    # run() returns when nobody holds the other end of the pipes any more: the workers have ended, too
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, start_new_session=True, check=False
    )
    told = f"prep: stopped: {name}; what is done is kept: run the same command again to go on\n"
    assert (result.returncode, result.stderr, result.stdout) == (75, told, "")
    assert os.listdir(tmp_path) == [".out.export"]
    assert prep(*command[1:]).returncode == 0
    assert os.listdir(tmp_path) == ["out"]
    prep("export", store, tmp_path / "undisturbed", *command[4:])
    assert tree_bytes(out) == tree_bytes(tmp_path / "undisturbed")


def test_it_explains_itself_without_numpy() -> None:
    script = (
        "import sys\nsys.argv = ['prep', 'export', '--help']\nfrom decodeonce.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'PIL', 'tqdm'} & sys.modules.keys()))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.endswith("\n[]\n")
    for option in ("STORE", "DEST", "--as", "--quality", "--workers", "--shard-rows"):
        assert option in told
