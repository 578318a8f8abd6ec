"""A repair restores the original bytes, names what it cannot repair, and changes nothing else."""

import fcntl
import os
import random
import shutil
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeonce.build import BoxRules, Conversion, Recipe, Repair, Selection, find_map, repair_store
from decodeonce.errors import BuildError, StoreError
from decodeonce.prep.building import plan as plan_module
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.repair.rows import COPY
from decodeonce.sources import BoxedSource, FolderSource, Source, open_imagenet, open_list, open_webdataset
from decodeonce.store import open_store, stage_store, verify_store
from decodeonce.store.hashing import hexdigest
from decodeonce.store.manifest import DATA_OFFSET, read_manifest
from tests.forms.all_forms import FORMS, PICS
from tests.forms.boxed import xml
from tests.forms.folder import write_folder
from tests.forms.form import Form, Pic
from tests.forms.webdataset import sample, write_tar
from tests.images import exif, jpeg, tree_bytes
from tests.prep.building import build_in_process, convert_in_process
from tests.store.signing import damage_rows, flip, overwrite, replace_file, resign

Bytes = dict[str, bytes]
Stores = dict[str, Path]
# A row has 3 KiB; a block and a shard have four rows.
RECIPE = Recipe(height=32, width=32, shard_size=DATA_OFFSET + 4 * 3072, shuffle_seed=0)
SUFFIX = {"npy": ".npy", "hdf5": ".h5"}


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan_module, "SMALLEST", 1)
        yield


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten images in three classes, and a file that is not an image."""
    root = write_folder(tmp_path_factory.mktemp("source") / "images", PICS)
    (root / PICS[0].wnid / "broken.JPEG").write_bytes(b"not an image")
    return root


@pytest.fixture(scope="module")
def stores(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store of `tree` in each container, with three shards."""
    folder = tmp_path_factory.mktemp("stores")
    return {
        name: build_in_process(FolderSource(tree), folder / name, replace(RECIPE, container=name))
        for name in ("npy", "hdf5")
    }


@pytest.fixture
def store(stores: Stores, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stores["npy"], tmp_path / "some.store"))


@pytest.fixture
def original_bytes(stores: Stores) -> Bytes:
    return tree_bytes(stores["npy"])


def repair_all(store: Path, source: Path | None, rows: int = 0, files: list[str] | None = None) -> Repair:
    """Repair a store and check that `rows` rows and these files were repaired and nothing is left."""
    repair = repair_store(store, source)
    assert repair.unrepaired == []
    assert (repair.repaired_rows, repair.repaired_files) == (rows, sorted(files or []))
    assert repair.ok
    return repair


def unrepaired_sentence(store: Path, source: Path | None) -> str:
    """Repair a store and return the one sentence about what is left."""
    repair = repair_store(store, source)
    assert not repair.ok
    assert len(repair.unrepaired) == 1, repair.unrepaired
    assert "\n" not in repair.unrepaired[0]
    return repair.unrepaired[0]


