"""The sample tree: its content, that it is reproducible, and errors."""

import re
from pathlib import Path

import pytest
from PIL import Image

from decodeonce.prep import sample
from decodeonce.prep.sample import write_sample_tree
from tests.disks import small_disk
from tests.images import tree_bytes

COUNT = 300


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, int]]:
    root = tmp_path_factory.mktemp("sample") / "small imagenet"
    return root, write_sample_tree(root, count=COUNT, classes=12, workers=2)


def image_paths(root: Path) -> list[Path]:
    return sorted((root / "train").glob("*/*.JPEG"))


def test_totals_match_the_tree(tree: tuple[Path, tuple[int, int]]) -> None:
    root, totals = tree
    sizes = [Image.open(path).size for path in image_paths(root)]
    assert (len(sizes), len(list((root / "train").iterdir()))) == (COUNT, 12)
    nbytes = sum(path.stat().st_size for path in image_paths(root))
    assert totals == (nbytes, sum(width * height for width, height in sizes))


def test_sizes_match_imagenet(tree: tuple[Path, tuple[int, int]]) -> None:
    _, (nbytes, pixels) = tree
    assert 190_000 < pixels / COUNT < 215_000
    assert 95_000 < nbytes / COUNT < 125_000


def test_folders_and_names_match_imagenet(tree: tuple[Path, tuple[int, int]]) -> None:
    root, _ = tree
    assert {path.name for path in root.iterdir()} == {"train", "LOC_synset_mapping.txt"}
    for path in image_paths(root):
        assert re.fullmatch(r"n\d{8}", path.parent.name)
        assert re.fullmatch(rf"{path.parent.name}_\d+\.JPEG", path.name)
    in_class = [len(list(folder.iterdir())) for folder in (root / "train").iterdir()]
    assert len(set(in_class)) > 1
    assert min(in_class) > COUNT / 12 / 2
    assert max(in_class) < COUNT / 12 * 2


def test_mapping_lists_each_folder_once(tree: tuple[Path, tuple[int, int]]) -> None:
    root, _ = tree
    lines = (root / "LOC_synset_mapping.txt").read_text(encoding="utf-8").splitlines()
    wnids, names = zip(*(line.split(" ", 1) for line in lines), strict=True)
    assert list(wnids) == sorted(folder.name for folder in (root / "train").iterdir())
    assert len(set(names)) == len(names)
    assert all(", " in name for name in names)


@pytest.mark.parametrize("count", [50, COUNT])
def test_number_of_unusual_files(tree: tuple[Path, tuple[int, int]], tmp_path: Path, count: int) -> None:
    root = tree[0] if count == COUNT else tmp_path
    if count != COUNT:
        write_sample_tree(root, count=count, classes=50)
    kinds = [kind(path) for path in image_paths(root)]
    unusual = {name: kinds.count(name) for name in ("JPEG L", "JPEG CMYK", "PNG RGB", "cut")}
    assert unusual == {"JPEG L": max(1, count // 50), "JPEG CMYK": 1, "PNG RGB": 1, "cut": 0}
    assert kinds.count("JPEG RGB") == count - sum(unusual.values())


def test_truncated_images_stay_within_default_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sample, "MIN_COUNT_FOR_CUT", 50)
    write_sample_tree(tmp_path, count=50, classes=2)
    assert [kind(path) for path in image_paths(tmp_path)].count("cut") == 1


def kind(path: Path) -> str:
    with Image.open(path) as image:
        try:
            image.load()
        except OSError as error:
            return "cut" if "truncated" in str(error) else str(error)
        return f"{image.format} {image.mode}"


@pytest.mark.long
def test_bytes_do_not_depend_on_workers(tmp_path: Path) -> None:
    reports = [write_sample_tree(tmp_path / str(n), count=50, classes=7, seed=5, workers=n) for n in (1, 2)]
    assert reports[0] == reports[1]
    assert tree_bytes(tmp_path / "1") == tree_bytes(tmp_path / "2")


def test_different_seed_draws_a_different_tree(tree: tuple[Path, tuple[int, int]], tmp_path: Path) -> None:
    write_sample_tree(tmp_path, count=50, classes=12, seed=1)
    assert not set(tree_bytes(tmp_path).values()) & set(tree_bytes(tree[0]).values())


def test_folder_in_use_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    for dest in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(FileExistsError, match="exists and is not an empty folder"):
            write_sample_tree(dest, count=50, classes=1)
    assert tree_bytes(tmp_path) == {"mine.txt": b"keep"}


def test_full_disk_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path, "1m") as disk:
        with pytest.raises(OSError, match="No space left on device") as caught:
            write_sample_tree(disk / "tree", count=50, classes=1)
        assert str(caught.value.filename).startswith(f"{disk}/tree/")


def test_interrupted_tree_is_made_anew(tmp_path: Path) -> None:
    def stop(images: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        write_sample_tree(tmp_path / "a", count=60, classes=3, progress=stop)
    assert image_paths(tmp_path / "a")
    for name in "ab":
        write_sample_tree(tmp_path / name, count=50, classes=2)
    assert tree_bytes(tmp_path / "a") == tree_bytes(tmp_path / "b")
