"""`--dry-run`: bytes, files and space, whether builds stay within them, and what a look at a few images shows."""

import signal
from pathlib import Path

import pytest

from decodeonce.build import Recipe, WorkSettings, build, make_plan
from decodeonce.cli import dryrun
from decodeonce.cli.dryrun import IMAGES, UNITS, dry_run, sample_of
from decodeonce.errors import BuildError
from decodeonce.prep.building.free_space import Need
from decodeonce.prep.building.plan import checked_listing
from decodeonce.sources import FolderSource, Source
from tests.command import prep
from tests.forms.all_forms import PICS, PLAIN_FORMS
from tests.images import make_tree, tree_bytes
from tests.prep.building import build_in_process

SMALL = Recipe(height=24, width=24)


def lines(source: Source, out: Path, recipe: Recipe = SMALL, max_bad: str = "0") -> list[str]:
    return [line for line, _ in dry_run(source, out, recipe, max_bad, None, {})]


@pytest.mark.parametrize("command", ["build", "plan", "submit slurm --tasks 2 --cpus 5 --submit build"])
def test_dry_run_prints_bytes_files_and_space(command: str, tree: Path, tmp_path: Path) -> None:
    result = prep(*command.split(), "imagenet", tree, tmp_path / "out", "--dry-run", "--size", 24)
    assert (result.returncode, result.stderr) == (0, "")
    found, planned, needed, sample, room = result.stdout.splitlines()
    assert found == f"{tree}: class folders in train, 3 classes"
    size = "30.02 KB (17.06 KB as yuv420, 10.58 KB as bc4)"
    assert planned.startswith(f"15 rows of 24x24x3 in 3 classes, {size} in 1 npy shard; 0 files rejected; ")
    assert needed == "space: 30.02 KB for shards, up to 3.00 KB for other data; up to 13 files"
    assert sample == "sample: 15 of 15 images read; all of them can be decoded"
    assert room.startswith(f"{tmp_path}: ")
    assert list(tmp_path.iterdir()) == []


def test_build_stays_within_estimate(tree: Path, tmp_path: Path) -> None:
    for container in ("npy", "hdf5"):
        recipe = Recipe(height=128, width=128, container=container, shard_size=8 * 128 * 128 * 3)
        source = FolderSource(tree / "train")
        needed = lines(source, tmp_path / container, recipe)[1]
        store = build_in_process(source, tmp_path / container, recipe)
        files = list(store.rglob("*"))
        assert len(files) <= int(needed.rpartition("up to ")[2].partition(" ")[0]) <= len(files) + 12
        assert needed.startswith("space: 0.74 MB for shards, ")
        assert sum(path.stat().st_size for path in files if path.name.startswith("images-")) < 0.8e6


