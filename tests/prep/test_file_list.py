"""Lists of images: their formats, and the errors for invalid ones."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from itertools import chain
from pathlib import Path

import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.building.plan import checked_listing
from decodeonce.prep.sources import open_source
from decodeonce.prep.sources.classes import ADD_CLASS, ClassList, read_class_list
from decodeonce.prep.sources.file_list import CARRIAGE_RETURN, ListSource, find_layout, open_list
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.store import open_store
from tests.command import prep, printed
from tests.forms.listed import write_list
from tests.images import jpeg

NAMES = [b"cat/1.jpg", b"dog/2.jpg", b"cat/3, 4.jpg"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in NAMES:
        path = tmp_path / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"image")
    return tmp_path


def listed(root: Path, text: str, name: str = "list.txt", classes: list[str] | None = None) -> ListSource:
    return open_list(write_list(root / name, text), classes=classes)


def labels(source: ListSource) -> list[tuple[bytes, str]]:
    entries = list(source.scan().entries)
    assert [entry.problem for entry in entries] == [""] * len(entries)
    return [(entry.name, source.listing().classes[entry.label].name) for entry in entries]


PARENTS = [(NAMES[0], "cat"), (NAMES[1], "dog"), (NAMES[2], "cat")]
LABELS = [(NAMES[0], "b"), (NAMES[1], "a"), (NAMES[2], "b")]
NUMBERS = [(NAMES[0], "2"), (NAMES[1], "0"), (NAMES[2], "2")]


def test_formats_are_recognized(root: Path) -> None:
    for name, text, expected, layout in (
        ("list.txt", "cat/1.jpg\ndog/2.jpg\ncat/3, 4.jpg\n", PARENTS, "one path per line, classes from folder names"),
        (
            "list",
            "\ufeffcat/1.jpg\r\n\r\n  \ndog/2.jpg\r\ncat/3, 4.jpg",
            PARENTS,
            "one path per line, classes from folder names",
        ),
        ("list.csv", 'file\ncat/1.jpg\ndog/2.jpg\n"cat/3, 4.jpg"\n', PARENTS, "CSV, classes from folder names"),
        ("list.txt", f"./cat/1.jpg\n../{root.name}/dog/2.jpg\ncat/x/..//3, 4.jpg\n", PARENTS, ""),
        ("list.txt", "cat/1.jpg\tb\ndog/2.jpg\ta\ncat/3, 4.jpg\t b \n", LABELS, "TSV, with labels"),
        ("list.tsv", "Class\tid\tFile\nb\t7\tcat/1.jpg\na\t8\tdog/2.jpg\nb\t9\tcat/3, 4.jpg\n", LABELS, ""),
        ("list.csv", 'cat/1.jpg,b\ndog/2.jpg,a\n"cat/3, 4.jpg",b\n', LABELS, "CSV, with labels"),
        ("list.csv", "File\tClass\ncat/1.jpg\tb\ndog/2.jpg\ta\ncat/3, 4.jpg\tb\n", LABELS, "TSV, with labels"),
        ("list.txt", 'path,label\r\ncat/1.jpg,b\r\ndog/2.jpg,a\r\n"cat/3, 4.jpg","b"\r\n', LABELS, "CSV, with labels"),
        ("list.csv", '\ufeffimage,label\ncat/1.jpg,2\ndog/2.jpg,0\n"cat/3, 4.jpg",2\n', NUMBERS, "CSV, with labels"),
        ("list.txt", "cat/1.jpg 2\ndog/2.jpg 0\ncat/3, 4.jpg 2\n", NUMBERS, "one path and label per line, with labels"),
        ("list.txt", "cat/1.jpg  2\ndog/2.jpg   0\ncat/3, 4.jpg 2\n", NUMBERS, "one path and label per line"),
        ("list.csv", 'path,label\rcat/1.jpg,b\rdog/2.jpg,a\r"cat/3, 4.jpg",b\r', LABELS, "CSV, with labels"),
        ("list.txt", "cat/1.jpg\rdog/2.jpg\rcat/3, 4.jpg", PARENTS, "one path per line"),
    ):
        source = listed(root, text, name)
        assert labels(source) == expected
        assert layout in source.found


def test_numeric_labels_are_class_numbers(root: Path) -> None:
    source = listed(root, "cat/1.jpg\t3\ndog/2.jpg\t01\n")
    assert [entry.label for entry in source.scan().entries] == [3, 1]
    assert [cls.name for cls in source.listing().classes] == ["0", "1", "2", "3"]
    assert source.listing().warnings[0] == "2 of 4 classes have no images (first 0, '0')"
    for name in ("10/a.jpg", "9/b.jpg"):
        write_list(root / name, "image")
    numbered = listed(root, "9/b.jpg\n10/a.jpg\n")  # names of folders are names, also if they are numbers
    assert labels(numbered) == [(b"9/b.jpg", "9"), (b"10/a.jpg", "10")]
    assert [cls.name for cls in numbered.listing().classes] == ["10", "9"]
    assert list(listed(root, "\n").scan().entries) == []
    named = listed(root, "cat/1.jpg\t1\ndog/2.jpg\t0\n", classes=["b", "a"])
    assert labels(named) == [(b"cat/1.jpg", "a"), (b"dog/2.jpg", "b")]
    assert named.listing().warnings == []


def test_entries_that_cannot_be_rows_have_a_reason(root: Path) -> None:
    text = "cat/1.jpg\ta\ndog/gone.jpg\ta\ncat/1.jpg\tb\ndog/2.jpg\t\ncat\tb\n"
    assert [(entry.name, entry.problem) for entry in listed(root, text).scan().entries] == [
        (b"cat/1.jpg", "several times in the list, with different labels or values"),
        (b"dog/gone.jpg", "No such file or directory"),
        (b"cat/1.jpg", "several times in the list, with different labels or values"),
        (b"dog/2.jpg", "no label"),
        (b"cat", "a directory"),
    ]
    numbered = listed(root, "cat/1.jpg\t0\ndog/2.jpg\t-1\n")
    assert [entry.problem for entry in numbered.scan().entries] == ["", "label -1, expected 0 or more"]


@pytest.mark.parametrize("label", ["nan", "NaN", "None", "null", "NULL", "NA", "<NA>", "N/A", "n/a", "#N/A"])
def test_label_that_may_stand_for_a_missing_one_is_named(root: Path, label: str) -> None:
    text = f"path,label\ncat/1.jpg,cat\ncat/1.jpg,cat\ndog/2.jpg,{label}\n"
    path = write_list(root / "list.csv", text)
    what = f"{label!r} is a class, and may stand for a missing label"
    advice = "if so, leave the label empty, which rejects the image, or remove the image"
    assert f"{what}; {advice}" in open_list(path).listing().warnings
    assert not [line for line in open_list(path, classes=["cat", label]).listing().warnings if "missing" in line]


def test_repeated_line_is_ignored_and_lines_of_other_labels_are_rejected(root: Path) -> None:
    other = "several times in the list, with different labels or values"
    ignored = "lines that repeat an earlier line, ignored: {}"
    rejected = "lines of paths that have several labels or values, rejected: {}"
    twice = "path\tlabel\tx\ncat/1.jpg\ta\t1\ncat/1.jpg\ta\t"
    for text, labels, problems, warnings in (
        (
            "cat/1.jpg\nb/2.jpg\n./cat/1.jpg\ncat/1.jpg\n",
            [1, 0],
            ["", "No such file or directory"],
            [ignored.format("2 (first line 3)")],
        ),
        (
            "cat/1.jpg\tb\ncat/1.jpg\ta\ncat/1.jpg\tb\n",
            [1, 0, 1],
            [other] * 3,
            [rejected.format("3 (first line 1)")],
        ),
        ("cat/1.jpg\t\ncat/1.jpg\ta\n", [0, 0], [other] * 2, [rejected.format("2 (first line 1)")]),
        (f"{twice}2\n", [0, 0], [other] * 2, [rejected.format("2 (first line 2)")]),
        (f"{twice}1\n", [0], [""], [ignored.format("1 (first line 3)")]),
    ):
        source = open_list(write_list(root / "list.txt", text), column=["x"] if twice in text else [])
        listing, entries = source.listing(), list(source.scan().entries)
        assert [(entry.label, entry.problem[: len(other)]) for entry in entries] == [
            *zip(labels, problems, strict=True)
        ]
        assert [warning for warning in listing.warnings if "line" in warning] == warnings
        assert listing.candidates == len(labels)


def test_missing_file_has_its_likely_cause_as_reason(root: Path) -> None:
    composed, decomposed = "cat/gr\u00f6\u00dfe.jpg", "dog/gro\u0308\u00dfe.jpg"
    (root / "cat/in").mkdir()
    for name in (composed, decomposed, "cat/in/3.jpg", "cat/0007.jpg"):
        write_list(root / name, "image")
    of_zeros = "a file of this name with leading zeros exists; write the ids as text, in pandas with dtype=str"
    of_floats = "a file of this name without .0 exists; write the ids as whole numbers, in pandas with astype('Int64')"
    for path, cause in (
        ("cat/1.jpg ", "; the path ends with a blank"),
        (" cat/1.jpg", "; the path begins with a blank"),
        ('"cat/1.jpg"', "; the path is in quotation marks, which only a CSV file may have"),
        ("cat\\1.jpg", "; the path has backslashes, expected slashes"),
        ("cat/1.jpg\rcat/1.jpg", f"; the path has {CARRIAGE_RETURN}"),
        (unicodedata.normalize("NFD", composed), "; a file of this name in another Unicode form (NFC) exists"),
        (unicodedata.normalize("NFC", decomposed), "; a file of this name in another Unicode form (NFD) exists"),
        ("cat/1", "; a file of this name with the suffix .jpg exists; pass --suffix .jpg"),
        ("cat/1.JPG", "; a file of this name with the suffix .jpg exists"),
        ("cat/1jpg", "; a file of this name with the suffix .jpg exists"),
        ("1.jpg", f"; cat/1.jpg exists; pass --root {root}/cat"),
        ("cat/1.0", f"; {of_floats}"),
        ("cat/1.0.jpg", f"; {of_floats}"),
        ("in/3", f"; cat/in/3.jpg exists; pass --root {root}/cat --suffix .jpg"),
        (f"{root.name}/cat/1.jpg", f"; ../{root.name}/cat/1.jpg exists; pass --root {root.parent}"),
        ("cat/7", f"; {of_zeros}"),
        ("cat/07.jpg", f"; {of_zeros}"),
        ("cat/gone", ""),
        ("data/cat/gone.jpg", ""),
    ):
        (entry,) = listed(root, f"{path}\tpug\n").scan().entries
        assert entry.problem == f"No such file or directory{cause}"


@pytest.mark.parametrize("flags", ["--suffix _s", "--root im --suffix _s", "--root im --suffix _sjpg", "--root im"])
def test_advised_suffix_replaces_that_of_the_user(flags: str, tmp_path: Path) -> None:
    end = "" if flags == "--root im" else "_s"
    (tmp_path / "im").mkdir()
    for number in range(3):
        (tmp_path / f"im/{number}{end}.jpg").write_bytes(jpeg(20, 20))
    write_list(tmp_path / "l.csv", "path,label\n0,a\n1,b\n2,c\n")
    text = prep("build", "list", "l.csv", "x", "--size", 8, *flags.split(), cwd=tmp_path).stderr
    advised = shlex.split(text.partition("exists; pass ")[2].partition(";")[0])
    given = dict(zip(*[iter([*flags.split(), *advised])] * 2, strict=True))  # a later value replaces an earlier one
    printed("build", "list", "l.csv", "x", "--size", 8, *chain.from_iterable(given.items()), cwd=tmp_path)
    assert len(open_store(tmp_path / "x")) == 3


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        (["train", "TEST"], "TEST, train"),
        (["", "train", "val "], "train, val"),
        (["val", ""], ""),
        (["train", "training"], ""),
        (["left", "test", "val"], ""),
        (["train", "a train at a test", "val"], ""),  # captions
    ],
)
def test_column_of_several_splits_causes_a_warning(root: Path, values: list[str], warned: str) -> None:
    lines = [f"{value},cat/{number}.jpg,pug," for number, value in enumerate(values)]
    file = write_list(root / "all.csv", "\n".join(["split,path,label,", *lines, ""]))
    found = [text for text in open_list(file).listing().warnings if "all values" in text]
    splits = f"the store has the rows of all values of column split ({warned}); to build a store for each, see "
    assert found == ([f"{splits}docs/how-to/data/csv.md#a-column-of-splits"] if warned else [])


def test_files_in_several_folders_are_counted_and_the_command_joins_them(tmp_path: Path) -> None:
    names = [f"{number}" for number in range(9)]
    for number, name in enumerate(names):
        write_list(tmp_path / ("a part_1" if number < 6 else "a part_2") / f"{name}.jpg", "image")
    file = write_list(tmp_path / "list.csv", "path,label\n" + "".join(f"{name},{name}\n" for name in names))
    counts = f"files of this list are in 2 folders: {tmp_path}/a part_1 (6), {tmp_path}/a part_2 (3)"
    ids = [entry.problem for entry in open_list(file).scan().entries]
    assert all(counts in problem and problem.endswith("--root ALL --follow-links --suffix .jpg") for problem in ids)
    (tmp_path / "list.csv").write_text("0,pug\n1,pug\n8,cat\n")
    with pytest.raises(BuildError, match=re.escape(f"{tmp_path}/a part_1 (2), {tmp_path}/a part_2 (1), but --root")):
        open_list(file).listing()
    named = write_list(tmp_path / "named.csv", "path,label\n" + "".join(f"{name}.jpg,{name}\n" for name in names))
    problems = [entry.problem for entry in open_list(named).scan().entries]
    assert all(counts in problem for problem in problems)
    command = problems[0].partition(" run: ")[2].partition(", then pass")[0]
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert problems[0].endswith(", then pass --root ALL --follow-links")
    joined = open_list(named, root=tmp_path / "ALL", follow_links=True)
    assert [entry.problem for entry in joined.scan().entries] == [""] * 9
    both = [entry.problem for entry in open_list(named).scan().entries]
    assert both[0].endswith("; ALL/0.jpg and a part_1/0.jpg exist; write the right folder into each path of the list")
    shutil.rmtree(tmp_path / "ALL")
    write_list(tmp_path / "8.jpg", "image")
    some = [entry.problem for entry in open_list(named).scan().entries]
    assert f"in 3 folders: {tmp_path}/a part_1 (6), {tmp_path}/a part_2 (2), {tmp_path} (1), but" in some[0]
    page = "docs/how-to/data/csv.md#images-in-nested-folders"
    assert some[0].endswith(f"; write the folder into each path of the list, such as a part_1/... ({page})")


def test_paths_that_begin_in_different_folders_are_named(root: Path) -> None:
    lines = f"path,label\ncat/1.jpg,1\n{root.name}/cat/1.jpg,1\n"
    [reason] = [entry.problem for entry in listed(root, lines, "list.csv").scan().entries if entry.problem]
    found = f"files of this list are in 2 folders: {root} (1), {root.parent} (1), but --root takes one"
    assert reason.endswith(f"; {found}; let all paths of the list begin in the same folder")


def test_files_next_to_the_root_or_two_folders_below_are_found(tmp_path: Path) -> None:
    names = [f"{number}.jpg" for number in range(9)]
    for number, name in enumerate(names):
        write_list(tmp_path / ("im ages_1" if number < 6 else "images_2/images") / name, "image")
    file = write_list(tmp_path / "list.csv", "path,label\nnone.jpg,1\n" + "".join(f"{name},1\n" for name in names))
    for root in (tmp_path, tmp_path / "im ages_1"):
        reasons = [entry.problem for entry in open_list(file, root=root).scan().entries]
        counts = f"files of this list are in 2 folders: {tmp_path}/im ages_1 (6), {tmp_path}/images_2/images (3)"
        assert counts in reasons[-1], reasons
        command = reasons[-1].partition("run: ")[2].partition(", then pass")[0]
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
        joined = open_list(file, root=tmp_path / "ALL", follow_links=True)
        assert [entry.problem for entry in joined.scan().entries][1:] == [""] * 9
        shutil.rmtree(tmp_path / "ALL")
    with pytest.raises(
        BuildError, match=r"all 10 candidates are rejects, first 0.jpg: No such file or directory; im ages_1"
    ):
        checked_listing(open_list(file), None)


def test_files_in_folders_of_any_depth_are_found(tmp_path: Path) -> None:
    places = ["photos/2019/06/trip to/lake", "photos/2020", "photos/2020/x"]
    names = [f"{number}.jpg" for number in range(9)]
    for number, name in enumerate(names):
        write_list(tmp_path / places[number % 3] / name, "image")
    file = write_list(tmp_path / "list.csv", "path,label\n" + "".join(f"{name},1\n" for name in names))
    reasons = [entry.problem for entry in open_list(file).scan().entries]
    assert (
        f"in 3 folders: {tmp_path}/{places[0]} (3), {tmp_path}/{places[1]} (3), {tmp_path}/{places[2]} (3)"
        in reasons[0]
    )
    command = reasons[0].partition(" run: ")[2].partition(", then pass")[0]
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    joined = open_list(file, root=tmp_path / "ALL", follow_links=True)
    assert [entry.problem for entry in joined.scan().entries] == [""] * 9


def test_file_in_one_of_many_folders_leads_to_the_page(tmp_path: Path) -> None:
    for number in range(70):
        write_list(tmp_path / f"photos/{number:02}/{number}.jpg", "image")
    file = write_list(tmp_path / "list.csv", "path,label\n69.jpg,1\n99/69.jpg,1\n")
    reasons = [entry.problem for entry in open_list(file, root=tmp_path / "photos").scan().entries]
    cause = "it is not in the first 64 folders; to search all, see docs/how-to/data/csv.md#images-in-nested-folders"
    assert reasons == [f"No such file or directory; {cause}", "No such file or directory"]
    empty = write_list(tmp_path / "photos/00/list.csv", "path,label\n69.jpg,1\n70.jpg,1\n")  # next to many folders
    assert [entry.problem for entry in open_list(empty).scan().entries][1] == "No such file or directory"


def test_columns_that_are_not_kept_are_named(root: Path) -> None:
    text = "path,sky,note,age\ncat/1.jpg,1,old,3.5\n"
    file = write_list(root / "tags.csv", text)
    source = open_list(file, column=["sky"], no_labels=True)
    advice = "--column NAME keeps a column of numbers"
    assert source.listing().warnings == [f"columns that are not kept: note, age; {advice}"]
    index = write_list(root / "index.csv", ",path,label\n0,cat/1.jpg,a\n")  # as pandas writes it
    assert open_list(index).listing().warnings == [f"columns that are not kept: one without a name; {advice}"]
    assert open_list(write_list(root / "plain.csv", "path,label\ncat/1.jpg,a\n")).listing().warnings == []
    two = write_list(root / "two.csv", "path,label,Coarse_Label\ncat/1.jpg,a,pet\n")
    instead = "Coarse_Label may have labels, too; if so, pass --label-column Coarse_Label"
    assert open_list(two).listing().warnings == [f"columns that are not kept: Coarse_Label; {advice}", instead]
    chosen = open_list(two, label_column="Coarse_Label").listing().warnings
    assert chosen == [f"columns that are not kept: label; {advice}"]
    assert open_list(two, no_labels=True).listing().warnings == [
        f"columns that are not kept: label, Coarse_Label; {advice}"
    ]


def test_labels_with_leading_zeros_are_numbers_and_a_warning_says_so(root: Path) -> None:
    text = "cat/1.jpg\t02\ndog/2.jpg\t00\n"
    source = listed(root, text)
    [warning] = [one for one in source.listing().warnings if "zeros" in one]
    assert warning.startswith("labels such as '02' are class numbers, here 2; if they are names, pass them all")
    assert [entry.label for entry in source.scan().entries] == [2, 0]
    named = listed(root, text, classes=["00", "02"])
    assert ([entry.label for entry in named.scan().entries], named.listing().warnings) == ([1, 0], [])


@pytest.mark.parametrize("start", ["/content/drive/My data/", "data/my-set/", "old [2]+/", "./data/", "/set/"])
def test_folders_of_another_machine_can_be_removed_with_the_advice(root: Path, start: str) -> None:
    file = write_list(root / "list.csv", "".join(f"{start}{name.decode()},pug\n" for name in NAMES[:2]))
    try:
        advice = next(entry.problem for entry in open_list(file).scan().entries)
    except BuildError as error:
        advice = str(error)
    found = re.search(
        r"cat/1\.jpg exists; if this is the file, run: (.*); then build NEW-list.csv, and pass --root (.*)$", advice
    )
    assert found is not None
    subprocess.run(["bash", "-c", found[1]], cwd=root, check=True)
    assert labels(open_list(root / "NEW-list.csv", root=Path(found[2]))) == [(name, "pug") for name in NAMES[:2]]
    assert (root / "NEW-list.csv").read_text() == "".join(f"{name.decode()},pug\n" for name in NAMES[:2])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("it's a.csv.gz", gzip.compress(b"path,label\ncat/1.jpg,pug\ndog/2.jpg,pug\n")),
        ("it's a.csv", "path,label\ncat/1.jpg,pug\ndog/2.jpg,pug\n".encode("utf-16")),
        ("a.csv", b'path\n/other/cat/1.jpg\n"/other/cat/3, 4.jpg"\n'),
    ],
    ids=["gzip", "UTF-16", "other folder"],  # all processes of a test run must see the same names
)
def test_advised_copy_of_a_list_can_be_built_elsewhere(root: Path, name: str, data: bytes) -> None:
    for image in NAMES:
        (root / os.fsdecode(image)).write_bytes(jpeg(20, 20))
    (root / "lists").mkdir()
    (root / "lists" / name).write_bytes(data)
    (root / name).symlink_to(f"lists/{name}")
    (elsewhere := root / "far/away").mkdir(parents=True)
    flags = ["x", "--size", 8]
    text = prep("build", "list", f"../../{name}", *flags, cwd=elsewhere).stderr
    ends = "; if its paths are relative, pass (--root .*) or your own|, and pass (--root .*)"
    found = re.search(rf"(?:run|first): (.*); then build (.*?)(?:{ends})\n", text)
    assert found is not None, text
    subprocess.run(["bash", "-c", found[1]], cwd=elsewhere, check=True)
    printed("build", "list", *shlex.split(f"{found[2]} {found[3] or found[4]}"), *flags, cwd=elsewhere)
    assert len(open_store(elsewhere / "x")) == 2


def test_paths_may_begin_with_a_slash_if_the_root_is_given(root: Path) -> None:
    file = write_list(root / "list.txt", "/cat/1.jpg 0\n//dog/2.jpg 1\n")
    with pytest.raises(
        BuildError, match=rf"line 1: '/cat/1\.jpg' is not below .*; cat/1\.jpg exists; pass --root {root}$"
    ):
        list(open_list(file).scan().entries)
    entries = list(open_list(file, root=root).scan().entries)
    assert [(entry.name, entry.label, entry.problem) for entry in entries] == [(NAMES[0], 0, ""), (NAMES[1], 1, "")]
    (root / "inner/cat").mkdir(parents=True)
    path = f"{root}/cat/1.jpg"
    write_list(root / f"inner/{path}", "another image")
    message = (
        "line 1: .* exists and is not below .*inner; pass --root / to read it; to read another file below DIR, rem"
    )
    with pytest.raises(BuildError, match=message):
        list(open_list(write_list(root / "list.txt", path), root=root / "inner").scan().entries)
    with pytest.raises(BuildError, match="line 1: '/' "):
        list(open_list(write_list(root / "list.txt", "/"), root=root).scan().entries)


def test_invalid_list_is_an_error_that_names_the_line(root: Path) -> None:
    for text, message in (
        ("cat/../..\n", "line 1: .* is not below {root}; pass a folder that holds all"),
        ("/elsewhere/cat/3.jpg\n", "line 1: '/elsewhere/cat/3.jpg' is not below {root}; no such file"),
        (
            f"{__file__}\n",
            "line 1: .* is not below {root}; pass a folder that holds all paths as --root, for example /",
        ),
        ("\ncat/../../1.jpg\n", "line 2: 'cat/../../1.jpg' is not below {root}"),
        ("{root}\n", "line 1: '{root}' is not below {root}"),
        ("cat/..\n", "line 1: 'cat/..' is not below {root}"),
        ("1.jpg\n", "line 1: '1.jpg' has neither .*; add a column of labels, or pass --no-labels$"),
        ("{root}/1.jpg\n", "line 1: .* has neither .*, or pass --no-labels, or pass a parent folder as --root$"),
        ("cat\\1.jpg\n", ".* has neither a label nor a folder .*; the path has backslashes, expected slashes"),
        ("cat/1.jpg\ta\ndog/2.jpg\n", r"line 2: \['dog/2.jpg'\], expected TSV, with labels"),
        ("cat/1.jpg\ta\n\tb\n", "line 2: the path in column number 1 is blank; write it there, or remove the line"),
        ("label,file\na,cat/1.jpg\nb,\n", "line 3: the path in column file is blank; write it there, or"),
        ("label,file\na,cat/1.jpg\nb, \n", "line 3: the path in column file is blank; write it there, or"),
        ('cat/1.jpg,a\rdog/2.jpg,"b\rb"\r', "line 2: a quoted field spans several lines"),
        ("cat/1.jpg,a\ndog/2.jpg,b\rcat/1.jpg,a\n", r"line 2: the line has a carriage return \(\\r\) inside; if"),
        ("c\0a\0t\0/\0001\0", "binary or UTF-16; expected UTF-8 text; if it has arrays, "),
        ("PK\3\4", "a ZIP archive; unpack it first: unzip -q {root}/list.txt -d NEW"),
        ("cat/1.jpg\n" * 500 + "cat/\0.jpg\n", "line 501: .* expected one path per line"),
        ("0\t1\tcat/1.jpg\n", "columns 0, 1, cat/1.jpg; expected a path and a label, or a header line"),
        ("path\tbreed\ncat/1.jpg\ta\n", "columns path, breed; expected"),
        ("where\tbreed\ncat/1.jpg\ta\n", "columns where, breed; expected"),
        ("cat/1.jpg\tbass\ndog/2.jpg\tbass\tsea\n", "line 2: .*: 3 fields, but the first line has 2; remove other"),
        ("path\tlabel\ncat/1.jpg\tbass\tsea\n", "line 2: .*: 3 fields, but the first line has 2; remove"),
        ("path,label\ncat/1.jpg,maillot, tank suit\n", "line 2: .*: 3 fields, .*; put quotation marks around a text"),
        ("cat/1.jpg,maillot\ndog/2.jpg,maillot, tank suit\n", "line 2: .*: 3 fields, but the first line has 2; put"),
        ("id,path,label\n7,cat/1.jpg,bass,\n", "line 2: .*: 4 fields, but the first line has 3; put"),
        ("path,label,score\ncat/1.jpg,0.5\n", "line 2: .*: 2 fields, but the first line has 3; write the empty fields"),
        ("path,label,label\ncat/1.jpg,a,b\n", "2 columns are called label; rename them, or choose .* --label-column"),
        ("path,Label,label\ncat/1.jpg,a,b\n", "2 columns are called label; rename them"),
        ("path,label,Path\ncat/1.jpg,a,b\n", "2 columns are called path; rename them, or choose .* --image-column"),
        ("cat/1.jpg\t20240131\n", "line 1: label 20240131, expected 0 to 1048575; class numbers start at 0"),
    ):
        with pytest.raises(BuildError, match="list.txt: " + message.format(root=root)):
            list(listed(root, text.format(root=root)).scan().entries)


def test_errors_name_the_file_of_the_class_list(root: Path) -> None:
    text = "cat/1.jpg\t0\ndog/2.jpg\t2\n"
    with pytest.raises(BuildError, match=r"line 2: label 2, .*; order\.txt has 2 names"):
        listed(root, text, classes=ClassList(["a", "b"], "order.txt")).listing()
    with pytest.raises(BuildError, match=rf"list\.txt: line 2: class 'dog' is not in order\.txt; {ADD_CLASS}"):
        listed(root, "cat/1.jpg\ndog/2.jpg\n", classes=ClassList(["cat"], "order.txt")).listing()
    with pytest.raises(BuildError, match=r"order\.txt contains 'cat' twice"):
        listed(root, "cat/1.jpg\n", classes=ClassList(["cat", "cat"], "order.txt")).listing()
    with pytest.raises(BuildError, match=rf"dog: this class folder is not in order\.txt; {ADD_CLASS}"):
        FolderSource(root, classes=ClassList(["cat"], "order.txt")).listing()
    assert json.loads(json.dumps(ClassList(["cat"], "order.txt"))) == ["cat"]


def test_unreadable_class_list_is_an_error(tmp_path: Path) -> None:
    for content, message in (
        (None, "No such file or directory; expected a file with one class name per line"),
        (b"\xff\xfea\0", "not UTF-8 text; expected"),
        (b"\n \n", "contains no class names; expected one per line"),
        (b"\ncat\n", "line 1 is blank; write its class there, or remove the line"),
        (b'cat\n"dog, wild"\n', """line 2: "dog, wild" is in quotation marks; write the names without"""),
        (b"'cat',\n'dog'\n", "line 1: 'cat', is in quotation marks; write the names without quotation marks"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid",
            "a Git LFS pointer instead of the file; run: git lfs pull",
        ),
        (b"cat\r\n \r\ndog\r\n", "line 2 is blank; write its class there, or remove the line"),
    ):
        path = tmp_path / "order.txt"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(f"--classes {path}: {message}")):
            read_class_list(path)


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        ("/a/airfield 1\n/b/bar 0\n", "/a/airfield"),
        ("1 001.Albatross\n2 002.Auklet\n", "001.Albatross"),
        *(
            (names, None)
            for names in (
                "class 1\nclass 2\n",
                "Boeing 707\nBoeing 717\n",
                f"{'1' * 5000} a\n1 b\n",
                "0 - zero\n1 - one\n",
            )
        ),
    ],
)
def test_class_list_with_numbers_for_labels_that_are_numbers_causes_a_warning(
    root: Path, lines: str, first: str | None
) -> None:
    (root / "order.txt").write_text(lines)
    names = read_class_list(root / "order.txt")
    assert names == lines.splitlines()
    warnings = listed(root, "cat/1.jpg 0\ndog/2.jpg 1\n", classes=names).listing().warnings
    expected = f"each line of {root}/order.txt has a number before or after a name; if classes have no numbers, write"
    assert [f"{expected} only names, such as {first!r}, in label order"] * (first is not None) == [
        text for text in warnings if "number" in text
    ]
    (root / "by_name.csv").write_text(
        "".join(f"{path},{name}\n" for path, name in zip(["cat/1.jpg", "dog/2.jpg"], names, strict=True))
    )
    assert not any("number" in text for text in open_list(root / "by_name.csv", classes=names).listing().warnings)


def test_folders_that_may_be_other_classes_cause_a_warning(tmp_path: Path) -> None:
    for folder in ("a/house/outdoor", "a/field/outdoor", "b/cave", "2", "10"):
        write_list(tmp_path / folder / "1.jpg", "image")
    warnings = listed(tmp_path, "a/house/outdoor/1.jpg\na/field/outdoor/1.jpg\nb/cave/1.jpg\n").listing().warnings
    assert warnings[-1:] == [
        "classes that are folders of one name in several places: 1 (first outdoor: a/house/outdoor and a/field/outdoor)"
        "; if these are different classes, add a column of labels"
    ]
    by_number = "class names are sorted as text: label 0 is class 10; for another order, pass --classes FILE"
    assert by_number in listed(tmp_path, "2/1.jpg\n10/1.jpg\n").listing().warnings
    assert by_number not in listed(tmp_path, "2/1.jpg\n10/1.jpg\n", classes=["2", "10"]).listing().warnings
    assert by_number not in listed(tmp_path, "2/1.jpg 0\n10/1.jpg 1\n").listing().warnings


def test_lists_with_more_than_a_path_and_a_number_are_led_to_csv(root: Path) -> None:
    advice = "a list has a path and at most a class number after a blank; write anything else as CSV, with a first line"
    for line in ("Abyssinian_1 1 1", "1025794 707-320", "#Image CLASS-ID", "3"):  # of other datasets
        with pytest.raises(BuildError, match=re.escape(f": no such file; {advice}")):
            listed(root, f"{line}\ncat/1.jpg 1 1\n").listing()


def test_class_list_keeps_its_order_and_file(tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes('\ufeffdog\r\n cat\nred\u2028fox\n5"\n\n \n'.encode())
    names = read_class_list(tmp_path / "order.txt")
    assert (names, getattr(names, "origin", "")) == (["dog", "cat", "red\u2028fox", '5"'], str(tmp_path / "order.txt"))


def test_several_labels_in_one_cause_a_warning(root: Path) -> None:
    (root / "list.csv").touch()
    for labels, first in (
        (["cat dog", "cat", "dog", "great white shark", "tiger shark"], "cat dog"),
        (["cat|dog", "cow|dog", "cat|cow", "cat|cow|dog"], "cat|cow"),
        (["cat, dog", "dog", "cat"], "cat, dog"),
        (["0 3", "3", "1 3", "0 1", "0"], "is not a whole number"),
        (["0 3", "1 3", "0 1", "0 1 3"], "0 1"),
        (["tiger shark", "white shark", "tiger", "hammerhead"], ""),
        (["1", "0"], ""),
        (["cat dog", "dog bird", "bird cat"], "bird cat"),  # as many combinations as words
        (["cat dog", "cat bird", "dog bird", "fish"], "cat dog"),
        (["red wine", "white wine", "wine glass", "red glass"], ""),
        (["grey wolf", "red wolf", "maned wolf", "wolf spider", "red fox", "grey fox", "fox squirrel"], ""),
        (["N", "A", "N/A"], ""),
        (["cat & dog", "cat", "dog"], "cat & dog"),
        (["cat|dog", "bird"], "cat|dog"),
        (["cat; dog", "bird"], "cat; dog"),
        (["0 3", "1 2"], "0 3"),
        (["0 3", "1", "2"], "is not a whole number, but 2 of 3 .*; if '0 3' is several labels, see"),
        (["brown bear", "polar bear", "brown dog", "polar dog", "black bear", "black dog"], ""),
        (["great white shark", "white wolf", "timber wolf", "tiger shark", "sea lion"], ""),
        (["bass, sea", "bass, river", "trout, sea", "trout, river", "trout, lake", "bass, lake"], ""),
        (["tench", "class 1", "class 2"], ""),
    ):
        names = [f"cat/{number}.jpg" for number in range(len(labels))]
        for name in names:
            (root / name).write_bytes(b"image")
        text = "image,labels\n" + "".join(f'{name},"{label}"\n' for name, label in zip(names, labels, strict=True))
        if " not " in first:
            with pytest.raises(BuildError, match=first):
                listed(root, text, "list.csv").listing()
            continue
        warnings = [one for one in listed(root, text, "list.csv").listing().warnings if "several" in one]
        expected = f"labels such as {first!r} look like several labels of one image, and each is a class of its own"
        advice = "; if so, write a table with a column of zeros and ones, as docs/how-to/data/multi-label.md says, and "
        assert warnings == ([f"{expected}{advice}build from it with --no-labels"] if first else [])
        assert not [
            one for one in listed(root, text, "list.csv", sorted({*labels})).listing().warnings if "several" in one
        ]


def test_many_labels_cause_no_warning_with_class_list(root: Path) -> None:
    text = "cat/1.jpg\ta\ndog/2.jpg\tb\n"
    for classes, warnings in (
        (None, ["2 different labels for 2 samples; check that the labels are classes"]),
        (["a", "b"], []),
    ):
        source = listed(root, text, classes=classes)
        assert source.listing().warnings == warnings


def test_comma_in_path_is_not_csv(root: Path) -> None:
    for line, name, separator in (
        ("k/c,d.jpg 0", "list.txt", " "),
        ("k/c,d.jpg 0", "list.csv", ","),
        ("k/c,d.jpg", "list.txt", ""),
        ("k/c.jpg, 0", "list.txt", ","),
        ("k/c.jpg,class 0", "list.txt", ","),
        ("k/c,d.jpg\tclass 0", "list.txt", "\t"),
        ("k/c d 0", "list.txt", " "),
    ):
        assert find_layout(write_list(root / name, line + "\n")).separator == separator


def test_missing_list_or_root_is_named(root: Path) -> None:
    with pytest.raises(BuildError, match=r"gone\.txt: No such file or directory; expected a list"):
        open_list(root / "gone.txt").listing()
    with pytest.raises(BuildError, match="nowhere: no such folder; expected the folder that the paths"):
        open_list(root / "list.txt", root=root / "nowhere")


def test_any_file_name_can_be_listed(tmp_path: Path) -> None:
    names = [b"\xff cat/\xe9\x85.jpg", "größe/a\u2028b\x0cc.jpg".encode(), b"a'; echo/x y .jpg"]
    for name in names:
        path = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(path))
        with open(path, "wb") as file:
            file.write(name)
    (tmp_path / "list").write_bytes(b"\n".join(names))
    source = open_list(tmp_path / "list")
    entries = list(source.scan().entries)
    assert [entry.name for entry in entries] == names
    restored = open_source(source.kind, source.root, source.arguments())
    assert [restored.read(entry) for entry in entries] == [[name] for name in names]


def test_mix_of_names_and_numbers_is_an_error(root: Path) -> None:
    text = "cat/1.jpg\t10\ndog/2.jpg\t2\ncat/3, 4.jpg\ta photo of a cat\n"
    message = "line 3.*label 'a photo of a cat' is not a whole number, but 2 of 3 different labels are; .* --classes"
    with pytest.raises(BuildError, match=message):
        list(listed(root, text).scan().entries)
    named = listed(root, text, classes=["2", "10", "a photo of a cat"])
    assert [entry.label for entry in named.scan().entries] == [1, 0, 2]


def test_names_are_sorted_by_their_bytes(root: Path) -> None:
    (root / "list.tsv").write_bytes("cat/1.jpg\t\N{GRINNING FACE}\n".encode() + b"dog/2.jpg\t\xfcber\n")
    source = open_list(root / "list.tsv")
    list(source.scan().entries)
    assert [cls.name for cls in source.listing().classes] == ["\N{GRINNING FACE}", "\udcfcber"]


def test_absolute_paths_are_found_in_every_locale(tmp_path: Path) -> None:
    folder = tmp_path / "größe" / "cat"
    folder.mkdir(parents=True)
    (folder / "1.jpg").write_bytes(b"x")
    (tmp_path / "list.txt").write_text(f"{folder}/1.jpg\n", encoding="utf-8")
    script = (
        "import os, sys; from pathlib import Path; from decodeonce.prep.sources.file_list import open_list; "
        "root = Path(os.fsdecode(os.environb[b'ROOT'])); "
        "print([entry.problem for entry in open_list(root.parent / 'list.txt', root=root).scan().entries])"
    )
    env = {**os.environ, "ROOT": str(tmp_path / "größe"), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("['']\n", "")
