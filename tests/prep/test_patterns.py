"""Finding files by patterns with braces and wildcards, or by folder."""

from __future__ import annotations

import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.errors import BuildError
from decodeonce.prep.sources.formats.patterns import check_one_split, expand_braces, find_files

LITERAL = st.text("ab-./_", max_size=3)
NUMBERS = st.tuples(st.integers(-12, 12), st.integers(-12, 12), st.integers(1, 4), st.booleans())


def numbers_piece(first: int, last: int, step: int, padded: bool) -> tuple[str, list[str]]:
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    form = "{:04d}" if padded else "{}"
    return f"{{{form.format(first)}..{form.format(last)}..{step}}}", list(map(form.format, numbers))


def choice_piece(parts: list[tuple[str, list[str]]]) -> tuple[str, list[str]]:
    return "{" + ",".join(text for text, _ in parts) + "}", [word for _, expansions in parts for word in expansions]


def row(parts: list[tuple[str, list[str]]]) -> tuple[str, list[str]]:
    return "".join(text for text, _ in parts), [
        "".join(one) for one in product(*(expansions for _, expansions in parts))
    ]


PIECES = st.recursive(
    LITERAL.map(lambda text: (text, [text])) | NUMBERS.map(lambda piece: numbers_piece(*piece)),
    lambda inner: st.lists(inner, min_size=2, max_size=3).map(choice_piece) | st.lists(inner, max_size=2).map(row),
    max_leaves=6,
)


@given(PIECES)
def test_pattern_expands_to_its_parts(piece: tuple[str, list[str]]) -> None:
    pattern, expansions = piece
    assert list(expand_braces(pattern)) == expansions


@given(st.text("ab{},.0123456789", max_size=12))
def test_any_text_expands_to_something(text: str) -> None:
    assert list(expand_braces(text))


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_braces_expand_like_bash() -> None:
    patterns = [
        *("a{1,2}b{x,y{1..3}}", "{01..3}", "{a{1,2}}", "{a,b", "{{a,b}", "{10..1..4}", "{-01..2}", "{a,}", "{x}"),
        *("{1..}", "{}{a,b}", "{0..000}", "s-{0000..0147}.tar", "{1..2}{3..4}", "{5..5}", "a}b{c,d}", "{1..3..0}"),
        *("{{1..2},x}", "{,}y"),
    ]
    # bash drops empty words
    run = subprocess.run(["bash", "-c", "printf '%s\\n' " + " ".join(patterns)], capture_output=True, check=True)
    assert run.stdout.decode().split("\n")[:-1] == [word for text in patterns for word in expand_braces(text) if word]


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


@pytest.mark.parametrize("pattern", ["pipe:cat a.tar", "https://host/a-{0..3}.tar", "s3://bucket/a.tar", "hf://d/x"])
def test_urls_and_pipes_are_an_error(pattern: str) -> None:
    with pytest.raises(BuildError, match="only local files can be read; download them"):
        find_files(pattern, (".tar",))


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
