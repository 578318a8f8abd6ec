"""Run the fuzz targets one after the other, as `make fuzz` does. Failing inputs are written to build/fuzz/findings.

Runs share a corpus in build/fuzz/corpus, which grows. The exit code is 1 if an input made a target fail.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise

from decodeonce.store.hashing import hexdigest
from tests.fuzz import TARGETS, load
from tools import setup_fuzz
from tools.setup_env import ROOT

FOLDER = ROOT / "build" / "fuzz"
ALL_SECONDS = 1800
TIMEOUT = 25  # seconds for one input; libFuzzer calls a longer one a hang
MEMORY = 1024  # MiB; Python, NumPy and the targets take 100
MAX_BYTES = {"annotation": 4096, "journal": 4096, "lists": 4096, "table": 4096, "plan": 8192}
DEFAULT_MAX_BYTES = 1 << 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, help="time per target (default: half an hour, divided by the targets)")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"any of {', '.join(TARGETS)} (default: all)")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; expected one of {', '.join(TARGETS)}")
    if setup_fuzz.main():
        return 1
    names = options.targets or TARGETS
    seconds = options.seconds or ALL_SECONDS // len(names)
    failed = [name for name in names if fuzz(name, seconds)]
    return int(bool(failed))


def fuzz(name: str, seconds: int) -> bool:
    """Run a target and print a summary. Return whether it failed."""
    corpus, seeds, findings = (FOLDER / kind / name for kind in ("corpus", "seeds", "findings"))
    shutil.rmtree(seeds, ignore_errors=True)
    for folder in (corpus, findings, seeds):
        folder.mkdir(parents=True, exist_ok=True)
    for data in load(name).seeds():
        (seeds / hexdigest(data)).write_bytes(data)
    log, before = FOLDER / f"{name}.log", set(findings.iterdir())
    options = [f"-max_total_time={seconds}", f"-timeout={TIMEOUT}", f"-rss_limit_mb={MEMORY}", "-print_final_stats=1"]
    options += [f"-max_len={MAX_BYTES.get(name, DEFAULT_MAX_BYTES)}", f"-artifact_prefix={findings}/"]
    command = [sys.executable, "-m", "tests.fuzz.engine", name, str(corpus), str(seeds), *options]
    # The targets write a file for nearly every input, so the folder should be in memory. libFuzzer does not remove it.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with log.open("w") as out, tempfile.TemporaryDirectory(dir=memory) as scratch:
        environment = {**os.environ, "TMPDIR": scratch}
        code = subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT).returncode
    output = log.read_text(errors="replace")
    runs = re.findall(r"number_of_executed_units: (\d+)", output) or re.findall(r"^#(\d+)", output, re.M) or ["0"]
    print(f"{name:12} {int(runs[-1]):9,} executions", flush=True)
    if code:
        print(f"  {failure(output)} (exit code {code}, log: {log.relative_to(ROOT)})", flush=True)
    for path in sorted(set(findings.iterdir()) - before):
        print(f"  to repeat: .venv/bin/python -m tests.fuzz.engine {name} {path.relative_to(ROOT)}", flush=True)
    return bool(code)


def failure(log: str) -> str:
    lines = [line.strip() for line in log.splitlines()]
    exceptions = [after for line, after in pairwise(lines) if "Uncaught Python exception" in line]
    return next(iter([*exceptions, *(line for line in lines if "ERROR: libFuzzer" in line)]), "see the log")


if __name__ == "__main__":
    sys.exit(main())
