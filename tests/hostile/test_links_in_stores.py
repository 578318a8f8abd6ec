"""No command follows a link in a store, build, part or job folder to write, truncate or remove files elsewhere.

The test replaces each file and folder in turn by a link to a copy of it in a foreign folder. It then runs every command
that writes, and checks that the foreign folder is unchanged.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from decodeonce.build import Recipe, WorkSettings, build, make_plan, work
from decodeonce.prep.sources.imagenet import open_imagenet
from decodeonce.store import open_store, stage
from tests.command import Ended, prep
from tests.images import make_tree, tree_bytes

RECIPE = Recipe(height=64, width=64, shard_size=4 * 64 * 64 * 3, shuffle_seed=0)
WORK = WorkSettings(workers=1, max_bad="2")
FLAGS = "--size 64 --shard-size 49152 --workers 1 --max-bad 2"
SUBMIT = "submit slurm build imagenet TREE HERE/out --tasks 2 --cpus 2 --size 64"


class Killed(BaseException):
    """Raised in the middle of a command in place of a kill."""


def kill_at(module: object, name: str, call: Callable[[], object]) -> None:
    """Run `call` until it calls `module.name`, and leave the files that a kill would leave at that point."""

    def call_or_raise(*args: Any, **kwargs: Any) -> Any:
        raise Killed

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(module, name, call_or_raise)
        call()


class Case(NamedTuple):
    """A folder with unfinished work, the commands that continue it, and the names in it that belong to the user."""

    folder: Path
    commands: list[str]
    users: set[str]

    def names(self) -> list[str]:
        """Return the files and folders that decodeonce may create there."""
        return sorted({str(path.relative_to(self.folder)) for path in self.folder.rglob("*")} - self.users)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images in two classes. One is damaged, so that `finish` has to move a row."""
    root = make_tree(tmp_path_factory.mktemp("tree"), classes=2, per_class=3)
    (root / "train/n00000000/n00000000_1.JPEG").write_bytes(b"no picture")
    return root


@pytest.fixture(scope="module")
def cases(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    base = tmp_path_factory.mktemp("cases")
    source = open_imagenet(tree)
    for name in ("planned", "worked"):
        (base / name).mkdir()
    make_plan(source, base / "planned/out", RECIPE)
    shutil.copytree(base / "planned/out", base / "worked/out")
    work(base / "worked/out", WORK)
    for container in ("npy", "hdf5"):
        build(source, base / container / "out", replace(RECIPE, container=container), WORK)
        damaged = base / f"damaged-{container}/out"
        shutil.copytree(base / container / "out", damaged)
        (damaged / ".repair").mkdir()
        (damaged / ".repair/left").write_bytes(b"by a kill")
        for path in damaged.iterdir():
            # The npy store is repaired from the images, which cannot restore samples.tsv; the hdf5 store, from a copy.
            intact = {"store.json", "rejects.tsv", *(["samples.tsv"] if container == "npy" else [])}
            if path.is_file() and path.name not in intact:
                data = bytearray(path.read_bytes())
                data[-1] ^= 1
                path.write_bytes(data + b"too long")
    store = open_store(base / "npy/out")
    shutil.copytree(base / "npy/out", base / "column/out")
    (base / "column/out/.repair").mkdir()
    (base / "column/out/.repair/left").write_bytes(b"by a kill")
    np.save(base / "score.npy", np.arange(len(store)))
    kill_at(stage, "_publish", lambda: stage.stage_store(store, base / "part/out", rows=range(2)))
    (base / "jobs").mkdir()
    prep_line(SUBMIT, tree, base, base / "jobs")
    repair = ["repair HERE/out --from TREE", "finish HERE/out"]
    return {
        "planned": Case(base / "planned", [f"build imagenet TREE HERE/out {FLAGS}"], {"out"}),
        "worked": Case(base / "worked", ["finish HERE/out --max-bad 2"], {"out"}),
        "damaged npy": Case(base / "damaged-npy", repair, {"out"}),
        "damaged hdf5": Case(
            base / "damaged-hdf5", ["repair HERE/out --from BASE/hdf5/out", "finish HERE/out"], {"out"}
        ),
        "column": Case(
            base / "column", ["column add HERE/out score BASE/score.npy", "column remove HERE/out score"], {"out"}
        ),
        "part": Case(base / "part", ["stage BASE/npy/out HERE/out --node-rank 0 --node-count 2"], {"out"}),
        "jobs": Case(base / "jobs", [SUBMIT], set()),
    }


def prep_line(line: str, tree: Path, base: Path, here: Path) -> Ended:
    """Run a command after replacing TREE, BASE and HERE by these folders."""
    for name, folder in {"TREE": tree, "BASE": base, "HERE": here}.items():
        line = line.replace(name, str(folder))
    return prep(*line.split())


LONG = ("planned", "damaged npy", "column", "part", "jobs")


@pytest.mark.parametrize(
    "name", ["worked", "damaged hdf5", *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]
)
def test_no_command_writes_through_a_link(cases: dict[str, Case], name: str, tree: Path, tmp_path: Path) -> None:
    case = cases[name]
    base = case.folder.parent
    names = case.names()
    assert len(names) >= 4
    shutil.copytree(case.folder, tmp_path / "unlinked")
    assert not any(prep_line(line, tree, base, tmp_path / "unlinked").returncode for line in case.commands)
    for number, linked in enumerate(names):
        here, foreign = tmp_path / f"here{number}", tmp_path / f"foreign{number}"
        shutil.copytree(case.folder, here)
        shutil.copytree(case.folder, foreign)
        before = tree_bytes(foreign)
        if (here / linked).is_dir():
            shutil.rmtree(here / linked)
        else:
            (here / linked).unlink()
        (here / linked).symlink_to(foreign / linked)
        results = [prep_line(line, tree, base, here) for line in case.commands]
        codes, errors = [result.returncode for result in results], "".join(result.stderr for result in results)
        assert tree_bytes(foreign) == before, (linked, codes, errors)
        assert not any(codes) or "symbolic link" in errors, (linked, codes, errors)


@pytest.mark.parametrize("link", ["link", "mine.jobs/link", ".build/link"])
def test_links_in_the_path_of_a_store_are_followed(tree: Path, tmp_path: Path, link: str) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "disk")
    build(open_imagenet(tree), tmp_path / link / "out", RECIPE, WORK)
    assert os.listdir((tmp_path / link).parent) in (["link"], ["disk", "link"], ["link", "disk"])
    assert (tmp_path / "disk/out/store.json").is_file()
