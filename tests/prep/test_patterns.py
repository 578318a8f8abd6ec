"""Finding files by patterns with braces and wildcards, or by folder."""

import re
from pathlib import Path

import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.sources.patterns import find_files


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


SPLITS: dict[str, tuple[list[str], str]] = {  # pattern: files, a pattern for one of their splits
    "d": (["data/test-00000-of-00001-7f.tar", "data/train-00000-of-00002-9a.tar"], "d/data/train-*"),
    "d/": (["default/train/0000.tar", "default/validation/0000.tar"], "d/default/validation"),
    "d/*": (["train.tar", "more.tar"], "d/train*"),
    "d/net-*.tar": (["net-train-0000.tar", "net-train-0001.tar", "net-validation-00.tar"], "d/net-validation*"),
}


@pytest.mark.parametrize("pattern", SPLITS)
def test_several_splits_of_a_folder_or_wildcard_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files, one = SPLITS[pattern]
    for file in files:
        (tmp_path / "d" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / file).touch()
    with pytest.raises(
        BuildError, match=rf"^{re.escape(pattern)}: contains several splits \(.*such as .?{re.escape(one)}"
    ):
        find_files(pattern, (".tar",), deep=True)
    assert len(find_files("d/{" + ",".join(files) + "}", (".tar",))[1]) == len(files)


def test_folders_without_names_of_splits_are_accepted(tmp_path: Path) -> None:
    for file in ("train-1/part-1/0000.tar", "train-1/part-2/0000.tar"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    assert len(find_files(str(tmp_path), (".tar",), deep=True)[1]) == 2
