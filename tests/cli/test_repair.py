"""The commands `prep repair` and `prep verify`."""

from pathlib import Path

import pytest

from decodeonce.prep.recipe import Recipe
from decodeonce.sources import FolderSource
from tests.command import prep
from tests.forms.all_forms import PICS
from tests.forms.folder import write_folder
from tests.images import tree_bytes
from tests.prep.building import build_in_process
from tests.store.signing import damage_rows, overwrite
from tests.stores import make_store, random_images


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images", PICS)


@pytest.fixture
def store(tree: Path, tmp_path: Path) -> Path:
    return build_in_process(FolderSource(tree), tmp_path / "some.store", Recipe(height=16, width=16))


def test_repair_lists_what_it_repairs_and_what_stays_damaged(store: Path, tree: Path) -> None:
    before = tree_bytes(store)
    result = prep("repair", store)
    assert (result.returncode, result.stdout) == (0, f"{store}: 10 rows intact; nothing to repair\n")
    damage_rows(store, 3)
    overwrite(store / "images-00000.npy", 7, b"damage")
    overwrite(store / "labels.npy", 140, b"damage")
    assert prep("verify", store).returncode == 1
    result = prep("repair", store, "--from", tree)
    expected = f"{store}: repaired 1 row, images-00000.npy, labels.npy; 10 rows intact\n"
    assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")
    assert tree_bytes(store) == before
    overwrite(store / "rejects.tsv", 3, b"damage")
    damage_rows(store, 0)
    result = prep("repair", store)
    assert (result.returncode, result.stdout) == (1, f"{store}: repaired nothing; still damaged\n")
    first, second = result.stderr.splitlines()
    assert first.startswith(f"prep: error: {store / 'rejects.tsv'}: ")
    assert second.startswith(f"prep: error: {store}: row 0: pass as --from what the store was built from")


def test_verify_names_rows_it_cannot_check(store: Path) -> None:
    overwrite(store / "checksums.npy", 128 + 16, b"damage")
    result = prep("verify", store)
    assert result.returncode == 1
    line = f"{store}: row 2: cannot be checked, because checksums.npy is damaged"
    assert result.stderr.splitlines()[1] == f"prep: error: {line}"
    overwrite(store / "store.json", 9, b"damage")
    result = prep("verify", store)
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("; no row was checked\n")


def test_verify_groups_rows_and_names_next_step(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", random_images(50), shard_rows=10)
    damage_rows(store, 8, 9, 10, 11, *range(14, 50, 2))
    result = prep("verify", store)
    rows, advice = result.stderr.splitlines()
    assert result.returncode == 1
    assert rows.startswith(f"prep: error: {store}: rows 8..11, row 14, row 16, ")
    assert rows.endswith(", row 46, row 48: damaged")
    assert advice == f"prep: error: {store}: run `prep repair {store} --from SRC`"
    damage_rows(store, 1, 3, 5)
    rows = prep("verify", store).stderr.splitlines()[0]
    assert rows.endswith(", row 44 and 2 more ranges of rows (prep verify --json lists all): damaged")
