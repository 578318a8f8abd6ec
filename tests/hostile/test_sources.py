"""A build does not follow links out of SRC, read special files, or use the names in archives as paths."""

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

from decodeonce.build import BoxRules, Recipe, WorkSettings, build, make_plan
from decodeonce.errors import BuildError, DecodeonceError, Stopped
from decodeonce.prep.building.plan import checked_listing
from decodeonce.prep.sources import open_source
from decodeonce.prep.sources.boxed import Annotations, BoxedSource
from decodeonce.prep.sources.classes import read_class_list
from decodeonce.prep.sources.files import MAX_DEPTH, OUTSIDE, Links, open_source_file, read_small
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.prep.sources.imagenet_labels import CompanionFiles
from decodeonce.sources import Source, file_entry, open_imagenet, open_list, open_parquet, open_webdataset, source_file
from tests.command import prep
from tests.disks import LOOKUP, OPEN, failing_disk
from tests.forms.boxed import whole
from tests.forms.form import Pic
from tests.forms.imagenet import class_tars, tar_bytes, write, zip_bytes
from tests.forms.parquet import images, write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg

SMALL = Recipe(height=8, width=8)
IMAGE = jpeg(24, 20)
KINDS = ("folder", "imagenet", "imagenet-flat", "list")
FIRST, SECOND = "ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000002.JPEG"


@pytest.fixture(autouse=True)
def fail_if_stuck() -> Iterator[None]:
    """Fail, with a traceback, a test that waits for a FIFO or loops for more than 60 s."""
    signal.signal(signal.SIGALRM, lambda number, frame: pytest.fail("hangs"))
    signal.alarm(60)
    yield
    signal.alarm(0)


class Tree:
    """A source of two images in the folder `src`, and a folder `outside` next to it, with an image private.JPEG.

    If the source has folders, its images are in `a` and `b`.
    """

    def __init__(self, top: Path, kind: str) -> None:
        self.kind, self.src, self.outside = kind, top / "src", top / "outside"
        self.outside.mkdir()
        (self.outside / "private.JPEG").write_bytes(IMAGE)
        base = {"imagenet": self.src / "train", "imagenet-flat": self.src / "val"}.get(kind, self.src)
        folders = [base, base] if kind == "imagenet-flat" else [base / "a", base / "b"]
        self.files = [folder / name for folder, name in zip(folders, (FIRST, SECOND), strict=True)]
        for file in self.files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(IMAGE)
        names = [Path(name).stem for name in (FIRST, SECOND, "private.JPEG")]
        self.src.joinpath("LOC_val_solution.csv").write_text("".join(f"{name},n01440764 1\n" for name in names))
        (top / "list.txt").write_text("".join(f"{file.relative_to(self.src)}\n" for file in self.files))

    def open(self, *, follow: bool = False) -> Source:
        """Open the source as `build` does."""
        if self.kind == "folder":
            return FolderSource(self.src, follow_links=follow)
        if self.kind == "list":
            return open_list(self.src.parent / "list.txt", root=self.src, follow_links=follow)
        return open_imagenet(self.src, follow_links=follow)


@pytest.fixture
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    return Tree(tmp_path, getattr(request, "param", "folder"))


def problems(source: Source) -> list[str]:
    return [entry.problem for entry in source.scan().entries]


def reopen(source: Source) -> Source:
    """Open the source as a worker does, from the facts in the plan."""
    return open_source(source.kind, source.root, json.loads(json.dumps(source.arguments())))


def replace_by_link(link: Path, to: Path) -> None:
    """Create a link. A folder in its place is renamed, and a file is removed."""
    if link.is_dir() and not link.is_symlink():
        link.rename(link.with_name(f".{link.name}"))
    else:
        link.unlink(missing_ok=True)
    link.symlink_to(to)


@pytest.mark.parametrize("tree", KINDS, indirect=True)
def test_link_out_of_src_is_rejected_and_the_reason_names_the_flag(tree: Tree) -> None:
    replace_by_link(tree.files[1], tree.outside / "private.JPEG")
    assert problems(tree.open()) == ["", OUTSIDE]
    assert OUTSIDE.endswith(": build with --follow-links")
    followed = tree.open(follow=True)
    first, second = followed.scan().entries
    assert reopen(followed).read(second)[0] == IMAGE
    assert (first.problem, second.problem) == ("", "")
    with pytest.raises(BuildError, match=r"00002.JPEG: a link that leads out of SRC: build with --follow-links"):
        reopen(tree.open()).read(second)


