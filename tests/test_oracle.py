"""The tool that compares the stores of two commits: equal trees have equal results, and it finds a changed byte."""

import json
import re
from pathlib import Path

import pytest

from tests import oracle
from tests.store.signing import flip


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("OUT/a.npy", b"abcd", b"abxd", ["OUT/a.npy: 4 and 4 bytes, which differ from byte 2 on"]),
        ("OUT/a.npy", b"abcd", b"ab", ["OUT/a.npy: 4 and 2 bytes, which differ from byte 2 on"]),
        ("OUT/a.npy", b"", None, ["OUT/a.npy: missing"]),
        ("OUT/a.npy", None, b"", ["OUT/a.npy: new"]),
        ("OUT/.build/plan.json", b"a", b"b", []),
        ("OUT/.build/plan.json", None, b"b", ["OUT/.build/: new"]),
    ],
)
def test_differences_of_files(
    tmp_path: Path, file: str, old: bytes | None, new: bytes | None, expected: list[str]
) -> None:
    for side, data in (("old", old), ("new", new)):
        path = tmp_path / side / file
        path.parent.mkdir(parents=True)
        if data is not None:
            path.write_bytes(data)
    assert oracle.differences(tmp_path / "old", tmp_path / "new") == expected


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({"count": 6, "recipe": {"size": [8, 5]}}, ["  recipe.size.1: 9 -> 5"]),
        ({"count": 6, "recipe": {"size": [8, 9], "fit": "pad"}}, ['  recipe.fit: missing -> "pad"']),
        ({"recipe": {"size": [8, 9]}, "count": 6}, ["  the same keys and values, in another order or form"]),
    ],
)
def test_changed_keys_of_store_json_are_named(tmp_path: Path, new: object, expected: list[str]) -> None:
    for side, facts in (("old", {"count": 6, "recipe": {"size": [8, 9]}}), ("new", new)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "store.json").write_text(json.dumps(facts))
    assert oracle.differences(tmp_path / "old", tmp_path / "new")[1:] == expected


@pytest.mark.long
def test_changed_byte_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["kill", "refused-expect"]
    assert oracle.compare(oracle.ROOT, oracle.ROOT, tmp_path, names) == 0
    assert capsys.readouterr().out == "kill: same\nrefused-expect: same\n2 cases: 2 same, 0 different\n"
    flip(tmp_path / "results/kill/OUT/images-00001.npy", 4321)
    assert oracle.compare(oracle.ROOT, oracle.ROOT, tmp_path, names) == 1
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("kill: different", "2 cases: 1 same, 1 different")
    assert re.fullmatch(r"  OUT/images-00001.npy: (\d+) and \1 bytes, which differ from byte 4321 on", second)


def test_unknown_case_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="unknown cases: nothing; expected some of: imagenet "):
        oracle.compare(oracle.ROOT, oracle.ROOT, tmp_path, ["nothing"])
