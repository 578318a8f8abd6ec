"""bench/peers: what a peer delivers is checked, what fails is a line, what is told is what was measured."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.peers.harness.environments import find_python
from bench.peers.harness.journal import Journal
from bench.peers.harness.judge import Delivered, Saved, fault, load, save
from bench.peers.harness.measure import Run, measure
from bench.peers.harness.peer import OURS, Peer, Source, load_peer, peer_names
from bench.peers.harness.pictures import plain_tree
from bench.peers.harness.tables import markdown
from tests.made_up_peer import LIES
from tests.pictures import jpeg, make_tree

MADE_UP = "tests.made_up_peer"
SIZE, BATCH, WORKERS = 32, 2, 2


def begin(scratch: Path, *, repeats: int = 1, per_class: int = 4) -> Run:
    """A run of a dozen pictures, beside which there are as many that are no plain JPEGs."""
    tree = scratch / "imagenet"
    if not tree.exists():
        make_tree(tree, classes=3, per_class=per_class)
        for folder in (tree / "train").iterdir():
            (folder / "cmyk.JPEG").write_bytes(jpeg(mode="CMYK"))
            (folder / "cut.JPEG").write_bytes((data := jpeg(200, 200))[:-500] + data[-2:])
            (folder / "text.JPEG").write_text("no picture")
    folder = plain_tree(tree, 3 * per_class, scratch)
    source = Source(folder / "tree", SIZE, BATCH, WORKERS)
    return Run(source, folder, repeats, 0.01, Journal(folder / "run.jsonl", {"of": "a test"}))


@pytest.mark.long
def test_what_is_wrong_is_left_out_and_the_rest_goes_on(tmp_path: Path) -> None:
    def find(name: str, peer: Peer) -> Path:
        if name != "hdf5":
            return Path(sys.executable)
        return find_python(name, replace(peer, over="nothing", requirements="/nowhere/h5py-9-py3.whl"), tmp_path)

    run = begin(tmp_path)
    facts = measure(run, [OURS, "hdf5", MADE_UP], find)
    assert json.loads(json.dumps(facts)) == facts
    assert list(facts["builds"]) == ["decodeonce", "made up"]
    assert list(facts["loads"]) == ["decodeonce Loader", "honest"]
    for found in (*facts["builds"].values(), *facts["loads"].values()):
        [rate] = found["pictures_per_s"]
        assert rate > 0
        assert found["versions"]["numpy"] == np.__version__
    assert facts["pictures"] == 12
    assert facts["builds"]["made up"]["bytes"] == 12 * SIZE * SIZE * 3 + 12 * 8 + 2 * 128
    assert facts["loads"]["honest"]["first_batch_s"] > 0

    missing = facts["missing"]
    assert list(missing) == ["HDF5 by h5py", *(f"wrong: {lie}" for lie in LIES)]
    assert not any("\n" in why for why in missing.values())
    assert "/nowhere/h5py-9-py3.whl" in missing["HDF5 by h5py"]
    assert "other pixels or labels" in missing["wrong: labels"]
    assert missing["wrong: pixels"] == "8 of 96 pictures have other pixels or labels, or came too often"
    assert "times in an epoch, expected 32" in missing["wrong: batch"]
    assert "its process ended with 7" in missing["wrong: ends"]

    # The same command again tries again what did not install, and measures nothing a second time.
    again = measure(begin(tmp_path), [OURS, "hdf5"], find)
    assert again["builds"] == {"decodeonce": facts["builds"]["decodeonce"]}
    assert again["loads"] == {"decodeonce Loader": facts["loads"]["decodeonce Loader"]}
    assert again["missing"] == {"HDF5 by h5py": missing["HDF5 by h5py"]}


@pytest.mark.long
def test_all_that_run_where_the_tests_do_deliver_the_pictures(tmp_path: Path) -> None:
    names = [OURS, "hdf5", "memmap", "threads", "torch_pillow"]
    facts = measure(begin(tmp_path, repeats=2), names, lambda name, peer: Path(sys.executable))
    assert facts["missing"] == {}
    assert list(facts["builds"]) == ["decodeonce", "HDF5 by h5py", "NumPy memmap"]
    assert len(facts["loads"]) == 6
    text = markdown(facts | {"load_average": 0.0})
    assert all(f"| {name} |" in text for name in [*facts["builds"], *facts["loads"]])


def test_a_peer_is_a_file_that_names_all_it_needs_exactly() -> None:
    names = peer_names()
    assert names[0] == OURS
    arms = [arm for name in names for arm in load_peer(name).arms]
    assert len({arm.name for arm in arms}) == len(arms)
    for name in names:
        peer = load_peer(name)
        assert all(requirement.count("==") == 1 for requirement in peer.requirements.split())
        assert peer.modules
        assert peer.distributions
        assert all(arm.decodes or arm.files_of in names or peer.build for arm in peer.arms)


def saved(labels: list[int], images: Any, *, exact: bool, path: Path) -> Saved:
    """What a peer that delivers these in batches of two leaves for its parent."""
    got = Delivered((SIZE, SIZE, 3), exact)
    for row in range(0, len(labels), 2):
        got.add(images[row : row + 2], labels[row : row + 2])
    save(got, path)
    return load(path)


@pytest.mark.parametrize("exact", [True, False])
def test_a_fault_of_any_kind_is_found(exact: bool, tmp_path: Path) -> None:
    path = tmp_path / "delivered.npz"
    noise = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    images = noise.repeat(SIZE // 4, 1).repeat(SIZE // 4, 2)
    right = saved([0, 0, 0, 1, 1, 1], images, exact=exact, path=path)
    order = [5, 0, 3, 1, 4, 2] * 2
    labels = [int(row > 2) for row in order]
    twice = saved(labels, images[order], exact=exact, path=path)
    assert fault(twice, right, 2) == ""
    assert "label 0 came 6 times" in fault(twice, right, 1)
    assert fault(saved(labels[::-1], images[order], exact=exact, path=path), right, 2)
    other = [5, 0, 3, 1, 4, 1] * 2  # 1 in the place of 2
    assert fault(saved(labels, images[other], exact=exact, path=path), right, 2).startswith("2 of 12 pictures")
    dark = images // 2
    assert fault(saved(labels, dark[order], exact=exact, path=path), right, 2).startswith("12 of 12 pictures")
    near = images[order] ^ 1
    assert bool(fault(saved(labels, near, exact=exact, path=path), right, 2)) == exact


@pytest.mark.parametrize(
    "images", [np.zeros((2, SIZE, SIZE, 3), np.float32), np.zeros((2, 3, SIZE, SIZE), np.uint8), np.zeros(3, np.uint8)]
)
def test_batches_of_another_kind_are_refused(images: Any) -> None:
    with pytest.raises(ValueError, match="expected uint8"):
        Delivered((SIZE, SIZE, 3), True).add(images, [0, 1])


def test_a_run_that_was_interrupted_goes_on_from_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    journal = Journal(path, {"repeats": 5})
    journal.add("build a 0", {"seconds": 1.5})
    journal.add("build b 0", {"seconds": 2.5})
    path.write_text(path.read_text()[:-5])
    again = Journal(path, {"repeats": 5})
    assert again.found == {"build a 0": {"seconds": 1.5}}
    again.add("build b 0", {"seconds": 3.5})
    assert Journal(path, {"repeats": 5}).found["build b 0"] == {"seconds": 3.5}
    assert Journal(path, {"repeats": 4}).found == {}
    assert Journal(path, {"repeats": 5}).found == {}


def test_tables_are_right_for_given_figures() -> None:
    versions = {"Python": "3.11.7", "numpy": "2.4.6"}
    built = {"decoder": "Pillow", "files": 3, "versions": versions}
    loaded = {"epoch_start_s": [0.001, 0.003, 0.002], "versions": versions}
    facts = {
        **{"pictures": 2560, "jpeg_bytes": 2560 * 110_000, "size": 256, "batch_size": 256, "workers": 2, "repeats": 3},
        **{"ours": {"build": "decodeonce", "load": "decodeonce Loader"}, "load_average": 0.25},
        "builds": {
            "slow": {**built, "pictures_per_s": [400.0, 450.0, 700.0], "bytes": 503_316_480},
            "decodeonce": {**built, "pictures_per_s": [1000.0, 900.0, 1400.0], "bytes": 503_400_000},
        },
        "loads": {
            "decoder": {**loaded, "pictures_per_s": [500.0, 505.0, 400.0], "first_batch_s": 0.4, "decodes": True},
            "faster": {**loaded, "pictures_per_s": [99e3, 101e3, 88e3], "first_batch_s": 1.25, "decodes": False},
            "decodeonce Loader": {
                **{**loaded, "pictures_per_s": [90e3, 101e3, 80e3]},
                **{"first_batch_s": 0.023, "decodes": False},
            },
        },
        "missing": {"absent": "did not install"},
    }
    assert markdown(facts).splitlines() == [
        "2,560 pictures of 110 KB, 256x256, batches of 256, 2 workers or threads each, "
        "medians of 3 interleaved repeats, load 0.2 when it began.",
        "",
        "| building | decodes with | pictures/s | of decodeonce | MB |",
        "|---|---|---|---|---|",
        "| decodeonce | Pillow | 1,000 | 1.00 | 503 |",
        "| slow | Pillow | 450 | 0.50 | 503 |",
        "",
        "| loading | decodes in the loop | pictures/s | of decodeonce | first batch, ms | a later epoch's, ms |",
        "|---|---|---|---|---|---|",
        "| faster |  | 99,000 | 1.10 | 1,250 | 2 |",
        "| decodeonce Loader |  | 90,000 | 1.00 | 23 | 2 |",
        "| decoder | yes | 500 | 0.005 | 400 | 2 |",
        "",
        "Versions:",
        *(f"- {name}: Python 3.11.7, numpy 2.4.6" for name in ("faster", "decodeonce Loader", "decoder")),
        "",
        "Left out:",
        "- absent: did not install",
    ]