def source_of(form: Form, source: Source, folder: Path) -> Path:
    """Return the SRC that `prep build` was given."""
    if source.kind == "list" and source.top.parent == source.root:
        return source.top
    return folder if source.kind == "parquet" else source.root


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_rows_and_header_are_repaired_from_every_kind_of_source(form: Form, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    source = form.make(tmp_path / "src", PICS)
    store = build_in_process(source, tmp_path / "out", RECIPE)
    before, images = tree_bytes(store), tree_bytes(tmp_path / "src")
    damage_rows(store, *random.Random(form.name).sample(range(len(PICS)), 3))
    overwrite(store / "images-00001.npy", 3, b"head")
    repair_all(store, source_of(form, source, tmp_path / "src"), 3, ["images-00001.npy"])
    assert tree_bytes(store) == before
    assert tree_bytes(tmp_path / "src") == images


def test_repair_from_a_list_asks_for_the_folder_of_its_paths(tree: Path, tmp_path: Path) -> None:
    names = sorted(str(path.relative_to(tree)) for path in tree.rglob("*.JPEG"))
    (tmp_path / "list.txt").write_text("".join(f"{name}\n" for name in names))
    store = build_in_process(open_list(tmp_path / "list.txt", root=tree), tmp_path / "out", RECIPE)
    damage_rows(store, 1)
    advice = "pass as --from the folder that its paths are relative to, as --root"
    assert advice in unrepaired_sentence(store, tmp_path / "list.txt")
    assert repair_store(store, tree).ok


def test_undamaged_store_is_not_changed(store: Path, tree: Path) -> None:
    replace_file(store, "rejects.tsv", b"source\treason\taction\n")  # signed again, so this is not damage
    before, times = tree_bytes(store), {path: path.stat().st_mtime_ns for path in store.iterdir()}
    (store / ".repair").mkdir()
    (store / ".repair/.labels.npy.1-abc.tmp").write_bytes(b"left by a killed repair")
    assert repair_store(store, tree) == Repair(len(PICS))
    assert {path: path.stat().st_mtime_ns for path in store.iterdir()} == times
    assert tree_bytes(store) == before


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
        {"map": True, "boxes": BoxRules()},
    ],
    ids=str,
)
def test_every_recipe_is_repaired(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if options.get("map"):
        (tmp_path / "rolling_map.py").write_text(MAP)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "rolling_map", raising=False)
        options = {**options, "map": find_map("rolling_map:f")}
    pics = [Pic(f"c{k % 2}", f"p{k}", jpeg(97 + 40 * k, 91 + 11 * k, seed=k, exif=exif(6))) for k in range(4)]
    tree = write_folder(tmp_path / "src", pics)
    (tmp_path / "xml").mkdir()
    rng = random.Random(7)
    for pic in pics:
        drawn = [sorted(rng.sample(range(0, 1000), 2)) + sorted(rng.sample(range(0, 1000), 2)) for _ in range(3)]
        boxes = [(pic.wnid, (x0, y0, x1 + 1, y1 + 1)) for x0, x1, y0, y1 in drawn]
        (tmp_path / f"xml/{pic.stem}.xml").write_text(xml(*boxes, size=(1001, 1001)))
    source: Source = FolderSource(tree)
    recipe = replace(RECIPE, **options)
    if recipe.boxes:
        source = BoxedSource(source, tmp_path / "xml", recipe.boxes)
    store = build_in_process(source, tmp_path / "out", recipe)
    before, count = tree_bytes(store), len(open_store(store))
    damage_rows(store, *range(count))
    repair_all(store, tree, count)
    assert tree_bytes(store) == before


def test_boxes_of_a_scaled_decode_are_repaired(tmp_path: Path) -> None:
    """A store records the edges of boxes in whole pixels of the source, and a scaled pixel covers several of them."""
    tree, rng, rules = write_folder(tmp_path / "src", [Pic("c", "p", jpeg(301, 203))]), random.Random(7), BoxRules()
    drawn = [sorted(rng.sample(range(500), 2)) for _ in range(40)]
    (tmp_path / "xml").mkdir()
    (tmp_path / "xml/p.xml").write_text(xml(*(("c", (x, y, x + 500, y + 500)) for x, y in drawn), size=(1001, 1001)))
    recipe = replace(RECIPE, height=8, width=8, boxes=rules, scaled_decode=True)
    store = build_in_process(BoxedSource(FolderSource(tree), tmp_path / "xml", rules), tmp_path / "out", recipe)
    before = tree_bytes(store)
    damage_rows(store, *range(40))
    repair_all(store, tree, 40)
    assert tree_bytes(store) == before


def test_names_never_lead_out_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "src/c").mkdir(parents=True)
    (tmp_path / "above.jpg").write_bytes(b"above")
    os.mkfifo(tmp_path / "src/pipe.jpg")
    names = [b"../above.jpg", os.fsencode(tmp_path / "above.jpg"), b"pipe.jpg", b"c", b"above.jpg/x", b"no\0name"]
    assert list(FolderSource(tmp_path / "src").find(names)) == []


def test_options_of_another_kind_are_refused(store: Path, tree: Path) -> None:
    damage_rows(store, 1)
    for options in ({"camera": "south"}, {"split": 3}, {"split": ["val"]}):
        resign(store, lambda facts, given=options: facts["source"].update(kind="imagenet", options=given))  # type: ignore[misc]
        with pytest.raises(BuildError, match=f"{tree}: "):
            repair_store(store, tree)


def test_source_is_opened_with_the_options_that_the_store_records(tmp_path: Path) -> None:
    for split, pics in (("train", PICS[:3]), ("val", PICS)):
        write_folder(tmp_path / "src" / split, pics)
    store = build_in_process(open_imagenet(tmp_path / "src", split="val"), tmp_path / "out", RECIPE)
    assert read_manifest(store / "store.json").source["options"] == {"split": "val"}
    damage_rows(store, 1)
    repair_all(store, tmp_path / "src", 1)