@pytest.mark.parametrize("tree", KINDS, indirect=True)
def test_link_inside_src_is_read(tree: Tree) -> None:
    tree.src.rename(tree.outside / "moved")
    tree.src.symlink_to(tree.outside / "moved")  # SRC may be a link itself
    replace_by_link(tree.files[1], tree.files[0])
    source = tree.open()
    assert problems(source) == ["", ""]
    assert [reopen(source).read(entry)[0] for entry in source.scan().entries] == [IMAGE, IMAGE]


@pytest.mark.parametrize("tree", ["folder", "imagenet", "list"], indirect=True)
def test_linked_folder_outside_src_is_not_read(tree: Tree) -> None:
    (tree.outside / "deep").mkdir()
    (tree.outside / SECOND).write_bytes(IMAGE)
    replace_by_link(tree.files[1].parent, tree.outside)
    names = [entry.text for entry in tree.open().scan().entries if entry.problem == OUTSIDE]
    inside = str(tree.files[1].parent.relative_to(tree.src))
    expected = [f"{inside}/{name}" for name in (SECOND, "deep", "private.JPEG")]  # "deep" is not walked
    assert names == (expected[:1] if tree.kind == "list" else expected)
    assert problems(tree.open(follow=True)).count("") == (2 if tree.kind == "list" else 3)


@pytest.mark.parametrize("tree", KINDS, indirect=True)
@pytest.mark.parametrize("what", ["link", "folder", "fifo", "device"])
def test_image_replaced_after_the_plan_is_not_read(tree: Tree, what: str) -> None:
    source = tree.open()
    *_, entry = source.scan().entries
    file, copy = tree.files[1], tree.outside / SECOND
    copy.write_bytes(IMAGE)
    os.utime(copy, ns=(entry.version, entry.version))  # so that size and modification time are the same
    if what == "link":
        replace_by_link(file, copy)
    elif what == "folder":
        replace_by_link(file.parent, tree.outside)
    elif what == "fifo":
        file.unlink()
        os.mkfifo(file)
        os.utime(file, ns=(entry.version, entry.version))
    else:
        replace_by_link(file, Path("/dev/zero"))
    with pytest.raises(BuildError, match="a FIFO" if what == "fifo" else "a link that leads out .* --follow-links$"):
        reopen(source).read(entry)


def test_device_is_not_read_with_follow_links(tree: Tree) -> None:
    source = tree.open(follow=True)
    *_, entry = source.scan().entries
    replace_by_link(tree.files[1], Path("/dev/zero"))
    with pytest.raises(BuildError, match="a device"):
        reopen(source).read(entry)
    assert problems(source) == ["", "not a regular file"]


