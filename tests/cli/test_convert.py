"""The command `prep convert`."""

import re
from pathlib import Path

import pytest

from decodeonce.store import open_store, verify_store
from tests.command import assert_fails, prep
from tests.stores import make_store, random_images


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("stores") / "a.store", random_images(12, shape=(32, 24, 3)))


def test_flags_take_effect(store: Path, tmp_path: Path) -> None:
    flags = ["--format", "hdf5", "--size", "16x12", "--filter", "box", "--shard-size", "1MiB", "--workers", 1]
    flags += ["--class", "class0", "--class", "class2", "--rows", "-10:", "--match", "*.jpg", "--sort", "class"]
    result = prep("convert", store, store, tmp_path / "out", *flags)
    text = r"{0}: 7 rows in 2 of 3 classes, 8\.13 KB, written in [\w ]+; next: prep info {0}\n".format(tmp_path / "out")
    assert re.fullmatch(text, result.stdout), result
    assert (result.returncode, result.stderr) == (0, "")
    made = open_store(tmp_path / "out")
    assert made.labels.tolist() == [0, 0, 0, 2, 2, 2, 2]
    found = made.manifest.recipe["selected"]
    assert found == {"classes": ["class0", "class2"], "source": "*.jpg", "rows": [14, 24], "sort": "class"}
    assert verify_store(tmp_path / "out").ok
    assert_fails(prep("convert", store, tmp_path / "out"), 1, "finished store")


def test_dry_run_writes_nothing(store: Path, tmp_path: Path) -> None:
    result = prep("convert", store, tmp_path / "out", "--rows", ":7", "--size", "16x12", "--dry-run")
    planned, _, sample, room = result.stdout.splitlines()
    assert planned.startswith("7 rows of 16x12x3 in 3 classes, 8.13 KB (6.11 KB as yuv420) in 1 npy shard; ")
    assert sample == "sample: 7 of 7 images read; all of them can be decoded"
    assert room.startswith(f"{tmp_path}: ")
    assert list(tmp_path.iterdir()) == []


def test_dry_run_fails_where_the_conversion_would(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert prep("convert", store, out).returncode == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").touch()
    for flags in ((), ("--dry-run",)):
        assert_fails(prep("convert", store, out, "--rows", ":7", *flags), 1, "already holds a different finished store")
        assert_fails(prep("convert", store, tmp_path / "full", *flags), 1, "it contains notes.txt")


def test_error_is_one_line(store: Path, tmp_path: Path) -> None:
    def refused(code: int, expected: str, *flags: str) -> None:
        assert_fails(prep("convert", store, tmp_path / "out", *flags), code, expected)

    refused(2, "use 12x9", "--size", "12")
    refused(2, "rows are '7', expected a range", "--rows", "7")
    refused(2, "cannot be both sorted", "--sort", "class", "--shuffle-seed", "1")
    refused(1, "no row is selected", "--rows", "5:5")
    done = prep("convert", store, tmp_path / "out", PMI_RANK="1", PMI_SIZE="2")
    assert_fails(done, 2, "rank 1 of 2", "must run in one process")
    assert list(tmp_path.iterdir()) == []
