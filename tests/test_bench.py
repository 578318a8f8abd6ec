"""Benchmarks that need special hardware or much time run here with small settings, to show that they work."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.conditions import ratio, ratio_text
from bench.device_check import Check, Step
from tests import command
from tests.images import make_tree
from tests.libraries import library
from tests.stores import make_store, random_images

ROOT = Path(__file__).resolve().parent.parent
ON_CPU = ["--device", "cpu", "--batch-size", "2", "--repeats", "1", "--json"]


def run(module: str, *arguments: object) -> dict[str, Any]:
    """Run a benchmark and return the facts that it prints."""
    facts: dict[str, Any] = json.loads(command.run(sys.executable, "-m", f"bench.{module}", *arguments, cwd=ROOT))
    return facts


def test_ratio_is_ratio_of_medians_with_range_over_repeats() -> None:
    # The median of the ratios per repeat would be 0.5, which does not match two medians shown in a table.
    found = ratio([400.0, 450.0, 700.0], [1000.0, 900.0, 1400.0])
    assert found == pytest.approx([0.45, 0.4, 0.5])
    assert ratio_text(found) == "0.45 (0.40 to 0.50)"


@pytest.mark.long
def test_killed_benchmark_keeps_figures_of_first_arm(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", random_images(9, shape=(32, 32, 3)))
    arguments = ["bench.gpu", str(store), *ON_CPU, "--steps", "100000"]  # so many steps take hours
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        found = json.loads(next(line for line in process.stderr if line.startswith("{")))
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert (found["arm"], found["repeat"]) == ("pinned copies", 0)
    assert found["bytes_per_s"] > 0


@pytest.mark.release
def test_gpu_benchmark_runs_on_cpu(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", random_images(9, shape=(32, 32, 3)))
    facts = run("gpu", store, *ON_CPU, "--steps", "1", "--trace", tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (facts["device"], facts["batch_size"]) == ("cpu", 2)
    assert len(facts["runs"]) == 9
    for name in ("one batch", "from the store", "from the cache", "one augmented batch", "with Augment"):
        found = facts["runs"][name]
        assert found["images_per_s"] > 0
        assert 0 <= found["device_waits"] < 1
        assert found["processor_s_per_step"] > 0
        assert 0 <= found.get("steps_waited", 0) <= 1
    assert list(facts["of_one_batch"]) == ["from the store", "with Augment", "from the cache"]
    assert facts["runs"]["first batch"]["seconds"] > 0
    assert facts["bottleneck"]


@pytest.mark.release
def test_gpu_benchmark_of_peers_runs_on_cpu(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "imagenet", classes=2, per_class=2)
    facts = run("gpu_peers", tree, *ON_CPU, "--steps", "1", "--scratch", tmp_path / "scratch")
    feeds = {"decodeonce Loader", "DataLoader, memory map, prefetcher", "DataLoader, JPEG files, prefetcher"}
    assert feeds | {"one batch on the device"} <= set(facts["runs"])
    assert not feeds & set(facts["missing"])
    assert all(run["images_per_s"] > 0 and run["cores"] > 0 for run in facts["runs"].values())


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_device_check_skips_a_step_without_enough_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = Check(tmp_path, 40, dict(os.environ))
    check.run(Step("long", 60, 90, python("print('started')")))
    check.run(Step("short", 5, 90, python("print('started')")))
    check.summarize()
    assert check.failed == []
    out = capsys.readouterr().out
    assert "long: skipped, because " in out
    assert out.count("\nstarted\n") == (tmp_path / "log.txt").read_text().count("\nstarted\n") == 1


def test_device_check_shows_figures_of_a_failed_step(tmp_path: Path) -> None:
    check = Check(tmp_path, 60, dict(os.environ))
    for code in (0, 3):
        figure = json.dumps({"arm": f"arm {code}"})
        check.run(Step(f"code {code}", 5, 60, python(f"print({figure!r}, flush=True); raise SystemExit({code})")))
    check.summarize()
    summary = (tmp_path / "summary.txt").read_text()
    assert check.failed == ["code 3"]
    assert "arm 0" not in summary  # a step that passes prints tables
    assert "arm 3" in summary
    assert summary.splitlines()[-1].endswith(" s, failed with exit code 3")
    assert "arm 0" in (tmp_path / "log.txt").read_text()


@pytest.mark.long
def test_device_check_stops_a_step_and_its_workers_at_its_limit(tmp_path: Path) -> None:
    # The worker ignores SIGINT, and holds a lock until it ends.
    worker = (
        "import fcntl, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); file = open('lock', 'w');"
        "fcntl.flock(file, fcntl.LOCK_EX); print('locked', flush=True); signal.pause()"
    )
    code = f"import os, signal, subprocess, sys; os.chdir({str(tmp_path)!r})\n"
    code += f"worker = subprocess.Popen([sys.executable, '-c', {worker!r}], stdout=subprocess.PIPE)\n"
    code += "print(worker.stdout.readline().decode(), flush=True)\n"
    code += (
        "try:\n    signal.pause()\nexcept KeyboardInterrupt:\n    print('line\\n' * 50, flush=True)\n    os._exit(1)"
    )
    check = Check(tmp_path, 60, dict(os.environ))
    check.run(Step("hangs", 1, 5, python(code)))
    check.summarize()
    assert check.failed == ["hangs"]
    summary = (tmp_path / "summary.txt").read_text()
    assert "locked\n\nline\n" in summary  # the traceback of a deep stack would otherwise hide the figures
    assert " s, stopped after 5 s" in summary
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@pytest.mark.long
def test_device_check_prints_its_summary_when_terminated(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--out", tmp_path / "out", "--scratch", tmp_path / "data"]
    command = [sys.executable, "-m", "bench.device_check", *map(str, options), "--steps", "data", "training"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("data: ")
        process.terminate()
        rest = process.stdout.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert "-- data\n" in rest
    assert "60 JPEG files" in (tmp_path / "out" / "summary.txt").read_text()


@pytest.mark.release
def test_device_check_runs_on_cpu(tmp_path: Path) -> None:
    # The steps training and peers have tests of their own above.
    steps = ["environment", "data", "tests", "copies", "augmentation", "forms", "ahead", "cores", "slow-tests"]
    options = ["--device", "cpu", "--out", tmp_path / "out", "--scratch", tmp_path / "data", "--steps", *steps]
    lines = command.run(sys.executable, "-m", "bench.device_check", *options, cwd=ROOT).splitlines()
    assert [line.partition(":")[0] for line in lines[-len(steps) :]] == steps
    assert all(line.endswith(" s, passed") for line in lines[-len(steps) :])
    for figure in (
        "copies from a ring of 5 pinned, GB/s ",
        "Loader, mmap, 1 threads, ",
        "ColorJitter: ms ",
        "bc4 from ",
    ):
        assert any(line.startswith(figure) for line in lines)


@pytest.mark.release
def test_benchmark_of_cores_compares_each_number_of_workers(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "imagenet", classes=3, per_class=20)
    options = ["--images", "60", "--rows", "12", "--batch-size", "4", "--repeats", "1", "--json"]
    facts = run("cores", tree, *options, "--scratch", tmp_path / "scratch")
    assert {"1"} <= set(facts["builds"]) <= {"1", "2", "4", "8", "16"}
    assert {"1 | 1"} <= set(facts["loads"])
    for rates in [*facts["builds"].values(), *facts["loads"].values()]:
        assert [len(rates["base"]), len(rates["ours"])] == [1, 1]
        assert rates["base"][0] > 0
        assert rates["ours"][0] > 0


@pytest.mark.release
def test_plan_and_finish_use_little_memory_per_sample(tmp_path: Path) -> None:
    counts = 30_000, 200_000
    found = run("scale", "--counts", *map(str, counts), "--scratch", tmp_path, "--json")
    few, many = (found[str(count)] for count in counts)
    bytes_per_sample = {
        step: (many[step]["peak"] - few[step]["peak"]) / (counts[1] - counts[0]) for step in many if step != "journals"
    }
    assert bytes_per_sample["plan"] < 200
    assert bytes_per_sample["finish"] < 200  # mostly the files of the plan, which are memory-mapped
    assert (many["finish"]["anon"] - few["finish"]["anon"]) / (counts[1] - counts[0]) < 75  # 45 in most runs
    assert bytes_per_sample["a task's start"] < 20
    assert not list(tmp_path.iterdir())


@pytest.mark.release
def test_story_trains_on_the_same_images_in_both_ways(tmp_path: Path) -> None:
    library("torchvision")
    facts = run("story", "--images", "300", "--epochs", "2", "--scratch", tmp_path / "story", "--json")
    files = [len(list((tmp_path / "story" / "imagenet" / split).glob("*/*"))) for split in ("train", "val")]
    assert facts["rows"] == files
    assert sum(files) == 300
    assert facts["classes"] == 30
    for way in ("before", "after"):
        assert len(facts[way]["seconds"]) == 2
        assert facts[way]["images_per_s"] > 0
        assert 0 <= facts[way]["accuracy"] <= 1
