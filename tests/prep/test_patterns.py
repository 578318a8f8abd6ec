"""Finding files by patterns with braces and wildcards, or by folder."""

import os
import re
import shlex
from pathlib import Path

import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.prep.sources.patterns import find_files
from tests.command import assert_fails, prep
from tests.images import make_tree


def test_braces_expand_like_bash(tmp_path: Path) -> None:
    for pattern, names in (
        ("s-{0008..0010}.tar", ["s-0008.tar", "s-0009.tar", "s-0010.tar"]),
        ("{10..1..4}", ["10", "6", "2"]),
        ("a{1,2}{x,y{1..2}}", ["a1x", "a1y1", "a1y2", "a2x", "a2y1", "a2y2"]),
        ("a}b{c,d}{x}{a,b", ["a}bc{x}{a,b", "a}bd{x}{a,b"]),
        ("a\\{1}", ["a\\{1}"]),
    ):
        for name in names:
            (tmp_path / name).touch()
        assert find_files(f"{tmp_path}/{pattern}", (".tar",)) == (tmp_path, names)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for name in ("a-0.tar", "a-1.tar", "b-0.tgz", "b{1,2}.tar", "deep/c-0.tar", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_files_are_found(shards: Path) -> None:
    for pattern, deep, names in (
        ("{b-0.tgz,a-{0..1}.tar}", False, ["b-0.tgz", "a-0.tar", "a-1.tar"]),
        ("*.tar", False, ["a-0.tar", "a-1.tar", "b{1,2}.tar"]),
        ("{b*.tgz,a-*}", False, ["b-0.tgz", "a-0.tar", "a-1.tar"]),
        ("{a-1.tar,a-*}", False, ["a-1.tar", "a-0.tar"]),
        ("b{1,2}.tar", False, ["b{1,2}.tar"]),
        ("", False, ["a-0.tar", "a-1.tar", "b-0.tgz", "b{1,2}.tar"]),
        ("", True, ["a-0.tar", "a-1.tar", "b-0.tgz", "b{1,2}.tar", "deep/c-0.tar"]),
        ("{deep/c-0,a-0}.tar", False, ["deep/c-0.tar", "a-0.tar"]),
        ("notes.txt", False, ["notes.txt"]),
    ):
        assert find_files(f"{shards}/{pattern}", (".tar", ".tgz"), deep=deep) == (shards, names)


def test_pattern_is_a_relative_path_or_a_url_but_no_command(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shards)
    for pattern in ("deep/*", f"file://{shards}/deep/*"):
        assert find_files(pattern, (".tar",)) == (shards / "deep", ["c-0.tar"])
    with pytest.raises(BuildError, match=r"pipe:cat a\.tar: a command cannot be read; pass the URL or the path"):
        find_files("pipe:cat a.tar", (".tar",))


def test_missing_file_is_named(shards: Path) -> None:
    for pattern, message in (
        ("a-{0..9}.tar", r"a-2\.tar: no such file \(8 of the 10 files of .*a-{0\.\.9}\.tar are missing\); expected"),
        ("z*.tar", r"z\*\.tar: no such file; expected \*\.tar or \*\.tgz"),
        ("deep/empty", r"deep/empty: contains no \*\.tar or \*\.tgz; pass the folder that holds them"),
        ("{deep/empty,deep}", r"deep/empty: contains no .*"),
    ):
        (shards / "deep" / "empty").mkdir(exist_ok=True)
        with pytest.raises(BuildError, match=message):
            find_files(f"{shards}/{pattern}", (".tar", ".tgz"))


SPLITS: dict[str, list[str]] = {  # pattern: files below "d" or "-it's [d]"; those of the advised split are last
    "d": ["data/test-00000-of-00001-7f.tar", "data/train-00000-of-00002-9a.tar", "data/train-00001-of-00002-9a.tar"],
    "d/": ["default/train/0000.tar", "default/validation/0000.tar", "default/validation/0001.tar"],
    "d/*": ["zebra.tar", "train.tar", "train2.tar"],
    "d/*.tar": ["Train2017-0.tar", "Val2017-0.tar", "Val2017-1.tar"],
    "d/net-*.tar": ["net-train-0000.tar", "net-validation-00.tar", "net-validation-01.tar"],
    "./-it's [d]": ["test-00000-of-00001.tar", "train-00000-of-00002.tar", "train-00001-of-00002.tar"],
    "d/.": ["en/train-0.tar", "fr/train-0.tar", "fr/test-0.tar", "fr/test-1.tar"],
}


@pytest.mark.parametrize("pattern", SPLITS)
def test_several_splits_of_a_folder_or_wildcard_are_an_error_with_a_pattern_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files, top = SPLITS[pattern], "-it's [d]" if "[" in pattern else "d"
    folders(tmp_path / top, *files)
    with pytest.raises(BuildError, match=rf"^{re.escape(pattern)}: contains several splits \(") as error:
        find_files(pattern, (".tar",), deep=True)
    [one] = shlex.split(str(error.value).partition("such as ")[2].removesuffix(", or all in braces, {A,B}"))
    root, names = find_files(one, (".tar",), deep=True)
    assert [str((root / name).relative_to(tmp_path / top)) for name in names] == files[-2:]
    assert len(find_files(f"{top}/{{{','.join(files)}}}", (".tar",))[1]) == len(files)


def test_no_pattern_is_advised_for_splits_in_several_folders_or_in_one_with_braces(tmp_path: Path) -> None:
    for files in (["en/train-0.tar", "fr/train-0.tar", "other.tar"], ["{a,b}/train-0.tar", "other.tar"]):
        root = folders(tmp_path / str(len(files)), *files)
        with pytest.raises(BuildError, match=r"\(.*\); pass the files of one, or all in braces, {A,B}$"):
            find_files(root, (".tar",), deep=True)


def test_folders_without_names_of_splits_are_accepted(tmp_path: Path) -> None:
    for file in ("train-1/part-1/0000.tar", "train-1/part-2/0000.tar"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    assert len(find_files(str(tmp_path), (".tar",), deep=True)[1]) == 2


# ---- Class folders: splits that were passed as classes are refused


def folders(root: Path, *images: str) -> Path:
    """Make a tree of empty files."""
    for name in images:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_class_folders_that_look_like_splits_are_refused(tmp_path: Path) -> None:
    for number, (images, expected) in enumerate(
        (
            (
                ["train/cat/1.jpg", "train/dog/2.jpg", "train/README", "val/cat/1.jpg"],
                "contains splits instead of classes (train, val): train contains 2 folders (first cat); for train, "
                f"pass '{tmp_path}/a 0/train' as SRC; for val, pass '{tmp_path}/a 0/val' as SRC; if these are classes, "
                "pass --splits-as-classes",
            ),
            (["Test/1.jpg", "Validation/cat/1.jpg"], "splits instead of classes (Test, Validation): Validation"),
            (["train/cat/1.jpg"], "contains splits instead of classes (train): "),
            (["train/a\x1b]0;x/1.jpg", "test/1.jpg"], r"first $'a\x1b]0;x')"),
        )
    ):
        root = folders(tmp_path / f"a {number}", *images)
        with pytest.raises(BuildError, match=re.escape(expected)):
            FolderSource(root)
        classes = FolderSource(root, splits_as_classes=True).listing().classes
        assert len(classes) == len({image.split("/")[0] for image in images})


def test_other_class_folders_are_accepted(tmp_path: Path) -> None:
    for name, *images in (
        ("a", "train/1.jpg", "val/2.jpg"),  # without class folders they cannot be splits
        ("b", "train/steam/1.jpg", "bus/2.jpg", "car/3.jpg"),
        ("c", "cat/indoors/1.jpg", "dog/2.jpg"),
    ):
        assert len(list(FolderSource(folders(tmp_path / name, *images)).scan().entries)) == len(images)
    root = folders(tmp_path / "src", "train/cat/1.jpg", "val/cat/1.jpg")
    assert len(list(FolderSource(root, classes=["val", "train", "test"]).scan().entries)) == 2


def test_link_that_leads_out_is_not_checked_for_splits(tmp_path: Path) -> None:
    folders(tmp_path, "elsewhere/cat/1.jpg", "src/val/1.jpg")
    os.symlink(tmp_path / "elsewhere", tmp_path / "src/train")
    assert len(FolderSource(tmp_path / "src").listing().classes) == 2
    with pytest.raises(BuildError, match="contains splits"):
        FolderSource(tmp_path / "src", follow_links=True)


def test_plan_dry_run_and_build_refuse_splits_unless_flag_says_so(tmp_path: Path) -> None:
    make_tree(tmp_path / "inet", per_class=1)
    make_tree(tmp_path / "inet", per_class=1, split="val")
    meant = f"train contains 3 folders (first n00000000); for train, pass {tmp_path}/inet/train as SRC;"
    for verb, *flags in (["build", "--dry-run"], ["plan"], ["build"]):
        command = (verb, "folder", tmp_path / "inet", tmp_path / "out", "--size", 8, *flags)
        assert_fails(prep(*command), 1, f"{tmp_path}/inet: contains splits", meant)
        assert not (tmp_path / "out").exists()
    assert "6 rows in 2 classes" in prep(*command, "--workers", 1, "--splits-as-classes").stdout
