"""The sample tree: its content, that it is reproducible, and errors."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from examples import sample
from examples.sample import write_sample_tree
from tests.images import tree_bytes

pytestmark = pytest.mark.long

COUNT = 100


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, int]]:
    root = tmp_path_factory.mktemp("sample") / "small imagenet"
    return root, write_sample_tree(root, count=COUNT, classes=12, workers=2)


@pytest.fixture(scope="module")
def cut_tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tree with a truncated image, as in trees of 1,000 images and more."""
    root = tmp_path_factory.mktemp("cut")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sample, "MIN_COUNT_FOR_CUT", 50)
        write_sample_tree(root, count=50, classes=2, seed=1)
        yield root


def image_paths(root: Path) -> list[Path]:
    return sorted((root / "train").glob("*/*.JPEG"))


def test_totals_sizes_folders_and_names_match_imagenet(tree: tuple[Path, tuple[int, int]]) -> None:
    root, totals = tree
    paths = image_paths(root)
    sizes = [Image.open(path).size for path in paths]
    assert (len(sizes), len(list((root / "train").iterdir()))) == (COUNT, 12)
    nbytes, pixels = totals
    assert nbytes == sum(path.stat().st_size for path in paths)
    assert pixels == sum(width * height for width, height in sizes)
    assert 190_000 < pixels / COUNT < 215_000
    assert 95_000 < nbytes / COUNT < 125_000
    assert {path.name for path in root.iterdir()} == {"train", "LOC_synset_mapping.txt"}
    assert all(re.fullmatch(r"(n\d{8})/\1_\d+\.JPEG", str(path.relative_to(root / "train"))) for path in paths)
    in_class = Counter(path.parent.name for path in paths).values()
    assert COUNT / 12 / 2 < min(in_class) < max(in_class) < COUNT / 12 * 2


def test_mapping_lists_each_folder_once(tree: tuple[Path, tuple[int, int]]) -> None:
    root, _ = tree
    lines = (root / "LOC_synset_mapping.txt").read_text(encoding="utf-8").splitlines()
    wnids, names = zip(*(line.split(" ", 1) for line in lines), strict=True)
    assert list(wnids) == sorted(folder.name for folder in (root / "train").iterdir())
    assert len(set(names)) == len(names)
    assert all(", " in name for name in names)


def test_number_of_unusual_files(tree: tuple[Path, tuple[int, int]], cut_tree: Path) -> None:
    for root, count, cut in ((tree[0], COUNT, 0), (cut_tree, 50, 1)):
        kinds = Counter(map(kind, image_paths(root)))
        unusual = {"JPEG L": count // 50, "JPEG CMYK": 1, "PNG RGB": 1, "cut": cut}
        assert kinds == Counter({"JPEG RGB": count - sum(unusual.values()), **unusual})


def kind(path: Path) -> str:
    with Image.open(path) as image:
        try:
            image.load()
        except OSError as error:
            return "cut" if "truncated" in str(error) else str(error)
        return f"{image.format} {image.mode}"


def test_bytes_do_not_depend_on_workers(tmp_path: Path) -> None:
    reports = [write_sample_tree(tmp_path / str(n), count=50, classes=7, seed=5, workers=n) for n in (1, 2)]
    assert reports[0] == reports[1]
    assert tree_bytes(tmp_path / "1") == tree_bytes(tmp_path / "2")


def test_different_seed_draws_a_different_tree(tree: tuple[Path, tuple[int, int]], cut_tree: Path) -> None:
    assert not set(tree_bytes(cut_tree).values()) & set(tree_bytes(tree[0]).values())


def test_interrupted_tree_is_drawn_again(cut_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tmp/train/n0").mkdir(parents=True)
    (tmp_path / "a.tmp/train/n0/1.JPEG").touch()
    write_sample_tree(tmp_path / "a", count=50, classes=2, seed=1)
    assert tree_bytes(tmp_path) == {f"a/{name}": data for name, data in tree_bytes(cut_tree).items()}


def test_script_prints_totals_and_errors(tmp_path: Path) -> None:
    def script(*flags: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, sample.__file__, tmp_path / "tree", *flags]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)

    assert "--classes is 60, expected 1 to 50" in script("--count", 50, "--classes", 60).stderr
    drawn = script("--count", 50, "--classes", 2)
    assert drawn.stdout.startswith(f"{tmp_path}/tree: 50 images in 2 classes, "), drawn
    again = script("--count", 50)
    assert again.stderr == f"sample: error: {tmp_path}/tree: exists and is not an empty folder; choose a new one\n"