def test_empty_source_is_the_error_of_a_build(tmp_path: Path) -> None:
    for name in ("empty", "dangling", "broken"):
        (tmp_path / name / "train/n0").mkdir(parents=True)
    (tmp_path / "dangling/train/n0/1.JPEG").symlink_to("nowhere")
    (tmp_path / "broken/train/n0/1.JPEG").write_bytes(b"no picture")
    for name, expected in (("empty", "no images found; "), ("dangling", "all 1 candidates are rejects, first")):
        source = FolderSource(tmp_path / name / "train")
        with pytest.raises(BuildError, match=expected) as of_a_build:
            make_plan(source, tmp_path / "out", Recipe())
        with pytest.raises(BuildError) as error:
            lines(source, tmp_path / "out")
        assert str(error.value) == str(of_a_build.value)
    with pytest.raises(BuildError, match=r"1 image was tried and none can be decoded, for example n0/1\.JPEG: not an "):
        lines(FolderSource(tmp_path / "broken/train"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_many_rejects_are_predicted(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src") / "train"
    (tree / "n00000001/bad.JPEG").write_bytes(b"no picture")
    (tree / "n00000001/empty.JPEG").touch()
    for most, allowed in (("1", 1), ("6%", 1)):
        sample, warning = lines(FolderSource(tree), tmp_path / "none", max_bad=most)[2:4]
        bad = "1 of them cannot be decoded, first n00000001/bad.JPEG: not an image: begins with b'no pictu'"
        assert sample == f"sample: 16 of 16 images read; {bad}"
        rejects = f"about 2 of 17 images would be rejected, but --max-bad {most} allows {allowed}"
        assert warning == f"this build would probably fail: {rejects}; repair or remove them, or pass --max-bad 4"
        with pytest.raises(BuildError, match=f"2 of 17 images are rejects.*, --max-bad {most} allows {allowed}; "):
            build(FolderSource(tree), tmp_path / "out", Recipe(height=8, width=8), WorkSettings(max_bad=most))
    enough = lines(FolderSource(tree), tmp_path / "none", max_bad="2")
    assert not any("this build would probably fail" in line for line in enough)


def test_unfinished_build_needs_no_more_space_and_the_same_recipe(tree: Path, tmp_path: Path) -> None:
    source, out = FolderSource(tree / "train"), tmp_path / "out"
    make_plan(source, out, Recipe(height=24, width=24))
    before = tree_bytes(tmp_path)
    found = lines(source, out)[3:]
    assert found == [f"{out}: an unfinished build is here; the same command without --dry-run resumes it"]
    for recipe, place, message in (
        (Recipe(height=24, width=32), out, "--size is 24x32, the plan says 24"),
        (SMALL, tree / "train/out", "is inside the source"),
    ):
        with pytest.raises(BuildError, match=message):
            lines(source, place, recipe)
    assert tree_bytes(tmp_path) == before


def test_missing_space_is_the_error_of_a_build(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dryrun, "space_needed", lambda plan: Need(plan.count, 10**18, 13))
    with pytest.raises(BuildError, match=r"1000000000\.00 GB needed for 15 rows; make room"):
        lines(FolderSource(tree / "train"), tmp_path / "out")


def test_sample_is_random(tmp_path: Path) -> None:
    listing = checked_listing(FolderSource(make_tree(tmp_path / "src", per_class=30) / "train"))
    names = [entry.text for entry in sample_of(listing, by_unit=False)]
    assert (len(set(names)), names) == (IMAGES, sorted(names))
    assert {name[:9] for name in names} == {"n00000000", "n00000001", "n00000002"}
    assert names != [entry.text for entry in listing.entries(0, IMAGES)]


def test_sample_of_read_units_is_the_first_images_of_a_few(tmp_path: Path) -> None:
    listing = checked_listing(PLAIN_FORMS["webdataset-gzip"].make(tmp_path, PICS * 10))
    units = listing.records["unit"]
    places = [listing.entries(0, len(listing)).index(entry) for entry in sample_of(listing, by_unit=True)]
    assert len(set(units.tolist())) > UNITS
    starts = [place for place in places if place - 1 not in places]
    assert len(starts) <= UNITS
    assert all(not start or units[start] != units[start - 1] for start in starts)


# One form for each way to read: a tar, a gzip stream, a row group.
@pytest.mark.parametrize("name", ["imagenet-train-tar", "webdataset-gzip", "parquet"])
def test_every_way_to_read_is_sampled(name: str, tmp_path: Path) -> None:
    source = PLAIN_FORMS[name].make(tmp_path, PICS)
    before = tree_bytes(tmp_path)
    [sample] = [line for line in lines(source, tmp_path / "out", max_bad="100%") if line.startswith("sample: ")]
    assert sample.endswith(" images read; all of them can be decoded")
    assert tree_bytes(tmp_path) == before


ENDS = """
import os

def ends(image, sample):
    if sample.source.endswith("1_2.JPEG"):
        os.kill(os.getpid(), NUMBER)
    return image
"""


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_process_that_dies_is_replaced_unless_it_was_killed(number: int, tree: Path, tmp_path: Path) -> None:
    module = f"ends_with_{int(number)}"  # a name of its own, because this process imports it
    (tmp_path / f"{module}.py").write_text(ENDS.replace("NUMBER", str(int(number))))
    done = prep("build", "imagenet", tree, "out", "--dry-run", "--size", 24, "--map", f"{module}:ends", cwd=tmp_path)
    if number == signal.SIGKILL:
        killed = "the process that decodes a sample was killed (SIGKILL); run the same command again"
        assert (done.returncode, done.stderr.startswith(f"prep: stopped: {killed}")) == (75, True), done
    else:
        died = "train/n00000001/n00000001_2.JPEG: the decoder died with exit status -11"
        assert f"sample: 15 of 15 images read; 1 of them cannot be decoded, first {died}\n" in done.stdout
