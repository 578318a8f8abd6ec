"""Modes of everything that is written: the user's umask, and never for everybody to write."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from decodeonce.cli.written import write_out
from decodeonce.prep import FolderSource, Recipe, Work, build, finish, make_plan, work
from decodeonce.prep.allowance import Allowance
from decodeonce.prep.export import export_store
from decodeonce.prep.export_pictures import ExportSettings
from decodeonce.prep.jobs import Chain, read_site, write_scripts
from decodeonce.prep.sample import write_sample_tree
from decodeonce.store import open_store, stage_store
from tests.pictures import jpeg
from tests.stores import make_store, random_images


@pytest.fixture
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The umask of this process and those that it starts, as the parameter says."""
    (tmp_path / "src/cat").mkdir(parents=True)
    for number in range(4):
        (tmp_path / f"src/cat/{number}.jpg").write_bytes(jpeg(40, 30, seed=number))
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def assert_modes(top: Path, umask: int, *, least: int) -> None:
    """Everything in `top`, hidden or not, but the source, has the mode that the umask leaves of 0664 or 0775."""
    checked = 0
    for folder, folders, files in os.walk(top):
        if folder == str(top):
            folders.remove("src")
        for name in folders + files:
            path = Path(folder, name)
            mode = stat.S_IMODE(path.lstat().st_mode)
            expected = (0o775 if path.is_dir() else 0o664) & ~umask
            assert oct(mode) == oct(expected), path
            assert not mode & stat.S_IWOTH
            checked += 1
    assert checked >= least


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("umask", [0o000, 0o077], indirect=True, ids=oct)
def test_all_that_is_written_has_the_users_modes(tmp_path: Path, umask: int) -> None:
    source, recipe, out = FolderSource(tmp_path / "src"), Recipe(height=16, width=16), tmp_path / "deep/er/out"
    make_plan(source, out, recipe)
    work(out, Work(workers=1))
    assert_modes(tmp_path, umask, least=10)  # as a kill leaves it
    finish(out, Allowance.parse("0"))
    store = open_store(out)
    commands = [["prep", "plan"], ["prep", "work"], ["prep", "finish"]]
    write_scripts(out, read_site("generic-slurm"), Chain(tasks=1, cpus=1), commands, tmp_path)
    for form in ("folder", "webdataset"):
        export_store(store, tmp_path / form, ExportSettings(form))
    with tarfile.open(tmp_path / "webdataset/shard-000000.tar") as tar:
        assert {member.mode for member in tar} == {0o644}
    stage_store(store, tmp_path / "part", rows=range(2))
    write_out(tmp_path / "sheet.png", b"")
    write_sample_tree(tmp_path / "sample", count=50, classes=2)
    assert_modes(tmp_path, umask, least=80)


@pytest.mark.parametrize("umask", [0o000], indirect=True, ids=oct)
def test_the_modes_of_hdf5_shards_and_of_an_unfinished_export(tmp_path: Path, umask: int) -> None:
    build(FolderSource(tmp_path / "src"), tmp_path / "out", Recipe(height=16, width=16, container="hdf5"))
    store = open_store(make_store(tmp_path / "store", random_images(300)))

    def interrupt(rows: int) -> None:
        if rows:
            raise Interrupted

    with pytest.raises(Interrupted):
        export_store(store, tmp_path / "pictures", ExportSettings("folder"), progress=interrupt)
    (tmp_path / "store").rename(tmp_path / "src/store")  # which a test made
    assert_modes(tmp_path, umask, least=10)
