"""`prep column` and `--column`."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from decodeonce.store import open_store
from tests.command import assert_fails, prep, printed, run
from tests.stores import make_store, random_images

COUNT = 9
SCORES = np.arange(COUNT) / 8


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "s", random_images(COUNT))


def test_column_is_added_listed_and_removed(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", SCORES)
    np.save(tmp_path / "ids.npy", np.zeros((COUNT, 7), np.int32))
    shown = printed("column", "add", store, "score", tmp_path / "scores.npy")
    assert shown == f"{store}: column score added: 1 float64 per row, in score.npy\n"
    shown = printed("column", "add", store, "ids", tmp_path / "ids.npy")
    assert shown == f"{store}: column ids added: 7 int32 per row, in ids.npy\n"
    printed("verify", store)
    assert json.loads(printed("info", store, "--json"))["columns"] == ["score", "ids"]
    assert printed("column", "remove", store, "score") == f"{store}: column score removed\n"
    assert [*open_store(store).columns] == ["ids"]
    printed("verify", store)


def test_damaged_column_is_not_repaired_from_source(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", SCORES)
    prep("column", "add", store, "score", tmp_path / "scores.npy")
    copy = shutil.copytree(store, tmp_path / "copy")
    for number in range(2):
        (store / "score.npy").write_bytes(b"x" * (store / "score.npy").stat().st_size)
        advice = [prep(*words, store).stderr.partition("; run ")[2] for words in (["verify"], ["repair"])]
        assert advice[0] == advice[1]
        command = re.findall("`prep (.*?)`", advice[0])[number]
        printed(*command.replace("FILE.npy", str(tmp_path / "scores.npy")).replace("COPY", str(copy)).split())
        printed("verify", store)


def test_command_that_removes_a_column_or_file_of_the_name_works(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", SCORES)
    np.save(tmp_path / "others.npy", -SCORES)
    printed("column", "add", store, "it's a", tmp_path / "scores.npy")
    np.save(store / "file.npy", SCORES)
    for name in ("it's a", "file"):
        words = ("column", "add", store, name, tmp_path / "others.npy")
        command = prep(*words).stderr.partition("remove it first (`")[2].partition("`)")[0]
        if command.startswith("prep "):
            printed(*shlex.split(command)[1:])
        else:
            run(*shlex.split(command))
        printed(*words)
    assert [*open_store(store).columns] == ["it's a", "file"]


def test_error_is_one_line(store: Path, tmp_path: Path) -> None:
    def refused(code: int, expected: str, *words: str) -> None:
        assert_fails(prep("column", *words, cwd=tmp_path), code, expected)

    np.save(tmp_path / "text.npy", np.array(["a"] * COUNT))
    refused(2, "dtype <U1, expected numbers of at most 8 bytes; for text,", "add", "s", "score", "text.npy")
    refused(1, "nowhere.npy: No such file or directory", "add", "s", "score", "nowhere.npy")
    refused(1, "expected an npy file of numbers, as numpy.save writes it", "add", "s", "score", "s/samples.tsv")
    refused(1, "s: no column 'score', expected one of its columns: none", "remove", "s", "score")
