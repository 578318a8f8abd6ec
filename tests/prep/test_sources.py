"""The conformance suite of sources, run on the same images in every form."""

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from decodeonce.build import Recipe, make_plan
from decodeonce.errors import BuildError
from decodeonce.prep.building.plan import checked_listing, read_plan
from decodeonce.prep.sources import SOURCES, open_source
from decodeonce.prep.sources.base import Source
from decodeonce.store import open_store
from decodeonce.store.manifest import WITH_BOXES
from tests.forms.all_forms import FORMS, PICS
from tests.forms.form import Form, Pic
from tests.images import reference_row
from tests.prep.building import build_in_process


@pytest.fixture(params=FORMS, ids=lambda form: form.name)
def form(request: pytest.FixtureRequest) -> Form:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def source(form: Form, tmp_path: Path) -> Source:
    return form.make(tmp_path, PICS)


def expected(form: Form) -> list[Pic]:
    """Return the images in the order in which a source of this form lists them."""
    return sorted(PICS, key=lambda pic: (pic.wnid, os.fsencode(pic.stem))) if form.in_order else PICS


def restored(source: Source) -> Source:
    """Return the source as a worker makes it from the plan."""
    facts = json.loads(json.dumps(source.arguments()))
    return open_source(source.kind, source.root, facts)


def test_every_image_is_listed_once_with_label_and_size(form: Form, source: Source) -> None:
    entries = list(source.scan().entries)
    assert list(source.scan().entries) == entries
    wnids, pics = sorted({pic.wnid for pic in PICS}), expected(form)
    if form.classes_named:
        assert [cls.name for cls in source.listing().classes] == wnids
    assert [entry.problem for entry in entries] == [""] * len(pics)
    assert [wnids[entry.label] for entry in entries] == [pic.wnid for pic in pics]
    assert [entry.size for entry in entries] == [len(pic.data) if form.sizes_known else 0 for pic in pics]
    assert all(form.stem_of(PICS, pic).encode() in entry.name for entry, pic in zip(entries, pics, strict=True))
    assert len({entry.name for entry in entries}) == len(entries)
    first = checked_listing(source)
    assert checked_listing(source).digest_with_times == first.digest_with_times
    plain = [replace(entry, digested=()) for entry in entries]  # for the digest
    assert first.entries(0, len(entries)) == plain


def test_plan_restores_source_read_in_any_order(form: Form, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = list(source.scan().entries)
    assert source.found
    with monkeypatch.context() as patched:
        for name in ("open", "stat", "listdir", "scandir"):  # it needs no access to files
            patched.setattr(os, name, _forbidden)
        from_plan = restored(source)
    for index in [*range(len(entries)), *reversed(range(len(entries)))]:
        assert from_plan.read(entries[index]) == [expected(form)[index].data]


def _forbidden(*args: object, **kwargs: object) -> None:
    raise AssertionError("must not be called")


def test_source_is_listed_once(form: Form, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, recipe, fingerprint = tmp_path / "out", Recipe(height=16, width=16), source.fingerprint()
    plan = make_plan(source, out, recipe)
    assert source.fingerprint() == fingerprint
    if fingerprint is None:
        return
    with monkeypatch.context() as patched:
        patched.setattr(type(source), "scan", _forbidden)
        assert make_plan(source, out, recipe).content == read_plan(plan.paths).content
    with pytest.raises(BuildError, match="planned with a different recipe"):
        make_plan(source, out, Recipe(height=16, width=24))
    written_again = form.make(tmp_path, PICS)  # now with other mtimes
    assert written_again.fingerprint() != fingerprint
    with pytest.raises(BuildError, match="the source changed"):
        make_plan(written_again, out, recipe)


def test_source_that_changes_after_planning_stops_task(source: Source, tmp_path: Path) -> None:
    entry = next(iter(source.scan().entries))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    message = r"changed since the plan|No such file or directory, although it was listed"
    for change in (lambda path: os.utime(path, ns=(1, 1)), lambda path: os.truncate(path, 9), os.unlink):
        for path in files:
            change(path)
        with pytest.raises(BuildError, match=message):
            restored(source).read(entry)


def test_rows_equal_pillow_in_order_of_source(form: Form, source: Source, tmp_path: Path) -> None:
    store = open_store(build_in_process(source, tmp_path / "out", Recipe(height=24, width=20, shuffle_seed=None)))
    wnids = sorted({pic.wnid for pic in PICS})
    for row, pic in enumerate(expected(form)):
        np.testing.assert_array_equal(store.images[row], reference_row(pic.data, 24, 20))
        assert wnids[int(store.labels[row])] == pic.wnid
        assert form.stem_of(PICS, pic) in store.samples[row].source
    assert store.manifest.source["kind"] == source.kind


def test_seed_permutes_samples_or_whole_units(form: Form, source: Source, tmp_path: Path) -> None:
    units = [entry.unit for entry in source.scan().entries]
    plan = make_plan(source, tmp_path / "out", Recipe(height=16, width=16, shuffle_seed=3))
    names = [entry.text for entry in source.scan().entries]
    order = [names.index(plan.samples.entry(row).text) for row in range(plan.count)]
    assert sorted(order) == list(range(len(PICS)))
    if source.unit_name:
        runs = [unit for k, unit in enumerate(units[i] for i in order) if k == 0 or unit != units[order[k - 1]]]
        assert len(runs) == len(set(units))  # the samples of a unit stay together
        assert all(a < b for a, b in pairwise(order) if units[a] == units[b])
        assert source.keeps_order
    else:
        assert order != list(range(len(PICS)))


def test_every_source_has_a_form(tmp_path: Path) -> None:
    kinds = set()
    for form in FORMS:
        (tmp_path / form.name).mkdir()
        kinds.add(form.make(tmp_path / form.name, PICS).kind.removesuffix(WITH_BOXES))
    # Stores yield rows, not encoded images: see test_convert.py. A dataset has no files: see test_dataset.py.
    assert kinds == set(SOURCES) - {"store", "dataset"}
