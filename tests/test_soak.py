"""`make soak` and the benchmarks of cold storage in small: they run, report growth, and stay within a memory bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.images import make_tree

pytestmark = pytest.mark.long

BENCH = Path(__file__).resolve().parent.parent / "bench"


def in_bench(code: str, *arguments: str | Path) -> str:
    """What this code prints in a Python of its own that finds the benchmarks."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(BENCH)!r})\n{code}", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_a_soak_in_small(tmp_path: Path) -> None:
    tree, scratch = make_tree(tmp_path / "src"), tmp_path / "scratch"
    options = ["--rows", "15", "--size", "32", "--batch-size", "4", "--seconds", "1", "--every", "0.02"]
    command = [sys.executable, str(BENCH / "soak.py"), str(tree), *options, "--scratch", str(scratch), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert set(facts["processes"]) >= {"`prep build`", "`prep build`, its largest worker", "`prep verify`", "Loader"}
    assert facts["growth"] == []
    assert facts["streamed"]["Loaders"] > 2
    assert facts["streamed"]["left halfway"] > 2
    assert "| Loader | anonymous memory, MB |" in done.stdout
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


TELLING = """
import soak
looks, _ = soak.watch([sys.executable, "-c", sys.argv[1]], 0.02, announced=True)
print(*soak.grown("it", looks[""]), sep="\\n")
"""


def test_what_grows_is_told() -> None:
    told = in_bench(TELLING, LEAKING).splitlines()
    assert [line.split(" grew from ")[0] for line in told] == [
        "it: anonymous memory, MB",
        "it: data segments, MB",
        "it: open descriptors",
        "it: threads",
    ]


BOUNDED = """
import json
from pathlib import Path
from bounded import NoCgroup, arm, memory_cgroup
from synthetic import synthetic_store
store, limit = synthetic_store(Path(sys.argv[1]), 3000, sparse=True), int(sys.argv[2])
try:
    with memory_cgroup(limit) as group:
        print(json.dumps(arm(store, "full", 16, group)))
except NoCgroup as why:
    print(json.dumps(str(why)))
"""


def test_a_loader_stays_within_a_memory_bound_and_reads_as_suits_it(tmp_path: Path) -> None:
    limit = 450 << 20  # 150 of it for the interpreter with torch and a ring of 16; the store has 590 MB of rows
    found = json.loads(in_bench(BOUNDED, tmp_path / "sparse.store", str(limit)))
    if isinstance(found, str):  # in CI too: where it runs may have no cgroup to give
        pytest.skip(f"a memory cgroup is needed, which takes root: {found}")
    assert found["reader"] == "pread"  # the cgroup's limit was seen: the machine itself has more
    assert found["anonymous"] < limit


def test_a_store_larger_than_memory_in_small(tmp_path: Path) -> None:
    tree, scratch = make_tree(tmp_path / "src"), tmp_path / "scratch"
    options = ["--rows", "2000", "--batch-size", "16", "--every", "0.02", "--scratch", str(scratch), "--json"]
    command = [sys.executable, str(BENCH / "larger.py"), str(tree), *options]
    without_fio = {**os.environ, "PATH": str(tmp_path)}  # its sweep takes minutes
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=without_fio)
    facts = json.loads(done.stdout.splitlines()[-1])
    orders = [f'Loader, `shuffle="{shuffle}"`' for shuffle in ("full", "window", "none")]
    assert list(facts["epochs"]) == orders
    assert {"`prep build`", "`prep verify`", *orders} <= set(facts["processes"])
    for paces in facts["epochs"].values():
        assert len(paces) == 2
        assert all(rate > 0 and read >= 0 for rate, read in paces)
    assert facts["growth"] == []
    assert "fio is missing" in done.stderr
    assert list(scratch.iterdir()) == []


def test_cold_reads_are_not_measured_without_fio(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "cold.py")]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert "fio is missing" in done.stdout


COMPARING = """
import json
from pathlib import Path
from cold import all_reads, finalists, has_pattern, pace
from synthetic import synthetic_store
from decodeonce import Loader, open_store
store = open_store(synthetic_store(Path(sys.argv[1]), 1200, sparse=True))
rates = {reads: 1 / (number + 1) for number, reads in enumerate(all_reads(store))}
chosen = finalists(store, rates)
patterns = [sum(has_pattern(store, shuffle, reads) for reads in chosen) for shuffle in ("full", "window", "none")]
with Loader(store, batch_size=400) as loader:
    try:
        pace(loader, store, "full")
    except SystemExit as error:
        fastest_first = max(rates.values()) == rates[chosen[0]]
        print(json.dumps([fastest_first, patterns, str(error)]))
"""


def test_the_fastest_ways_to_read_are_compared_and_a_small_store_is_refused(tmp_path: Path) -> None:
    fastest_first, patterns, error = json.loads(in_bench(COMPARING, tmp_path / "sparse.store"))
    assert fastest_first
    assert min(patterns) >= 2
    assert error.endswith("take a larger store or a smaller --batch-size")
