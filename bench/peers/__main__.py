"""Compare this project with other data loaders: building 256x256 rows, and loading shuffled epochs.

    python -m bench.peers [TREE] [--only NAME ...] [--repeats R] [--workers N] [--images N [N ...]]
                          [--json FILE] [--plot FILE]

TREE is a tree like ImageNet's, `train/<wnid>/*.JPEG`; without it a sample tree is generated. All peers get the same
plain JPEGs of TREE, and as many workers or threads. If TREE has fewer than --images, its images are linked several
times. Each peer (a file in bench/peers) has its own environment with exact versions, which is created automatically.
Each way of loading runs in its own process.

Building is timed from JPEGs to files on the disk, for each number of --images. Each build runs in a new process. Every
peer builds as its documentation says, and then with this project's decoder; this project also builds with stock Pillow.
The output of the first build is checked.

For loading, each way first delivers one epoch, whose images and labels are checked. Then whole epochs are timed, starts
included, in turn, while the other processes sleep: first without augmentation, then with random resized crop, flip and
normalization. All files are in the page cache. An epoch has each built row eight times, or twice if augmented.

Peers that cannot be installed or run are reported and left out. Run the same command again to resume an interrupted
run.
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
from bench.peers.harness.peer import FOLDER, OURS, Source, load_peer, peer_names
from bench.peers.harness.plot import chart
from bench.peers.harness.runner import ROOT, ArmError
from bench.peers.harness.tables import markdown

SCRATCH = ROOT / "build" / "peers"
SAMPLE = ROOT / "build" / "sample-imagenet"
BATCH = 256


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", nargs="?", type=Path, default=SAMPLE)
    others = [name for name in peer_names() if name != OURS]
    parser.add_argument("--only", nargs="+", default=others, choices=others, metavar="NAME", help=", ".join(others))
    text = "build N images, one table per N; rounded up to whole batches of all workers (default: 10240 1024)"
    parser.add_argument("--images", type=int, nargs="+", default=[10240, 1024], metavar="N", help=text)
    text = "load N images; rounded up likewise (default: 2560, but at most --images)"
    parser.add_argument("--load-images", type=int, metavar="N", help=text)
    parser.add_argument("--size", type=int, default=256, help="side of a row; random crops become 224 (default: 256)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="processes or threads of each peer (default: 2)")
    parser.add_argument("--seconds", type=float, default=1.0, help="load at least this long per repeat (default: 1)")
    text = "write all results to FILE (default: build/peers/peers.json)"
    parser.add_argument("--json", type=Path, default=SCRATCH / "peers.json", metavar="FILE", help=text)
    text = "write the plot to FILE (default: build/peers/peers.svg)"
    parser.add_argument("--plot", type=Path, default=SCRATCH / "peers.svg", metavar="FILE", help=text)
    parser.add_argument("--apt", action="store_true", help="install the Debian packages of peers; needs root")
    options = parser.parse_args()
    if min(*options.images, options.repeats, options.workers) <= 0:
        parser.error("--images, --repeats and --workers must be 1 or more")
    options.load_images = options.load_images or min(2560, max(options.images))
    return options


def begin(options: argparse.Namespace, peers: Peers, count: int, what: str) -> Run:
    """Select the images of a run, and load the measurements of an interrupted one."""
    multiple = BATCH * options.workers
    folder = plain_tree(options.tree, -(-count // multiple) * multiple, SCRATCH)
    source = Source(folder / "tree", options.size, BATCH, options.workers)
    code = b"".join(path.read_bytes() for path in sorted(FOLDER.rglob("*.py")))
    journal = Journal(
        folder / f"{what}.jsonl", settings(source, options.repeats, options.seconds, hashlib.sha256(code).hexdigest())
    )
    if journal.found:
        say(f"resuming after {len(journal.found)} measurements of {journal.path}; remove it to start over")
    return Run(source, folder, options.repeats, options.seconds, journal, peers)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything and return the facts for tables and plot."""
    peers = Peers(find_python, find_packages)
    peers.install([OURS, *options.only])
    here = conditions(max(options.images), "files in the page cache (warm)")
    builds = [begin(options, peers, count, "builds") for count in options.images]
    loads = begin(options, peers, options.load_images, "loads")
    arms = peers.peers[OURS].arms
    facts = {
        "conditions": here,
        **{"size": loads.source.size, "batch_size": BATCH, "workers": options.workers},
        **{"repeats": options.repeats, "seconds": options.seconds},
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
    options = parse()
    try:
        if not options.tree.exists() and options.tree == SAMPLE:
            subprocess.run([sys.executable, ROOT / "examples/sample.py", SAMPLE], check=True)
        if options.apt:
            apt_install(sorted({package for name in options.only for package in load_peer(name).debian}))
        facts = measure(options)
    except (SetupError, ArmError) as error:
        print(f"peers: error: {error}", file=sys.stderr)
        return 1
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    print(markdown(facts))
    options.plot.write_text(chart(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
