"""Look for leaks: build and verify a store of 10 GB, stream it for half an hour, and sample the memory from outside.

    python -m bench.soak [SRC] [--seconds 1800] [--every 10] [--rows 51000] [--size 256] [--scratch build] [--json]

SRC is a tree `train/<wnid>/*.JPEG`, whose images are linked until there are --rows; without it a sample tree is
generated in build/. `prep build` and `prep verify` run as usual, and their workers are sampled as well.

Then a process streams shuffled epochs through Loaders with an augmentation. It leaves every third epoch halfway and
saves the state after each epoch. After every two epochs it resumes from that state in a new Loader, with another order
and reader. It checks the sum of the labels of every complete epoch.

The exit code is 1 if the median of a process's last tenth of samples is above that of its second tenth by more than
ALLOWED. The store is removed at the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bench.build import SCRATCH, find_tree, link_images
from bench.conditions import conditions, heading

# The first seconds of a `prep` command are not compared, because it imports modules and plans then.
SETTLING = 5.0
MIN_SAMPLES = 20
EPOCHS_PER_LOADER = 2
WORKER = ", its largest worker"
# Batches that an augmentation makes on the CPU are large blocks of malloc(3). By default, glibc keeps blocks of up to
# 32 MB in arenas. Each new thread can create another arena, up to eight per core, which looks like growth until then.
STREAM_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


class Usage(NamedTuple):
    """Resources of a process: MB of anonymous memory (RssAnon) and of data segments (VmData), descriptors, threads."""

    anonymous: float
    data: float
    descriptors: float
    threads: float


NAMES = Usage("anonymous memory, MB", "data segments, MB", "open descriptors", "threads")  # type: ignore[arg-type]
# Between two samples, batches of 13 MB each are created and freed, and sometimes a Loader with its files and threads.
ALLOWED = Usage(32, 64, 8, 8)
UsageOverTime = list[tuple[float, Usage]]  # seconds since the start, and the usage then


def read_usage(pid: int) -> Usage | None:
    """Return the resources that a process uses now; None if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in lines)
        anonymous, data = (int(facts[key].split()[0]) * 1024 / 1e6 for key in ("RssAnon", "VmData"))
        return Usage(anonymous, data, len(os.listdir(f"/proc/{pid}/fd")), int(facts["Threads"]))
    except (OSError, KeyError):  # the status of a zombie has no memory values
        return None


def descendants(pid: int) -> Iterator[int]:
    """Yield the children of a process, their children, and so on."""
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def watch(command: list[str | Path], every: float, *, announced: bool = False) -> tuple[dict[str, UsageOverTime], str]:
    """Run a command and sample its usage, and the largest usage of its descendants; return both and its output.

    `announced`: the command prints a line when sampling should start.
    """
    found: dict[str, UsageOverTime] = {"": [], WORKER: []}
    environment = {**os.environ, **STREAM_ENVIRONMENT} if announced else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            if announced:
                process.stdout.readline()
            start = time.monotonic()
            while process.poll() is None:
                own = read_usage(process.pid)
                others = [usage for pid in descendants(process.pid) if (usage := read_usage(pid))]
                if own is not None:
                    found[""].append((time.monotonic() - start, own))
                if others:
                    largest = Usage(*map(max, zip(*others, strict=True)))
                    found[WORKER].append((time.monotonic() - start, largest))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(every)
        finally:
            process.terminate()
        output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {process.returncode}")
    return found, output


def second_and_last_tenth(samples: UsageOverTime) -> tuple[Usage, Usage] | None:
    """Return the medians of the second and of the last tenth of the samples; None if there are too few samples."""
    if len(samples) < MIN_SAMPLES:
        return None
    tenth = len(samples) // 10
    parts = [usage for _, usage in samples[tenth : 2 * tenth]], [usage for _, usage in samples[-tenth:]]
    second, last = (Usage(*map(statistics.median, zip(*part, strict=True))) for part in parts)
    return second, last


def growth_messages(name: str, samples: UsageOverTime) -> list[str]:
    """Return a message for each resource of a process that grew by more than ALLOWED."""
    found = second_and_last_tenth(samples)
    return [
        f"{name}: {what} grew from {before:.1f} to {after:.1f}, by more than the allowed {allowed}"
        for what, before, after, allowed in zip(NAMES, *(found or (ALLOWED, ALLOWED)), ALLOWED, strict=True)
        if after - before > allowed
    ]


