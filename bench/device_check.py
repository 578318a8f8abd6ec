"""Run all tests and benchmarks that need an accelerator, in eight minutes: `make device-check` runs this script.

    python -m bench.device_check [--seconds 480] [--wheels DIR] [--out build/device-check] [--steps NAME ...]

It is for a machine that is at hand for a short time only. A step is skipped if too little time is left for it, and
stopped at its limit. Everything that a step prints is in OUT/log.txt at once, with the figures of a step that was
stopped. The summary comes last, also in OUT/summary.txt; OUT/trace.json.gz is for https://ui.perfetto.dev. Data are
kept in SCRATCH, so that a second call has more time. The exit code is 1 if a step failed or was stopped.

It needs no network and no .venv. If this Python lacks a package, pass a folder with its wheels; they are installed in
SCRATCH. `--device cpu` uses little data, and only shows that the script works.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
# What the steps import, and the device that they use unless another one is given.
PROBE = """
import bracex, h5py, hypothesis, jinja2, numpy, PIL, pytest, pytest_timeout, simplejpeg, tqdm, torch, typer, xxhash
print(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "")
"""
SECONDS_TO_STOP = 10  # between SIGINT, after which pytest prints its results, and SIGKILL
LINES, WIDTH = 30, 200  # of a step's output in the summary
STOPPED, LINES_AFTER = "######## stopped", 12  # of what it prints then: results of pytest, or a traceback without use


class Step(NamedTuple):
    """A command, the seconds that must be left when it starts, and those after which it is stopped."""

    name: str
    needs: int
    limit: int
    command: list[str]


class Check:
    """Runs steps until the time is over. Their output goes to `out`/log.txt.

    Args:
        out: An existing folder.
        seconds: Time for all steps.
        environ: Environment variables of the steps.
    """

    def __init__(self, out: Path, seconds: float, environ: dict[str, str]) -> None:
        self.log, self.summary = out / "log.txt", out / "summary.txt"
        self.log.write_bytes(b"")
        self.summary.write_bytes(b"")
        self.began, self.seconds, self.environ = time.monotonic(), seconds, environ
        self.failed: list[str] = []
        self.outputs: dict[str, str] = {}

    def left(self) -> float:
        """Return the seconds that are left for steps."""
        return self.began + self.seconds - time.monotonic()

    def note(self, text: str) -> None:
        """Print a text, and add it to the summary."""
        print(text, flush=True)
        with self.summary.open("a") as file:
            file.write(f"{text}\n")

    def run(self, step: Step) -> None:
        """Run a step, unless too little time is left."""
        limit = min(step.limit, self.left() - SECONDS_TO_STOP)
        if limit < step.needs:
            self.note(f"{step.name}: skipped, because {max(limit, 0):.0f} s are left and it needs {step.needs}")
            return
        began = time.monotonic()
        with self.log.open("ab", buffering=0) as log:
            log.write(f"\n######## {step.name}: {shlex.join(step.command)}\n".encode())
            offset = log.tell()
            ended = self._run(step, limit, log.fileno())
        if ended != "passed":
            self.failed.append(step.name)
        printed, _, after = self.log.read_bytes()[offset:].decode(errors="replace").partition(STOPPED)
        lines = printed.splitlines()
        if ended == "passed":  # its tables have the medians
            lines = [line for line in lines if not line.startswith("{")]
        lines = lines[-LINES:] + after.splitlines()[-LINES_AFTER:]
        self.outputs[step.name] = "\n".join(line[:WIDTH] for line in lines)
        # Print this last, because a reader may stop the script as soon as it appears.
        self.note(f"{step.name}: {time.monotonic() - began:.0f} s, {ended}")

    def _run(self, step: Step, limit: float, log: int) -> str:
        """Run a step in a session of its own, with its worker processes, and say how it ended."""
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
            return f"failed with exit code {code}" if code else "passed"
        except subprocess.TimeoutExpired:
            os.write(log, f"{STOPPED}\n".encode())
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_STOP)
            return f"stopped after {limit:.0f} s"
        finally:  # also after Ctrl-C
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def summarize(self) -> None:
        """Print the end of each step's output, and then how each step ended."""
        steps = self.summary.read_text()
        with self.summary.open("w") as file:
            for name, output in self.outputs.items():
                file.write(f"-- {name}\n{output}\n")
            file.write(f"-- {time.monotonic() - self.began:.0f} of {self.seconds:.0f} s\n{steps}")
        print(f"\n{self.summary.read_text()}", end="", flush=True)


