"""Class folders: splits that were passed as classes are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.sources import FolderSource
from tests.command import assert_fails, prep
from tests.images import make_tree


def folders(root: Path, *images: str) -> Path:
    """Make a tree of empty files."""
    for name in images:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (
            ["train/cat/1.jpg", "train/dog/2.jpg", "train/README", "val/cat/1.jpg"],
            "contains splits instead of classes (train, val): train contains 2 folders (first cat); run: "
            "prep build folder {}/train OUT; if these are classes, pass --splits-as-classes",
        ),
        (
            ["Test/1.jpg", "Validation/cat/1.jpg"],
            "contains splits instead of classes (Test, Validation): Validation contains 1 folder",
        ),
        (["train/cat/1.jpg"], "contains splits instead of classes (train): "),
        (["train/a\x1b]0;x/1.jpg", "test/1.jpg"], r"first $'a\x1b]0;x')"),
    ],
)
def test_class_folders_that_look_like_splits_are_refused(images: Sequence[str], expected: str, tmp_path: Path) -> None:
    root = folders(tmp_path / "my images", *images)
    expected = expected.format(f"'{root}'").replace(f"'{root}'/train", f"'{root}/train'")
    with pytest.raises(BuildError, match=re.escape(expected)):
        FolderSource(root)
    assert len(FolderSource(root, splits_as_classes=True).classes()) == len({image.split("/")[0] for image in images})


@pytest.mark.parametrize(
    "images",
    [
        ["train/1.jpg", "val/2.jpg"],  # without class folders they cannot be splits
        ["train/steam/1.jpg", "bus/2.jpg", "car/3.jpg"],
        ["cat/indoors/1.jpg", "dog/2.jpg"],
    ],
)
def test_other_class_folders_are_accepted(images: Sequence[str], tmp_path: Path) -> None:
    assert len(list(FolderSource(folders(tmp_path / "src", *images)).entries())) == len(images)


def test_class_list_of_split_names_is_accepted(tmp_path: Path) -> None:
    root = folders(tmp_path / "src", "train/cat/1.jpg", "val/cat/1.jpg")
    assert len(list(FolderSource(root, classes=["val", "train", "test"]).entries())) == 2


def test_link_that_leads_out_is_not_checked_for_splits(tmp_path: Path) -> None:
    folders(tmp_path, "elsewhere/cat/1.jpg", "src/val/1.jpg")
    os.symlink(tmp_path / "elsewhere", tmp_path / "src/train")
    assert len(FolderSource(tmp_path / "src").classes()) == 2
    with pytest.raises(BuildError, match="contains splits"):
        FolderSource(tmp_path / "src", follow_links=True)


def test_plan_dry_run_and_build_refuse_splits_unless_flag_says_so(tmp_path: Path) -> None:
    make_tree(tmp_path / "inet", per_class=1)
    make_tree(tmp_path / "inet", per_class=1, split="val")
    meant = f"train contains 3 folders (first n00000000); run: prep build folder {tmp_path}/inet/train OUT"
    for verb, *flags in (["build", "--dry-run"], ["plan"], ["build"]):
        command = (verb, "folder", tmp_path / "inet", tmp_path / "out", "--size", 8, *flags)
        assert_fails(prep(*command), 1, f"{tmp_path}/inet: contains splits", meant)
        assert not (tmp_path / "out").exists()
    assert "6 rows in 2 classes" in prep(*command, "--workers", 1, "--splits-as-classes").stdout
