"""`prep ls` and the selection of rows."""

import pty
import sys
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decodeonce.cli.inspect import ls
from decodeonce.store import ImageClass, open_store, stage_store
from decodeonce.store.select import Selection, labels_of, row_range, select_lines
from decodeonce.store.table import SAMPLE_COLUMNS, Sample, line, sample_lines
from tests.command import assert_fails, prep
from tests.store.signing import replace_file, resign
from tests.stores import make_store, random_images

NAMES = ("train/a/[1].jpg", "train/a/tab\there.jpg", "val/\udcff.jpg", "TRAIN/a/x.jpg", "train/b/line\nfeed.PNG")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 rows in 3 classes without descriptions, row % 3, with 5 names, row % 5."""
    root = make_store(tmp_path_factory.mktemp("stores") / "a.store", random_images(20, shape=(24, 24, 3)))
    resign(root, lambda facts: [cls.update(description="") for cls in facts["classes"]])
    samples = [Sample(row, row % 3, f"class{row % 3}", NAMES[row % 5], 9, 9, "", "0" * 16) for row in range(20)]
    replace_file(root, "samples.tsv", line(SAMPLE_COLUMNS) + sample_lines(map(astuple, samples)))
    return root


def listed(store: Path, *flags: object) -> list[int]:
    result = prep("ls", store, *flags)
    assert (result.returncode, result.stderr) == (0, "")
    header, *lines = result.stdout.splitlines()
    assert header == "row\tlabel\tclass\tsource\twidth\theight\tbox\tdigest"
    return [int(text.split("\t")[0]) for text in lines]


def test_ls_prints_samples_tsv_by_default(store: Path) -> None:
    assert prep("ls", store).stdout == (store / "samples.tsv").read_text()


def test_ls_adds_class_descriptions_if_there_are_any(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(4, shape=(2, 2, 3)), classes=3)
    resign(root, lambda facts: facts["classes"][0].update(name="n02110185", description=""))
    resign(root, lambda facts: facts["classes"][1].update(description="tab\there\ud800"))
    resign(root, lambda facts: facts["classes"][2].update(description=""))
    header, *lines = (root / "samples.tsv").read_text().splitlines()
    expected = [f"{header}\tdescription"]
    words = ["Siberian husky", "tab\\there?", "", "Siberian husky"]
    expected += [f"{line}\t{text}" for line, text in zip(lines, words, strict=True)]
    assert prep("ls", root).stdout == "\n".join([*expected, ""])
    replace_file(root, "samples.tsv", f"{header}\n0\t3\tx\t".encode() + b"\xff\nno tab")
    for number, flags in ((0, ("--match", "*")), (1, ("--rows", "1:"))):
        assert f"samples.tsv: the line of row {number} is not a valid sample;" in prep("ls", root, *flags).stderr


def test_control_characters_are_escaped_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_store(tmp_path / "a", random_images(1, shape=(24, 24, 3)))
    resign(root, lambda facts: [cls.update(description="") for cls in facts["classes"]])
    sample = Sample(0, 0, "class\x9b2J", "a \x1b[31m\x7fé\u3000\n\udcff.jpg", 9, 9, "", "0" * 16)
    replace_file(root, "samples.tsv", line(SAMPLE_COLUMNS) + sample_lines([astuple(sample)]))
    terminal, end = pty.openpty()
    with open(terminal, "rb", buffering=0) as screen, open(end, "w") as to_screen:
        monkeypatch.setattr(sys, "stdout", to_screen)
        ls(root)
        shown = screen.read(4096).decode()
    monkeypatch.undo()
    row = "0\t0\tclass\\x9b2J\ta \\x1b[31m\\x7fé\\u3000\\n\\xff.jpg\t9\t9\t\t0000000000000000"
    assert shown.expandtabs().splitlines()[1] == row.expandtabs()
    assert prep("ls", root).stdout.splitlines()[1] == row.replace("\\u3000", "\u3000")


def test_ls_combines_all_filters(store: Path) -> None:
    found = listed(store, "--class", "class0", "--class", "class2", "--match", "*.jpg", "--rows", "-12:")
    assert found == [row for row in range(8, 20) if row % 3 != 1 and row % 5 != 4]


@pytest.mark.parametrize(
    ("selected", "rows"),
    [
        (Selection(), range(20)),
        (Selection(classes=("class0",), rows=(3, 9)), [3, 6]),
        (Selection(source="train/*"), [row for row in range(20) if row % 5 in (0, 1, 4)]),
        (Selection(source="*\there*"), range(1, 20, 5)),
        (Selection(source="*\udcff*"), range(2, 20, 5)),
        (Selection(rows=(30, 40)), []),
    ],
)
def test_selection_combines_its_conditions(store: Path, selected: Selection, rows: list[int]) -> None:
    assert [row for row, _ in select_lines(open_store(store), selected)] == list(rows)


def test_staged_part_lists_and_shows_its_rows(store: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    stage_store(open_store(store), part, rows=range(6, 12))
    assert listed(part) == list(range(6, 12))
    for selected, rows in ((Selection(("class1",), rows=(None, 9)), [7]), (Selection(rows=(15, None)), [])):
        assert [row for row, _ in select_lines(open_store(part), selected)] == rows
    assert prep("show", part, "--out", tmp_path / "sheet.png").stdout.endswith(f": 6 rows of {part} shown\n")
    assert_fails(prep("show", part, "--rows", "15:", "--out", tmp_path / "none.png"), 1, "no row is selected")


def test_wrong_filter_is_usage_error(store: Path) -> None:
    assert_fails(prep("ls", store, "--class", "clas1"), 2, "no class is named 'clas1'; did you mean class1")
    assert_fails(prep("show", store, "--rows", "1:5:2"), 2, "rows are '1:5:2', expected a range such as 0:1000")


ENDS = st.none() | st.integers(-(10**6), 10**6)


@given(ENDS, ENDS, st.integers(0, 10**6))
@example(None, None, 0)
@example(-5, 3, 20)
def test_range_works_like_python_slice(first: int | None, last: int | None, count: int) -> None:
    text = f"{'' if first is None else first}:{'' if last is None else last}"
    assert row_range(text) == (first, last)
    numbers = Selection(rows=row_range(text)).numbers(count)
    assert numbers == range(count)[first:last]
    assert numbers.step == 1


def test_unknown_class_error_lists_similar_names() -> None:
    classes = [ImageClass(name) for name in ("n01440764", "n01443537", "n02084071")]
    assert labels_of([], classes) is None
    assert labels_of(["n02084071", "n01440764", "n02084071"], classes) == frozenset({0, 2})
    for name, expected in (("n0144", "n01440764 or n01443537"), ("n01440765", "n01440764"), ("dog", "the first of 3")):
        with pytest.raises(ValueError, match=expected):
            labels_of([name], classes)