def test_damaged_shard_does_not_stop_repair_from_the_others(tmp_path: Path) -> None:
    for number, pics in enumerate((PICS[:4], PICS[4:])):
        write_tar(tmp_path / f"src/{number}.tar", chain(*(sample(p.stem, p.data, txt=p.wnid) for p in pics)))
    store = build_in_process(open_webdataset(f"{tmp_path}/src/{{0..1}}.tar"), tmp_path / "out", RECIPE)
    damage_rows(store, *range(len(PICS)))
    overwrite(tmp_path / "src/0.tar", 0, b"damage")
    repair = repair_store(store, tmp_path / "src")
    assert repair.repaired_rows == len(PICS) - 4
    assert [": 4 " in line or "0.tar: " in line for line in repair.unrepaired] == [True]


# Damaged shards and small files.


@pytest.mark.parametrize("container", ["npy", "hdf5"])
def test_labels_and_headers_are_repaired_without_source(stores: Stores, container: str, tmp_path: Path) -> None:
    store = Path(shutil.copytree(stores[container], tmp_path / "out"))
    shard = f"images-00000{SUFFIX[container]}"
    overwrite(store / shard, 0, bytes(DATA_OFFSET))
    longer = store / f"images-00002{SUFFIX[container]}"
    overwrite(longer, longer.stat().st_size, b"more")
    names = [shard, f"images-00002{SUFFIX[container]}", "labels.npy", "checksums.npy"]
    (store / "labels.npy").unlink()
    overwrite(store / "checksums.npy", 60, b"damaged, in the header and in some checksums" * 3)
    if container == "hdf5":
        os.truncate(store / "store.h5", 99)
        names.append("store.h5")
    repair_all(store, None, 0, names)
    assert tree_bytes(store) == tree_bytes(stores[container])


@pytest.mark.parametrize("size", [None, DATA_OFFSET + 2 * 3072 + 5, 0, DATA_OFFSET])
@pytest.mark.parametrize("container", ["npy", "hdf5"])
def test_short_shard_is_repaired(stores: Stores, tree: Path, container: str, size: int | None, tmp_path: Path) -> None:
    store = Path(shutil.copytree(stores[container], tmp_path / "out"))
    path = store / f"images-00001{SUFFIX[container]}"
    kept = 2 if size and size > DATA_OFFSET else 0
    path.unlink() if size is None else os.truncate(path, size)
    damaged = tree_bytes(store)
    assert repair_store(store, None).unrepaired == [
        f"{path}: incomplete until all its rows are repaired ({4 - kept} rows left)",
        f"{store}: rows {4 + kept}..7: no --from was given; run `prep repair {store} --from SRC`",
    ]
    assert tree_bytes(store) == damaged
    repair_all(store, tree, 4 - kept, [path.name])
    assert tree_bytes(store) == tree_bytes(stores[container])


def test_shard_with_holes_has_no_header_until_it_is_repaired(store: Path, tree: Path, original_bytes: Bytes) -> None:
    os.truncate(store / "images-00000.npy", DATA_OFFSET + 3072)
    lost = image_of(store, tree, 2)
    kept = lost.read_bytes()
    lost.unlink()
    repair = repair_store(store, tree)
    lost.write_bytes(kept)
    assert repair.repaired_rows == 2
    assert len(repair.unrepaired) == 2
    assert repair.unrepaired[0].endswith("images-00000.npy: incomplete until all its rows are repaired (1 row left)")
    assert f"row 2: {lost.relative_to(tree)}: not in {tree}" in repair.unrepaired[1]
    with pytest.raises(StoreError, match="does not begin like an npy file"):
        open_store(store)
    repair_all(store, tree, 1, ["images-00000.npy"])
    assert tree_bytes(store) == original_bytes


def image_of(store: Path, tree: Path, row: int) -> Path:
    """Return the file of the image that a row was made from."""
    return tree / (store / "samples.tsv").read_text().splitlines()[row + 1].split("\t")[3]