def stream(path: Path, seconds: float, batch_size: int) -> dict[str, int]:
    """Run epochs for `seconds`, using a Loader like training runs do; return counts of what was done."""
    from decodeonce import Loader, open_store
    from decodeonce.augment import Augment, RandomFlip

    store = open_store(path)
    expected = int(store.labels.sum())
    states: dict[str, dict[str, Any]] = {}
    done = {"Loaders": 0, "epochs": 0, "left halfway": 0, "batches": 0}
    end: float | None = None
    while end is None or time.monotonic() < end:
        turn = done["Loaders"]
        shuffle, reader = ("full", "window")[turn % 2], ("auto", "pread", "mmap", "direct")[turn % 4]
        augment = Augment(RandomFlip(), seed=turn)
        options: dict[str, Any] = {"shuffle": shuffle, "reader": reader, "tail": "keep", "transform": augment}
        with Loader(path, batch_size=batch_size, **options) as loader:
            if shuffle in states:
                loader.load_state_dict(states[shuffle])
            done["Loaders"] += 1
            for _ in range(EPOCHS_PER_LOADER):
                leave = len(loader) // 2 if done["epochs"] % 3 == 2 else None
                epoch, labels = [], 0
                for batch in islice(loader, leave):
                    labels += int(batch.labels.sum())
                    epoch.append(len(batch.labels))
                if sum(epoch) == len(store) and labels != expected:
                    raise SystemExit(f"the labels of an epoch add up to {labels}, expected {expected}")
                done["batches"] += len(epoch)
                done["epochs"] += 1
                done["left halfway"] += leave is not None
                states[shuffle] = loader.state_dict()
                if end is None:  # imports, torch's first calls and the page cache are not measured
                    print("begun", flush=True)
                    end = time.monotonic() + seconds
    return done


def table(processes: dict[str, UsageOverTime]) -> str:
    """Return the table for bench/README.md."""
    lines = ["| process | | second tenth | last tenth | highest |", "|---|---|---|---|---|"]
    for name, samples in processes.items():
        highest = Usage(*map(max, zip(*(usage for _, usage in samples), strict=True)))
        found = second_and_last_tenth(samples)
        before, after = found or (("",) * 4, ("",) * 4)
        for what, *values in zip(NAMES, before, after, highest, strict=True):
            shown = " | ".join(v if isinstance(v, str) else f"{v:,.0f}" for v in values)
            lines.append(f"| {name} | {what} | {shown} |")
            name = ""
    return "\n".join(lines)


def build_and_verify(source: Path, scratch: Path, options: argparse.Namespace, *flags: str) -> dict[str, UsageOverTime]:
    """Build scratch/store, with --rows images linked from `source`, and verify it; return the usage of each process."""
    tree, store = link_images(source, options.rows, scratch / "tree"), scratch / "store"
    prep: list[str | Path] = [sys.executable, "-m", "decodeonce.cli"]
    build = [*prep, "build", "imagenet", tree, store, "--size", str(options.size), "--max-bad", "1%", *flags]
    processes: dict[str, UsageOverTime] = {}
    for name, command in (("build", build), ("verify", [*prep, "verify", store])):
        print(f"running prep {name} …", file=sys.stderr, flush=True)
        found, _ = watch(command, min(options.every, 0.2))
        for process, samples in found.items():
            if samples:
                settled = [(second, usage) for second, usage in samples if second >= SETTLING]
                processes[f"`prep {name}`{process}"] = settled or samples[-1:]
    return processes


def soak(source: Path, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Build, verify and stream a store; return the usage of each process."""
    here = conditions(options.rows, "files in the page cache (warm)")
    processes = build_and_verify(source, scratch, options)
    print(f"streaming for {options.seconds:g} s …", file=sys.stderr, flush=True)
    stream = ["--stream", str(scratch / "store"), "--seconds", str(options.seconds)]
    stream += ["--batch-size", str(options.batch_size)]
    found, output = watch([sys.executable, "-m", "bench.soak", *stream], options.every, announced=True)
    processes["Loader"] = found[""]
    return {"conditions": here, "processes": processes, "streamed": json.loads(output.splitlines()[-1])}


def print_growth(facts: dict[str, Any], *, as_json: bool) -> bool:
    """Print the growth of each process, and all facts as JSON if `as_json`; return whether a process grew."""
    growth = [message for name, samples in facts["processes"].items() for message in growth_messages(name, samples)]
    print(*growth or ["no process grew"], sep="\n")
    if as_json:
        print(json.dumps({**facts, "growth": growth}))
    return bool(growth)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=1800, help="duration of streaming")
    parser.add_argument("--every", type=float, default=10, help="seconds between samples of the Loader's process")
    parser.add_argument("--rows", type=int, default=51_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder for the store (default: build)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stream:
        print(json.dumps(stream(options.stream, options.seconds, options.batch_size)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    source = find_tree(options.source)
    options.scratch.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="soak-", dir=options.scratch))
    try:
        facts = soak(source, scratch, options)
    finally:
        shutil.rmtree(scratch)
    print(heading(facts["conditions"]), table(facts["processes"]), sep="\n")
    print(", ".join(f"{number:,} {name}" for name, number in facts["streamed"].items()))
    return print_growth(facts, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
