"""bench/peers: images from peers are checked, and tables show the measured values."""

import re
import sys
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.peers.harness.images import plain_tree
from bench.peers.harness.journal import Journal
from bench.peers.harness.judge import Delivered, Saved, find_fault, load, save
from bench.peers.harness.measure import Peers, Run, measure_builds, measure_loads
from bench.peers.harness.peer import OURS, Source
from bench.peers.harness.plot import chart
from bench.peers.harness.tables import markdown
from tests.images import jpeg, make_tree

SIZE, BATCH, WORKERS = 32, 2, 2


def begin(scratch: Path, names: list[str]) -> Run:
    """Set up a run with a dozen plain JPEGs, in a tree that also has three other files per class."""
    tree = make_tree(scratch / "imagenet", classes=3, per_class=4)
    for folder in (tree / "train").iterdir():
        (folder / "cmyk.JPEG").write_bytes(jpeg(mode="CMYK"))
        (folder / "cut.JPEG").write_bytes((data := jpeg(200, 200))[:-500] + data[-2:])
        (folder / "text.JPEG").write_text("not an image")
    folder = plain_tree(tree, 12, scratch)
    source = Source(folder / "tree", SIZE, BATCH, WORKERS)
    # Both ways to decode use the packages of this Python.
    peers = Peers(lambda name, peer: Path(sys.executable), lambda which: scratch / "nowhere")
    peers.install(names)
    return Run(source, folder, 2, 0.01, Journal(folder / "run.jsonl", {"of": "a test"}), peers)


FACTS = {
    **{"size": 256, "batch_size": 256, "workers": 2, "repeats": 3},
    "conditions": {
        **{"machine": "a machine", "date": "2026-01-02 03:04", "load_average": 0.25, "versions": {"numpy": "2.4.6"}},
        **{"images": 2560, "pages": "warm"},
    },
}


@pytest.mark.release
def test_peers_of_test_environment_deliver_all_images(tmp_path: Path) -> None:
    run = begin(tmp_path, [OURS, "memmap", "store_dataset", "threads", "torch_pillow"])
    builds, loads = measure_builds(run), measure_loads(run, augmented=False)
    assert run.peers.missing == {}
    assert len(builds["rows"]) == 4
    assert len(loads["rows"]) == 6
    # Arms with torchvision are left out, because the environment of these tests does not have it.
    del run.peers.peers["memmap"], run.peers.peers["store_dataset"], run.peers.peers["torch_pillow"]
    augmented = measure_loads(run, augmented=True)
    assert list(augmented["rows"]) == ["decodeonce Loader, Augment"]
    ours = {"build": "decodeonce", "load": "decodeonce Loader", "augmented": "decodeonce Loader, Augment"}
    facts = {**FACTS, "builds": [builds], "loads": loads, "augmented": augmented, "ours": ours, "missing": {}}
    text = markdown(facts)
    for name, one in {**builds["rows"], **loads["rows"], **augmented["rows"]}.items():
        [line] = re.findall(rf"\| {re.escape(name)} \|.*", text)
        assert f" | {median(one['images_per_s']):,.0f} | " in line
        assert (" | 1.00 (1.00 to 1.00) | " in line) == (name in ours.values())
    texts = [element.text for element in ElementTree.fromstring(chart(facts)).iter() if element.tag.endswith("text")]
    for found, name in ((loads, ours["load"]), (augmented, ours["augmented"])):
        assert f"{median(found['rows'][name]['images_per_s']):,.0f}" in texts


def saved(got: Delivered, path: Path, images: Any, labels: list[int]) -> Saved:
    """Return what the parent loads if a peer delivers these images."""
    got.add(images, labels)
    save(got, path)
    return load(path)


def test_delivered_images_are_checked(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, SIZE, SIZE, 3), np.uint8)
    right = saved(Delivered(SIZE, "exact"), tmp_path / "a.npz", images, [0, 1])
    for shown, expected in ((images, ""), (images ^ 1, "2 of 2 images have wrong pixels")):
        floats = (shown / np.float32(255)).transpose(0, 3, 1, 2).copy()
        found = saved(Delivered(SIZE, "exact", unit_range=True), tmp_path / "b.npz", floats, [0, 1])
        assert find_fault(found, right, 1)[: len(expected) or None] == expected
    for labels, expected in (([1, 0], ""), ([1, 1], "label 0 came 0 times")):
        normalized = np.zeros((2, 3, 28, 28), np.float32)
        found = saved(Delivered(28, "augmented"), tmp_path / "b.npz", normalized, labels)
        assert find_fault(found, right, 1)[: len(expected) or None] == expected
    with pytest.raises(ValueError, match="about 0 after normalization"):
        Delivered(28, "augmented").add(np.full((2, 3, 28, 28), 128, np.float32), [0, 1])
    for got, size in ((Delivered(28, "augmented"), 28), (Delivered(SIZE, "about", unit_range=True), SIZE)):
        with pytest.raises(ValueError, match="expected float32"):
            got.add(np.zeros((2, 3, size, size), np.uint8), [0, 1])