@pytest.mark.parametrize("lost", [True, False])
def test_checksums_and_bad_rows_come_from_images(store: Path, tree: Path, original_bytes: Bytes, lost: bool) -> None:
    damage_rows(store, 3, 8)
    if lost:
        (store / "checksums.npy").unlink()
    else:  # of a damaged and of an undamaged row
        flip(store / "checksums.npy", 128 + 8 * 3)
        flip(store / "checksums.npy", 128 + 8 * 7)
    assert "checksums.npy: damaged; restore it from a copy of the store" in repair_store(store).unrepaired[0]
    repair_all(store, tree, 2, ["checksums.npy"])
    assert tree_bytes(store) == original_bytes


def test_rows_with_undamaged_checksums_are_repaired_if_others_cannot_be(store: Path, tmp_path: Path) -> None:
    tree = write_folder(tmp_path / "again", PICS)
    damage_rows(store, 3, 7)
    flip(store / "checksums.npy", 128 + 8 * 7)
    image_of(store, tree, 7).unlink()
    repair = repair_store(store, tree)
    assert (repair.repaired_rows, len(repair.unrepaired)) == (1, 2)
    assert verify_store(store).unknown_rows == [(7, 7)]


@pytest.mark.parametrize(("old", "new"), [(b"\n1\t", b"\n1x\t"), (b"\t", b" "), (b".JPEG\t", b" ")])
def test_rows_are_repaired_if_other_samples_are_damaged(store: Path, tree: Path, old: bytes, new: bytes) -> None:
    content = (store / "samples.tsv").read_bytes()
    (store / "samples.tsv").write_bytes(content.replace(old, new, 1))
    damage_rows(store, 1, 6)
    repair = repair_store(store, tree)
    assert repair.repaired_rows >= 1
    assert repair.unrepaired[0].startswith(f"{store / 'samples.tsv'}: damaged; restore it from a copy of the store")
    assert all("row 1: " in sentence for sentence in repair.unrepaired[1:])
    for rest in (b"", b"row\n", b"row\n0\n"):
        (store / "samples.tsv").write_bytes(rest)
        damage_rows(store, 1, 6)
        sentence = repair_store(store, tree).unrepaired[1]
        assert "row 1, row 6: its line in samples.tsv is damaged; restore it from a copy" in sentence


def test_small_files_are_repaired_from_a_copy(stores: Stores, store: Path, tree: Path, original_bytes: Bytes) -> None:
    names = ["labels.npy", "rejects.tsv", "samples.tsv"]
    for name in names[1:]:
        flip(store / name, (store / name).read_bytes().index(b"JPEG"), 1)
    (store / "labels.npy").unlink()
    for name, sentence in zip(names, repair_store(store, tree).unrepaired, strict=True):
        advice = "damaged; restore it from a copy of the store (or pass the copy as --from)"
        assert sentence.startswith(f"{store / name}: {advice}")
    repair_all(store, stores["npy"], 0, names)
    assert tree_bytes(store) == original_bytes


# What cannot be repaired.


def test_missing_or_changed_image_is_named(store: Path, tmp_path: Path) -> None:
    """Rows with the same reason share a sentence, which names the first image."""
    tree = write_folder(tmp_path / "again", PICS)
    damage_rows(store, 1, 2, 3, 5, 6, 8)
    paths = {row: image_of(store, tree, row) for row in (2, 3, 5, 6, 8)}
    kept = {path: path.read_bytes() for path in paths.values()}
    for row in (3, 5):
        paths[row].write_bytes(jpeg(30, 30, seed=row))
    for row in (2, 6, 8):
        paths[row].unlink()
    repair = repair_store(store, tree)
    assert repair.repaired_rows == 1
    names = {row: path.relative_to(tree) for row, path in paths.items()}
    assert repair.unrepaired[0].startswith(
        f"{store}: row 2, row 6, row 8: {names[2]} and 2 more: not in {tree}; pass what the store was built from"
    )
    assert repair.unrepaired[1].startswith(
        f"{store}: row 3, row 5: {names[3]} and 1 more: changed since the build; pass as --from a source that has"
    )
    for path, data in kept.items():
        path.write_bytes(data)
    repair_all(store, tree, 5)


def test_decoders_that_give_different_pixels_are_named(store: Path, tree: Path) -> None:
    installed = decoder_versions("npy")
    damage_rows(store, 5)
    for decoders, advice in (
        (
            {**installed, "simplejpeg": "1.2.3"},
            f"install simplejpeg 1.2.3, as used by the build (installed: simplejpeg {installed['simplejpeg']})",
        ),
        (installed, COPY),
    ):
        resign(store, lambda facts, found=decoders: facts["recipe"].update(filter="lanczos", decoders=found))  # type: ignore[misc]
        sentence = unrepaired_sentence(store, tree)
        assert "row 5: n0" in sentence
        assert sentence.endswith(f"decodes to different pixels; {advice}")


