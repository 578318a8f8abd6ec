"""Does anything grow? A store of 10 GB is built, verified and streamed for half an hour, and watched from outside.

    python bench/soak.py [SRC] [--seconds 1800] [--every 10] [--rows 51000] [--size 256] [--scratch build] [--json]

SRC is a tree `train/<wnid>/*.JPEG`, whose pictures are linked until there are --rows; without it a sample tree is drawn
under build/. `prep build` and `prep verify` run as anybody runs them, each watched with its workers. Then a process
streams shuffled epochs through Loaders with an augmentation: it leaves every third epoch halfway, takes the state after
each, and goes on from that in a new Loader, of another order and reader, after two. The labels of every epoch that was
not left are added up. Exit code 1 where the median of a process's last tenth of looks is above that of its second tenth
by more than ALLOWED. The store goes again, also after Ctrl-C.
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

from build import SCRATCH, find_tree, linked
from conditions import conditions, heading

# Of a build and its like the first seconds, in which they import and plan, are not compared.
SETTLING = 5.0
LEAST_LOOKS = 20
EPOCHS_A_LOADER = 2
WORKER = ", its largest worker"
# Batches that an augmentation makes on the CPU are large blocks of malloc(3). By default glibc keeps those up to 32 MB
# in arenas, of which each new thread may begin another, up to eight a core: that looks like growth, and ends there.
STREAMING = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


class Look(NamedTuple):
    """What a process holds: MB of anonymous memory (RssAnon) and of data segments (VmData), descriptors, threads."""

    anonymous: float
    data: float
    descriptors: float
    threads: float


NAMES = Look("anonymous memory, MB", "data segments, MB", "open descriptors", "threads")  # type: ignore[arg-type]
# Between two looks batches come and go, of 13 MB each, and once in a while a whole Loader with its files and threads.
ALLOWED = Look(32, 64, 8, 8)
Looks = list[tuple[float, Look]]


def look(pid: int) -> Look | None:
    """What this process holds now; None where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in lines)
        anonymous, data = (int(facts[key].split()[0]) * 1024 / 1e6 for key in ("RssAnon", "VmData"))
        return Look(anonymous, data, len(os.listdir(f"/proc/{pid}/fd")), int(facts["Threads"]))
    except (OSError, KeyError):  # of a zombie there is no memory to tell
        return None


def descendants(pid: int) -> Iterator[int]:
    """The processes that this one started, and those that they did."""
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def watch(command: list[str | Path], every: float, *, announced: bool = False) -> tuple[dict[str, Looks], str]:
    """Run a command; what it held, what the largest of its descendants did, and its output.

    announced: it prints a line when it is worth looking at.
    """
    found: dict[str, Looks] = {"": [], WORKER: []}
    environment = {**os.environ, **STREAMING} if announced else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            if announced:
                process.stdout.readline()
            start = time.monotonic()
            while process.poll() is None:
                own, others = look(process.pid), [seen for pid in descendants(process.pid) if (seen := look(pid))]
                if own is not None:
                    found[""].append((time.monotonic() - start, own))
                if others:
                    largest = Look(*map(max, zip(*others, strict=True)))
                    found[WORKER].append((time.monotonic() - start, largest))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(every)
        finally:
            process.terminate()
        output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {process.returncode}")
    return found, output


def tenths(looks: Looks) -> tuple[Look, Look] | None:
    """The medians of the second and of the last tenth of these looks; None where there are too few."""
    if len(looks) < LEAST_LOOKS:
        return None
    tenth = len(looks) // 10
    parts = [seen for _, seen in looks[tenth : 2 * tenth]], [seen for _, seen in looks[-tenth:]]
    second, last = (Look(*map(statistics.median, zip(*part, strict=True))) for part in parts)
    return second, last


def grown(name: str, looks: Looks) -> list[str]:
    """A sentence for everything of a process that grew."""
    found = tenths(looks)
    return [
        f"{name}: {what} grew from {before:.1f} to {after:.1f}, allowed are {allowed} more"
        for what, before, after, allowed in zip(NAMES, *(found or (ALLOWED, ALLOWED)), ALLOWED, strict=True)
        if after - before > allowed
    ]


