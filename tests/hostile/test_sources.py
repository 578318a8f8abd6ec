"""What a build does not read: what links lead to, what is no regular file, and what names in archives say."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from decodeonce.cli import submit
from decodeonce.cli.kinds import BuildRequest
from decodeonce.errors import BuildError, DecodeonceError, Stopped
from decodeonce.prep.build import Work, build, make_plan
from decodeonce.prep.build.scan import scan
from decodeonce.prep.recipe import BoxRules, Recipe
from decodeonce.prep.sources import (
    BoxedSource,
    FolderSource,
    Source,
    open_imagenet,
    open_list,
    open_parquet,
    open_source,
    open_webdataset,
)
from decodeonce.prep.sources.base import file_entry
from decodeonce.prep.sources.files import source_file
from decodeonce.prep.sources.folder import MAX_DEPTH, read_class_list
from decodeonce.prep.sources.formats.annotations import Annotations
from decodeonce.prep.sources.imagenet.companions import CompanionFiles
from decodeonce.prep.sources.links import OUTSIDE, Links
from decodeonce.prep.sources.safe_open import open_regular, read_small
from tests.forms.boxed import XML
from tests.forms.form import Pic
from tests.forms.imagenet import class_tars, tar_bytes, zip_bytes
from tests.forms.parquet import images, write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg

SMALL = Recipe(height=8, width=8)
PICTURE = jpeg(24, 20)
KINDS = ("folder", "imagenet", "imagenet-flat", "list")
FIRST, SECOND = "ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000002.JPEG"


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    """What waits for a FIFO, or goes round in circles, is killed with a word on where."""
    signal.signal(signal.SIGALRM, lambda number, frame: pytest.fail("hangs"))
    signal.alarm(60)
    yield
    signal.alarm(0)


class Place:
    """A source of two pictures below `src`, in folders `a` and `b` where it has folders; `outside` lies beside it."""

    def __init__(self, top: Path, kind: str) -> None:
        self.kind, self.src, self.outside = kind, top / "src", top / "outside"
        self.outside.mkdir()
        (self.outside / "private.JPEG").write_bytes(PICTURE)
        base = {"imagenet": self.src / "train", "imagenet-flat": self.src / "val"}.get(kind, self.src)
        folders = [base, base] if kind == "imagenet-flat" else [base / "a", base / "b"]
        self.files = [folder / name for folder, name in zip(folders, (FIRST, SECOND), strict=True)]
        for file in self.files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(PICTURE)
        names = [Path(name).stem for name in (FIRST, SECOND, "private.JPEG")]
        self.src.joinpath("LOC_val_solution.csv").write_text("".join(f"{name},n01440764 1\n" for name in names))
        (top / "list.txt").write_text("".join(f"{file.relative_to(self.src)}\n" for file in self.files))

    def open(self, *, follow: bool = False) -> Source:
        """The source as `build` makes it."""
        if self.kind == "folder":
            return FolderSource(self.src, follow_links=follow)
        if self.kind == "list":
            return open_list(self.src.parent / "list.txt", root=self.src, follow_links=follow)
        return open_imagenet(self.src, follow_links=follow)


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(tmp_path, getattr(request, "param", "folder"))


def problems(source: Source) -> list[str]:
    return [entry.problem for entry in source.entries()]


def again(source: Source) -> Source:
    """The source as a worker makes it from the plan."""
    return open_source(source.kind, source.root, json.loads(json.dumps(source.facts())))


def linked(link: Path, to: Path) -> None:
    """Have `link`, which may be there, lead to another place."""
    if link.is_dir() and not link.is_symlink():
        link.rename(link.with_name(f".{link.name}"))
    else:
        link.unlink(missing_ok=True)
    link.symlink_to(to)


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_link_out_of_src_is_a_reject_that_names_its_cure(place: Place) -> None:
    linked(place.files[1], place.outside / "private.JPEG")
    assert problems(place.open()) == ["", OUTSIDE]
    assert "--follow-links" in OUTSIDE
    followed = place.open(follow=True)
    first, second = followed.entries()
    assert again(followed).read(second) == PICTURE
    assert (first.problem, second.problem) == ("", "")
    with pytest.raises(BuildError, match=r"00002.JPEG: a link that leads out of SRC: build with --follow-links"):
        again(place.open()).read(second)


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_link_that_stays_inside_is_read(place: Place) -> None:
    place.src.rename(place.outside / "moved")
    place.src.symlink_to(place.outside / "moved")  # SRC may be a link itself
    linked(place.files[1], place.files[0])
    source = place.open()
    assert problems(source) == ["", ""]
    assert [again(source).read(entry) for entry in source.entries()] == [PICTURE, PICTURE]


@pytest.mark.parametrize("place", ["folder", "imagenet", "list"], indirect=True)
def test_a_folder_that_leads_out_has_no_picture_of_it_read(place: Place) -> None:
    (place.outside / "deep").mkdir()
    (place.outside / SECOND).write_bytes(PICTURE)
    linked(place.files[1].parent, place.outside)
    names = [entry.text for entry in place.open().entries() if entry.problem == OUTSIDE]
    inside = str(place.files[1].parent.relative_to(place.src))
    walked = [f"{inside}/{name}" for name in (SECOND, "deep", "private.JPEG")]
    assert names == (walked[:1] if place.kind == "list" else walked)  # each is told, and none of deeper folders
    assert problems(place.open(follow=True)).count("") == (2 if place.kind == "list" else 3)


@pytest.mark.parametrize("place", ["imagenet", "imagenet-flat"], indirect=True)
def test_a_build_without_any_other_picture_names_the_flag(place: Place, tmp_path: Path) -> None:
    folder = place.src / ("train" if place.kind == "imagenet" else "val")
    folder.rename(place.outside / "split")
    folder.symlink_to(place.outside / "split")
    with pytest.raises(BuildError, match=r"all 2 candidates are rejects, first .*: a link .* --follow-links"):
        make_plan(place.open(), tmp_path / "out", SMALL)
    assert make_plan(place.open(follow=True), tmp_path / "out", SMALL).count == 2


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_the_flag_is_one_of_the_command_line(place: Place, tmp_path: Path) -> None:
    kind, jobs = place.kind.partition("-")[0], list[BuildRequest]()
    words = [kind, str(tmp_path / "list.txt" if kind == "list" else place.src), "out"]
    words += ["--root", str(place.src)] if kind == "list" else []
    for flags in ([], ["--follow-links"]):
        submit.parse_build([*words, *flags], jobs.append)  # what `submit` makes jobs of
    assert [job.source.facts()["follow_links"] for job in jobs] == [False, True]


@pytest.mark.parametrize("place", KINDS, indirect=True)
@pytest.mark.parametrize("what", ["link", "folder", "fifo", "device"])
def test_what_became_something_else_since_the_plan_is_not_read(place: Place, what: str) -> None:
    source = place.open()
    *_, entry = source.entries()
    file, same = place.files[1], place.outside / SECOND
    same.write_bytes(PICTURE)
    os.utime(same, ns=(entry.mtime_ns, entry.mtime_ns))  # as size and mtime tell, it is the same
    if what == "link":
        linked(file, same)
    elif what == "folder":
        linked(file.parent, place.outside)
    elif what == "fifo":
        file.unlink()
        os.mkfifo(file)
        os.utime(file, ns=(entry.mtime_ns, entry.mtime_ns))
    else:
        linked(file, Path("/dev/zero"))
    # A rerun will not help a link that leads out; a file may be put back.
    error, told = (Stopped, "a FIFO") if what == "fifo" else (BuildError, "a link that leads out .* both$")
    with pytest.raises(error, match=told):
        again(source).read(entry)


def test_a_device_is_not_read_where_links_are_followed(place: Place) -> None:
    source = place.open(follow=True)
    *_, entry = source.entries()
    linked(place.files[1], Path("/dev/zero"))
    with pytest.raises(Stopped, match="a device"):
        again(source).read(entry)
    assert problems(source) == ["", "not a regular file"]


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_files_that_are_no_links_cost_one_question_each(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    source = place.open()
    asked: list[str] = []

    def counted(real: Callable[..., Any], path: Any, **more: Any) -> Any:
        asked.append(os.fsdecode(path))
        return real(path, **more)

    for name in ("stat", "lstat", "readlink"):
        monkeypatch.setattr(os, name, partial(counted, getattr(os, name)))
    counts = []
    for _ in range(2):
        asked.clear()
        assert problems(source) == ["", ""]
        counts.append(sum(FIRST in path for path in asked))
    assert counts == [1, 1]
    assert len(asked) <= 6  # of the second listing: folders were asked about in the first


def test_threads_ask_about_links_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    linked(place.files[1], place.outside / "private.JPEG")
    monkeypatch.setattr("decodeonce.prep.sources.parallel_stat.network_file_system", lambda top: "NFS")
    assert problems(place.open()) == ["", OUTSIDE]


def test_circles_of_links_are_walked_once(tmp_path: Path) -> None:
    (tmp_path / "xml/deep").mkdir(parents=True)
    (tmp_path / "xml/deep/n1_1.xml").write_text(XML.format("n1"))
    for name in ("a", "b", "c", "deep/d", "deep/e"):  # each path through them is another: 40 deep there are 5**40
        (tmp_path / "xml" / name).symlink_to(tmp_path / "xml")
    write_table(tmp_path / "xml/deep/x.parquet", {"image": images([(PICTURE, None)]), "label": ["a"]})
    for follow in (False, True):
        annotations = Annotations(tmp_path / "xml", Links(tmp_path / "xml", follow=follow))
        assert annotations.read(b"n1_1.JPEG").objects
        assert annotations.files_except(set()) == ["n1_1.xml"]
        assert len(list(open_parquet(tmp_path / "xml", follow_links=follow).entries())) == 1


def test_annotations_outside_of_their_folder_make_no_boxes(place: Place) -> None:
    (place.src.parent / "xml").mkdir()
    (place.outside / "x.xml").write_text(XML.format("a"))
    (place.src.parent / f"xml/{Path(FIRST).stem}.xml").symlink_to(place.outside / "x.xml")
    os.mkfifo(place.src.parent / f"xml/{Path(SECOND).stem}.xml")
    inner, xml = place.open(), place.src.parent / "xml"
    assert [problem[-len(OUTSIDE) :] for problem in problems(BoxedSource(inner, xml, BoxRules()))] == [
        OUTSIDE,
        f"{Path(SECOND).stem}.xml: a FIFO",
    ]
    assert problems(BoxedSource(inner, xml, BoxRules(), follow_links=True))[0] == ""


def test_archives_that_lie_outside_of_src_are_refused(tmp_path: Path) -> None:
    outside, src = tmp_path / "outside", tmp_path / "src"
    src.mkdir()
    write_tar(outside / "a.tar", sample("x", PICTURE, cls=1))
    write_table(outside / "a.parquet", {"image": images([(PICTURE, None)]), "label": ["a"]})
    (outside / "ILSVRC2012_img_train.tar").write_bytes(tar_bytes(class_tars([Pic("n00000001", "x", PICTURE)])))
    (outside / "a.zip").write_bytes(zip_bytes({"ILSVRC/Data/CLS-LOC/train/n1/x.JPEG": PICTURE}))
    cases: list[tuple[str, Callable[..., Source]]] = [
        ("a.tar", lambda **how: open_webdataset(str(src), **how)),
        ("a.parquet", lambda **how: open_parquet(src, **how)),
        ("ILSVRC2012_img_train.tar", lambda **how: open_imagenet(src, **how)),
        ("a.zip", lambda **how: open_imagenet(src, **how)),
    ]
    for name, opened in cases:
        (src / name).symlink_to(outside / name)
        with pytest.raises(BuildError, match=f"{name}: a link that leads out of SRC: build with --follow-links"):
            opened()
        assert problems(opened(follow_links=True))[0] == ""
        (src / name).unlink()
    (src / "a.tar").symlink_to(outside / "a.tar")
    assert problems(open_webdataset(f"{src}/*.tar")) == [""]  # a file that is named may lie anywhere


def test_folders_too_deep_to_be_walked_are_rejects(tmp_path: Path) -> None:
    folder = tmp_path / "src/a" / "/".join("d" * (MAX_DEPTH + 300))
    folder.mkdir(parents=True)
    (folder / "x.JPEG").write_bytes(PICTURE)
    [entry] = FolderSource(tmp_path / "src").entries()
    assert (entry.problem, entry.name.count(b"/")) == ("a directory", MAX_DEPTH + 1)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path has 107 bytes at most
        bound.bind(path.name)
        os.chdir(here)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "fifo": _fifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "socket": _socket,
}
OPENED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "list": ("x.txt", lambda path: list(open_list(path).entries())),
    "csv": ("x.csv", lambda path: open_list(path).found),
    "webdataset": ("x.tar", lambda path: list(open_webdataset(str(path)).entries())),
    "parquet": ("x.parquet", lambda path: list(open_parquet(path).entries())),
    "imagenet": ("x.zip", lambda path: open_imagenet(path)),
    "archive": ("x", lambda path: source_file(path.parent, path.name)),
    "any": ("x", open_regular),
    "text": ("x", read_small),
}


@pytest.mark.parametrize("what", NO_FILES)
@pytest.mark.parametrize("opened", OPENED)
def test_what_is_no_regular_file_is_neither_waited_for_nor_read(tmp_path: Path, what: str, opened: str) -> None:
    name, call = OPENED[opened]
    NO_FILES[what](tmp_path / name)
    with pytest.raises((DecodeonceError, OSError), match=name.split(".")[0]):
        call(tmp_path / name)


@pytest.mark.parametrize("what", NO_FILES)
def test_lists_of_imagenet_that_are_no_files_are_not_there(tmp_path: Path, what: str) -> None:
    for name in ("LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt", "ILSVRC2012_devkit_t12.tar.gz"):
        NO_FILES[what](tmp_path / name)
    companions = CompanionFiles(tmp_path)
    assert companions.find("LOC_val_solution.csv") is None
    assert companions.truth() is None


def test_a_class_list_that_is_no_file_is_a_usage_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "classes.txt")
    with pytest.raises(ValueError, match=r"classes.txt: a FIFO; expected a file with one class name per line"):
        read_class_list(tmp_path / "classes.txt")


OF_A_STORE = ("images-00000.npy", "labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv", "store.json")
OF_A_PLAN = ("lock", "plan.json", "plan-rows.npy", "plan-names.bin", "plan-rejects.tsv")
KNOWN_FILES = (
    "x.tar",
    "x.zip",
    "list.txt",
    "LOC_val_solution.csv",
    "ILSVRC2012_img_train.tar",
    "ILSVRC2012_img_val.tar",
)
EVIL = ("../../evil", "/etc/evil", "a/../../../evil", "..", "x\0y", "\n", "é\udcff")


def _evil_samples(src: Path) -> Source:
    write_tar(src / "x.tar", [part for name in EVIL for part in sample(name, PICTURE, json={"label": name[:-1]})])
    return open_webdataset(str(src))


def _evil_class_tars(src: Path) -> Source:
    tars = {"../../evil.tar": tar_bytes({f"{name}.JPEG": PICTURE for name in EVIL[:-1]}), "/etc/x.tar": tar_bytes({})}
    (src / "ILSVRC2012_img_train.tar").write_bytes(tar_bytes(tars))
    return open_imagenet(src)


def _evil_zip(src: Path) -> Source:
    files = {f"ILSVRC/Data/CLS-LOC/train/{name}/{name}.JPEG": PICTURE for name in ("a/../../../evil", "\n", "é")}
    (src / "x.zip").write_bytes(zip_bytes(files))
    return open_imagenet(src)


def _evil_folder_in_a_zip(src: Path) -> Source:
    (src / "x.zip").write_bytes(zip_bytes({"ILSVRC/Data/CLS-LOC/train/../../../evil.JPEG": PICTURE}))
    return open_imagenet(src)


def _evil_wnid(src: Path) -> Source:
    (src / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes({f"/../{FIRST}": PICTURE}))
    (src / "LOC_val_solution.csv").write_text(f"{Path(FIRST).stem},../../n1 1\n")
    return open_imagenet(src)


def _evil_list(src: Path) -> Source:
    (src / "list.txt").write_text(f"{'../' * 9}etc/passwd\tx\n")
    return open_list(src / "list.txt")


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (_evil_samples, ""),
        (_evil_class_tars, ""),
        (_evil_zip, ""),
        (_evil_folder_in_a_zip, r"the class list contains '\.\.'; expected the name of a folder"),
        (_evil_wnid, r"the class list contains '../../n1'; expected the name of a folder"),
        (_evil_list, r"passwd' is not below .*src; pass a folder"),
    ],
)
def test_names_in_archives_are_names_and_nothing_else(
    tmp_path: Path, make: Callable[[Path], Source], refused: str
) -> None:
    """Whatever they are, OUT has its own files alone, and nothing is made or changed beside it."""
    src, out = tmp_path / "a/b/src", tmp_path / "a/b/out"
    src.mkdir(parents=True)
    if refused:
        with pytest.raises(BuildError, match=refused):
            make_plan(make(src), out, SMALL)
    elif make is _evil_samples:
        build(make(src), out, SMALL, Work(workers=1, max_bad="1"))
    else:
        make_plan(make(src), out, SMALL)
    made = {path for path in tmp_path.rglob("*") if path.is_file() and path.parent != src}
    assert {path.parent for path in made} <= {out, out / ".build"}
    assert {path.name for path in made} <= {*OF_A_STORE, *OF_A_PLAN}
    assert bool(made) == (not refused)
    assert len(list(src.iterdir())) == len({path.name for path in src.iterdir()} & {*KNOWN_FILES})


def test_scan_tells_names_that_lead_elsewhere_as_they_are(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [part for name in EVIL[:2] for part in sample(name, PICTURE, cls="k")])
    assert bytes(scan(open_webdataset(str(tmp_path))).names) == b"x.tar/../../evil.jpgx.tar/etc/evil.jpg"


def test_a_server_that_is_away_behind_a_link_to_src_makes_no_reject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src/a").mkdir(parents=True)
    (tmp_path / "src/a/1.jpg").write_bytes(jpeg(20, 20))
    (tmp_path / "link").symlink_to("src")
    links, lstat = Links(tmp_path / "link"), os.lstat
    assert not file_entry(tmp_path / "link", b"a/1.jpg", 0, links).problem

    def away(path: Any, **options: Any) -> os.stat_result:
        if b"/link/a/" in os.fsencode(path):
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected", path)
        return lstat(path, **options)

    monkeypatch.setattr(os, "lstat", away)
    with pytest.raises(Stopped, match="the file server may be down"):
        file_entry(tmp_path / "link", b"a/1.jpg", 0, Links(tmp_path / "link"))