@pytest.mark.parametrize("tree", KINDS, indirect=True)
def test_file_that_is_not_a_link_needs_one_system_call(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tree.open()
    paths: list[str] = []

    def recorded(real: Callable[..., Any], path: Any, **options: Any) -> Any:
        paths.append(os.fsdecode(path))
        return real(path, **options)

    for name in ("stat", "lstat", "readlink"):
        monkeypatch.setattr(os, name, partial(recorded, getattr(os, name)))
    counts = []
    for _ in range(2):
        paths.clear()
        assert problems(source) == ["", ""]
        counts.append(sum(FIRST in path for path in paths))
    assert counts == [1, 1]
    assert len(paths) <= 6  # in the second listing; the first one has cached the folders


def test_links_are_checked_by_threads_too(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_by_link(tree.files[1], tree.outside / "private.JPEG")
    monkeypatch.setattr("decodeonce.prep.sources.files.network_file_system", lambda top: "NFS")
    assert problems(tree.open()) == ["", OUTSIDE]


def test_cycles_of_links_are_walked_once(tmp_path: Path) -> None:
    (tmp_path / "xml/deep").mkdir(parents=True)
    (tmp_path / "xml/deep/n1_1.xml").write_text(whole("n1"))
    for name in ("a", "b", "c", "deep/d", "deep/e"):  # at depth 40, there are 5**40 different paths through these links
        (tmp_path / "xml" / name).symlink_to(tmp_path / "xml")
    write_table(tmp_path / "xml/deep/x.parquet", {"image": images([(IMAGE, None)]), "label": ["a"]})
    for follow in (False, True):
        annotations = Annotations(tmp_path / "xml", Links(tmp_path / "xml", follow=follow), None)
        assert annotations.read(b"n1_1.JPEG").objects
        assert annotations.files_except(set()) == ["n1_1.xml"]
        assert len(list(open_parquet(tmp_path / "xml", follow_links=follow).scan().entries)) == 1


def test_annotations_outside_their_folder_are_rejected(tree: Tree) -> None:
    (tree.src.parent / "xml").mkdir()
    (tree.outside / "x.xml").write_text(whole("a"))
    (tree.src.parent / f"xml/{Path(FIRST).stem}.xml").symlink_to(tree.outside / "x.xml")
    os.mkfifo(tree.src.parent / f"xml/{Path(SECOND).stem}.xml")
    inner, xml = tree.open(), tree.src.parent / "xml"
    found = [problem[-len(OUTSIDE) :] for problem in problems(BoxedSource(inner, xml, BoxRules()))]
    assert found == [OUTSIDE, f"{Path(SECOND).stem}.xml: a FIFO"]
    assert problems(BoxedSource(inner, xml, BoxRules(), follow_links=True))[0] == ""


def test_linked_archives_outside_src_are_refused(tmp_path: Path) -> None:
    outside, src = tmp_path / "outside", tmp_path / "src"
    src.mkdir()
    write_tar(outside / "a.tar", sample("x", IMAGE, cls=1))
    write_table(outside / "a.parquet", {"image": images([(IMAGE, None)]), "label": ["a"]})
    (outside / "ILSVRC2012_img_train.tar").write_bytes(tar_bytes(class_tars([Pic("n00000001", "x", IMAGE)])))
    (outside / "a.zip").write_bytes(zip_bytes({"ILSVRC/Data/CLS-LOC/train/n1/x.JPEG": IMAGE}))
    cases: list[tuple[str, Callable[..., Source]]] = [
        ("a.tar", lambda **options: open_webdataset(str(src), **options)),
        ("a.parquet", lambda **options: open_parquet(src, **options)),
        ("ILSVRC2012_img_train.tar", lambda **options: open_imagenet(src, **options)),
        ("a.zip", lambda **options: open_imagenet(src, **options)),
    ]
    for name, opened in cases:
        (src / name).symlink_to(outside / name)
        with pytest.raises(BuildError, match=f"{name}: a link that leads out of SRC: build with --follow-links"):
            opened()
        assert problems(opened(follow_links=True))[0] == ""
        (src / name).unlink()
    (src / "a.tar").symlink_to(outside / "a.tar")
    assert problems(open_webdataset(f"{src}/*.tar")) == [""]  # links that the user names are followed


def test_folders_that_are_too_deep_are_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "src/a" / "/".join("d" * (MAX_DEPTH + 300))
    folder.mkdir(parents=True)
    (folder / "x.JPEG").write_bytes(IMAGE)
    [entry] = FolderSource(tmp_path / "src").scan().entries
    assert (entry.problem, entry.name.count(b"/")) == ("a directory", MAX_DEPTH + 1)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        previous = os.getcwd()
        os.chdir(path.parent)  # the path of a socket must not exceed 107 bytes
        bound.bind(path.name)
        os.chdir(previous)


SPECIAL_FILES: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "socket": _socket,
}
OPENERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "list": ("x.txt", lambda path: list(open_list(path).scan().entries)),
    "csv": ("x.csv", lambda path: open_list(path).found),
    "webdataset": ("x.tar", lambda path: list(open_webdataset(str(path)).scan().entries)),
    "parquet": ("x.parquet", lambda path: list(open_parquet(path).scan().entries)),
    "imagenet": ("x.zip", lambda path: open_imagenet(path)),
    "archive": ("x", lambda path: source_file(path.parent, path.name)),
    "classes": ("x", read_class_list),
    "any": ("x", open_source_file),
    "text": ("x", read_small),
}


@pytest.mark.parametrize("what", SPECIAL_FILES)
@pytest.mark.parametrize("opener", OPENERS)
def test_special_file_is_refused_without_waiting(tmp_path: Path, what: str, opener: str) -> None:
    name, call = OPENERS[opener]
    SPECIAL_FILES[what](tmp_path / name)
    with pytest.raises((DecodeonceError, OSError, ValueError), match=name.split(".")[0]):
        call(tmp_path / name)


@pytest.mark.parametrize("what", SPECIAL_FILES)
def test_imagenet_lists_that_are_special_files_are_ignored(tmp_path: Path, what: str) -> None:
    for name in ("LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt", "ILSVRC2012_devkit_t12.tar.gz"):
        SPECIAL_FILES[what](tmp_path / name)
    companions = CompanionFiles(tmp_path)
    assert companions.find("LOC_val_solution.csv") is None
    assert companions.truth() is None


STORE_FILES = ("images-00000.npy", "labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv", "store.json")
PLAN_FILES = ("plan.json", "records.npy", "names.bin")
HOSTILE = ("../../evil", "/etc/evil", "a/../../../evil", "..", "x\0y", "\n", "é\udcff")


