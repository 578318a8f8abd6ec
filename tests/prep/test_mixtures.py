"""Sources that mix what does not belong together, or hold more than it seems."""

from __future__ import annotations

import gzip
import subprocess
from itertools import chain
from pathlib import Path

import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.sources.file_list import open_list
from decodeonce.prep.sources.folder import open_folder
from decodeonce.prep.sources.webdataset import open_webdataset
from decodeonce.store import open_store
from tests.command import prep
from tests.forms.imagenet import tar_bytes
from tests.forms.webdataset import sample
from tests.images import jpeg


def tar_of(samples: range, label: str = "0") -> bytes:
    """Return a tar with an image and a label for each number."""
    parts = (sample(f"{number:03}", jpeg(40, 30, seed=number), cls=label) for number in samples)
    return tar_bytes(dict(chain(*parts)))


def test_webdataset_shards_of_two_splits_are_an_error(tmp_path: Path) -> None:
    for number, split in enumerate(["train-0000", "train-0001", "validation-00"]):
        (tmp_path / f"imagenet1k-{split}.tar").write_bytes(tar_of(range(number, number + 1)))
    for src in (tmp_path, tmp_path / "*.tar"):
        with pytest.raises(
            BuildError, match=r"several splits \(train, validation\); .* such as .*/imagenet1k-validation\*"
        ):
            open_webdataset(src)
    assert len(list(open_webdataset(tmp_path / "imagenet1k-train*").scan().entries)) == 2


def test_all_tars_of_a_file_are_read(tmp_path: Path) -> None:
    first, second = tar_of(range(3)), tar_of(range(3, 8))
    (tmp_path / "cat.tar").write_bytes(first + second)
    (tmp_path / "cat.tar.gz").write_bytes(gzip.compress(first) + gzip.compress(second))
    for name in ("cat.tar", "cat.tar.gz"):
        source = open_webdataset(tmp_path / name)
        assert [source.read(entry)[0] for entry in source.scan().entries] == [jpeg(40, 30, seed=n) for n in range(8)]
    (tmp_path / "line.tar").write_bytes(first + b"\n")
    assert len(list(open_webdataset(tmp_path / "line.tar").scan().entries)) == 3
    (tmp_path / "cat.tar").write_bytes(first + b"something else" * 100)
    with pytest.raises(BuildError, match=f"damaged: no tar header at byte {len(first)}; "):
        list(open_webdataset(tmp_path / "cat.tar").scan().entries)


def test_parts_of_splits_are_no_classes(tmp_path: Path) -> None:
    """The layout of ImageNet-100 on Kaggle: train.X1 to train.X4 hold different classes."""
    for folder in ("train.X1/n01", "train.X2/n02", "val.X/n01", "val.X/n02"):
        (tmp_path / "kaggle" / folder).mkdir(parents=True)
        (tmp_path / "kaggle" / folder / "1.JPEG").write_bytes(jpeg(40, 30))
    with pytest.raises(BuildError, match=r"splits instead of classes \(train\.X1, train\.X2, val\.X\)") as raised:
        open_folder(tmp_path / "kaggle")
    links, _, then = str(raised.value).partition("run: ")[2].partition(";")[0].partition(", then ")
    assert then == "pass ALL-train as SRC and --follow-links"
    subprocess.run(["bash", "-c", links], cwd=tmp_path, check=True)
    joined = open_folder(tmp_path / "ALL-train", follow_links=True).listing()
    assert (len(joined), [cls.name for cls in joined.classes]) == (2, ["n01", "n02"])
    assert len(open_folder(tmp_path / "kaggle/val.X").listing().classes) == 2


@pytest.mark.parametrize("label", ["5.0", "5.", "5"])
def test_labels_with_a_point_are_whole_numbers(tmp_path: Path, label: str) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(range(2), "10.0"))
    (tmp_path / "b.tar").write_bytes(tar_of(range(2, 3), label))
    source = open_webdataset(tmp_path)
    assert [entry.label for entry in source.scan().entries] == [10, 10, 5]
    assert len(source.listing().classes) == 11


def test_labels_that_are_fractions_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("path,label\n1.jpg,10.5\n2.jpg,2.5\n3.jpg,4\n")
    with pytest.raises(BuildError, match=r"a\.csv: line 2: label 10\.5 is not a whole number; to predict such numbers"):
        list(open_list(tmp_path / "a.csv").scan().entries)
    assert [cls.name for cls in open_list(tmp_path / "a.csv", classes=["4", "2.5", "10.5"]).listing().classes] == [
        "4",
        "2.5",
        "10.5",
    ]


def test_images_next_to_class_folders_are_counted(tmp_path: Path) -> None:
    (tmp_path / "src/cat").mkdir(parents=True)
    for name in ("cat/1.jpg", "2.JPG", "3.png", "notes.txt", "train.csv"):
        (tmp_path / "src" / name).write_bytes(jpeg(40, 30))
    done = prep("build", "folder", tmp_path / "src", tmp_path / "out", "--size", 8)
    assert "2 images next to the class folders (first '2.JPG'), in no class; left out" in done.stderr
    assert (
        f"train.csv is not read; if it has the labels, run `prep build list` instead, with {tmp_path}/src/train.csv as"
        in done.stderr
    )
    assert done.returncode == 0


def test_linked_folders_of_a_class_are_followed(tmp_path: Path) -> None:
    for name in ("src/cat/1.jpg", "src/more/2.jpg", "else/3.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(jpeg(40, 30))
    (tmp_path / "src/cat/inside").symlink_to(tmp_path / "src/more")
    (tmp_path / "src/cat/outside").symlink_to(tmp_path / "else")
    (tmp_path / "src/more/cycle").symlink_to(tmp_path / "src/cat")

    def cats(follow_links: bool = False) -> list[bytes]:
        source = open_folder(tmp_path / "src", classes=["cat", "more"], follow_links=follow_links)
        return [entry.name for entry in source.scan().entries if entry.label == 0 and not entry.problem]

    assert cats()[:2] == [b"cat/1.jpg", b"cat/inside/2.jpg"]
    assert b"cat/outside/3.jpg" not in cats()
    assert b"cat/outside/3.jpg" in cats(follow_links=True)
    assert len(cats(follow_links=True)) < 10  # the cycle ends


def test_files_that_are_no_images_are_left_out_and_counted(tmp_path: Path) -> None:
    """As in Tiny ImageNet, on Windows and Macs, and in the output of img2dataset."""
    others = ("n01/n01_boxes.txt", "n01/images/Thumbs.db", "n02/desktop.ini", "n02/a.json", "n02/b.txt", "n02/raw.dat")
    for name in ("n01/images/1.JPEG", "n02/2.jfif", "__MACOSX/n01/._1.JPEG", *others):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_bytes(jpeg(40, 30))
    for kind in ("folder", "imagenet"):
        done = prep("build", kind, tmp_path / "src", tmp_path / kind, "--size", 8)
        assert "6 files left out, because no image has such a suffix (.txt: 2, .db: 1, " in done.stderr
        assert [cls.name for cls in open_store(tmp_path / kind).classes] == ["n01", "n02"]
        assert len(open_store(tmp_path / kind)) == 2
    assert len(list(open_folder(tmp_path / "src", suffix=[".dat", ".INI"]).scan().entries)) == 4