def stream(path: Path, seconds: float, batch_size: int) -> dict[str, int]:
    """Epoch after epoch for so long, with all that a training run does to a Loader; what was done, counted."""
    from decodeonce import Loader, open_store
    from decodeonce.loader.augment import Augment, RandomFlip

    store = open_store(path)
    expected = int(store.labels.sum())
    states: dict[str, dict[str, Any]] = {}
    done = {"Loaders": 0, "epochs": 0, "left halfway": 0, "batches": 0}
    end: float | None = None
    while end is None or time.monotonic() < end:
        turn = done["Loaders"]
        shuffle, reader = ("full", "window")[turn % 2], ("auto", "pread", "mmap")[turn % 3]
        augment = Augment(RandomFlip(), seed=turn)
        options: dict[str, Any] = {"shuffle": shuffle, "reader": reader, "tail": "keep", "transform": augment}
        with Loader(path, batch_size=batch_size, **options) as loader:
            if shuffle in states:
                loader.load_state_dict(states[shuffle])
            done["Loaders"] += 1
            for _ in range(EPOCHS_A_LOADER):
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
                if end is None:  # with imports, torch's first calls and the page cache behind it
                    print("begun", flush=True)
                    end = time.monotonic() + seconds
    return done


def table(processes: dict[str, Looks]) -> str:
    """The Markdown table of docs/long-runs.md."""
    lines = ["| process | | second tenth | last tenth | highest |", "|---|---|---|---|---|"]
    for name, looks in processes.items():
        highest = Look(*map(max, zip(*(seen for _, seen in looks), strict=True)))
        found = tenths(looks)
        before, after = found or (("",) * 4, ("",) * 4)
        for what, *values in zip(NAMES, before, after, highest, strict=True):
            shown = " | ".join(v if isinstance(v, str) else f"{v:,.0f}" for v in values)
            lines.append(f"| {name} | {what} | {shown} |")
            name = ""
    return "\n".join(lines)


def build_and_verify(source: Path, scratch: Path, asked: argparse.Namespace) -> dict[str, Looks]:
    """Build scratch/store, of --rows images linked from `source`, and verify it; what each process held."""
    tree, store = linked(source, asked.rows, scratch / "tree"), scratch / "store"
    prep: list[str | Path] = [sys.executable, "-m", "decodeonce.cli"]
    build = [*prep, "build", "imagenet", tree, store, "--size", str(asked.size), "--max-bad", "1%"]
    processes: dict[str, Looks] = {}
    for name, command in (("build", build), ("verify", [*prep, "verify", store])):
        print(f"{name} …", file=sys.stderr, flush=True)
        found, _ = watch(command, min(asked.every, 0.2))
        for who, looks in found.items():
            if looks:
                settled = [(second, seen) for second, seen in looks if second >= SETTLING]
                processes[f"`prep {name}`{who}"] = settled or looks[-1:]
    return processes


def soak(source: Path, scratch: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Build, verify, stream; what each process held."""
    here = conditions(asked.rows, "files in the page cache (warm)")
    processes = build_and_verify(source, scratch, asked)
    print(f"stream for {asked.seconds:g} s …", file=sys.stderr, flush=True)
    options = ["--stream", scratch / "store", "--seconds", str(asked.seconds), "--batch-size", str(asked.batch_size)]
    found, output = watch([sys.executable, __file__, *options], asked.every, announced=True)
    processes["Loader"] = found[""]
    return {"conditions": here, "processes": processes, "streamed": json.loads(output.splitlines()[-1])}


def print_growth(facts: dict[str, Any], *, as_json: bool) -> bool:
    """Print what grew in which process, and all facts as JSON if asked; returns whether something grew."""
    growth = [sentence for name, looks in facts["processes"].items() for sentence in grown(name, looks)]
    print(*growth or ["nothing grew"], sep="\n")
    if as_json:
        print(json.dumps({**facts, "growth": growth}))
    return bool(growth)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=1800, help="of streaming")
    parser.add_argument("--every", type=float, default=10, help="seconds between two looks at the Loader's process")
    parser.add_argument("--rows", type=int, default=51_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="a folder with room for the store")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.stream:
        print(json.dumps(stream(asked.stream, asked.seconds, asked.batch_size)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    source = find_tree(asked.source)
    asked.scratch.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="soak-", dir=asked.scratch))
    try:
        facts = soak(source, scratch, asked)
    finally:
        shutil.rmtree(scratch)
    print(heading(facts["conditions"]), table(facts["processes"]), sep="\n")
    print(", ".join(f"{number:,} {name}" for name, number in facts["streamed"].items()))
    return print_growth(facts, as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
