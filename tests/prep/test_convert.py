"""A converted store equals a built one byte for byte; stores are resized, selected, sorted and merged correctly."""

import os
import shutil
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from decodeonce.build import Selection, make_plan
from decodeonce.errors import BuildError, StoreError
from decodeonce.prep.building.plan import block_rows_for, shuffled
from decodeonce.prep.convert.convert import Conversion, convert, open_conversion, smaller_size
from decodeonce.prep.convert.source import converted_recipe
from decodeonce.prep.recipe import BoxRules, Filter, Recipe
from decodeonce.sources import BoxedSource, FolderSource, open_imagenet
from decodeonce.store import open_store, stage_store, verify_store
from decodeonce.store.table import SAMPLE_COLUMNS, Sample, line, read_rejects, sample_lines
from tests.forms.boxed import xml
from tests.images import jpeg, make_tree, tree_bytes
from tests.prep.building import build_in_process, convert_in_process
from tests.store.signing import flip, replace_file, resign
from tests.stores import make_store, random_images

# A row has 1.2 MB and is a block of its own. A shard of NPY holds two rows, one of HDF5 holds one.
LARGE_ROWS: dict[str, Any] = {"height": 640, "width": 640, "shuffle_seed": 0}
NPY = Conversion(container="npy", shard_size=3 << 20)
HDF5 = Conversion(container="hdf5", shard_size=2 << 20)
ANNOTATION = xml(("thing", (20, 30, 70, 90)), size=(100, 100))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """15 images in 3 classes (one damaged, two unusual) and a broken link."""
    root = make_tree(tmp_path_factory.mktemp("imagenet"))
    (root / "train/n00000000/n00000000_1.JPEG").write_bytes(b"not an image")
    (root / "train/n00000001/n00000001_2.JPEG").write_bytes(jpeg(50, 60, mode="CMYK"))
    (root / "train/n00000001/n00000001_4.JPEG").write_bytes(jpeg(50, 60, mode="L"))
    (root / "train/n00000002/gone.JPEG").symlink_to("nowhere")
    return root


