"""The commands `prep repair` and `prep verify`."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from decodeonce.prep.recipe import Recipe
from decodeonce.sources import FolderSource
from tests.command import prep, printed
from tests.forms.all_forms import PICS
from tests.forms.boxed import xml
from tests.forms.folder import write_folder
from tests.forms.webdataset import write_tar
from tests.images import encoded, jpeg, tree_bytes
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
    assert second == f"prep: error: {store}: row 0: no --from was given; run `prep repair {store} --from SRC`"


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


BUILDS = {
    "folder": "folder images",
    "boxes": "folder images --boxes boxes",
    "masks": "folder images --paired mask=mask --paired second:rgb=images",
    "masks and boxes": "folder images --paired mask=mask --boxes boxes",
    "list": "list tables/list.csv --root images --label-column kind --column score",
    "list with masks": "list tables/list.csv --root images --label-column kind --paired mask=mask",
    "list of whole paths": "list whole.txt",
    "masks in a tar": "webdataset images.tar --paired mask=mask.png",
}


def write_images(folder: Path) -> None:
    """Write four images with masks and boxes, and a list and a tar of them."""
    for name in ("images", "mask", "boxes", "tables"):
        (folder / name).mkdir()
    members: list[tuple[str, bytes]] = []
    for number in range(4):
        image, mask = jpeg(40, 30, seed=number), encoded(Image.new("L", (40, 30), number), "PNG")
        for path, data in ((f"images/{number}.jpg", image), (f"mask/{number}.png", mask)):
            (folder / path).write_bytes(data)
        (folder / f"boxes/{number}.xml").write_text(xml(("dog", (1, 2, 30, 20)), size=(40, 30)))
        members += [(f"{number}.cls", b"0"), (f"{number}.jpg", image), (f"{number}.mask.png", mask)]
    write_tar(folder / "images.tar", members)
    lines = [f"{number}.jpg,{'ab'[number % 2]},{number}" for number in range(4)]
    (folder / "tables/list.csv").write_text("\n".join(["path,kind,score", *lines]))
    (folder / "whole.txt").write_text("\n".join(f"{folder}/images/{number}.jpg" for number in range(4)))


def follow(store: Path, **words: Path) -> None:
    """Run the command that `prep verify` names, with what its words in capitals stand for."""
    [command] = set(re.findall("`prep (repair [^`]+)`", prep("verify", store).stderr))
    for word, path in words.items():
        command = re.sub(rf"\b{word}\b", str(path), command)
    done = prep(*shlex.split(command))
    assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("kind", BUILDS)
def test_following_the_advice_repairs_a_store(kind: str, tmp_path: Path) -> None:
    write_images(tmp_path)
    words, store = shlex.split(BUILDS[kind]), tmp_path / "a.store"
    words += [] if "--label-column" in words or words[0] == "webdataset" else ["--no-labels"]
    printed("build", words[0], words[1], store, *words[2:], "--size", 16, cwd=tmp_path)
    before, copy = tree_bytes(store), shutil.copytree(store, tmp_path / "copy")
    damage_rows(store, 2)
    places = {"SRC": tmp_path / words[1], "ROOT": tmp_path / "images" if "--root" in words else tmp_path}
    folders = {"mask=DIR": Path(f"mask={tmp_path / 'mask'}"), "second=DIR": Path(f"second={tmp_path / 'images'}")}
    follow(store, **places, **folders)
    assert tree_bytes(store) == before
    for name in ("samples.tsv", "rejects.tsv"):
        overwrite(store / name, 3, b"damage")
        follow(store, COPY=copy)
        assert tree_bytes(store) == before


def test_advice_for_a_store_with_an_odd_name_can_be_pasted(tmp_path: Path) -> None:
    write_images(tmp_path)
    printed("build", "folder", "images", "./-it's a", "--no-labels", "--size", 16, cwd=tmp_path)
    damage_rows(tmp_path / "-it's a", 2)
    [command] = re.findall("`prep (repair .*)`", prep("verify", "./-it's a", cwd=tmp_path).stderr)
    printed(*shlex.split(command.replace("SRC", "images")), cwd=tmp_path)


@pytest.mark.parametrize("flags", [("--size", 8), ("--sort", "source")])
def test_following_the_advice_repairs_a_converted_store(flags: tuple[str, object], tmp_path: Path) -> None:
    write_images(tmp_path)
    built, store = tmp_path / "built", tmp_path / "a.store"
    printed("build", "folder", tmp_path / "images", built, "--no-labels", "--size", 16)
    printed("convert", built, store, *flags)
    before = tree_bytes(store)
    damage_rows(store, 2)
    follow(store, STORE=built)
    assert tree_bytes(store) == before
