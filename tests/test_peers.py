"""bench/peers: images from peers are checked, failing peers are reported, and tables show the measured values."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.peers.harness.environments import find_python
from bench.peers.harness.images import plain_tree
from bench.peers.harness.journal import Journal
from bench.peers.harness.judge import Delivered, Saved, find_fault, load, save
from bench.peers.harness.measure import Peers, Run, measure_builds, measure_loads
from bench.peers.harness.peer import OURS, Peer, Source
from bench.peers.harness.plot import chart
from bench.peers.harness.tables import markdown
from tests.fake_peer import FAULTS
from tests.images import jpeg, make_tree

FAKE_PEER = "tests.fake_peer"
SIZE, BATCH, WORKERS = 32, 2, 2


def own_python(name: str, peer: Peer) -> Path:
    return Path(sys.executable)


def begin(scratch: Path, names: list[str], find: Any = own_python, *, repeats: int = 1, per_class: int = 4) -> Run:
    """Set up a run with a dozen plain JPEGs, in a tree that also has three other files per class."""
    tree = scratch / "imagenet"
    if not tree.exists():
        make_tree(tree, classes=3, per_class=per_class)
        for folder in (tree / "train").iterdir():
            (folder / "cmyk.JPEG").write_bytes(jpeg(mode="CMYK"))
            (folder / "cut.JPEG").write_bytes((data := jpeg(200, 200))[:-500] + data[-2:])
            (folder / "text.JPEG").write_text("not an image")
    folder = plain_tree(tree, 3 * per_class, scratch)
    source = Source(folder / "tree", SIZE, BATCH, WORKERS)
    peers = Peers(find, lambda which: scratch / "nowhere")  # so both ways to decode use the packages of this Python
    peers.install(names)
    return Run(source, folder, repeats, 0.01, Journal(folder / "run.jsonl", {"of": "a test"}), peers)


FACTS = {
    **{"size": 256, "batch_size": 256, "workers": 2, "repeats": 3},
    "conditions": {
        **{"machine": "a machine", "date": "2026-01-02 03:04", "load_average": 0.25, "versions": {"numpy": "2.4.6"}},
        **{"images": 2560, "pages": "warm"},
    },
}


@pytest.mark.release
def test_failing_peers_are_left_out(tmp_path: Path) -> None:
    def find(name: str, peer: Peer) -> Path:
        if name != "hdf5":
            return Path(sys.executable)
        return find_python(name, replace(peer, over="nothing", requirements="/nowhere/h5py-9-py3.whl"), tmp_path)

    run = begin(tmp_path, [OURS, "hdf5", FAKE_PEER], find)
    builds = measure_builds(run)
    loads = measure_loads(run, augmented=False)
    assert json.loads(json.dumps([builds, loads])) == [builds, loads]
    ways = ["decodeonce", "decodeonce, stock Pillow", "fake peer", "fake peer, same decoder"]
    assert sorted(builds["rows"]) == ways
    assert sorted(loads["rows"]) == ["correct", "correct, stretched", "decodeonce Loader"]
    for found in (*builds["rows"].values(), *loads["rows"].values()):
        [rate] = found["images_per_s"]
        assert rate > 0
        assert found["versions"]["numpy"] == np.__version__
    assert builds["images"] == loads["images"] == 12
    assert builds["rows"]["fake peer"]["bytes"] == 12 * SIZE * SIZE * 3 + 12 * 8 + 2 * 128
    assert loads["rows"]["correct"]["first_batch_s"] > 0

    missing = run.peers.missing
    assert list(missing) == ["HDF5 by h5py", *(f"fault: {fault}" for fault in FAULTS)]
    assert not any("\n" in why for why in missing.values())
    assert "/nowhere/h5py-9-py3.whl" in missing["HDF5 by h5py"]
    assert "wrong pixels or labels" in missing["fault: labels"]
    assert missing["fault: pixels"] == "8 of 96 images have wrong pixels or labels, or came too often"
    assert "times in an epoch, expected 32" in missing["fault: missing batch"]
    assert "its process ended with exit code 7" in missing["fault: exit"]

    # Running the same command again retries the failed installation and repeats no measurement.
    again = begin(tmp_path, [OURS, "hdf5"], find)
    assert measure_builds(again)["rows"] == {title: builds["rows"][title] for title in ways[:2]}
    assert measure_loads(again, augmented=False)["rows"] == {"decodeonce Loader": loads["rows"]["decodeonce Loader"]}
    assert again.peers.missing == {"HDF5 by h5py": missing["HDF5 by h5py"]}


@pytest.mark.release
def test_peers_of_test_environment_deliver_all_images(tmp_path: Path) -> None:
    run = begin(tmp_path, [OURS, "memmap", "store_dataset", "threads", "torch_pillow"], repeats=2)
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