TRAIN = "ILSVRC/Data/CLS-LOC/train"
SAMPLES = dict(part for name in HOSTILE for part in sample(name, IMAGE, json={"label": name[:-1]}))
CLASS_TARS = {"../../e.tar": tar_bytes({f"{name}.JPEG": IMAGE for name in HOSTILE[:-1]}), "/etc/x.tar": tar_bytes({})}
ZIPPED = {f"{TRAIN}/{name}/{name}.JPEG": IMAGE for name in ("a/../../../evil", "\n", "é")}
ARCHIVES: list[tuple[dict[str, bytes], str]] = [  # the files of SRC, and the error
    ({"x.tar": tar_bytes(SAMPLES)}, ""),
    ({"ILSVRC2012_img_train.tar": tar_bytes(CLASS_TARS)}, ""),
    ({"x.zip": zip_bytes(ZIPPED)}, ""),
    (
        {"x.zip": zip_bytes({f"{TRAIN}/../../../evil.JPEG": IMAGE})},
        r"the class list contains '\.\.', which is not a class",
    ),
    (
        {
            "ILSVRC2012_img_val.tar": tar_bytes({f"/../{FIRST}": IMAGE}),
            "LOC_val_solution.csv": f"{Path(FIRST).stem},../../n1 1\n".encode(),
        },
        "the class list contains '../../n1', which is not a class",
    ),
    ({"list.txt": b"../" * 9 + b"etc/passwd\tx\n"}, "passwd' is not below .*src; pass a folder"),
]


@pytest.mark.parametrize(("contents", "refused"), ARCHIVES)
def test_names_in_archives_are_not_used_as_paths(tmp_path: Path, contents: dict[str, bytes], refused: str) -> None:
    """OUT contains only its usual files, and no file outside it is created or changed."""
    src, out = tmp_path / "a/b/src", tmp_path / "a/b/out"
    write(src, contents)
    openers: dict[str, Callable[[], Source]] = {
        "x.tar": lambda: open_webdataset(str(src)),
        "list.txt": lambda: open_list(src / "list.txt"),
    }
    make = openers.get(next(iter(contents)), lambda: open_imagenet(src))
    if refused:
        with pytest.raises(BuildError, match=refused):
            make_plan(make(), out, SMALL)
    elif "x.tar" in contents:
        build(make(), out, SMALL, WorkSettings(workers=1, max_bad="1"))
    else:
        make_plan(make(), out, SMALL)
    created = {path for path in tmp_path.rglob("*") if path.is_file() and path.parent != src}
    assert {path.parent for path in created} <= {out, out / ".build", *out.glob(".build/plan-????????")}
    assert {path.name for path in created} <= {*STORE_FILES, *PLAN_FILES}
    assert bool(created) == (not refused)
    assert {path.name for path in src.iterdir()} == contents.keys()


def test_scan_keeps_hostile_names_unchanged(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [part for name in HOSTILE[:2] for part in sample(name, IMAGE, cls="k")])
    assert bytes(checked_listing(open_webdataset(str(tmp_path))).names) == b"x.tar/../../evil.jpgx.tar/etc/evil.jpg"


def test_lost_server_behind_a_link_to_src_causes_no_reject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src/a").mkdir(parents=True)
    (tmp_path / "src/a/1.jpg").write_bytes(jpeg(20, 20))
    (tmp_path / "link").symlink_to("src")
    links, lstat = Links(tmp_path / "link"), os.lstat
    assert not file_entry(tmp_path / "link", b"a/1.jpg", 0, links).problem

    def lost(path: Any, **options: Any) -> os.stat_result:
        if b"/link/a/" in os.fsencode(path):
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected", path)
        return lstat(path, **options)

    monkeypatch.setattr(os, "lstat", lost)
    with pytest.raises(Stopped, match="the file server may be down"):
        file_entry(tmp_path / "link", b"a/1.jpg", 0, Links(tmp_path / "link"))


@pytest.mark.parametrize("operation", [LOOKUP, OPEN])
@pytest.mark.parametrize(("code", "status", "advice"), [(errno.EROFS, 1, "fix this and run"), (errno.EIO, 75, "run")])
def test_failing_file_system_below_src_causes_no_reject(
    tmp_path: Path, operation: int, code: int, status: int, advice: str
) -> None:
    (tmp_path / "images.txt").write_text("disk/a.jpg\n")
    with failing_disk(tmp_path, "a.jpg", operation, code) as disk:
        ended = prep("build", "list", tmp_path / "images.txt", tmp_path / "out", "--workers", 1)
    assert ended.returncode == status
    assert f": {disk}/a.jpg: {os.strerror(code)}; {advice} the same command again\n" in ended.stderr
