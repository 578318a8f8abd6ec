"""Finding files by patterns with braces and wildcards, or by folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.sources.patterns import check_one_split, find_files


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("s-{0008..0010}.tar", ["s-0008.tar", "s-0009.tar", "s-0010.tar"]),
        ("{10..1..4}", ["10", "6", "2"]),
        ("a{1,2}{x,y{1..2}}", ["a1x", "a1y1", "a1y2", "a2x", "a2y1", "a2y2"]),
        ("a}b{c,d}{x}{a,b", ["a}bc{x}{a,b", "a}bd{x}{a,b"]),
        ("a\\{1}", ["a\\{1}"]),
    ],
)
def test_braces_expand_like_bash(tmp_path: Path, pattern: str, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert find_files(f"{tmp_path}/{pattern}", (".tar",)) == (tmp_path, names)


def test_pattern_that_expands_to_too_many_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="the pattern expands to more than 1048576 files; use a narrower one"):
        find_files(f"{tmp_path}/{{0..99999999999}}.tar", (".tar",))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for name in ("a-0.tar", "a-1.tar", "b-0.tgz", "b{1,2}.tar", "deep/c-0.tar", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "deep", "names"),
    [
        ("{b-0.tgz,a-{0..1}.tar}", False, ["b-0.tgz", "a-0.tar", "a-1.tar"]),
        ("*.tar", False, ["a-0.tar", "a-1.tar", "b{1,2}.tar"]),
        ("{b*.tgz,a-*}", False, ["b-0.tgz", "a-0.tar", "a-1.tar"]),
        ("{a-1.tar,a-*}", False, ["a-1.tar", "a-0.tar"]),
        ("b{1,2}.tar", False, ["b{1,2}.tar"]),
        ("", False, ["a-0.tar", "a-1.tar", "b-0.tgz", "b{1,2}.tar"]),
        ("", True, ["a-0.tar", "a-1.tar", "b-0.tgz", "b{1,2}.tar", "deep/c-0.tar"]),
        ("{deep/c-0,a-0}.tar", False, ["deep/c-0.tar", "a-0.tar"]),
        ("notes.txt", False, ["notes.txt"]),
    ],
)
def test_files_are_found(shards: Path, pattern: str, deep: bool, names: list[str]) -> None:
    assert find_files(f"{shards}/{pattern}", (".tar", ".tgz"), deep=deep) == (shards, names)


def test_relative_patterns_start_in_working_directory(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shards)
    assert find_files("deep/*", (".tar",)) == (shards / "deep", ["c-0.tar"])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a-{0..9}.tar", r"a-2\.tar: no such file \(8 of the 10 files of .*a-{0\.\.9}\.tar are missing\); expected"),
        ("z*.tar", r"z\*\.tar: no such file; expected \*\.tar or \*\.tgz"),
        ("deep/empty", r"deep/empty: contains no \*\.tar or \*\.tgz; pass the folder that holds them"),
        ("{deep/empty,deep}", r"deep/empty: contains no .*"),
    ],
)
def test_missing_file_is_named(shards: Path, pattern: str, message: str) -> None:
    (shards / "deep" / "empty").mkdir()
    with pytest.raises(BuildError, match=message):
        find_files(f"{shards}/{pattern}", (".tar", ".tgz"))


def test_command_is_an_error() -> None:
    with pytest.raises(BuildError, match=r"pipe:cat a\.tar: a command cannot be read; pass the URL or the path"):
        find_files("pipe:cat a.tar", (".tar",))


def test_file_url_is_a_path(shards: Path) -> None:
    assert find_files(f"file://{shards}/deep/*", (".tar",)) == (shards / "deep", ["c-0.tar"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["data/test-00000-of-00001-7f.parquet", "data/train-00000-of-00002-9a.parquet"],
            r"/d: contains several splits \(test, train\); pass the files of one, such as '/d/data/train-\*'",
        ),
        (["default/train/0000.parquet", "default/validation/0000.parquet"], "such as '/d/default/validation'"),
        (["train.parquet", "more.parquet"], r"contains several splits \(train, others\)"),
    ],
)
def test_folder_of_several_splits_is_an_error(names: list[str], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        check_one_split(Path("/d"), names)


@pytest.mark.parametrize(
    "names",
    [
        ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
        ["part-1/0000.parquet", "part-2/0000.parquet"],
        ["default/train/0000.parquet", "default/train/0001.parquet"],
    ],
)
def test_folder_of_one_split_is_accepted(names: list[str]) -> None:
    check_one_split(Path("/d"), names)