def test_header_of_another_libhdf5_needs_that_version(stores: Stores, tmp_path: Path) -> None:
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
    message = "its header cannot be rebuilt here; install libhdf5 1.0.0, as used by the build (installed: libhdf5 "
    assert message in unrepaired_sentence(store, None)


def test_folder_is_not_replaced(stores: Stores, store: Path) -> None:
    for path in (store / name for name in ("labels.npy", "checksums.npy", "images-00002.npy")):
        kept = path.rename(store.parent / path.name)
        path.mkdir()
        with pytest.raises(OSError, match=f"Is a directory: '{path}'"):
            repair_store(store, stores["npy"])
        path.rmdir()
        kept.rename(path)
    assert repair_store(store) == Repair(len(PICS))


def test_store_h5_is_not_repaired_without_labels(stores: Stores, tree: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(stores["hdf5"], tmp_path / "damaged"))
    for name in ("samples.tsv", "store.h5"):
        (store / name).unlink()
    os.truncate(store / "labels.npy", 100)
    *_, sentence = repair_store(store, tree).unrepaired
    assert sentence.startswith(f"{store / 'store.h5'}: damaged; restore it")


@pytest.mark.parametrize("name", ["store.json", "stage.json"])
def test_damaged_manifest_is_not_repaired(stores: Stores, tree: Path, tmp_path: Path, name: str) -> None:
    part = tmp_path / "part"
    stage_store(open_store(stores["npy"]), part, rows=range(2, 7))
    flip(part / name, 30)
    before = tree_bytes(part)
    sentence = unrepaired_sentence(part, tree)
    assert sentence.startswith(f"{part / name}: ")
    assert ("restore it from a copy" if name == "store.json" else "stage it again") in sentence
    assert tree_bytes(part) == before


def test_unusable_sources_are_refused(store: Path, tree: Path, tmp_path: Path) -> None:
    damage_rows(store, 1)
    with pytest.raises(BuildError, match="gone: no such file or folder; expected the source that the store"):
        repair_store(store, tmp_path / "gone")
    assert unrepaired_sentence(store, store).endswith(f"also damaged in {store}")
    resign(store, lambda facts: facts["recipe"].update(map={"function": "no_such_map:f", "xxh3": "0" * 16}))
    with pytest.raises(BuildError, match="--map no_such_map:f: No module named 'no_such_map'"):
        repair_store(store, tree)
    resign(store, lambda facts: facts.update(recipe={"by": "hand"}))
    with pytest.raises(BuildError, match="the rows were not written by `prep build`; pass as --from a store that"):
        repair_store(store, tree)


# Converted stores and staged parts.


def test_converted_selection_is_repaired_from_its_store(stores: Stores, tree: Path, tmp_path: Path) -> None:
    selection = Selection(rows=(1, 9))
    store = convert_in_process(
        [stores["npy"]], tmp_path / "out", Conversion(container="hdf5", selection=selection, shuffle_seed=3)
    )
    before = tree_bytes(store)
    for source in (stores["npy"], stores["hdf5"]):
        damage_rows(store, 0, 4, 7)
        repair_all(store, source, 3)
        assert tree_bytes(store) == before
    damage_rows(store, 0)
    with pytest.raises(BuildError, match=r"merged by `prep convert`, .*; pass as --from a store that has them, or rem"):
        repair_store(store, tree)


def test_merged_store_is_repaired_from_one_input(stores: Stores, tmp_path: Path) -> None:
    store = convert_in_process([stores["npy"], stores["hdf5"]], tmp_path / "out", Conversion())
    before, count = tree_bytes(store), 2 * len(PICS)
    damage_rows(store, *range(count))
    repair_all(store, stores["npy"], count)
    assert tree_bytes(store) == before


def test_downscaled_store_is_repaired_only_from_the_larger_store(stores: Stores, tree: Path, tmp_path: Path) -> None:
    store = convert_in_process([stores["npy"]], tmp_path / "out", Conversion(size=(16, 16), filter="lanczos"))
    before = tree_bytes(store)
    damage_rows(store, 0, 9)
    with pytest.raises(BuildError, match="the rows were resized from 32x32; pass as --from a store that has them"):
        repair_store(store, tree)
    other = build_in_process(FolderSource(tree), tmp_path / "other", replace(RECIPE, height=24, width=24))
    with pytest.raises(BuildError, match="rows are 24x24x3, expected 16x16x3 or 32x32; pass a store with such rows"):
        repair_store(store, other)
    repair_all(store, stores["hdf5"], 2)
    assert tree_bytes(store) == before


