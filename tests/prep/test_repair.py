"""A damaged store gets the very bytes it had, or what cannot be repaired is named; nothing else is touched."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeonce.errors import BuildError, DecodeonceError, StoreError
from decodeonce.prep.build import blocks
from decodeonce.prep.convert.convert import Conversion, open_conversion
from decodeonce.prep.pixels.user_map import find_map
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import BoxRules, Recipe
from decodeonce.prep.repair.images import ImageSearch
from decodeonce.prep.repair.repair import NO_CHECKSUM, Repair, repair_store
from decodeonce.prep.sources import BoxedSource, FolderSource, Source
from decodeonce.store import add_column, disk, open_store, stage_store, verify_store
from decodeonce.store.hashing import hexdigest
from decodeonce.store.hdf5 import virtual_bytes
from decodeonce.store.manifest import DATA_OFFSET, read_manifest
from decodeonce.store.select import Selection
from tests.forms.all_forms import FORMS, PICS
from tests.forms.boxed import XML
from tests.forms.folder import write_folder
from tests.forms.form import Form, Pic
from tests.forms.webdataset import write_tar
from tests.images import jpeg, picture, tree_bytes
from tests.prep.building import build_in_process
from tests.store.signing import replace_file, resign
from tests.stores import make_store, random_images

Bytes = dict[str, bytes]
# Rows of 3 KiB, four a block and a shard.
RECIPE = Recipe(height=32, width=32, shard_size=DATA_OFFSET + 4 * 3072, shuffle_seed=0)
SUFFIX = {"npy": ".npy", "hdf5": ".h5"}


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "SMALLEST", 1)
        yield


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten pictures in three classes, and one that is none."""
    root = write_folder(tmp_path_factory.mktemp("source") / "pictures", PICS)
    (root / PICS[0].wnid / "broken.JPEG").write_bytes(b"no picture")
    return root


