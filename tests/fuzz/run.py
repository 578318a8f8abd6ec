"""`make fuzz`: every target for some time, one after the other; what is found lies under build/fuzz/findings.

A corpus grows under build/fuzz/corpus from run to run. Exit code 1 where an input made a target fail.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from decodeonce.store.hashing import hexdigest
from tests.fuzz import TARGETS, load
from tools import setup_fuzz
from tools.setup_env import ROOT

FOLDER = ROOT / "build" / "fuzz"
ALL_SECONDS = 1800
TIMEOUT = 25  # seconds for one input; libFuzzer takes more for a hang
MEMORY = 1024  # MiB, of which Python, numpy and the targets take 100
LONGEST = {"annotation": 4096, "journal": 4096, "lists": 4096, "table": 4096, "plan": 8192, "manifest": 8192}
LONGEST_INPUT = 1 << 16


def main() -> int:
    """Fuzz; 0 where nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, help="for each target; without, all together take half an hour")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all without")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if setup_fuzz.main():
        return 1
    names = options.targets or TARGETS
    seconds = options.seconds or ALL_SECONDS // len(names)
    found = [name for name in names if fuzz(name, seconds)]
    return int(bool(found))


def fuzz(name: str, seconds: int) -> bool:
    """Run one target, tell how it went; whether it found something."""
    corpus, seeds, findings = (FOLDER / kind / name for kind in ("corpus", "seeds", "findings"))
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    write_seeds(name, seeds)
    log, before, started = FOLDER / f"{name}.log", set(findings.iterdir()), time.monotonic()
    limits = {
        "max_total_time": seconds,
        "timeout": TIMEOUT,
        "rss_limit_mb": MEMORY,
        "max_len": LONGEST.get(name, LONGEST_INPUT),
    }
    options = [f"-{option}={value}" for option, value in limits.items()]
    engine = [sys.executable, "-m", "tests.fuzz.engine", name]
    place = [str(corpus), str(seeds), f"-artifact_prefix={findings}/", "-print_final_stats=1"]
    # In memory: the targets write a file for nearly every input. libFuzzer ends without clearing up.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with log.open("w") as out, tempfile.TemporaryDirectory(dir=memory) as scratch:
        environment = {**os.environ, "TMPDIR": scratch}
        code = subprocess.run(
            [*engine, *place, *options], cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
        ).returncode
    told = log.read_text(errors="replace")
    runs = re.findall(r"number_of_executed_units: (\d+)", told) or re.findall(r"^#(\d+)", told, re.M) or ["0"]
    covered = re.findall(r"cov: (\d+) ft: (\d+)", told) or [("0", "0")]
    took = time.monotonic() - started
    print(f"{name:12} {int(runs[-1]):9,} executions in {took:4.0f} s, coverage {'/'.join(covered[-1])}", flush=True)
    found = sorted(set(findings.iterdir()) - before)
    for path in found:
        shown = path.relative_to(ROOT)
        print(f"  {failure(told)}\n  again: .venv/bin/python -m tests.fuzz.engine {name} {shown}", flush=True)
    if code and not found:
        print(f"  ended with exit code {code}; see {log.relative_to(ROOT)}", flush=True)
    return bool(code)


def write_seeds(name: str, folder: Path) -> None:
    """The seeds of a target as files, and no others."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for data in load(name).seeds():
        (folder / hexdigest(data)).write_bytes(data)


def failure(log: str) -> str:
    """The line of libFuzzer's log that says what happened."""
    lines = [line.strip() for line in log.splitlines()]
    exceptions = [after for line, after in pairwise(lines) if "Uncaught Python exception" in line]
    return next(iter([*exceptions, *(line for line in lines if "ERROR: libFuzzer" in line)]), "see the log")


if __name__ == "__main__":
    sys.exit(main())
