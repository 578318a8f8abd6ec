"""The command `prep export`."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.command import assert_fails, prep, prep_after
from tests.conftest import COUNT
from tests.images import tree_bytes
from tests.stores import make_store, random_images


def test_store_is_exported_as_folder(store: Path, images: NDArray[np.uint8], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = prep("export", store, out, "--as", "folder")
    assert (result.returncode, result.stdout) == (0, f"{out}: {COUNT} images in 3 classes written\n")
    with Image.open(out / "class1/00000004_4.png") as image:
        np.testing.assert_array_equal(np.asarray(image), images[4])
    assert prep("export", store, tmp_path / "jpegs", "--as", "folder", "--quality", 95).returncode == 0
    assert (tmp_path / "jpegs/class1/00000004_4.jpg").read_bytes()[:2] == b"\xff\xd8"


def test_labels_that_do_not_follow_sorted_names_are_reported(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", random_images(11), classes=11)  # class10 comes before class2
    message = prep("export", store, tmp_path / "out", "--as", "folder").stdout
    assert message.startswith(f"{tmp_path}/out: 11 images in 11 classes written; labels do not follow the sorted names")
    assert "--classes" in message
    assert prep("export", store, tmp_path / "tars", "--as", "webdataset").stdout.endswith(" in 11 classes written\n")


def test_failure_is_one_line(store: Path, tmp_path: Path) -> None:
    rows = prep("export", store, tmp_path / "out", "--as", "folder", "--shard-rows", 10)
    assert_fails(rows, 2, "--shard-rows requires --as webdataset")
    assert_fails(prep("export", store, tmp_path, "--as", "folder"), 1, f"{tmp_path}: already exists")


@pytest.mark.parametrize("group", [pytest.param(False, marks=pytest.mark.long), True])
def test_signal_stops_export_with_75_and_same_command_starts_again(store: Path, tmp_path: Path, group: bool) -> None:
    """Send SIGTERM to the parent, as `kill` does, or SIGINT to all processes, as a terminal does, at the 25th image."""
    out = tmp_path / "out"
    command = ["export", str(store), str(out), "--as", "webdataset", "--shard-rows", "10", "--workers", "2"]
    name = "SIGINT" if group else "SIGTERM"
    code = (
        "import contextlib\nfrom decodeonce.cli import output\nleft = 25\n"
        "def update(rows):\n"
        "    global left\n"
        "    left -= rows\n"
        "    if left == 0:\n"
        f"        os.kill({'0' if group else 'os.getpid()'}, signal.{name})\n"
        "output.count_bar = lambda *arguments, **options: contextlib.nullcontext(update)"
    )
    result = prep_after(code, *command)  # returns when no process holds the pipes: the workers have ended, too
    message = f"prep: stopped: {name}; run the same command again; builds and staging then resume\n"
    assert (result.returncode, result.stderr, result.stdout) == (75, message, "")
    [unfinished] = os.listdir(tmp_path)
    assert unfinished.startswith("out.tmp-")
    assert prep(*command).returncode == 0
    assert os.listdir(tmp_path) == ["out"]
    prep("export", store, tmp_path / "uninterrupted", *command[3:])
    assert tree_bytes(out) == tree_bytes(tmp_path / "uninterrupted")