@pytest.fixture(scope="module")
def stores(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store of them in either container, three shards each."""
    folder = tmp_path_factory.mktemp("stores")
    return {
        name: build_in_process(FolderSource(tree), folder / name, replace(RECIPE, container=name))
        for name in ("npy", "hdf5")
    }


@pytest.fixture
def store(stores: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(stores["npy"], tmp_path / "some.store"))


@pytest.fixture
def whole(stores: dict[str, Path]) -> Bytes:
    return tree_bytes(stores["npy"])


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def place(store: Path, row: int) -> tuple[Path, int]:
    """The file of a row, and where it begins there."""
    manifest = read_manifest(store / "store.json")
    shard = next(s for s in manifest.shards if s.first_row <= row < s.first_row + s.rows)
    return store / shard.file, shard.data_offset + (row - shard.first_row) * manifest.row_bytes


def damage_rows(store: Path, *rows: int) -> None:
    for row in rows:
        path, offset = place(store, row)
        overwrite(path, offset + 7, b"damage")


def damage_bits(path: Path, offset: int, bit: int = 0) -> None:
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ 1 << bit]))


def repaired(store: Path, source: Path | None, rows: int = 0, files: list[str] | None = None) -> Repair:
    """A repair that has to make all right, by so many rows and these files."""
    repair = repair_store(store, source)
    assert repair.unrepaired == []
    assert (repair.repaired_rows, repair.repaired_files) == (rows, sorted(files or []))
    assert repair.ok
    return repair


def unrepaired(store: Path, source: Path | None) -> str:
    """What a repair says that leaves one thing bad."""
    repair = repair_store(store, source)
    assert not repair.ok
    assert len(repair.unrepaired) == 1, repair.unrepaired
    assert "\n" not in repair.unrepaired[0]
    return repair.unrepaired[0]


def source_of(form: Form, source: Source, folder: Path) -> Path:
    """SRC as `prep build` was given it."""
    beside = source.kind == "list" and source.top.parent == source.root
    return source.top if beside else folder if source.kind == "parquet" else source.root


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_rows_and_a_head_are_made_again_from_every_form_of_source(form: Form, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    source = form.make(tmp_path / "src", PICS)
    store = build_in_process(source, tmp_path / "out", RECIPE)
    before, pictures = tree_bytes(store), tree_bytes(tmp_path / "src")
    damage_rows(store, *random.Random(form.name).sample(range(len(PICS)), 3))
    overwrite(store / "images-00001.npy", 3, b"head")
    repaired(store, source_of(form, source, tmp_path / "src"), 3, ["images-00001.npy"])
    assert tree_bytes(store) == before
    assert tree_bytes(tmp_path / "src") == pictures


def test_a_whole_store_is_left_alone(store: Path, tree: Path, whole: Bytes) -> None:
    times = {path: path.stat().st_mtime_ns for path in store.iterdir()}
    assert repair_store(store, tree) == Repair(len(PICS))
    assert {path: path.stat().st_mtime_ns for path in store.iterdir()} == times
    assert tree_bytes(store) == whole


def test_what_a_killed_repair_left_is_cleared_away(store: Path, tree: Path, whole: Bytes) -> None:
    (store / ".repair").mkdir()
    (store / ".repair/.labels.npy.1-abc.tmp").write_bytes(b"half")
    assert repair_store(store, tree).ok
    assert tree_bytes(store) == whole


MAP = """
import numpy as np
def f(pixels, sample):
    return np.roll(pixels, len(sample.class_name) + sample.label + len(sample.source) + sample.width, 1)
"""


@pytest.mark.parametrize(
    "options",
    [
        {"fit": "pad", "filter": "lanczos", "container": "hdf5"},
        {"exif": "apply", "fit": "stretch"},
        {"scaled_decode": True},
        {"boxes": BoxRules(keep=2)},
        {"boxes": BoxRules(), "exif": "apply"},
        {"boxes": BoxRules(), "scaled_decode": True, "height": 8, "width": 8},
        {"map": True, "boxes": BoxRules()},
    ],
    ids=str,
)
def test_every_row_is_made_again_whatever_the_recipe(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if options.get("map"):
        (tmp_path / "rolling_map.py").write_text(MAP)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "rolling_map", raising=False)
        options = {**options, "map": find_map("rolling_map:f")}
    exif = picture(1, 1).getexif()
    exif[0x0112] = 6
    pics = [Pic(f"c{k % 2}", f"p{k}", jpeg(97 + 40 * k, 91 + 11 * k, seed=k, exif=exif)) for k in range(4)]
    tree = write_folder(tmp_path / "src", pics)
    (tmp_path / "xml").mkdir()
    rng = random.Random(7)
    for pic in pics:
        drawn = [sorted(rng.sample(range(0, 1000), 2)) + sorted(rng.sample(range(0, 1000), 2)) for _ in range(3)]
        boxes = "".join(
            f"<object><name>{pic.wnid}</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1 + 1}</xmax>"
            f"<ymax>{y1 + 1}</ymax></bndbox></object>"
            for x0, x1, y0, y1 in drawn
        )
        size = "<size><width>1001</width><height>1001</height></size>"
        (tmp_path / f"xml/{pic.stem}.xml").write_text(f"<annotation>{size}{boxes}</annotation>")
    source: Source = FolderSource(tree)
    recipe = replace(RECIPE, **options)
    if recipe.boxes:
        source = BoxedSource(source, tmp_path / "xml", recipe.boxes)
    store = build_in_process(source, tmp_path / "out", recipe)
    before, count = tree_bytes(store), len(open_store(store))
    damage_rows(store, *range(count))
    repaired(store, tree, count)
    assert tree_bytes(store) == before


def test_an_archive_is_read_up_to_what_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "many.tar", [(f"{number}.jpg", b"%d" % number * 9) for number in range(300)])
    reads, real = [0], disk.pread

    def counted(*arguments: Any) -> bytes:
        reads[0] += 1
        return real(*arguments)

    monkeypatch.setattr(disk, "pread", counted)
    search = ImageSearch([tmp_path], {b"many.tar/2.jpg", b"many.tar/4.jpg"})
    for name, data in search.find():
        assert data == name[-5:-4] * 9
        search.names.discard(name)
    assert not search.names
    assert reads[0] < 30


def test_a_name_leads_to_nothing_above_the_source(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "above.jpg").write_bytes(b"above")
    os.mkfifo(tmp_path / "src/pipe.jpg")
    names = {b"../above.jpg", b"pipe.jpg", b"src", b"above.jpg/x", b"no\0name"}
    assert list(ImageSearch([tmp_path / "src"], names).find()) == []


# What follows from what is whole.


@pytest.mark.parametrize("container", ["npy", "hdf5"])
def test_what_the_store_itself_tells_needs_no_source(stores: dict[str, Path], container: str, tmp_path: Path) -> None:
    store = Path(shutil.copytree(stores[container], tmp_path / "out"))
    shard = f"images-00000{SUFFIX[container]}"
    overwrite(store / shard, 0, bytes(DATA_OFFSET))
    with open(store / f"images-00002{SUFFIX[container]}", "ab") as file:
        file.write(b"more")
    names = [shard, f"images-00002{SUFFIX[container]}", "labels.npy", "checksums.npy"]
    (store / "labels.npy").unlink()
    overwrite(store / "checksums.npy", 60, b"damaged, in the head and in some rows' places" * 3)
    if container == "hdf5":
        os.truncate(store / "store.h5", 99)
        names.append("store.h5")
    repaired(store, None, 0, names)
    assert tree_bytes(store) == tree_bytes(stores[container])


@pytest.mark.parametrize("how", ["missing", "short", "empty", "no rows"])
@pytest.mark.parametrize("container", ["npy", "hdf5"])
def test_a_shard_that_is_not_all_there_is_made_again(
    stores: dict[str, Path], tree: Path, container: str, how: str, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(stores[container], tmp_path / "out"))
    path = store / f"images-00001{SUFFIX[container]}"
    kept = {"missing": 0, "short": 2, "empty": 0, "no rows": 0}[how]
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, {"short": DATA_OFFSET + 2 * 3072 + 5, "empty": 0, "no rows": DATA_OFFSET}[how])
    hurt = tree_bytes(store)
    assert repair_store(store, None).unrepaired == [
        f"{path}: not repaired until all its rows are ({4 - kept} rows to go)",
        f"{store}: rows {4 + kept}..7: give what the store was built from, or a store that has it, with --from",
    ]
    assert tree_bytes(store) == hurt
    repaired(store, tree, 4 - kept, [path.name])
    assert tree_bytes(store) == tree_bytes(stores[container])


def test_a_shard_with_holes_has_no_head_until_all_its_rows_are_there(store: Path, tree: Path, whole: Bytes) -> None:
    os.truncate(store / "images-00000.npy", DATA_OFFSET + 3072)
    lost = picture_of(store, tree, 2)
    kept = lost.read_bytes()
    lost.unlink()
    repair = repair_store(store, tree)
    lost.write_bytes(kept)
    assert repair.repaired_rows == 2
    assert len(repair.unrepaired) == 2
    assert repair.unrepaired[0].endswith("images-00000.npy: not repaired until all its rows are (1 row to go)")
    assert f"row 2: {lost.relative_to(tree)}: not in {tree}" in repair.unrepaired[1]
    with pytest.raises(StoreError, match="does not begin like an npy file"):
        open_store(store)
    repaired(store, tree, 1, ["images-00000.npy"])
    assert tree_bytes(store) == whole


def picture_of(store: Path, tree: Path, row: int) -> Path:
    """The file of the picture that a row was made of."""
    return tree / (store / "samples.tsv").read_text().splitlines()[row + 1].split("\t")[3]


def test_checksums_that_are_lost_beside_bad_rows_come_from_the_pictures(store: Path, tree: Path, whole: Bytes) -> None:
    (store / "checksums.npy").unlink()
    damage_rows(store, 3, 8)
    assert "checksums.npy: damaged; restore it from a copy of the store" in repair_store(store).unrepaired[0]
    repaired(store, tree, 2, ["checksums.npy"])
    assert tree_bytes(store) == whole


def test_a_row_whose_own_checksum_is_damaged_too(store: Path, tree: Path, whole: Bytes) -> None:
    damage_rows(store, 3, 4)
    damage_bits(store / "checksums.npy", 128 + 8 * 3)
    damage_bits(store / "checksums.npy", 128 + 8 * 7)
    repaired(store, tree, 2, ["checksums.npy"])
    assert tree_bytes(store) == whole


def test_rows_that_agree_with_what_is_left_of_checksums_are_repaired_all_the_same(store: Path, tmp_path: Path) -> None:
    tree = write_folder(tmp_path / "again", PICS)
    damage_rows(store, 3, 7)
    damage_bits(store / "checksums.npy", 128 + 8 * 7)
    picture_of(store, tree, 7).unlink()
    repair = repair_store(store, tree)
    assert (repair.repaired_rows, len(repair.unrepaired)) == (1, 2)
    assert verify_store(store).unknown_rows == [(7, 7)]


@pytest.mark.parametrize("damage", [b"\n1\t", b"\t", b".JPEG\t"], ids=repr)
def test_rows_are_repaired_although_lines_of_samples_are_damaged(store: Path, tree: Path, damage: bytes) -> None:
    content = (store / "samples.tsv").read_bytes()
    damaged = content.replace(b"\n1\t", b"\n1x\t") if damage == b"\n1\t" else content.replace(damage, b" ", 1)
    assert damaged != content
    (store / "samples.tsv").write_bytes(damaged)
    damage_rows(store, 1, 6)
    repair = repair_store(store, tree)
    assert repair.repaired_rows >= 1
    assert repair.unrepaired[0].startswith(f"{store / 'samples.tsv'}: damaged; restore it from a copy of the store")
    assert all("row 1: " in told for told in repair.unrepaired[1:])


@pytest.mark.parametrize("rest", [b"", b"row\n", b"row\n0\n"])
def test_rows_whose_lines_of_samples_are_lost(store: Path, tree: Path, rest: bytes) -> None:
    (store / "samples.tsv").write_bytes(rest)
    damage_rows(store, 1, 6)
    repair = repair_store(store, tree)
    assert "row 1, row 6: its line in samples.tsv is damaged; restore it from a copy" in repair.unrepaired[1]


@pytest.mark.parametrize("name", ["samples.tsv", "rejects.tsv"])
def test_a_small_file_that_nothing_tells_comes_from_a_copy(
    stores: dict[str, Path], store: Path, tree: Path, whole: Bytes, name: str
) -> None:
    content = (store / name).read_bytes()
    damage_bits(store / name, content.index(b"JPEG"), 1)
    damage_rows(store, 1)
    said = unrepaired(store, tree)
    assert said.startswith(f"{store / name}: ")
    assert "restore it from a copy of the store" in said
    repaired(store, stores["npy"], 0, [name])
    assert tree_bytes(store) == whole


@pytest.mark.parametrize("column", ["boxes.npy", "box_labels.npy"])
def test_a_column_that_is_damaged_comes_from_a_copy(tmp_path: Path, column: str) -> None:
    source = BoxedSource(FolderSource(write_folder(tmp_path / "src", PICS)), xml_of(tmp_path), BoxRules(keep=1))
    store = build_in_process(source, tmp_path / "out", replace(RECIPE, boxes=BoxRules(keep=1)))
    copy = Path(shutil.copytree(store, tmp_path / "copy"))
    damage_bits(store / column, 140)
    assert f"{column}: damaged; restore it from a copy of the store" in unrepaired(store, tmp_path / "src")
    repaired(store, copy, 0, [column])
    assert tree_bytes(store) == tree_bytes(copy)


def test_a_damaged_column_of_your_own_is_repaired_by_adding_it_again(store: Path, tree: Path) -> None:
    scores = np.arange(len(open_store(store)), dtype=np.float32)
    add_column(store, "score", scores)
    damage_bits(store / "score.npy", 140)
    command = f"prep column add {store} score FILE.npy"
    assert unrepaired(store, tree).endswith(f", or add the same numbers again: `{command}`")
    add_column(store, "score", scores)
    assert verify_store(store).ok


def xml_of(folder: Path) -> Path:
    (folder / "xml").mkdir()
    for pic in PICS:
        (folder / f"xml/{pic.stem}.xml").write_text(XML.format(pic.wnid))
    return folder / "xml"


# What cannot be repaired is named.


def test_a_picture_that_is_gone_or_another_one(store: Path, tmp_path: Path) -> None:
    tree = write_folder(tmp_path / "again", PICS)
    damage_rows(store, 5)
    path = picture_of(store, tree, 5)
    name, kept = path.relative_to(tree), path.read_bytes()
    path.write_bytes(jpeg(30, 30, seed=99))
    said = unrepaired(store, tree)
    assert said.startswith(f"{store}: row 5: {name}: changed since the build; give a --from that has the old one")
    path.unlink()
    damage_rows(store, 1)
    assert f"row 5: {name}: not in {tree}; give what the store was built from" in unrepaired(store, tree)
    path.write_bytes(kept)
    repaired(store, tree, 1)


def test_rows_that_nobody_gives_pictures_for(store: Path) -> None:
    damage_rows(store, 0, 1, 2, 6)
    said = unrepaired(store, None)
    assert said == f"{store}: rows 0..2, row 6: give what the store was built from, or a store that has it, with --from"


def test_of_many_rows_the_first_are_named(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", random_images(50))
    for row in range(0, 50, 2):
        overwrite(store / "images-00000.npy", DATA_OFFSET + 144 * row, b"damage")
    said = unrepaired(store, None)
    assert said.startswith(f"{store}: row 0, row 2, row 4, ")
    assert "row 38 and 5 more runs of rows: give what the store was built from" in said


def test_decoders_that_give_other_bytes_are_named(store: Path, tree: Path) -> None:
    def other(facts: dict[str, Any]) -> None:
        facts["recipe"]["filter"] = "lanczos"
        facts["recipe"]["decoders"]["simplejpeg"] = "1.2.3"

    resign(store, other)
    damage_rows(store, 5)
    said = unrepaired(store, tree)
    here = decoder_versions("npy")["simplejpeg"]
    assert "row 5: n0" in said
    told = f"decodes to other bytes; install simplejpeg 1.2.3, which made it (here: simplejpeg {here})"
    assert said.endswith(told)
    resign(store, lambda facts: facts["recipe"].update(decoders=decoder_versions("npy")))
    assert "decodes to other bytes; restore it from a copy of the store" in unrepaired(store, tree)


def test_a_head_that_another_libhdf5_wrote(stores: dict[str, Path], tmp_path: Path) -> None:
    store = Path(shutil.copytree(stores["hdf5"], tmp_path / "out"))
    head = (store / "images-00000.h5").read_bytes()[:DATA_OFFSET]
    other = head[:-1] + b"x"
    overwrite(store / "images-00000.h5", 0, other)

    def sign(facts: dict[str, Any]) -> None:
        facts["shards"][0]["meta_xxh3"] = hexdigest(other)
        facts["recipe"]["decoders"]["libhdf5"] = "1.0.0"

    resign(store, sign)
    assert repair_store(store).ok
    overwrite(store / "images-00000.h5", 0, head)
    assert "its first bytes cannot be made here; install libhdf5 1.0.0, which made it (here: libhdf5 " in unrepaired(
        store, None
    )


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_left_to_its_owner(store: Path, tree: Path, kind: str) -> None:
    path = store / "images-00002.npy"
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    for source in (tree, None):
        repair = repair_store(store, source)
        told = f"{path}: a folder, pipe or device, expected a file; remove it and run this again"
        assert repair.unrepaired[0] == told
        assert repair.unrepaired[1].startswith(f"{store}: rows 8..9: ")
    path.unlink() if kind == "pipe" else path.rmdir()
    repaired(store, tree, 2, [path.name])


@pytest.mark.parametrize("bad_shard", [True, False])
def test_a_shard_that_is_a_link_is_not_written(store: Path, tree: Path, tmp_path: Path, bad_shard: bool) -> None:
    (store / "images-00001.npy").rename(tmp_path / "elsewhere.npy")
    (store / "images-00001.npy").symlink_to(tmp_path / "elsewhere.npy")
    damage_rows(store, 2, 5)
    if bad_shard:
        overwrite(tmp_path / "elsewhere.npy", 0, b"head")
    before = (tmp_path / "elsewhere.npy").read_bytes()
    repair = repair_store(store, tree)
    assert repair.repaired_rows == 1
    assert len(repair.unrepaired) == 1 + bad_shard
    assert "decodeonce does not write through links in a store; put the file" in repair.unrepaired[0]
    assert "row 5: " in repair.unrepaired[-1]
    assert (tmp_path / "elsewhere.npy").read_bytes() == before
    (store / "images-00001.npy").unlink()
    (tmp_path / "elsewhere.npy").rename(store / "images-00001.npy")
    repaired(store, tree, 1, ["images-00001.npy"] if bad_shard else [])


@pytest.mark.parametrize("kind", ["folder", "pipe"])
@pytest.mark.parametrize("name", ["labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv"])
def test_what_is_no_small_file_is_left_to_its_owner(
    stores: dict[str, Path], store: Path, tree: Path, name: str, kind: str
) -> None:
    path = store / name
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    for source in (tree, stores["npy"], None):
        told, *rows = repair_store(store, source).unrepaired
        assert told == f"{path}: a folder, pipe or device, expected a file; remove it and run this again"
        assert rows == ([f"{store}: rows 0..9: {NO_CHECKSUM.text}"] if name == "checksums.npy" else [])
        assert not path.is_file()


def test_labels_and_samples_that_are_gone_both(stores: dict[str, Path], store: Path, tree: Path) -> None:
    (store / "labels.npy").unlink()
    (store / "samples.tsv").unlink()
    labels, samples = repair_store(store, tree).unrepaired
    for path, told in ((store / "labels.npy", labels), (store / "samples.tsv", samples)):
        assert told.startswith(f"{path}: damaged; restore it from a copy of the store (one given as --from will do)")
    repaired(store, stores["npy"], 0, ["labels.npy", "samples.tsv"])


def test_store_h5_and_the_labels_that_it_is_made_of(stores: dict[str, Path], tree: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(stores["hdf5"], tmp_path / "hurt"))
    for name in ("samples.tsv", "store.h5"):
        (store / name).unlink()
    os.truncate(store / "labels.npy", 100)
    *_, told = repair_store(store, tree).unrepaired
    assert told.startswith(f"{store / 'store.h5'}: damaged; restore it")


def test_store_h5_of_an_earlier_release_is_repaired_without_class_names(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    store = Path(shutil.copytree(stores["hdf5"], tmp_path / "old"))
    manifest = read_manifest(store / "store.json")
    earlier = virtual_bytes(manifest, labels=open_store(store).labels, with_classes=False)
    assert earlier != (store / "store.h5").read_bytes()
    replace_file(store, "store.h5", earlier)
    os.truncate(store / "store.h5", 99)
    assert repair_store(store).ok
    assert (store / "store.h5").read_bytes() == earlier


def test_reasons_of_a_kind_are_told_in_a_line(store: Path, tmp_path: Path) -> None:
    tree = write_folder(tmp_path / "again", PICS)
    damage_rows(store, 1, 2, 3, 5, 6, 8)
    paths = {row: picture_of(store, tree, row) for row in (2, 3, 5, 6, 8)}
    for row in (3, 5):
        paths[row].write_bytes(jpeg(30, 30, seed=row))
    for row in (2, 6, 8):
        paths[row].unlink()
    repair = repair_store(store, tree)
    assert repair.repaired_rows == 1
    gone, other = repair.unrepaired
    assert gone.startswith(f"{store}: row 2, row 6, row 8: {paths[2].relative_to(tree)} and 2 more: not in {tree}; ")
    assert other.startswith(
        f"{store}: row 3, row 5: {paths[3].relative_to(tree)} and 1 more: changed since the build; "
    )


def test_a_source_without_any_of_the_pictures_changes_nothing(store: Path, tree: Path, tmp_path: Path) -> None:
    (store / "images-00001.npy").unlink()
    damage_rows(store, 1)
    before, first = tree_bytes(store), picture_of(store, tree, 1).relative_to(tree)
    (tmp_path / "wrong/some").mkdir(parents=True)
    other = make_store(tmp_path / "other", random_images(3, shape=(32, 32, 3)))
    for source in (tmp_path / "wrong", other):
        shard, rows = repair_store(store, source).unrepaired
        assert shard.endswith("images-00001.npy: not repaired until all its rows are (4 rows to go)")
        assert rows.startswith(f"{store}: row 1, rows 4..7: {first} and 4 more: not in {source}; give ")
    assert tree_bytes(store) == before


def test_a_second_repair_says_that_it_waits(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    (store / ".repair").mkdir()
    held = os.open(store / ".repair/lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)

    class Freeing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fcntl.flock(held, fcntl.LOCK_UN)

    freeing = Freeing()
    logging.getLogger("decodeonce").addHandler(freeing)
    try:
        assert repair_store(store).ok
        assert repair_store(store).ok
    finally:
        logging.getLogger("decodeonce").removeHandler(freeing)
        os.close(held)
    assert caplog.messages == [f"{store}: waiting for another `prep repair` or `prep column` to finish"]


@pytest.mark.parametrize("name", ["store.json", "stage.json"])
def test_without_a_manifest_nothing_is_known(stores: dict[str, Path], tree: Path, tmp_path: Path, name: str) -> None:
    part = tmp_path / "part"
    stage_store(open_store(stores["npy"]), part, rows=range(2, 7))
    damage_bits(part / name, 30)
    before = tree_bytes(part)
    said = unrepaired(part, tree)
    assert said.startswith(f"{part / name}: ")
    assert ("restore it from a copy" if name == "store.json" else "stage it again") in said
    assert tree_bytes(part) == before


def test_sources_that_are_of_no_use(store: Path, tree: Path, tmp_path: Path) -> None:
    damage_rows(store, 1)
    with pytest.raises(BuildError, match="gone: no such file or folder; expected what the store was built from"):
        repair_store(store, tmp_path / "gone")
    assert f"damaged in {store}, too" in unrepaired(store, store)
    with pytest.raises(StoreError, match="no such folder; expected a store"):
        repair_store(tmp_path / "none", tree)
    resign(store, lambda facts: facts.update(recipe={"by": "hand"}))
    with pytest.raises(BuildError, match="the rows were not written by `prep build`; give as --from a store that"):
        repair_store(store, tree)


def test_a_map_that_is_not_there(store: Path, tree: Path) -> None:
    resign(store, lambda facts: facts["recipe"].update(map={"function": "no_such_map:f", "xxh3": "0" * 16}))
    damage_rows(store, 1)
    with pytest.raises(BuildError, match="--map no_such_map:f: No module named 'no_such_map'"):
        repair_store(store, tree)


# Stores made of stores, and parts.


def converted(stores: list[Path], out: Path, conversion: Conversion) -> Path:
    source, recipe = open_conversion(stores, out, conversion)
    return build_in_process(source, out, recipe)


def test_a_selection_in_another_container_is_repaired_from_pictures_and_from_its_store(
    stores: dict[str, Path], tree: Path, tmp_path: Path
) -> None:
    chosen = Selection(rows=(1, 9))
    store = converted([stores["npy"]], tmp_path / "out", Conversion(container="hdf5", selection=chosen, shuffle_seed=3))
    before = tree_bytes(store)
    for source in (tree, stores["npy"], stores["hdf5"]):
        damage_rows(store, 0, 4, 7)
        repaired(store, source, 3)
        assert tree_bytes(store) == before


def test_joined_stores_are_repaired_from_pictures_and_from_one_of_them(
    stores: dict[str, Path], tree: Path, tmp_path: Path
) -> None:
    padded = build_in_process(FolderSource(tree), tmp_path / "padded", replace(RECIPE, fit="pad"))
    store = converted([stores["npy"], padded], tmp_path / "out", Conversion())
    assert "joined" in open_store(store).manifest.recipe
    before, count = tree_bytes(store), 2 * len(PICS)
    damage_rows(store, *range(count))
    repaired(store, tree, count)
    assert tree_bytes(store) == before
    damage_rows(store, 2, 17)
    repair = repair_store(store, padded)
    assert (repair.repaired_rows, len(repair.unrepaired)) == (1, 1)
    assert "row 2: " in repair.unrepaired[0]
    assert "has other pixels" in repair.unrepaired[0]


def test_a_smaller_store_is_repaired_from_the_larger_one_only(
    stores: dict[str, Path], tree: Path, tmp_path: Path
) -> None:
    store = converted([stores["npy"]], tmp_path / "out", Conversion(size=(16, 16), filter="lanczos"))
    before = tree_bytes(store)
    damage_rows(store, 0, 9)
    with pytest.raises(BuildError, match="the rows were resized from 32x32; give as --from a store that has them"):
        repair_store(store, tree)
    other = build_in_process(FolderSource(tree), tmp_path / "other", replace(RECIPE, height=24, width=24))
    with pytest.raises(BuildError, match="has rows of 24x24x3, expected 16x16x3 or 32x32; give a store of those"):
        repair_store(store, other)
    repaired(store, stores["hdf5"], 2)
    assert tree_bytes(store) == before


def test_a_source_store_that_is_damaged_itself(store: Path, stores: dict[str, Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(stores["npy"], tmp_path / "copy"))
    damage_rows(store, 3, 4)
    damage_rows(copy, 4)
    assert "row 4: " in (told := unrepaired(store, copy))
    assert told.endswith(f"damaged in {copy}, too")
    assert verify_store(store).bad_rows == [(4, 4)]


@pytest.mark.parametrize("from_store", [True, False])
def test_a_staged_part_is_repaired_within_its_rows(
    stores: dict[str, Path], tree: Path, tmp_path: Path, from_store: bool
) -> None:
    part = tmp_path / "part"
    stage_store(open_store(stores["npy"]), part, rows=range(2, 7))
    before = tree_bytes(part)
    (part / "images-00001.npy").unlink()
    (part / "images-00002.npy").unlink()  # which holds none of its rows
    damage_rows(part, 3)
    names = ["images-00001.npy", "images-00002.npy"]
    repaired(part, stores["npy"] if from_store else tree, 4, names)
    assert tree_bytes(part) == before
    assert (part / "images-00002.npy").stat().st_blocks * 512 <= DATA_OFFSET


def test_a_part_gives_only_the_rows_that_it_holds(store: Path, stores: dict[str, Path], tmp_path: Path) -> None:
    part = tmp_path / "part"
    stage_store(open_store(stores["npy"]), part, rows=range(2, 7))
    damage_rows(store, 3, 8)
    assert f"row 8: {open_store(store).samples[8].source}: not in {part}; " in unrepaired(store, part)


# Whatever the damage, and whenever it ends.


def hurt(data: st.DataObject, store: Path) -> None:
    """Damage of every kind at random places."""
    for _ in range(data.draw(st.integers(1, 3))):
        files = sorted(path for path in store.iterdir() if path.name != "store.json")
        path = data.draw(st.sampled_from(files))
        size = path.stat().st_size
        at = data.draw(st.integers(0, max(0, size - 1)))
        kind = data.draw(st.sampled_from(["flip", "zeros", "cut", "longer", "gone"]))
        if kind == "flip" and size:
            damage_bits(path, at, data.draw(st.integers(0, 7)))
        elif kind == "zeros":
            overwrite(path, at - at % 512, bytes(min(512, max(1, size - at + at % 512))))
        elif kind == "cut":
            os.truncate(path, at)
        elif kind == "longer":
            with open(path, "ab") as file:
                file.write(b"and more")
        elif kind == "gone":
            path.unlink()


def check_hurt(data: st.DataObject, stores: dict[str, Path], tree: Path, out: Path) -> None:
    """All is as it was, or what is not is named; from a copy of the store all can be repaired."""
    original = stores[data.draw(st.sampled_from(sorted(stores)))]
    shutil.rmtree(out, ignore_errors=True)
    store, whole = Path(shutil.copytree(original, out)), tree_bytes(original)
    hurt(data, store)
    repair = repair_store(store, tree)
    found = tree_bytes(store)
    assert repair.ok == (found == whole)
    for name in whole:
        if found.get(name) != whole[name] and not name.startswith("images-"):
            assert any(f"{store / name}: " in said for said in repair.unrepaired)
    report = verify_store(store)
    assert len(repair.unrepaired) >= len(report.bad_files)
    assert not repair.unrepaired or report.bad_files or report.bad_rows
    assert repair_store(store, original).ok
    assert tree_bytes(store) == whole


@settings(max_examples=20)
@given(data=st.data())
def test_random_damage_is_repaired_or_named(
    data: st.DataObject, stores: dict[str, Path], tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_hurt(data, stores, tree, tmp_path_factory.getbasetemp() / "hurt.store")


@pytest.mark.long
@settings(max_examples=2000)
@given(data=st.data())
def test_much_random_damage_is_repaired_or_named(
    data: st.DataObject, stores: dict[str, Path], tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_hurt(data, stores, tree, tmp_path_factory.getbasetemp() / "much-hurt.store")


def badly_hurt(stores: dict[str, Path], out: Path) -> Path:
    """A store with something of everything that can be repaired."""
    store = Path(shutil.copytree(stores["hdf5"], out))
    (store / "images-00000.h5").unlink()
    os.truncate(store / "images-00001.h5", DATA_OFFSET + 5000)
    overwrite(store / "images-00002.h5", 0, b"no head")
    damage_rows(store, 9)
    for name in ("labels.npy", "checksums.npy", "store.h5"):
        damage_bits(store / name, 300 if name == "store.h5" else 140)
    return store


def killed_at(call: int, store: Path, tree: Path) -> bool:
    """Repair in a process that is killed at its `call`-th change of a file; returns whether it lived so long."""
    child = os.fork()
    if child == 0:
        left = [call]

        def counting(name: str) -> None:
            real = getattr(disk, name)

            def counted(*arguments: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    if name in ("pwrite", "write"):  # half of it
                        real(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments)

            setattr(disk, name, counted)

        for name in ("write", "pwrite", "ftruncate", "replace", "unlink", "rmdir", "mkdir", "open_file", "fsync"):
            counting(name)
        try:
            os._exit(0 if repair_store(store, tree).ok else 3)
        except BaseException:
            os._exit(4)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def kill_everywhere(stores: dict[str, Path], tree: Path, folder: Path, step: int) -> int:
    """Kill repairs at every `step`-th change of a file, then let one end; returns how many were killed."""
    whole = tree_bytes(stores["hdf5"])
    for killed, call in enumerate(range(1, 1000, step)):
        store = badly_hurt(stores, folder / f"{call}.store")
        if not killed_at(call, store, tree):
            return killed
        with_zeros = [row for first, last in verify_store(store).bad_rows for row in range(first, last + 1)]
        try:
            opened = open_store(store)
        except DecodeonceError:
            pass
        else:  # no shard that was not whole is readable before it is
            assert {*with_zeros} <= {9}
            assert len(opened) == len(PICS)
        assert repair_store(store, tree).ok
        assert tree_bytes(store) == whole
        shutil.rmtree(store)
    raise AssertionError("no repair came to its end")


def test_a_repair_that_is_killed_goes_on(stores: dict[str, Path], tree: Path, tmp_path: Path) -> None:
    assert kill_everywhere(stores, tree, tmp_path, step=9) >= 5


@pytest.mark.long
def test_a_repair_that_is_killed_anywhere_goes_on(stores: dict[str, Path], tree: Path, tmp_path: Path) -> None:
    assert kill_everywhere(stores, tree, tmp_path, step=1) >= 45


def test_rows_are_flushed_and_nobody_else_repairs_meanwhile(
    store: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []

    def logged(name: str) -> None:
        real = getattr(disk, name)

        def log(fd: int, *arguments: Any) -> Any:
            calls.append((name.strip("p"), os.fstat(fd).st_ino))
            return real(fd, *arguments)

        monkeypatch.setattr(disk, name, log)

    for name in ("pwrite", "fsync", "fdatasync"):
        logged(name)

    def locked_out(rows: int) -> None:
        fd = os.open(store / ".repair/lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)

    damage_rows(store, 1, 6)
    assert repair_store(store, tree, progress=locked_out).repaired_rows == 2
    for inode in {place(store, row)[0].stat().st_ino for row in (1, 6)}:
        of_file = [name for name, at in calls if at == inode]
        assert of_file.index("write") < of_file.index("fdatasync")
        assert of_file[-1] != "write"


@pytest.mark.parametrize("head", [True, False])
def test_rows_that_only_their_checksums_made_doubtful_are_left_as_they_are(
    store: Path, stores: dict[str, Path], head: bool
) -> None:
    damage_bits(store / "checksums.npy", 128 + 8 * 5)
    damage_bits(store / "rejects.tsv", 3)
    names = ["checksums.npy", "rejects.tsv"]
    if head:
        overwrite(store / "images-00001.npy", 0, b"none")
        names.append("images-00001.npy")
    repaired(store, stores["npy"], 0, names)


def test_readers_go_on_while_a_store_is_repaired(store: Path, tree: Path, stores: dict[str, Path]) -> None:
    whole = open_store(stores["npy"])
    damage_rows(store, 6)
    damage_bits(store / "checksums.npy", 130)
    reader = open_store(store)
    labels, row = reader.labels, reader.images[6]
    assert not np.array_equal(row, whole.images[6])
    repaired(store, tree, 1, ["checksums.npy"])
    np.testing.assert_array_equal(row, whole.images[6])
    np.testing.assert_array_equal(labels, whole.labels)
    np.testing.assert_array_equal(reader.images[:], whole.images[:])


def test_a_replaced_file_that_is_signed_is_what_counts(store: Path, tree: Path) -> None:
    replace_file(store, "rejects.tsv", b"source\treason\taction\n")
    assert repair_store(store, tree).ok
