"""Files are written with the user's umask. An unreadable image stops a build; it does not become a reject."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from decodeonce.build import Recipe, WorkSettings, build, finish, make_plan, work
from decodeonce.cli.output import write_out
from decodeonce.prep.jobs.base import Chain
from decodeonce.prep.jobs.chain import write_scripts
from decodeonce.prep.jobs.site import read_site
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.store import open_store, stage_store
from tests.forms.boxed import whole
from tests.forms.imagenet import zip_bytes
from tests.forms.parquet import images, write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg


@pytest.fixture
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Set the umask of this process and its children to the parameter, and create a source."""
    (tmp_path / "src/cat").mkdir(parents=True)
    for number in range(4):
        (tmp_path / f"src/cat/{number}.jpg").write_bytes(jpeg(40, 30, seed=number))
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def assert_modes(top: Path, umask: int, *, least: int) -> None:
    """Assert that all files and folders in `top`, except the source, have the mode 0664 or 0775 without the umask."""
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


@pytest.mark.parametrize("umask", [pytest.param(0o000, marks=pytest.mark.long), 0o077], indirect=True, ids=oct)
def test_written_files_follow_the_umask(tmp_path: Path, umask: int) -> None:
    source, recipe, out = FolderSource(tmp_path / "src"), Recipe(height=16, width=16), tmp_path / "deep/er/out"
    make_plan(source, out, recipe)
    work(out, WorkSettings(workers=1))
    assert_modes(tmp_path, umask, least=10)  # the files that a kill would leave
    finish(out, "0")
    store = open_store(out)
    commands = [["prep", "plan"], ["prep", "work"], ["prep", "finish"]]
    write_scripts(out, read_site("generic-slurm"), Chain(tasks=1, cpus=1), commands, tmp_path)
    stage_store(store, tmp_path / "part", rows=range(2))
    write_out(tmp_path / "sheet.png", b"")
    assert_modes(tmp_path, umask, least=20)


@pytest.mark.parametrize("umask", [0o000], indirect=True, ids=oct)
def test_hdf5_shards_follow_the_umask(tmp_path: Path, umask: int) -> None:
    build(FolderSource(tmp_path / "src"), tmp_path / "out", Recipe(height=16, width=16, container="hdf5"))
    assert_modes(tmp_path, umask, least=8)


# Without these capabilities, root is subject to permission bits like other users.
AS_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"] if os.geteuid() == 0 else []
# Runs command lines in one process. A line that begins with a mode sets the mode of a path; others are run by `prep`.
RUN = """
import json, os, sys
from decodeonce.cli import _run
codes = []
for first, *others in json.loads(sys.argv[1]):
    if first.isdecimal():
        os.chmod(others[0], int(first, 8))
    else:
        sys.argv = ["prep", first, *others]
        codes.append(_run() or 0)
print(json.dumps(codes))
"""
ADVICE = "Permission denied; change its permissions and run the same command again"
# A path, its mode, the source that contains it, and the path that the error names.
UNREADABLE = (
    ("tree/cat/0.jpg", 0o000, "folder tree", "tree/cat/0.jpg"),
    ("tree/cat", 0o000, "folder tree", "tree/cat"),
    ("tree/cat", 0o644, "folder tree", "tree/cat/0.jpg"),
    ("tree", 0o644, "folder tree", "tree/cat"),
    ("tree/cat", 0o644, "imagenet tree", "tree/cat/0.jpg"),
    ("tree/dog/1.jpg", 0o000, "list list.txt", "tree/dog/1.jpg"),
    ("list.txt", 0o000, "list list.txt", "list.txt"),
    ("tree/cat/0.jpg", 0o000, "folder links --follow-links", "links/cat/0.jpg"),
    ("tars/x.tar", 0o000, "webdataset tars", "tars/x.tar"),
    ("zips/x.zip", 0o000, "imagenet zips", "zips/x.zip"),
    ("x.parquet", 0o000, "parquet x.parquet", "x.parquet"),
    ("xml/0.xml", 0o000, "folder tree --boxes xml", "xml/0.xml"),
)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which has two images as a source of every kind."""
    encoded = [("cat", jpeg(24, 20, seed=0)), ("dog", jpeg(24, 20, seed=1))]
    for number, (name, data) in enumerate(encoded):
        for folder in ("tree", "links"):
            (tmp_path / folder / name).mkdir(parents=True)
        (tmp_path / f"tree/{name}/{number}.jpg").write_bytes(data)
        (tmp_path / f"links/{name}/{number}.jpg").symlink_to(tmp_path / f"tree/{name}/{number}.jpg")
    (tmp_path / "xml").mkdir()
    (tmp_path / "xml/0.xml").write_text(whole("cat"))
    (tmp_path / "list.txt").write_text("tree/cat/0.jpg\ntree/dog/1.jpg\n")
    write_tar(tmp_path / "tars/x.tar", [part for name, data in encoded for part in sample(name, data, cls=0)])
    (tmp_path / "zips").mkdir()
    files = {f"ILSVRC/Data/CLS-LOC/train/{name}/0.JPEG": data for name, data in encoded}
    (tmp_path / "zips/x.zip").write_bytes(zip_bytes(files))
    table = {"image": images([(data, None) for _, data in encoded]), "label": ["cat", "dog"]}
    write_table(tmp_path / "x.parquet", table)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_as_user(lines: list[list[str]]) -> tuple[list[int], list[str]]:
    """Run lines (see RUN) without the right to read all files. Return the exit codes and the printed errors."""
    command = [*AS_USER, sys.executable, "-c", RUN, json.dumps(lines)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result
    errors = [line for line in result.stderr.splitlines() if line.startswith(("prep: error: ", "prep: stopped: "))]
    return json.loads(result.stdout.splitlines()[-1]), errors


def with_mode(path: str, mode: int, line: list[str]) -> list[list[str]]:
    """Return lines that change the mode of a path, run `line`, and restore the mode."""
    return [[f"{mode:o}", path], line, [f"{stat.S_IMODE(os.stat(path).st_mode):o}", path]]


def test_unreadable_path_stops_a_plan(sources: Path) -> None:
    lines = []
    for path, mode, source, _ in UNREADABLE:
        kind, src, *flags = source.replace("boxes ", f"boxes {sources}/").split()
        lines += with_mode(path, mode, ["plan", kind, str(sources / src), "out", "--size", "8", *flags])
    codes, errors = run_as_user(lines)
    assert errors == [f"prep: error: {sources / named}: {ADVICE}" for _, _, _, named in UNREADABLE]
    assert codes == [1] * len(UNREADABLE)
    assert not (sources / "out").exists()


def test_path_that_becomes_unreadable_after_the_plan_stops_a_task(sources: Path) -> None:
    """When the permissions are restored, the same command builds a store of all images."""
    kinds = {"folder tree": ("tree/cat", 0o644, "tree/cat/0.jpg"), "webdataset tars": ("tars/x.tar", 0, "tars/x.tar")}
    flags = ["--max-bad", "100%", "--workers", "1"]
    lines = []
    for source, (path, mode, _) in kinds.items():
        kind, src = source.split()
        line = [kind, str(sources / src), kind, "--size", "8"]
        lines += [["plan", *line], *with_mode(path, mode, ["work", kind, *flags]), ["build", *line, *flags]]
    codes, errors = run_as_user(lines)
    assert errors == [f"prep: error: {sources / named}: {ADVICE}" for _, _, named in kinds.values()]
    assert codes == [0, 1, 0] * len(kinds)
    for source in kinds:
        assert len(open_store(source.split()[0])) == 2
