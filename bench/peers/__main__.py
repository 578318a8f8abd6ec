"""How other ways to feed training do beside this project: building a 256x256 store, and loading shuffled epochs of it.

    python -m bench.peers [TREE] [--only NAME ...] [--repeats R] [--seconds S] [--json FILE] [--plot FILE]

TREE is one like ImageNet's, `train/<wnid>/*.JPEG`; without it a sample is drawn. Everyone gets the same plain JPEGs of
it, and two workers or threads. Each peer (a file in bench/peers) has an environment that is made here, exactly pinned,
and for every way of loading a process of its own. Builds are timed from JPEGs to files on the disk, each in a new
process, in turn. Then every way of loading takes one epoch, whose pictures and labels must be right; then it is timed
over whole epochs, starts included, in turn, while the others sleep. All files are in the page cache. Rows that were
built come eight times an epoch.

A peer that cannot be installed or run is a line, and the rest goes on. A run that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.peers.harness.environments import SetupError, apt_install, find_python
from bench.peers.harness.journal import Journal
from bench.peers.harness.measure import Run, measure, say, settings
from bench.peers.harness.peer import FOLDER, OURS, Peer, Source, load_peer, peer_names
from bench.peers.harness.pictures import plain_tree
from bench.peers.harness.plot import REQUIREMENTS
from bench.peers.harness.runner import ROOT, ArmError
from bench.peers.harness.tables import markdown

SCRATCH = ROOT / "build" / "peers"
SAMPLE = ROOT / "build" / "sample-imagenet"
BATCH = 256
WORKERS = 2


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", nargs="?", type=Path, default=SAMPLE)
    others = [name for name in peer_names() if name != OURS]
    parser.add_argument("--only", nargs="+", default=others, choices=others, metavar="NAME", help=", ".join(others))
    parser.add_argument("--pictures", type=int, default=3000, help="at most so many of TREE (default 3000)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="each repeat loads at least so long (default 1)")
    parser.add_argument("--json", type=Path, default=SCRATCH / "peers.json", metavar="FILE", help="all figures")
    parser.add_argument("--plot", type=Path, default=SCRATCH / "peers.svg", metavar="FILE")
    parser.add_argument("--apt", action="store_true", help="install what peers need of Debian; needs root")
    asked = parser.parse_args()
    asked.pictures -= asked.pictures % (BATCH * WORKERS)
    if asked.pictures <= 0 or asked.repeats <= 0:
        parser.error(f"--pictures must be {BATCH * WORKERS} or more, a batch for each worker, and --repeats 1 or more")
    return asked


def begin(asked: argparse.Namespace) -> Run:
    """The pictures, and what an interrupted run has measured of them."""
    if not asked.tree.exists() and asked.tree == SAMPLE:
        subprocess.run([sys.executable, "-m", "decodeonce.cli", "sample", str(SAMPLE)], check=True)
    folder = plain_tree(asked.tree, asked.pictures, SCRATCH)
    source = Source(folder / "tree", 256, BATCH, WORKERS)
    code = b"".join(path.read_bytes() for path in sorted(FOLDER.rglob("*.py")))
    journal = Journal(
        folder / "run.jsonl", settings(source, asked.repeats, asked.seconds, hashlib.sha256(code).hexdigest())
    )
    if journal.found:
        say(f"going on with {len(journal.found)} measurements of {journal.path}; remove it to begin anew")
    return Run(source, folder, asked.repeats, asked.seconds, journal)


def draw(facts: Path, out: Path) -> None:
    """The plot, by matplotlib in an environment of its own."""
    plotter = Peer(title="plot", modules=(), distributions=(), requirements=REQUIREMENTS, over="nothing")
    try:
        python = find_python("plot", plotter)
    except SetupError as error:
        say(f"no plot: {error}")
        return
    subprocess.run([python, "-m", "bench.peers.harness.plot", facts, out.resolve()], check=True, cwd=ROOT)


def main() -> int:
    """The command."""
    asked = parse()
    load_average = os.getloadavg()[0]
    try:
        if asked.apt:
            apt_install(sorted({package for name in asked.only for package in load_peer(name).debian}))
        run = begin(asked)
        facts: dict[str, Any] = measure(run, [OURS, *asked.only], find_python)
    except (SetupError, ArmError) as error:
        print(f"peers: error: {error}", file=sys.stderr)
        return 1
    facts["load_average"] = load_average
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(facts, indent=1) + "\n")
    draw(asked.json.resolve(), asked.plot)
    run.journal.close()
    print(markdown(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
