"""Class folders: warnings about splits that were passed as classes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from decodeonce.prep.sources import FolderSource
from tests.command import prep
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
            "train, val may be splits, not classes: train contains 2 folders (first cat) and no images; if so, run: "
            "prep build folder {}/train OUT",
        ),
        (
            ["Test/1.jpg", "Validation/cat/1.jpg"],
            "Test, Validation may be splits, not classes: Validation contains 1 folder",
        ),
        (["train/n01440764/1.JPEG", "val/1.JPEG"], "; if so, run: prep build imagenet {} OUT"),
        (["train/n01440764/1.JPEG", "train/cat/1.JPEG", "val/1.JPEG"], "run: prep build folder {}/train OUT"),
        (["train/cat/1.jpg"], "train may be splits, not classes: "),
        (["train/a\x1b]0;x/1.jpg", "test/1.jpg"], r"first $'a\x1b]0;x') and no images"),
    ],
)
def test_class_folders_that_look_like_splits_cause_a_warning(
    images: Sequence[str], expected: str, tmp_path: Path
) -> None:
    root = folders(tmp_path / "my images", *images)
    [warning] = FolderSource(root).warnings(len(images))
    assert expected.format(f"'{root}'").replace(f"'{root}'/train", f"'{root}/train'") in warning


@pytest.mark.parametrize(
    "images",
    [
        ["train/1.jpg", "val/2.jpg"],  # without class folders they cannot be splits
        ["train/1.jpg", "train/more/2.jpg", "val/3.jpg"],
        ["train/steam/1.jpg", "bus/2.jpg", "car/3.jpg"],
        ["cat/indoors/1.jpg", "dog/2.jpg"],
    ],
)
def test_other_class_folders_cause_no_warning(images: Sequence[str], tmp_path: Path) -> None:
    assert FolderSource(folders(tmp_path / "src", *images)).warnings(len(images)) == []


def test_class_list_of_split_names_causes_no_warning(tmp_path: Path) -> None:
    root = folders(tmp_path / "src", "train/cat/1.jpg", "val/cat/1.jpg")
    assert FolderSource(root, classes=["val", "train", "test"]).warnings(2) == []


def test_link_that_leads_out_is_not_checked_for_splits(tmp_path: Path) -> None:
    folders(tmp_path, "elsewhere/cat/1.jpg", "src/val/1.jpg")
    os.symlink(tmp_path / "elsewhere", tmp_path / "src/train")
    assert FolderSource(tmp_path / "src").warnings(1) == []
    assert FolderSource(tmp_path / "src", follow_links=True).warnings(1) != []


def test_plan_dry_run_and_build_warn_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_tree(tmp_path / "inet", per_class=1)
    make_tree(tmp_path / "inet", per_class=1, split="val")
    warning = (
        f"{tmp_path}/inet: train, val may be splits, not classes: train contains 3 folders (first n00000000) and "
        f"no images; if so, run: prep build imagenet {tmp_path}/inet OUT"
    )
    for command in (["build", "--dry-run"], ["plan"], ["build"]):
        caplog.clear()
        verb, *flags = command
        result = prep(verb, "folder", tmp_path / "inet", tmp_path / "out", "--size", 8, "--workers", 1, *flags)
        assert result.returncode == 0
        assert caplog.messages == [warning]
    assert re.search("6 rows written", result.stdout)  # the build continues, because this may be intended