def find_steps(device: str, out: Path, scratch: Path) -> list[Step]:
    """Return all steps, the most important first. They write data to `scratch`, and a trace to `out`."""
    small = device == "cpu"
    folder = scratch / ("small" if small else "full")
    folder.mkdir(exist_ok=True)
    store, tree = str(folder / "store"), str(folder / "tree")
    batches = ["--device", device, "--batch-size", "2" if small else "256"]
    repeats = ["--repeats", "1" if small else "3"]
    training = [*batches, "--steps", "1" if small else "30"]

    def run(module: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", module, *arguments]

    def part(name: str) -> list[str]:
        return run("bench.device_parts", name, store, *batches, *repeats)

    def test(expression: str) -> list[str]:
        return run("pytest", "tests/gpu", "-q", "-m", "", "-p", "no:cacheprovider", "-k", expression)

    made = ["--rows", "32" if small else "20480", "--images", "60" if small else "1500"]
    cores = ["--rows", "32", "--batch-size", "8", "--images", "60"] if small else ["--images", "1500"]
    slow = "allocator or compiled"  # these tests start processes or compile
    return [
        Step("environment", 5, 60, run("bench.device_parts", "environment")),
        Step("data", 20, 90, run("bench.device_parts", "data", store, *made)),
        Step("tests", 20, 130, test(f"not ({slow})")),
        Step("copies", 20, 60, part("copies")),
        Step("augmentation", 20, 80, part("augmentation")),
        Step("forms", 20, 60, part("forms")),
        Step("ahead", 15, 40, part("ahead")),
        Step("training", 60, 150, run("bench.gpu", store, *training, *repeats, "--trace", str(out / "trace.json"))),
        Step("small", 20, 90, part("small")),
        Step("cores", 40, 90, run("bench.cores", tree, *cores, "--repeats", "1", "--scratch", str(folder))),
        Step("peers", 60, 130, run("bench.gpu_peers", tree, *training, "--repeats", "1", "--scratch", str(folder))),
        Step("slow-tests", 60, 200, test(slow)),
    ]


def install(wheels: Path, site: Path) -> None:
    """Install the wheels of a folder in the folder `site`, without their requirements and without a network."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        advice = f"on a machine with a network, run: pip download --no-deps -d {wheels} NAME"
        sys.exit(f"device_check: error: {wheels}: found no *.whl there; {advice}")
    shutil.rmtree(site, ignore_errors=True)
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check", "--target"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(site), *files], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="default: the accelerator that torch finds")
    parser.add_argument("--seconds", type=float, default=480, help="time for all steps (default: %(default)s)")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install the wheels in DIR first")
    parser.add_argument("--out", type=Path, default=BUILD / "device-check", help="folder for log and summary")
    parser.add_argument("--scratch", type=Path, default=BUILD / "device-check-data", help="folder for data")
    parser.add_argument("--steps", nargs="+", metavar="NAME", help="run only these steps; most need data, once")
    options = parser.parse_args()
    out, scratch = options.out.absolute(), options.scratch.absolute()
    for folder in (out, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    path = [str(ROOT / "src"), str(ROOT)]
    # The tests would fail on skips in CI, and need a folder for hypothesis that they may write.
    environ = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTHONPATH")}
    environ |= {"PYTHONUNBUFFERED": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis")}
    check = Check(out, options.seconds, environ)
    if options.wheels:
        install(options.wheels, scratch / "site")
        path.append(str(scratch / "site"))
    environ["PYTHONPATH"] = os.pathsep.join(path)
    probe = subprocess.run([sys.executable, "-c", PROBE], env=environ, capture_output=True, text=True, check=False)
    if probe.returncode:
        reason = probe.stderr.strip().rpartition("\n")[2]
        sys.exit(f"device_check: error: {sys.executable}: {reason}; install it, or pass its wheel with --wheels DIR")
    device = options.device or probe.stdout.strip()
    if not device:
        print("nothing is checked, because torch finds no accelerator here; --device cpu shows that the script works")
        return
    steps = find_steps(device, out, scratch)
    names = [step.name for step in steps]
    if unknown := set(options.steps or []) - set(names):
        parser.error(f"--steps: found {', '.join(sorted(unknown))}, expected some of {', '.join(names)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the summary is printed
    trace = out / "trace.json"
    try:
        for step in steps:
            if step.name in (options.steps or names):
                check.run(step)
    finally:
        if trace.exists():
            with trace.open("rb") as plain, gzip.open(f"{trace}.gz", "wb") as packed:
                shutil.copyfileobj(plain, packed)
            trace.unlink()
        check.summarize()
    sys.exit(bool(check.failed))


if __name__ == "__main__":
    main()
