"""`prep column` and `--column`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from decodeonce.store import open_store
from tests.command import assert_fails, prep
from tests.forms.parquet import images as parquet_images
from tests.forms.parquet import write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg
from tests.stores import make_store, random_images

COUNT = 9
SCORES = np.arange(COUNT) / 8


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "s", random_images(COUNT))


def test_column_is_added_listed_and_removed(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", SCORES)
    np.save(tmp_path / "ids.npy", np.zeros((COUNT, 7), np.int32))
    done = prep("column", "add", store, "score", tmp_path / "scores.npy")
    assert (done.returncode, done.stdout) == (0, f"{store}: column score added: 1 float64 per row, in score.npy\n")
    done = prep("column", "add", store, "ids", tmp_path / "ids.npy")
    assert done.stdout == f"{store}: column ids added: 7 int32 per row, in ids.npy\n"
    assert prep("verify", store).returncode == 0
    assert json.loads(prep("info", store, "--json").stdout)["columns"] == ["score", "ids"]
    done = prep("column", "remove", store, "score")
    assert (done.returncode, done.stdout) == (0, f"{store}: column score removed\n")
    assert [*open_store(store).columns] == ["ids"]
    assert prep("verify", store).returncode == 0


def test_damaged_column_is_not_repaired_from_source(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", SCORES)
    prep("column", "add", store, "score", tmp_path / "scores.npy")
    (store / "score.npy").write_bytes(b"x" * (store / "score.npy").stat().st_size)
    add = f"or add its numbers again: `prep column add {store} score FILE.npy`\n"
    assert prep("verify", store).stderr.endswith(f"; restore it from a copy of the store, {add}")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["add", "s", "labels", "scores.npy"], 2, "column name 'labels': a build writes box_count,"),
        (["add", "s", "score", "short.npy"], 2, "values of shape (8,), expected one entry for each of the 9 rows of s"),
        (["add", "s", "score", "text.npy"], 2, "dtype <U1, expected numbers of at most 8 bytes; for text,"),
        (["add", "s", "score", "nowhere.npy"], 1, "nowhere.npy: No such file or directory"),
        (["add", "s", "score", "s/samples.tsv"], 1, "expected an npy file of numbers, as numpy.save writes it"),
        (["add", "nowhere", "score", "scores.npy"], 1, "nowhere: no such folder; expected a store"),
        (["remove", "s", "score"], 1, "s: no column 'score', expected one of its columns: none"),
    ],
)
def test_error_is_one_line(arguments: list[str], code: int, expected: str, store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", SCORES)
    np.save(tmp_path / "short.npy", SCORES[1:])
    np.save(tmp_path / "text.npy", np.array(["a"] * COUNT))
    done = prep("column", *arguments, cwd=tmp_path)
    assert_fails(done, code, expected)


def write_sources(root: Path) -> dict[str, Path]:
    """Write four images, each with a score and token ids, as a list, a tar and a table."""
    data, values = [jpeg(40, 40, seed=seed) for seed in range(4)], [(k / 4, [k, k + 1]) for k in range(4)]
    for number, image in enumerate(data):
        (root / f"{number}.jpg").write_bytes(image)
    lines = [f"{number}.jpg\t0\t{score}\t{ids}\n" for number, (score, ids) in enumerate(values)]
    (root / "train.tsv").write_text("".join(["path\tlabel\tscore\tids\n", *lines]))
    facts = [{"score": score, "ids": ids} for score, ids in values]
    parts = [sample(f"{number}", data[number], cls=0, json=fact) for number, fact in enumerate(facts)]
    write_tar(root / "train.tar", [file for part in parts for file in part])
    columns = {
        "image": parquet_images([(image, f"{number}.jpg") for number, image in enumerate(data)]),
        "label": pa.array([0] * 4),
        "score": pa.array([score for score, _ in values]),
        "ids": pa.array([ids for _, ids in values]),
    }
    write_table(root / "train.parquet", columns)
    return {"list": root / "train.tsv", "webdataset": root / "train.tar", "parquet": root / "train.parquet"}


def test_build_keeps_named_columns(tmp_path: Path) -> None:
    for kind, source in write_sources(tmp_path).items():
        out, flags = tmp_path / kind, ("--size", "16", "--column", "score", "--column", "ids", "--workers", "1")
        done = prep("build", kind, source, out, *flags)
        assert done.returncode == 0, done.stderr
        opened = open_store(out)
        for row, line in enumerate(opened.samples):
            number = int(Path(line.source).stem)
            kept = (opened.columns["score"][row], opened.columns["ids"][row].tolist())
            assert kept == (number / 4, [number, number + 1])
        assert prep("build", kind, source, out, *flags).stdout.endswith("already finished, nothing to do\n")
        other = prep("build", kind, source, out, "--size", "16", "--column", "ids")
        assert other.returncode == 1
        assert "--column is ['ids'], the store says ['score', 'ids']" in other.stderr
