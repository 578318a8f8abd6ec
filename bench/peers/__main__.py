"""Compare other ways to feed training with this project: building 256x256 rows, and loading shuffled epochs of them.

    python -m bench.peers [TREE] [--only NAME ...] [--repeats R] [--pictures N [N ...]] [--json FILE] [--plot FILE]

TREE is one like ImageNet's, `train/<wnid>/*.JPEG`; without it a sample is drawn. Everyone gets the same plain JPEGs of
it, and two workers or threads. If TREE has fewer than --pictures, its images are linked several times. Each peer (a
file in bench/peers) has an environment that is made here, exactly pinned, and each way of loading its own process.

Building is timed from JPEGs to files on the disk, each build in a new process, in turn, for each number of --pictures:
every peer as its documentation says, then with the decoder of this project; this project also with stock Pillow. What
the first build wrote is checked. Loading: every way delivers one epoch, whose images and labels must be right; then
it is timed over whole epochs, starts included, in turn, while the others sleep: without augmentation, then with random
resized crop, flip and normalization. All files are in the page cache. Rows that were built come eight times an epoch,
augmented ones twice.

A peer that cannot be installed or run is reported in a line, and the rest continues. Run the same command again to
resume an interrupted run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from bench.peers.harness.environments import SetupError, apt_install, find_packages, find_python
from bench.peers.harness.images import plain_tree
from bench.peers.harness.journal import Journal
from bench.peers.harness.measure import Peers, Run, measure_builds, measure_loads, say, settings
from bench.peers.harness.peer import FOLDER, OURS, Peer, Source, load_peer, peer_names
from bench.peers.harness.plot import REQUIREMENTS
from bench.peers.harness.runner import ROOT, ArmError
from bench.peers.harness.tables import markdown

SCRATCH = ROOT / "build" / "peers"
SAMPLE = ROOT / "build" / "sample-imagenet"
BATCH = 256
WORKERS = 2
MULTIPLE = BATCH * WORKERS


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", nargs="?", type=Path, default=SAMPLE)
    others = [name for name in peer_names() if name != OURS]
    parser.add_argument("--only", nargs="+", default=others, choices=others, metavar="NAME", help=", ".join(others))
    text = f"build so many images, one table each, rounded up to a multiple of {MULTIPLE} (default: 10240 1024)"
    parser.add_argument("--pictures", type=int, nargs="+", default=[10240, 1024], metavar="N", help=text)
    text = "load so many, likewise (default 2560, and no more than --pictures)"
    parser.add_argument("--load-pictures", type=int, metavar="N", help=text)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="each repeat loads at least so long (default 1)")
    parser.add_argument("--json", type=Path, default=SCRATCH / "peers.json", metavar="FILE", help="all figures")
    parser.add_argument("--plot", type=Path, default=SCRATCH / "peers.svg", metavar="FILE")
    parser.add_argument("--apt", action="store_true", help="install what peers need of Debian; needs root")
    asked = parser.parse_args()
    if min(asked.pictures) <= 0 or asked.repeats <= 0:
        parser.error("--pictures and --repeats must be 1 or more")
    asked.load_pictures = asked.load_pictures or min(2560, max(asked.pictures))
    return asked


def begin(asked: argparse.Namespace, peers: Peers, count: int, what: str) -> Run:
    """So many images, and what an interrupted run has measured of them."""
    folder = plain_tree(asked.tree, -(-count // MULTIPLE) * MULTIPLE, SCRATCH)
    source = Source(folder / "tree", 256, BATCH, WORKERS)
    code = b"".join(path.read_bytes() for path in sorted(FOLDER.rglob("*.py")))
    journal = Journal(
        folder / f"{what}.jsonl", settings(source, asked.repeats, asked.seconds, hashlib.sha256(code).hexdigest())
    )
    if journal.found:
        say(f"resuming after {len(journal.found)} measurements of {journal.path}; remove it to start over")
    return Run(source, folder, asked.repeats, asked.seconds, journal, peers)


def draw(facts: Path, out: Path) -> None:
    """The plot, by matplotlib in an environment of its own."""
    plotter = Peer(title="plot", modules=(), distributions=(), requirements=REQUIREMENTS, over="nothing")
    try:
        python = find_python("plot", plotter)
    except SetupError as error:
        say(f"no plot: {error}")
        return
    subprocess.run([python, "-m", "bench.peers.harness.plot", facts, out.resolve()], check=True, cwd=ROOT)


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """All runs; returns the facts that tables and plot are made from."""
    peers = Peers(find_python, find_packages)
    peers.install([OURS, *asked.only])
    here = conditions(max(asked.pictures), "files in the page cache (warm)")
    builds = [begin(asked, peers, count, "builds") for count in asked.pictures]
    loads = begin(asked, peers, asked.load_pictures, "loads")
    arms = peers.peers[OURS].arms
    facts = {
        "conditions": here,
        **{"size": loads.source.size, "batch_size": BATCH, "workers": WORKERS},
        **{"repeats": asked.repeats, "seconds": asked.seconds},
        "ours": {"build": peers.peers[OURS].title, "load": arms[0].name, "augmented": arms[1].name},
        "builds": [measure_builds(run) for run in builds],
        "loads": measure_loads(loads, augmented=False),
        "augmented": measure_loads(loads, augmented=True),
        "missing": peers.missing,
    }
    for run in (*builds, loads):
        run.journal.close()
    return facts


def main() -> int:
    """The command."""
    asked = parse()
    try:
        if not asked.tree.exists() and asked.tree == SAMPLE:
            subprocess.run([sys.executable, "-m", "decodeonce.cli", "sample", str(SAMPLE)], check=True)
        if asked.apt:
            apt_install(sorted({package for name in asked.only for package in load_peer(name).debian}))
        facts = measure(asked)
    except (SetupError, ArmError) as error:
        print(f"peers: error: {error}", file=sys.stderr)
        return 1
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(facts, indent=1) + "\n")
    print(markdown(facts))
    draw(asked.json.resolve(), asked.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