def test_staged_part_is_repaired_within_its_rows(store: Path, stores: Stores, tree: Path, tmp_path: Path) -> None:
    part, names = tmp_path / "part", ["images-00001.npy", "images-00002.npy"]
    stage_store(open_store(stores["npy"]), part, rows=range(2, 7))
    before = tree_bytes(part)
    for source in (stores["npy"], tree):
        for name in names:  # the second has none of the rows of this part
            (part / name).unlink()
        damage_rows(part, 3)
        repair_all(part, source, 4, names)
        assert tree_bytes(part) == before
        assert (part / names[1]).stat().st_blocks * 512 <= DATA_OFFSET
    damage_rows(store, 3, 8)
    assert f"row 8: {open_store(store).samples[8].source}: not in {part}; " in unrepaired_sentence(store, part)


# Random damage. Kills at any moment are tested in tests/crash.


def damage_randomly(data: st.DataObject, store: Path) -> None:
    """Damage one to three random files in random ways."""
    for _ in range(data.draw(st.integers(1, 3))):
        files = sorted(path for path in store.iterdir() if path.name != "store.json")
        path = data.draw(st.sampled_from(files))
        size = path.stat().st_size
        at = data.draw(st.integers(0, max(0, size - 1)))
        kind = data.draw(st.sampled_from(["flip", "zeros", "cut", "longer", "gone"]))
        if kind == "flip" and size:
            flip(path, at, data.draw(st.integers(0, 7)))
        elif kind == "zeros":
            overwrite(path, at - at % 512, bytes(min(512, max(1, size - at + at % 512))))
        elif kind == "cut":
            os.truncate(path, at)
        elif kind == "longer":
            overwrite(path, size, b"and more")
        elif kind == "gone":
            path.unlink()


@settings(max_examples=20)
@given(data=st.data())
def test_random_damage_is_repaired_or_named(
    data: st.DataObject, stores: Stores, tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What a repair cannot restore, it names, and a copy of the store restores the rest."""
    original, store = stores[data.draw(st.sampled_from(sorted(stores)))], tmp_path_factory.getbasetemp() / "damaged"
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(original, store)
    original_bytes = tree_bytes(original)
    damage_randomly(data, store)
    repair = repair_store(store, tree)
    found = tree_bytes(store)
    assert repair.ok == (found == original_bytes)
    for name in original_bytes:
        if found.get(name) != original_bytes[name] and not name.startswith("images-"):
            assert any(f"{store / name}: " in sentence for sentence in repair.unrepaired)
    report = verify_store(store)
    assert len(repair.unrepaired) >= len(report.bad_files)
    assert not repair.unrepaired or report.bad_files or report.bad_rows
    assert repair_store(store, original).ok
    assert tree_bytes(store) == original_bytes


def test_store_is_locked_while_rows_are_written(store: Path, tree: Path) -> None:
    def check_locked(rows: int) -> None:
        fd = os.open(store / ".repair/lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)

    damage_rows(store, 1, 6)
    assert repair_store(store, tree, progress=check_locked).repaired_rows == 2


def test_rows_are_not_rewritten_if_checksums_are_damaged(store: Path, stores: Stores) -> None:
    names = ["checksums.npy", "rejects.tsv"]
    for more in ([], ["images-00001.npy"]):
        flip(store / "checksums.npy", 128 + 8 * 5)
        flip(store / "rejects.tsv", 3)
        for name in more:
            overwrite(store / name, 0, b"none")
        repair_all(store, stores["npy"], 0, [*names, *more])


def test_open_readers_see_repaired_rows(store: Path, tree: Path, stores: Stores) -> None:
    original = open_store(stores["npy"])
    damage_rows(store, 6)
    flip(store / "checksums.npy", 130)
    reader = open_store(store)
    labels, row = reader.labels, reader.images[6]
    assert not np.array_equal(row, original.images[6])
    repair_all(store, tree, 1, ["checksums.npy"])
    np.testing.assert_array_equal(row, original.images[6])
    np.testing.assert_array_equal(labels, original.labels)
    np.testing.assert_array_equal(reader.images[:], original.images[:])
