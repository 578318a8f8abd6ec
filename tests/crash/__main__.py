"""`python -m tests.crash TARGET:SUITE[:AT_MOST] ...`: test points; print their number and the failures as JSON."""

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

import email.parser  # noqa: F401  # imported here once, so that the children need not import it

import h5py  # noqa: F401
import typer.main
from PIL import Image

from decodeonce.cli import _run
from decodeonce.prep.building import build, finish, pool  # noqa: F401
from tests.crash.points import Crasher, adopt_orphans, run_command, run_in_child
from tests.crash.suites import Suites
from tests.crash.targets import Target, make_sources, make_stores, make_targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("what", nargs="+", metavar="TARGET:SUITE[:AT_MOST]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="CALL", help="do not record this call, e.g. fsync"
    )
    arguments = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        os.chdir(folder)
        targets = _prepared(Path(folder))
        count, failures = Counter[str](), list[str]()
        for what in arguments.what:
            name, suite, *at_most = what.split(":")
            suites = Suites(_crasher(targets[name], Path(folder)), Path(folder), arguments.seed, arguments.ignore)
            suites.run(suite, int(at_most[0]) if at_most else None)
            count.update({f"{name}: {kind}": tried for kind, tried in suites.count.items()})
            failures += suites.failures
    print(json.dumps({"tried": count, "failures": failures}))
    return 1 if failures else 0


def _prepared(base: Path) -> dict[str, Target]:
    adopt_orphans()
    make_sources(base)
    targets = make_targets(base)
    typer.main.get_command = functools.cache(typer.main.get_command)  # takes half of the time of a small build
    Image.init()
    out, sys.stdout = sys.stdout, sys.stderr
    sys.argv = ["prep", *targets["npy"].arguments, "--dry-run"]  # imports most of what a build needs
    assert not _run()
    sys.stdout = out
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
    gc.collect()
    gc.freeze()  # keeps pages shared with the children, because the collector does not write to them
    targets["npy"].sandbox.mkdir()
    assert run_in_child(base / "stderr", lambda: run_command(targets["npy"])).status == 0
    make_stores(targets["npy"].sandbox / "out", base)
    return targets


@functools.cache
def _crasher(target: Target, folder: Path) -> Crasher:
    crasher = Crasher(target, folder)
    crasher.prepare()
    return crasher


if __name__ == "__main__":
    sys.exit(main())