@pytest.fixture(scope="module")
def npy(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of `tree`."""
    out = tmp_path_factory.mktemp("built") / "npy"
    return build_in_process(open_imagenet(tree), out, Recipe(**LARGE_ROWS, shard_size=3 << 20))


@pytest.fixture(scope="module")
def hdf5(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same store in HDF5."""
    out = tmp_path_factory.mktemp("built") / "hdf5"
    return build_in_process(open_imagenet(tree), out, Recipe(**LARGE_ROWS, container="hdf5", shard_size=2 << 20))


def test_conversion_equals_a_build_and_converts_back(npy: Path, hdf5: Path, tmp_path: Path) -> None:
    manifest = convert([npy], tmp_path / "hdf5", HDF5, workers=2)
    assert (manifest.container, manifest.count, len(manifest.shards)) == ("hdf5", 14, 14)
    assert tree_bytes(tmp_path / "hdf5") == tree_bytes(hdf5)
    assert manifest.rows_digest == open_store(npy).manifest.rows_digest
    for stored, conversion in ((tmp_path / "hdf5", NPY), (npy, Conversion())):  # the latter changes nothing
        convert_in_process([stored], tmp_path / f"{stored.name}-npy", conversion)
        assert tree_bytes(tmp_path / f"{stored.name}-npy") == tree_bytes(npy)


@pytest.mark.parametrize("keep", [0, 2])
def test_boxes_are_kept(tree: Path, tmp_path: Path, keep: int) -> None:
    (tmp_path / "xml").mkdir()
    for name in ("n00000000_0", "n00000001_3", "n00000002_1"):
        (tmp_path / f"xml/{name}.xml").write_text(ANNOTATION)
    rules = BoxRules(keep=keep)
    for container in ("npy", "hdf5"):
        recipe = Recipe(height=48, width=64, fit="stretch", boxes=rules, container=container)
        source = BoxedSource(FolderSource(tree / "train"), tmp_path / "xml", rules)
        build_in_process(source, tmp_path / container, recipe)
    convert_in_process([tmp_path / "npy"], tmp_path / "converted", Conversion(container="hdf5"))
    assert tree_bytes(tmp_path / "converted") == tree_bytes(tmp_path / "hdf5")
    convert_in_process([tmp_path / "npy"], tmp_path / "small", Conversion(size=(24, 32)))
    large, small = open_store(tmp_path / "npy"), open_store(tmp_path / "small")
    assert any(sample.box for sample in small.samples) == (not keep)
    if keep:
        np.testing.assert_array_equal(small.columns["boxes"], large.columns["boxes"] / 2)
        np.testing.assert_array_equal(small.columns["box_count"], large.columns["box_count"])
        np.testing.assert_array_equal(small.columns["box_labels"], large.columns["box_labels"])
        assert small.box_classes == large.box_classes == ("thing",)


@pytest.mark.parametrize("filter_", [None, "lanczos"])
def test_smaller_size_resizes_stored_rows_once(tree: Path, tmp_path: Path, filter_: Filter | None) -> None:
    recipe = Recipe(height=30, width=40, filter="bicubic")
    build_in_process(open_imagenet(tree), tmp_path / "store", recipe)
    convert_in_process([tmp_path / "store"], tmp_path / "small", Conversion(size=(15, 20), filter=filter_))
    large, small = open_store(tmp_path / "store"), open_store(tmp_path / "small")
    how = Image.Resampling.LANCZOS if filter_ else Image.Resampling.BICUBIC
    for row, pixels in enumerate(large.images):
        np.testing.assert_array_equal(small.images[row], np.asarray(Image.fromarray(pixels).resize((20, 15), how)))
    recorded = small.manifest.recipe
    assert (recorded["height"], recorded["width"], recorded["resized_from"]) == (15, 20, [30, 40])
    assert (recorded["filter"], recorded["resize_filter"]) == ("bicubic", filter_ or "bicubic")
    assert next(iter(recorded["resized_by"].items())) in recorded["decoders"].items()
    assert small.manifest.source == large.manifest.source
    assert (tmp_path / "small/samples.tsv").read_bytes() == (tmp_path / "store/samples.tsv").read_bytes()
    assert small.manifest.rows_digest == large.manifest.rows_digest
    assert verify_store(tmp_path / "small").ok
    convert_in_process([tmp_path / "small"], tmp_path / "smaller", Conversion(size=(3, 4)))
    again = open_store(tmp_path / "smaller").manifest.recipe
    earlier = {name: value for name, value in recorded.items() if name.startswith("resize")}
    assert (again["height"], again["resized_from"], again["resized_before"]) == (3, [15, 20], earlier)
    convert_in_process([tmp_path / "smaller"], tmp_path / "least", Conversion(selection=Selection(rows=(0, 3))))
    assert open_store(tmp_path / "least").manifest.recipe == {**again, "selected": {"rows": [0, 3]}}


def test_distorting_sizes_and_conflicting_settings_are_refused() -> None:
    for size, message in (
        ((257, 193), "size 257x193 is larger than the rows, 256x192"),
        ((128, 200), "is larger than the rows"),
        ((128, 128), "has another aspect ratio.*use 128x96"),
        ((64, 96), "use 64x48"),
    ):
        with pytest.raises(ValueError, match=message):
            smaller_size((256, 192, 3), size)
    settings: tuple[tuple[dict[str, Any], str], ...] = (
        ({"sort": "size"}, "sort is 'size', expected one of 'class', 'source'"),
        ({"sort": "class", "shuffle_seed": 0}, "cannot be both sorted .by class. and shuffled"),
        ({"filter": "box"}, "filter box has no effect without a size"),
    )
    for options, message in settings:
        with pytest.raises(ValueError, match=message):
            Conversion(**options)


@given(st.integers(1, 600), st.integers(1, 600), st.integers(1, 600))
def test_size_with_same_aspect_ratio_within_a_pixel_is_accepted(height: int, width: int, new_height: int) -> None:
    new_height = min(new_height, height)
    size = (new_height, max(1, round(new_height * width / height)))
    assert smaller_size((height, width, 3), size) == (None if size == (height, width) else list(size))


def small_store(root: Path, names: list[str], *, seed: int = 0, described: bool = True, **more: Any) -> Path:
    """Make a store of 9 rows of 8x6 in three classes with these names."""
    make_store(root, random_images(9, seed=seed), **more)
    classes = [{"name": name, "description": f"{name} of {root.name}" if described else ""} for name in names]
    samples = [
        Sample(row, row % 3, names[row % 3], f"{root.name}/{names[row % 3]}/{8 - row}.jpg", 9, 7, "1,2,3,4", "0" * 16)
        for row in range(9)
    ]
    replace_file(root, "samples.tsv", line(SAMPLE_COLUMNS) + sample_lines(map(astuple, samples)))
    resign(root, lambda facts: facts.update(classes=classes))
    return root


def test_stores_of_the_same_recipe_and_classes_are_merged(tmp_path: Path) -> None:
    weights = np.arange(9, dtype="<f4")
    first = small_store(tmp_path / "a", ["cat", "dog", "eel"], described=False, columns={"weights": weights})
    second = small_store(tmp_path / "b", ["cat", "dog", "eel"], seed=1, container="hdf5", columns={"weights": -weights})
    for store, lines in ((first, b"x.jpg\tgray\tkept\n"), (second, b"a.jpg\tempty file\trejected\n")):
        replace_file(store, "rejects.tsv", b"source\treason\taction\n" + lines)
        resign(store, lambda facts: facts.update(decoder_crashes=2))
    convert([first, second], tmp_path / "merged", workers=2)
    merged, inputs = open_store(tmp_path / "merged"), [open_store(first), open_store(second)]
    found = [(c.name, c.description) for c in merged.classes]
    assert found == [("cat", ""), ("dog", ""), ("eel", "")]
    assert verify_store(tmp_path / "merged").ok
    np.testing.assert_array_equal(merged.images[:], np.concatenate([store.images[:] for store in inputs]))
    assert merged.labels.tolist() == [0, 1, 2] * 6
    sources = [(s.class_name, s.source, s.width, s.height, s.box) for store in inputs for s in store.samples]
    assert [(s.class_name, s.source, s.width, s.height, s.box) for s in merged.samples] == sources
    np.testing.assert_array_equal(merged.columns["weights"], np.concatenate([weights, -weights]))
    assert [reject.source for reject in read_rejects(tmp_path / "merged/rejects.tsv")] == ["a.jpg", "x.jpg"]
    facts = merged.manifest
    assert facts.decoder_crashes == 4
    assert facts.recipe == {"size": [8, 6], "container": "npy", "shard_size": 32 << 30}
    assert facts.source["stores"] == [store.manifest.digest for store in inputs]
    assert facts.source["kind"] == "store"


def make_store_with_box_labels(root: Path, names: list[str] | None, labels: list[list[int]]) -> Path:
    """Make a store whose column `box_labels` has each of these values in three rows."""
    column = np.repeat(np.array(labels, "<i4"), 3, axis=0)
    make_store(root, random_images(len(column)), columns={"box_labels": column})
    if names is not None:
        resign(root, lambda facts: facts.update(box_classes=names))
    return root


def test_box_labels_keep_their_names(tmp_path: Path) -> None:
    names, labels = ["ant", "cat", "eel"], [[2, 1], [0, -1], [-1, -1]]
    stores = [make_store_with_box_labels(tmp_path / name, names, labels) for name in "ab"]
    convert_in_process(stores, tmp_path / "merged", Conversion(selection=Selection(rows=(3, None))))
    merged = open_store(tmp_path / "merged")
    assert merged.box_classes == ("ant", "cat", "eel")
    assert merged.columns["box_labels"][::3].tolist() == [*labels[1:], *labels]
    assert verify_store(tmp_path / "merged").ok


def test_stores_that_differ_are_not_merged(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    first = small_store(tmp_path / "first", names)
    wide = make_store(tmp_path / "wide", random_images(9, shape=(8, 7, 3)))
    weighted = small_store(tmp_path / "weighted", names, columns={"weights": np.zeros(9, "<f4")})
    other = small_store(tmp_path / "other", ["a", "c", "d"])
    filtered = small_store(tmp_path / "filtered", names)
    resign(filtered, lambda facts: facts["recipe"].update(filter="box", map={"function": "f"}))
    named = make_store_with_box_labels(tmp_path / "named", ["cat"], [[0]])
    nameless = make_store_with_box_labels(tmp_path / "nameless", None, [[5]])
    for stores, message in (
        ((first, wide), r"--size is \[8, 7\], the first store says \[8, 6\]; class 0 is class0, "),
        ((first, weighted), r"column weights is <f4\[\], the first store says absent"),
        ((first, other), "class 1 is c, the first store says b; class 2 is d, the first store says c; expected"),
        ((first, filtered), "--filter is box, the first store says absent; --map is "),
        ((named, nameless), "box class 0 is absent, the first store says cat; box labels is nameless, "),
    ):
        with pytest.raises(BuildError, match=f"{stores[1]}: cannot be merged with {stores[0]}: .*{message}"):
            convert(stores, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_order_of_rows_does_not_keep_stores_from_being_merged(tmp_path: Path) -> None:
    stores = [small_store(tmp_path / name, ["a", "b", "c"]) for name in ("shuffled", "stored")]
    resign(stores[0], lambda facts: facts["recipe"].update(shuffle_seed=0))
    convert(stores, tmp_path / "out")
    assert (tmp_path / "out/store.json").exists()


def test_merged_store_has_what_the_recipes_of_its_inputs_share(tmp_path: Path) -> None:
    store, halves = small_store(tmp_path / "a", ["a", "b", "c"]), []
    for rows in ((None, 4), (4, None)):
        halves.append(tmp_path / f"from {rows[0]}")
        convert_in_process([store], halves[-1], Conversion(selection=Selection(rows=rows)))
    convert_in_process(halves, tmp_path / "merged", Conversion())
    merged = open_store(tmp_path / "merged")
    np.testing.assert_array_equal(merged.images[:], open_store(store).images[:])
    recipe = merged.manifest.recipe
    assert recipe == {**open_store(store).manifest.recipe, "container": "npy", "shard_size": recipe["shard_size"]}
    assert merged.manifest.source["stores"] == [open_store(half).manifest.digest for half in halves]
    convert_in_process([tmp_path / "merged", store], tmp_path / "more", Conversion())
    assert open_store(tmp_path / "more").manifest.recipe == recipe


def test_settings_of_other_writers_that_no_build_knows_are_replaced_and_other_keys_kept(tmp_path: Path) -> None:
    store = small_store(tmp_path / "a", ["a", "b", "c"])
    others = {"by": "hand", "decoders": "by hand"}
    resign(store, lambda facts: facts.update(recipe={**others, "shard_size": "large", "filter": ["none"]}))
    convert_in_process([store], tmp_path / "out", HDF5)
    assert others.items() <= open_store(tmp_path / "out").manifest.recipe.items()


def test_recipe_keys_of_other_writers_are_kept() -> None:
    for recipe, expected in (
        ({}, {}),
        ({"decoders": "by hand"}, {"decoders": "by hand"}),
        ({"decoders": {"libhdf5": "0.9"}}, {}),
        ({"decoders": {"jpeg": "6b"}, "mine": [1]}, {"decoders": {"jpeg": "6b"}, "mine": [1]}),
    ):
        settings = {"height": 8, "width": 6, "shard_size": 5, "filter": "box"}
        hdf5, npy = (
            {**settings, "container": container, "decoders": decoders}
            for container, decoders in (("hdf5", {"libhdf5": "2"}), ("npy", {}))
        )
        as_hdf5 = converted_recipe([recipe], (8, 6, 3), hdf5, {})
        assert as_hdf5["decoders"] == "by hand" or as_hdf5["decoders"]["libhdf5"] == "2"
        assert converted_recipe([as_hdf5], (8, 6, 3), npy, {}) == {**expected, "container": "npy", "shard_size": 5}


def test_selection_keeps_all_classes(npy: Path, tmp_path: Path) -> None:
    selection = Selection(classes=("n00000001", "n00000002"), rows=(-10, -1), source="*_[1-4].JPEG")
    convert_in_process([npy], tmp_path / "out", Conversion(selection=selection))
    whole, part = open_store(npy), open_store(tmp_path / "out")
    rows = [s.row for s in list(whole.samples)[-10:-1] if s.label and not s.source.endswith("_0.JPEG")]
    assert 0 < len(rows) == len(part) < 10
    np.testing.assert_array_equal(part.images[:], whole.images[rows])
    assert part.classes == whole.classes
    assert [s.source for s in part.samples] == [whole.samples[row].source for row in rows]
    sources = {s.source for s in part.samples}
    listed = [reject for reject in read_rejects(npy / "rejects.tsv") if reject.source in sources]
    assert list(read_rejects(tmp_path / "out/rejects.tsv")) == listed
    assert {reject.action for reject in listed} == {"kept"}
    found = part.manifest.recipe["selected"]
    assert found == {"classes": ["n00000001", "n00000002"], "rows": [4, 13], "source": "*_[1-4].JPEG"}
    assert part.manifest.source["kind"] == "store"
    assert verify_store(tmp_path / "out").ok


def test_row_range_spans_stores(tmp_path: Path) -> None:
    stores = [small_store(tmp_path / name, ["a", "b", "c"], seed=seed) for seed, name in enumerate("xy")]
    all_rows = [(unit, row) for unit in (0, 1) for row in range(9)]
    for rows in ((None, None), (3, 14), (10, 12), (None, 9), (-9, None)):
        source, _ = open_conversion(stores, tmp_path / "out", Conversion(selection=Selection(rows=rows)))
        assert list(source.selected_rows()) == all_rows[slice(*rows)]
        assert [(entry.unit, entry.place) for entry in source.scan().entries] == all_rows[slice(*rows)]


def test_rows_are_sorted_or_shuffled(tmp_path: Path) -> None:
    stores = [small_store(tmp_path / name, ["a", "b", "c"], seed=seed) for seed, name in enumerate("xw")]
    whole = [sample for store in stores for sample in open_store(store).samples]

    def converted_sources(name: str, conversion: Conversion) -> list[str]:
        convert_in_process(stores, tmp_path / name, conversion)
        return [sample.source for sample in open_store(tmp_path / name).samples]

    by_class = sorted(whole, key=lambda sample: "abc".index(sample.class_name))
    assert converted_sources("class", Conversion(sort="class")) == [sample.source for sample in by_class]
    assert converted_sources("source", Conversion(sort="source")) == sorted(sample.source for sample in whole)
    assert converted_sources("shuffled", Conversion(shuffle_seed=5)) == [whole[row].source for row in shuffled(18, 5)]
    assert open_store(tmp_path / "shuffled").manifest.recipe["selected"] == {"shuffle_seed": 5}
    with pytest.raises(BuildError, match="finished store"):
        convert(stores, tmp_path / "shuffled", Conversion(shuffle_seed=6))


def test_finished_output_of_other_stores_is_not_cleaned_up(tmp_path: Path) -> None:
    stores = [small_store(tmp_path / name, ["a", "b", "c"], seed=seed) for seed, name in enumerate("xyz")]
    convert_in_process(stores[:2], tmp_path / "out", Conversion())
    (tmp_path / "out/.build").mkdir()
    with pytest.raises(BuildError, match="a different finished store"):
        convert(stores[1:], tmp_path / "out")
    convert(stores[:2], tmp_path / "out")
    assert not (tmp_path / "out/.build").exists()


def test_input_without_selected_rows_is_refused(npy: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no row is selected"):
        convert([npy], tmp_path / "out", Conversion(selection=Selection(source="*.png")))
    with pytest.raises(ValueError, match="no class is named 'n00000003'; did you mean n0000000"):
        convert([npy], tmp_path / "out", Conversion(selection=Selection(classes=("n00000003",))))
    stage_store(open_store(npy), tmp_path / "part", rows=range(5))
    with pytest.raises(StoreError, match=r"a staged part.*convert the whole store"):
        convert([tmp_path / "part"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_output_inside_an_input_store_is_refused(npy: Path, tmp_path: Path) -> None:
    other = shutil.copytree(npy, tmp_path / "other")
    (tmp_path / "link").symlink_to(other)
    before = tree_bytes(other)
    for out in (other, other / "inside", tmp_path / "link/inside/deep"):
        with pytest.raises(BuildError, match=r"is the input store .* or inside it"):
            convert([npy, other], out)
    assert tree_bytes(other) == before
    with pytest.raises(BuildError, match=r"different finished store: --format is hdf5, the store says npy"):
        convert([npy], other, Conversion(container="hdf5"))
    assert convert([npy], other) == open_store(npy).manifest  # the copy equals the result of this conversion
    assert tree_bytes(other) == before


def test_conversion_stops_at_damaged_row_and_resumes_after_repair(npy: Path, hdf5: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(npy, tmp_path / "damaged")
    path = damaged / "images-00003.npy"
    flip(path, path.stat().st_size - 5)
    with pytest.raises(StoreError, match=r"damaged: row 7 does not match its checksum; run `prep verify"):
        convert([damaged], tmp_path / "out", HDF5, workers=1)
    with pytest.raises(StoreError, match="unfinished store"):
        open_store(tmp_path / "out")
    flip(path, path.stat().st_size - 5)
    os.rename(damaged, tmp_path / "moved")
    convert([tmp_path / "moved"], tmp_path / "out", HDF5, workers=1)
    assert tree_bytes(tmp_path / "out") == tree_bytes(hdf5)


def test_damaged_small_file_is_found_before_anything_is_written(tmp_path: Path) -> None:
    store = small_store(tmp_path / "a", ["a", "b", "c"], columns={"weights": np.ones(9, "<f4")})
    for name in ("samples.tsv", "checksums.npy", "labels.npy", "rejects.tsv", "weights.npy"):
        flip(store / name, (store / name).stat().st_size - 2)
        with pytest.raises(StoreError, match=name):
            convert([store], tmp_path / "out")
        flip(store / name, (store / name).stat().st_size - 2)
    samples = list(open_store(store).samples)
    for change in ({"label": 1}, {"digest": "sha:1"}):
        changed: list[Sample] = [Sample(**{**vars(s), **change}) if s.row == 3 else s for s in samples]
        replace_file(store, "samples.tsv", line(SAMPLE_COLUMNS) + sample_lines(map(astuple, changed)))
        with pytest.raises(StoreError, match=r"row 3 is invalid, expected label 0, as in labels\.npy, and a digest of"):
            convert([store], tmp_path / "out")
    claims = small_store(tmp_path / "b", ["a", "b", "c"], columns={"w": np.ones((9, 2), "<f4")})
    resign(claims, lambda facts: facts["columns"][0].update(shape=[2**40]))
    with pytest.raises(StoreError, match=rf"w\.npy: not an npy file of dtype <f4 and shape \(9, {2**40}\)"):
        convert([claims], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_store_replaced_after_the_plan_is_refused(tmp_path: Path) -> None:
    store, out = small_store(tmp_path / "a", ["a", "b", "c"]), tmp_path / "out"
    source, recipe = open_conversion([store], out, Conversion())
    plan = make_plan(source, out, recipe)
    shutil.rmtree(store)
    small_store(store, ["a", "b", "c"], seed=1)
    with pytest.raises(BuildError, match="a: the store was replaced"):
        plan.source().listing()
    with pytest.raises(BuildError, match="the source changed since the plan: 9 changed"):
        convert([store], out)


def test_empty_source_names_and_unusual_column_names_are_kept(tmp_path: Path) -> None:
    store = make_store(tmp_path / "a", random_images(9), columns={"Feature-1": np.arange(9, dtype="<i8")})
    samples = [Sample(row, row % 3, "", "", 0, 0, "", "0" * 16) for row in range(9)]
    replace_file(store, "samples.tsv", line(SAMPLE_COLUMNS) + sample_lines(map(astuple, samples)))
    source, recipe = open_conversion([store], tmp_path / "out", Conversion())
    make_plan(source, tmp_path / "out", recipe)
    (tmp_path / "out/Feature-1.npy").write_bytes(b"left by a killed finish")
    convert_in_process([store], tmp_path / "out", Conversion())
    assert verify_store(tmp_path / "out").ok
    np.testing.assert_array_equal(open_store(tmp_path / "out").columns["Feature-1"], np.arange(9))


def test_block_size_equals_that_of_a_build_with_rejects(tmp_path: Path) -> None:
    store = make_store(tmp_path / "a", random_images(9), block_rows=7)
    source, _ = open_conversion([store], tmp_path / "out", Conversion())
    row_bytes = 256 * 256 * 3
    assert (block_rows_for(1535, row_bytes), block_rows_for(1536, row_bytes)) == (5, 6)
    first = source.inputs[0]
    for block_rows, listed, expected in [(6, 0, None), (6, 1, 6), (5, 1, 5), (7, 1, None)]:
        rejects = b"source\treason\taction\n" + b"".join(b"%d.jpg\tx\trejected\n" % k for k in range(listed))
        (store / "rejects.tsv").write_bytes(rejects)
        facts = {**vars(first.manifest), "block_rows": block_rows, "count": 1535, "shape": (256, 256, 3)}
        first.manifest = type(first.manifest)(**facts)
        assert source.block_rows(1535, row_bytes) == expected
        assert source.block_rows(1534, row_bytes) is None
