"""The training example, run from the command line on a very small tree and store."""

import argparse
import errno
import importlib
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from PIL import ImageFile, UnidentifiedImageError

from decodeonce import open_store
from decodeonce.build import Recipe, WorkSettings, build
from decodeonce.prep.sources.imagenet import open_imagenet
from decodeonce.sources import FolderSource, PairedSource
from tests.images import make_tree
from tests.store.signing import resign
from tests.stores import make_store, random_images

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "train_resnet50.py"
SIZE = 64
IMAGES = 50  # six batches of 8, and two images left over

# Importing a torch with CUDA on a busy machine takes half a minute.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("imagenet"), classes=5, per_class=IMAGES // 5)


@pytest.fixture(scope="module")
def store(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "train.store"
    build(open_imagenet(tree), out, Recipe(height=SIZE, width=SIZE, shuffle_seed=0), WorkSettings(workers=1))
    return out


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)  # the script sets it for its whole process
    return importlib.import_module("train_resnet50")


def train(source: Path, *arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the script with batches of 8 images of 64x64."""
    options = ("--batch-size", 8, "--size", SIZE, "--model", "small", *arguments)
    command = list(map(str, [sys.executable, *launcher, SCRIPT, source, *options]))
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=250, check=False)


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines that a successful run printed."""
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def images_per_second(printed: list[str]) -> int:
    found = re.fullmatch(
        r"images/s: mean (\d+), standard deviation (\d+|unknown) \((\d+) times \d+ steps\)", printed[-1]
    )
    assert found, printed
    rates = [int(rate) for line in printed for rate in re.findall(r", (\d+) images/s$", line)]
    assert int(found[3]) == len(rates)
    if len(rates) > 1:
        assert int(found[2]) == pytest.approx(np.std(rates, ddof=1), abs=1.5)  # the lines have rounded rates
    return int(found[1])


@pytest.mark.long
def test_training_from_jpegs_restarts_its_epoch_on_resume(tree: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "c.pt"
    options = ("--checkpoint", checkpoint, "--print-every", 4)
    printed = lines(train(tree, "--data", "jpeg-serial", *options, "--steps", 9))
    assert printed[0] == "jpeg-serial: 6 steps per epoch, world size 1, model small on cpu"
    assert [line.split(":")[0] for line in printed[1:-1]] == ["epoch 0 step 4", "epoch 1 step 8"]
    assert images_per_second(printed) > 0
    assert torch.load(checkpoint)["feed"] == {"epoch": 1, "rows_consumed": 3 * 8}

    printed = lines(train(tree, "--data", "jpeg-threads", *options))
    assert printed[0] == "resumed after step 9 in epoch 1 (the epoch is restarted)"
    assert printed[1] == "jpeg-threads: 6 steps per epoch, world size 1, model small on cpu"
    assert images_per_second(printed) > 0
    assert (torch.load(checkpoint)["step"], torch.load(checkpoint)["feed"]["epoch"]) == (9 + 6, 2)


@pytest.mark.long
def test_training_from_store_resumes_within_epoch(store: Path, tmp_path: Path) -> None:
    whole, parts, profile = tmp_path / "whole.pt", tmp_path / "parts.pt", tmp_path / "profile"
    printed = lines(train(store, "--checkpoint", whole, "--profile", profile))
    assert printed[0] == "store: 6 steps per epoch, world size 1, model small on cpu"
    assert len([line for line in printed if line.startswith("limited by ")]) == 2
    assert images_per_second(printed) > 0
    assert_trace(profile / "rank0.pt.trace.json")

    lines(train(store, "--checkpoint", parts, "--steps", 3))
    assert torch.load(parts)["feed"]["rows_consumed"] == 3 * 8
    printed = lines(train(store, "--checkpoint", parts))
    assert printed[0] == "resumed after step 3 in epoch 0 (after 24 rows)"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.pt", "profile", "whole.pt"]
    assert_same(torch.load(whole), torch.load(parts))


def assert_trace(path: Path) -> None:
    """Check that this Chrome trace has six steps, and the Loader's copies in another thread."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    steps = [event for event in events if event["name"].startswith("Optimizer.step")]
    assert len(steps) == 6
    assert {"decodeonce.copy"} <= {event["name"] for event in events if event["tid"] != steps[0]["tid"]}


def assert_same(one: Any, other: Any) -> None:
    """Compare nested dicts bit for bit, tensors included."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    else:
        assert one == other


def test_failed_checkpoint_keeps_previous_one(
    example: ModuleType, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model = tmp_path / "c.pt", torch.nn.Linear(2, 1)
    training = (model, torch.optim.SGD(model.parameters()), feed_of(example, "Jpegs", tree, batch_size=8))
    example.save(path, 1, *training)

    def fail(state: object, file: BinaryIO) -> None:
        file.write(b"incomplete")
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="no room"):
        example.save(path, 2, *training)
    assert torch.load(path)["step"] == 1


@pytest.mark.long
def test_two_ranks_train_together(store: Path, tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    options = ("--checkpoint", tmp_path / "c.pt", "--checkpoint-every", 2)
    printed = lines(train(store, *options, launcher=launcher))
    assert printed[0] == "store: 3 steps per epoch, world size 2, model small on cpu"
    assert len([line for line in printed if line.startswith("images/s")]) == 1
    assert torch.load(tmp_path / "c.pt")["step"] == 6


@pytest.mark.parametrize("name", ["Jpegs", "JpegThreads"])
def test_two_ranks_get_disjoint_jpegs(
    example: ModuleType, tree: Path, store: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    opened = open_store(store)
    rows = {(i.tobytes(), int(label)) for i, label in zip(opened.images[:], opened.labels, strict=True)}
    assert len(rows) == IMAGES
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen: list[list[tuple[bytes, int]]] = [[], []]
    for epoch in range(2):
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            with feed_of(example, name, tree, batch_size=8) as feed:
                feed.load_state_dict({"epoch": epoch})
                batches = list(feed)
            assert [(images.dtype, images.shape) for images, _ in batches] == [(torch.uint8, (8, SIZE, SIZE, 3))] * 3
            assert {(labels.dtype, labels.shape) for _, labels in batches} == {(torch.int64, (8,))}
            for images, labels in batches:
                seen[epoch] += [(i.numpy().tobytes(), int(label)) for i, label in zip(images, labels, strict=True)]
        assert len(seen[epoch]) == len(set(seen[epoch])) == 2 * 3 * 8
        assert set(seen[epoch]) <= rows
    assert seen[0] != seen[1]


def feed_of(example: ModuleType, name: str, tree: Path, **settings: Any) -> Any:
    return getattr(example, name)(argparse.Namespace(source=tree, size=SIZE, threads=2, **settings))


def test_file_that_is_not_an_image_ends_training(example: ModuleType, tmp_path: Path) -> None:
    root = make_tree(tmp_path / "tree", per_class=2)
    (root / "train/n00000001/n00000001_1.JPEG").write_bytes(b"not an image")
    message = r"cannot identify image file .*n00000001_1\.JPEG"
    feed = feed_of(example, "JpegThreads", root, batch_size=2)
    with feed, pytest.raises(UnidentifiedImageError, match=message):
        list(feed)


def test_threads_end_with_feed(example: ModuleType, tree: Path) -> None:
    before = threading.active_count()
    with feed_of(example, "JpegThreads", tree, batch_size=2) as feed:
        batches = iter(feed)
        next(batches)
        assert threading.active_count() == before + 3
        assert len(list(feed)) == IMAGES // 2  # a new epoch ends the threads of the unfinished one
        next(iter(feed))
    assert threading.active_count() == before


@pytest.mark.long
def test_demo_fails_with_the_message_of_the_failed_command(tmp_path: Path) -> None:
    command = [sys.executable, "examples/demo.py", str(tmp_path), "--scratch", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("prep: error: ")
    assert done.stderr.count("\n") == 1


def export(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "examples/export.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_exported_images_and_masks_become_the_same_store(tmp_path: Path) -> None:
    images, masks = random_images(12, shape=(24, 32, 3)), random_images(12, shape=(24, 32, 3), seed=1)[..., 0]
    labels = np.arange(12) % 2 * 10  # class10 comes before class2, and most classes have no images
    store = make_store(tmp_path / "store", images, labels, classes=11, paired={"mask": masks})
    done = export(store, tmp_path / "files")
    assert (done.returncode, done.stdout) == (0, ""), done
    classes = (tmp_path / "files/classes.txt").read_text().split()
    source = PairedSource(FolderSource(tmp_path / "files/images", classes=classes), {"mask": tmp_path / "files/mask"})
    build(source, tmp_path / "again", Recipe(height=24, width=32, paired=source.paired), WorkSettings(workers=1))
    again = open_store(tmp_path / "again")
    rows = [int(Path(sample.source).stem) for sample in again.samples]
    assert sorted(rows) == list(range(12))
    np.testing.assert_array_equal(again.images[:], images[rows])
    np.testing.assert_array_equal(again.paired["mask"][:], masks[rows])
    np.testing.assert_array_equal(again.labels, labels[rows])
    assert export(store, tmp_path / "jpegs", "--quality", 90).returncode == 0
    suffixes = {path.parent.parent.name: path.suffix for path in (tmp_path / "jpegs").glob("*/*/*")}
    assert suffixes == {"images": ".jpg", "mask": ".png"}


def test_export_changes_no_folder_and_leaves_none_with_a_hostile_name(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", random_images(2), classes=1)
    (tmp_path / "taken").mkdir()
    done, error = export(store, tmp_path / "taken"), f"export: error: {tmp_path}/taken: already exists"
    assert (done.returncode, done.stderr) == (1, f"{error}; choose another DEST\n")
    resign(store, lambda facts: facts.update(classes=[{"name": "../up", "description": ""}]))
    done = export(store, tmp_path / "out")
    assert (done.returncode, done.stderr) == (1, "export: error: class '../up' cannot be the name of a folder\n")
    assert sorted(os.listdir(tmp_path)) == ["store", "taken"]
    assert export(tmp_path / "nowhere", tmp_path / "out").stderr.startswith(f"export: error: {tmp_path}/nowhere")
