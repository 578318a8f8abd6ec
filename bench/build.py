"""Compare the decoding rate of a build with bare simplejpeg and with a plain builder on stock Pillow, in one run.

    python -m bench.build [SRC] [--repeats 5] [--workers N] [--images 9000] [--json]

SRC is a tree `train/<wnid>/*.JPEG`; without it a sample tree is generated in build/. If SRC has fewer than --images,
its images are linked several times, because blocks grow with the store: ImageNet's have 170 rows, those of 9,000 images
have 35. Each repeat runs the three arms in turn on the same images, warm, with the same number of processes. It prints
medians, and ratios of the medians with their range over the repeats. The rate of a build is its steady rate, from its
first durable block to its last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.conditions import conditions, heading, ratio, ratio_text

HERE = Path(__file__).resolve().parent
SCRATCH = HERE.parent / "build"
STOCK = SCRATCH / "stock-pillow"

BARE = """
import sys, time
import simplejpeg
files = [open(path, "rb").read() for path in sys.stdin.read().splitlines()]
for data in files[:50]:
    simplejpeg.decode_jpeg(data, strict=False)
print("ready", flush=True)
sys.stdin = open("/dev/null")
start = time.perf_counter()
for data in files:
    simplejpeg.decode_jpeg(data, strict=False)
print(len(files) / (time.perf_counter() - start), flush=True)
"""

PLAIN = """
import sys, time
import numpy as np
from PIL import Image
import PIL
assert ".post" not in PIL.__version__, PIL.__version__
paths = sys.stdin.read().splitlines()
store = np.lib.format.open_memmap(sys.argv[1], mode="w+", dtype=np.uint8, shape=(len(paths), 256, 256, 3))
start = time.perf_counter()
for row, path in enumerate(paths):
    with Image.open(path) as file:
        image = file.convert("RGB")
    w, h = image.size
    width, height = (256, int(256 * h / w)) if w <= h else (int(256 * w / h), 256)
    left, top = round((width - 256) / 2.0), round((height - 256) / 2.0)
    image = image.resize((width, height), Image.BILINEAR).crop((left, top, left + 256, top + 256))
    store[row] = np.asarray(image)
store.flush()
print(len(paths) / (time.perf_counter() - start), flush=True)
"""


def find_tree(given: Path | None) -> Path:
    """Return `given`, or the sample tree in build/; generate it if it does not exist."""
    from decodeonce.host import usable_cores
    from examples.sample import write_sample_tree

    source = given or SCRATCH / "sample-imagenet"
    SCRATCH.mkdir(exist_ok=True)
    if not source.exists():
        write_sample_tree(source, workers=usable_cores())
    return source


def link_images(source: Path, count: int, into: Path) -> Path:
    """Return a tree of at least `count` images: `source`, or `into` filled with hard links under new names."""
    found = sorted(source.glob("train/*/*.JPEG"))
    copies = -(-count // len(found))
    if copies == 1:
        return source
    for path in found:
        folder = into / path.parent.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        for copy in range(copies):
            try:
                os.link(path, folder / f"{copy}_{path.name}")
            except OSError:  # `into` is on another file system
                shutil.copyfile(path, folder / f"{copy}_{path.name}")
    return into


def plain_jpegs(source: Path) -> list[str]:
    """Return the paths of images that bare simplejpeg and a plain builder can decode."""
    import simplejpeg

    paths = []
    for path in sorted(map(str, source.glob("train/*/*.JPEG"))):
        data = Path(path).read_bytes()
        if simplejpeg.is_jpeg(data) and simplejpeg.decode_jpeg_header(data)[2] != "CMYK":
            paths.append(path)
    return paths


def stock_pillow() -> dict[str, str]:
    """Return environment variables with which `import PIL` imports stock Pillow."""
    if not (STOCK / "PIL").exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(STOCK), "pillow"]
        subprocess.run(command, check=True)
    return {**os.environ, "PYTHONPATH": str(STOCK)}


def parallel_rate(script: str, paths: list[str], workers: int, arguments: list[str], env: dict[str, str]) -> float:
    """Run the script in `workers` processes, each on its share of `paths`; return their total images/s."""
    processes = []
    for worker in range(workers):
        command = [sys.executable, "-c", script, *[argument.format(worker) for argument in arguments]]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert process.stdin is not None
        process.stdin.write("\n".join(paths[worker::workers]))
        processes.append(process)
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    return sum(float(process.stdout.read().split()[-1]) for process in processes if process.stdout is not None)


def steady_build(source: Path, out: Path, workers: int) -> dict[str, float]:
    """Run a build; return images/s between its first and last block, and the largest worker's anonymous memory."""
    from decodeonce.prep.building.build import make_plan
    from decodeonce.prep.building.pool import Progress, WorkSettings, work
    from decodeonce.prep.recipe import Recipe
    from decodeonce.prep.sources.imagenet import open_imagenet

    marks: list[tuple[float, int]] = []
    anonymous = 0

    def note(progress: Progress) -> None:
        nonlocal anonymous
        if progress.new_rows and (not marks or progress.new_rows != marks[-1][1]):
            marks.append((time.perf_counter(), progress.new_rows))
        if len(marks) % 8 == 0:
            anonymous = max(anonymous, largest_child_anonymous())

    make_plan(open_imagenet(source), out, Recipe(shuffle_seed=0))
    work(out, WorkSettings(workers=workers, max_bad="1%"), note)
    (first, before), (last, after) = marks[0], marks[-1]
    return {"rate": (after - before) / (last - first), "anonymous": anonymous}


def largest_child_anonymous() -> int:
    """Return the RssAnon of this process's largest child, in bytes."""
    found = 0
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    for child in children:
        try:
            lines = Path(f"/proc/{child}/status").read_text().splitlines()
        except FileNotFoundError:
            continue
        found = max([found, *(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))])
    return found


def measure(source: Path, workers: int, repeats: int) -> dict[str, Any]:
    """Run interleaved repeats of the three arms; return their median rates and the ratios."""
    paths, stock = plain_jpegs(source), stock_pillow()
    here, runs = conditions(len(paths), "files in the page cache (warm)"), []
    for repeat in range(repeats + 1):
        with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
            bare = parallel_rate(BARE, paths, workers, [], dict(os.environ))
            built = steady_build(source, Path(scratch, "store"), workers)
            shutil.rmtree(Path(scratch, "store"))
            plain = parallel_rate(PLAIN, paths, workers, [f"{scratch}/{{}}.npy"], stock)
        if repeat:  # the first run is left out: it warms the page cache
            runs.append((bare, built["rate"], plain, built["anonymous"]))
    bares, builds, plains, anonymous = zip(*runs, strict=True)
    return {
        "conditions": here,
        "workers": workers,
        "bare_simplejpeg_per_s": statistics.median(bares),
        "build_per_s": statistics.median(builds),
        "plain_stock_pillow_per_s": statistics.median(plains),
        "build_over_bare": ratio(builds, bares),
        "build_over_stock_pillow": ratio(builds, plains),
        "worker_anonymous_mb": max(anonymous) / 1e6,
    }


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
    with tempfile.TemporaryDirectory(dir=SCRATCH) as tree:
        facts = measure(link_images(source, options.images, Path(tree)), options.workers, options.repeats)
    if options.json:
        print(json.dumps(facts))
        return
    print(heading(facts.pop("conditions")))
    for name, value in facts.items():
        print(f"{name:28} {ratio_text(value) if isinstance(value, list) else f'{value:,.0f}'}")


if __name__ == "__main__":
    main()
