"""`python -m tests.crash TARGET:SUITE[:AT_MOST] ...`: tries points and prints, as JSON, how many and what was wrong."""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads cannot be forked

import email.parser  # noqa: F401  # what follows is imported once, here, and not by every child

import h5py  # noqa: F401
import typer.main
from PIL import Image

from decodeonce.cli import _run
from tests.crash.points import Crasher, adopt_orphans, in_a_child, run_command
from tests.crash.suites import Suites
from tests.crash.targets import Target, make_sources, make_stores, make_targets


def main() -> int:
    """Try what the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("what", nargs="+", metavar="TARGET:SUITE[:AT_MOST]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forget", action="append", default=[], metavar="CALL", help="have fsync do nothing, say")
    arguments = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        os.chdir(folder)
        targets = _prepared(Path(folder))
        count, wrong = Counter[str](), list[str]()
        for what in arguments.what:
            name, suite, *at_most = what.split(":")
            suites = Suites(_crasher(targets[name], Path(folder)), Path(folder), arguments.seed, arguments.forget)
            suites.run(suite, int(at_most[0]) if at_most else None)
            count.update({f"{name}: {kind}": tried for kind, tried in suites.count.items()})
            wrong += suites.wrong
    print(json.dumps({"tried": count, "wrong": wrong}))
    return 1 if wrong else 0


def _prepared(base: Path) -> dict[str, Target]:
    adopt_orphans()
    make_sources(base)
    targets = make_targets(base)
    typer.main.get_command = functools.cache(typer.main.get_command)  # half of the time of a small build
    Image.init()
    out, sys.stdout = sys.stdout, sys.stderr
    sys.argv = ["prep", *targets["npy"].arguments, "--dry-run"]
    assert not _run()
    sys.stdout = out
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
    gc.collect()
    gc.freeze()  # pages that the collector does not touch stay shared with the children
    targets["npy"].world.mkdir()
    assert in_a_child(base / "stderr", lambda: run_command(targets["npy"])).status == 0
    make_stores(targets["npy"].world / "out", base)
    return targets


@functools.cache
def _crasher(target: Target, folder: Path) -> Crasher:
    crasher = Crasher(target, folder)
    crasher.prepare()
    return crasher


if __name__ == "__main__":
    sys.exit(main())
