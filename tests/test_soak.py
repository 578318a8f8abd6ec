"""Short runs of `make soak` and of the cold storage benchmarks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.larger import ARMS
from tests.command import run
from tests.images import make_tree

pytestmark = pytest.mark.release

ROOT = Path(__file__).resolve().parent.parent


def run_in_bench(code: str, *arguments: str | Path) -> str:
    """Run code in a new Python process that can import the benchmarks, and return what it prints."""
    return run(sys.executable, "-c", f"import sys\n{code}", *arguments, cwd=ROOT)


def test_short_soak_run(tmp_path: Path) -> None:
    tree, scratch = make_tree(tmp_path / "src"), tmp_path / "scratch"
    options = ["--rows", "15", "--size", "32", "--batch-size", "4", "--seconds", "1", "--every", "0.02"]
    printed = run(sys.executable, "-m", "bench.soak", tree, *options, "--scratch", scratch, "--json", cwd=ROOT)
    facts = json.loads(printed.splitlines()[-1])
    assert set(facts["processes"]) >= {"`prep build`", "`prep build`, its largest worker", "`prep verify`", "Loader"}
    assert facts["growth"] == []
    assert facts["streamed"]["Loaders"] > 2
    assert facts["streamed"]["left halfway"] > 2
    assert "| Loader | anonymous memory, MB |" in printed
    assert list(scratch.iterdir()) == []


LEAKING = """
import os, threading, time
end, held = time.monotonic() + 1, []
print("begun", flush=True)
while time.monotonic() < end:
    held.append((b"x" * (2 << 20), os.open("/dev/null", os.O_RDONLY)))
    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
    time.sleep(0.01)
os._exit(0)
"""


WATCHING = """
from bench import soak
found, _ = soak.watch([sys.executable, "-c", sys.argv[1]], 0.02, announced=True)
print(*soak.growth_messages("it", found[""]), sep="\\n")
"""


def test_growth_is_reported() -> None:
    lines = run_in_bench(WATCHING, LEAKING).splitlines()
    found = [line.split(" grew from ")[0] for line in lines]
    assert found == ["it: anonymous memory, MB", "it: data segments, MB", "it: open descriptors", "it: threads"]


BOUNDED = """
import json
from pathlib import Path
from bench.bounded import CgroupError, memory_cgroup, run_epoch
from bench.synthetic import synthetic_store
store, limit = synthetic_store(Path(sys.argv[1]), 3000, sparse=True), int(sys.argv[2])
try:
    with memory_cgroup(limit) as group:
        print(json.dumps(run_epoch(store, "full", 16, group)))
except CgroupError as error:
    print(json.dumps(str(error)))
"""


def test_loader_stays_within_memory_bound_and_reads_directly(tmp_path: Path) -> None:
    limit = 450 << 20  # the interpreter with torch and the slots of 16 rows take 150; the store has 590 MB of rows
    found = json.loads(run_in_bench(BOUNDED, tmp_path / "sparse.store", str(limit)))
    if isinstance(found, str):  # in CI as well: its machine might not allow cgroups
        pytest.skip(f"this test needs a memory cgroup, which only root can create: {found}")
    assert found["reader"] == "direct"  # so the limit of the cgroup was used: the machine itself has more memory
    assert found["anonymous"] < limit


def test_larger_benchmark_runs_on_small_store(tmp_path: Path) -> None:
    tree, scratch = make_tree(tmp_path / "src"), tmp_path / "scratch"
    options = ["--rows", "2000", "--batch-size", "16", "--every", "0.02", "--scratch", str(scratch), "--json"]
    command = [sys.executable, "-m", "bench.larger", str(tree), *options]
    without_fio = {**os.environ, "PATH": str(tmp_path)}  # because fio's sweep takes minutes
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=without_fio)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert list(facts["epochs"]) == list(ARMS)
    assert {"`prep build`", "`prep verify`", *ARMS} <= set(facts["processes"])
    for epochs in facts["epochs"].values():
        assert len(epochs) == 3
        assert all(rate > 0 and read >= 0 and processor > 0 for rate, read, processor in epochs)
    assert facts["growth"] == []
    assert "fio is missing" in done.stderr
    assert list(scratch.iterdir()) == []
