"""Compare builds from ImageNet's original tar of tars with builds from the same files unpacked.

    python -m bench.sources [SRC] [--repeats 5] [--workers N] [--images 9000] [--json]

SRC is a tree `train/<wnid>/*.JPEG`; without it a sample tree is generated in build/. It is copied until it has
--images, and packed as ILSVRC2012_img_train.tar. Each repeat builds from the tree and from the tar in turn, first
with both in memory, then with caches dropped (all caches of the kernel as root, otherwise the pages of the files).
Rates cover the whole of `work`, from its start to its last durable block. Planning, which indexes the tar, is timed
separately. It prints medians, and ratios of the medians with their range over the repeats.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.build import SCRATCH, find_tree
from bench.conditions import conditions, print_facts, ratio

DROP = Path("/proc/sys/vm/drop_caches")


def copy_tree(source: Path, count: int, into: Path) -> Path:
    """Copy images of `source` to `into`, several times if necessary, until there are at least `count` files."""
    found = sorted(source.glob("train/*/*.JPEG"))
    for copy in range(-(-count // len(found))):
        for path in found:
            folder = into / path.parent.relative_to(source)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / f"{copy}_{path.name}")
    return into


def pack_tree(tree: Path, into: Path) -> Path:
    """Pack the tree's train split as a tar that has one tar per class; return the folder of it."""
    into.mkdir()
    with tarfile.open(into / "ILSVRC2012_img_train.tar", "w") as outer:
        for folder in sorted((tree / "train").iterdir()):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as tar:
                for path in sorted(folder.iterdir()):
                    tar.add(path, arcname=path.name)
            member = tarfile.TarInfo(f"{folder.name}.tar")
            member.size = len(inner.getvalue())
            outer.addfile(member, io.BytesIO(inner.getvalue()))
    return into


def warm(root: Path) -> None:
    """Read every file below `root` into memory."""
    for path in root.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass


def cold(root: Path) -> None:
    """Drop the files below `root` from memory."""
    os.sync()
    if os.access(DROP, os.W_OK):
        DROP.write_text("3\n")
    for path in root.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def build_times(root: Path, workers: int, prepare: Callable[[Path], None]) -> tuple[float, float]:
    """Build from `root`; return the seconds of planning and the images/s of work. `prepare(root)` runs before each."""
    from decodeonce.prep.building.build import make_plan
    from decodeonce.prep.building.pool import WorkSettings, work
    from decodeonce.prep.recipe import Recipe
    from decodeonce.prep.sources.imagenet import open_imagenet

    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        out = Path(scratch, "store")
        prepare(root)
        start = time.perf_counter()
        plan = make_plan(open_imagenet(root), out, Recipe(shuffle_seed=0))
        planned = time.perf_counter() - start
        prepare(root)
        start = time.perf_counter()
        work(out, WorkSettings(workers=workers, max_bad="1%"))
        return planned, plan.count / (time.perf_counter() - start)


def measure(tree: Path, tar: Path, workers: int, repeats: int) -> dict[str, Any]:
    """Run interleaved repeats; return medians for tree and tar, warm and cold."""
    count = sum(1 for _ in tree.glob("train/*/*"))
    facts: dict[str, Any] = {"conditions": conditions(count, "files first in the page cache (warm), then cold")}
    for state, prepare in (("warm", warm), ("cold", cold)):
        runs = [
            {form: build_times(root, workers, prepare) for form, root in (("tree", tree), ("tar", tar))}
            for _ in range(repeats)
        ]
        for form in ("tree", "tar"):
            facts[f"{state}_{form}_plan_s"] = statistics.median(run[form][0] for run in runs)
            facts[f"{state}_{form}_per_s"] = statistics.median(run[form][1] for run in runs)
        facts[f"{state}_tar_over_tree"] = ratio([run["tar"][1] for run in runs], [run["tree"][1] for run in runs])
    return facts


def main() -> None:
    from decodeonce.host import usable_cores

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--images", type=int, default=9000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    source = find_tree(options.source)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        tree = copy_tree(source, options.images, Path(scratch, "tree"))
        facts = measure(tree, pack_tree(tree, Path(scratch, "tar")), options.workers, options.repeats)
    print_facts(facts, as_json=options.json, width=20)


if __name__ == "__main__":
    main()
