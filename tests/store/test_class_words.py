"""Classes of ImageNet stores get the words of their wnids, without a change on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from decodeonce.cli.rows import CheckedRows, shown_rows
from decodeonce.store import ImageClass, open_store
from tests.command import prep
from tests.store.signing import resign
from tests.stores import make_store, random_images

NAMES = ("n02110185", "n00000001", "dogs")  # a class of ILSVRC2012, an unknown wnid, another name


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = make_store(tmp_path / "a.store", random_images(10))
    resign(root, lambda facts: facts.update(classes=[{"name": name, "description": ""} for name in NAMES]))
    return root


def test_wnid_gets_words_if_store_has_no_description(store: Path) -> None:
    opened = open_store(store)
    assert opened.classes == tuple(map(ImageClass, NAMES, ("Siberian husky", "", "")))
    assert opened.manifest.to_bytes() == (store / "store.json").read_bytes()


def test_description_in_store_is_kept(store: Path) -> None:
    resign(store, lambda facts: facts["classes"][0].update(description="our best dog"))
    assert open_store(store).classes[0] == ImageClass("n02110185", "our best dog")


def test_commands_show_the_words(store: Path, tmp_path: Path) -> None:
    assert "\tSiberian husky\n" in prep("ls", store).stdout
    assert "largest 4 (n02110185 Siberian husky)" in prep("info", store).stdout
    opened = open_store(store)
    [shown] = shown_rows(opened, [0], CheckedRows(opened))  # as in `prep show`
    assert shown.lines() == ["Siberian husky", "n02110185", "row 0"]
    assert prep("report", store, "--out", tmp_path / "a.html").returncode == 0
    assert "n02110185 Siberian husky" in (tmp_path / "a.html").read_text()
