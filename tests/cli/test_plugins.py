"""Packages that add sources: the example for LMDB, and broken ones."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from decodeonce.build import Recipe, repair_store
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.store import open_store
from tests.command import assert_fails, prep, prep_process
from tests.forms.all_forms import PICS, WNIDS
from tests.forms.folder import write_folder
from tests.images import make_tree, tree_bytes
from tests.packages import NOT_DEV
from tests.plugins import example_installed, installed, write_package
from tests.prep.building import build_in_process
from tests.store.signing import damage_rows

RECIPE = Recipe(height=24, width=20)
FLAGS = ("--size", "24x20", "--shuffle-seed", "none")
CLASHING = """
from typing import Annotated
from decodeonce.prep.sources import Registered
REGISTERED = Registered("clashing:S", "clashing:open_it")
def open_it(src, *, size: Annotated[str, 'Clashes with --size.'] = '', classes=None, follow_links=False): ...
"""
MISSING = "from decodeonce.prep.sources import Registered as R\nREGISTERED = R('missing:S', 'missing:open_it')"
OLD = """
from decodeonce.sources import Registered, Source
REGISTERED = Registered("old:OldSource", "old:open_old")
class OldSource(Source):
    def entries(self): ...
"""
BROKEN = {
    "old": (
        OLD,
        'TypeError: OldSource is a source for an earlier decodeonce: it has "entries"; docs/contribute/sources.md says '
        "what replaces it",
    ),
    "raising": ("raise RuntimeError('this package is old')", "RuntimeError: this package is old"),
    "exiting": ("raise SystemExit(3)", "SystemExit: 3"),
    "missing": (MISSING, "AttributeError: module 'missing' has no attribute 'open_it'"),
    "clashing": (CLASHING, "ValueError: duplicate parameter name: 'size'"),
}


def test_broken_package_breaks_only_its_command(tmp_path: Path) -> None:
    for name, (code, _) in BROKEN.items():
        write_package(tmp_path / "packages", name, {name: f"{name}:REGISTERED"}, code)
    write_package(tmp_path / "packages", "thief", {"folder": "thief:REGISTERED"}, "raise RuntimeError('used')")
    with installed(tmp_path / "packages"):
        listed = prep("build", "--help", COLUMNS="9999")
        assert (listed.returncode, "imagenet" in listed.stdout) == (0, True)
        for name, (_, problem) in BROKEN.items():
            sentence = f"the package {name}, which adds this kind of source, cannot be used: {problem}; update or"
            assert_fails(prep("build", name, "SRC", tmp_path / "out", "--size", 8), 1, f"{name}: {sentence}")
            assert f"Added by the package {name}." in listed.stdout
        tree = make_tree(tmp_path / "src", classes=2, per_class=2)
        built = prep("build", "folder", tree / "train", tmp_path / "out", "--size", 8)  # not by the package `thief`
        assert "4 rows in 2 classes" in built.stdout, built


def test_package_that_ends_its_process_affects_only_its_kind(tmp_path: Path) -> None:
    write_package(tmp_path, "leaving", {"leaving": "leaving:REGISTERED"}, "import os\nos._exit(0)")
    listed = prep_process(
        "build", "--help", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", COLUMNS="9999"
    )
    assert (listed.returncode, "Added by the package leaving." in listed.stdout) == (0, True), listed
    used = prep_process("build", "leaving", "SRC", "OUT", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    expected = "the process that runs leaving:REGISTERED ended early (exit status 0); find out why in Python:"
    assert_fails(used, 1, expected)


def test_kind_of_two_packages_is_refused(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_package(tmp_path / "packages", name, {"twice": f"{name}:REGISTERED"}, "raise RuntimeError('used')")
    with installed(tmp_path / "packages"):
        failed = prep("build", "twice", "SRC", tmp_path / "out", "--size", 8)
    assert failed.returncode == 1
    assert "several packages add this kind: first (first:REGISTERED), second (second:REGISTERED)" in failed.stderr


def write_databases(root: Path) -> list[bytes]:
    """Write the images as LSUN has them; return the images in the order of the source."""
    lmdb = pytest.importorskip("lmdb", reason=NOT_DEV.format("lmdb"))
    images: list[bytes] = []
    for wnid in WNIDS:
        (root / f"{wnid}_train_lmdb").mkdir(parents=True)
        with (
            lmdb.open(str(root / f"{wnid}_train_lmdb"), map_size=1 << 24) as database,
            database.begin(write=True) as table,
        ):
            by_key = {hashlib.sha1(pic.data).hexdigest().encode(): pic.data for pic in PICS if pic.wnid == wnid}
            for key, data in by_key.items():
                table.put(key, data)
            images += [by_key[key] for key in sorted(by_key)]
    return images


def test_example_package_reads_lmdb(tmp_path: Path) -> None:
    src, out = tmp_path / "lsun", tmp_path / "out"
    images = write_databases(src)
    with example_installed(tmp_path / "packages"):
        assert "Added by the package" in prep("build", "--help", COLUMNS="9999").stdout
        described = prep("plan", "lmdb", "--help", COLUMNS="9999").stdout
        assert "Read LMDB databases of images, one per class." in described
        assert "--split" in described
        built = prep("build", "lmdb", src, out, *FLAGS)
        assert "10 rows in" in built.stdout, built
        store = open_store(out)
        photos = [pic._replace(stem=f"{images.index(pic.data):02}") for pic in PICS]
        wanted = build_in_process(FolderSource(write_folder(tmp_path / "photos", photos)), tmp_path / "folder", RECIPE)
        np.testing.assert_array_equal(store.images[:], open_store(wanted).images[:])
        np.testing.assert_array_equal(store.labels, open_store(wanted).labels)
        before = tree_bytes(out)
        damage_rows(out, 0, 9)
        assert repair_store(out, src).repaired_rows == 2
        assert tree_bytes(out) == before
        assert "already finished" in prep("build", "lmdb", src, out, *FLAGS).stdout
        prep("plan", "lmdb", src, tmp_path / "planned", *FLAGS)
        (src / f"{WNIDS[1]}_train_lmdb" / "data.mdb").touch()
        changed = prep("work", tmp_path / "planned")
        assert (changed.returncode, "data.mdb: changed since the plan was made" in changed.stderr) == (1, True), changed
    damage_rows(out, 0)
    missing = prep("repair", out, "--from", src)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no package adds the kind of source 'lmdb'; install the one that was used for the build" in missing.stderr
