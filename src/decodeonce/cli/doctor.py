"""`prep doctor`: check this machine. To add a check, write a function that returns a Finding and add it to CHECKS."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from decodeonce import __version__, cli, launch
from decodeonce.cli.output import print_result, say
from decodeonce.formatting import counted, size_text
from decodeonce.host import available_memory, cgroup_cores, cgroup_memory, installed_version, usable_cores

# Errors that importing a package can raise if it is incomplete, or built for another Python, NumPy or machine.
IMPORT_ERRORS = (
    *(AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError, SyntaxError),
    *(SystemError, TypeError, ValueError),
)
ANSWER = "found: "
# This runs in a separate process, because a torch that does not fit the machine may raise anything, hang or crash.
ASK_TORCH = f"""
import json, torch
backends = [getattr(torch, name) for name in ("cuda", "xpu") if hasattr(torch, name)]
here = [backend for backend in backends if backend.is_available()]
names = [backend.get_device_name(index) for backend in here for index in range(backend.device_count())]
print("\\n{ANSWER}" + json.dumps([torch.__version__, names]))
"""
TORCH_SECONDS = 180  # the first import from a cold network file system can take minutes
TORCH_PAGE = "https://pytorch.org/get-started/locally/"
PIL_ADVICE = 'see "pillow-simd or Pillow" in docs/start/install.md; finish unfinished builds before you change it'
FORMATS = {"webp": "WebP", "libtiff": "compressed TIFF"}  # by their names in PIL.features
FEW_CORES = 4
LITTLE_MEMORY, WORKER_MEMORY = 1 << 30, 100 << 20
NO_LIMIT = 1 << 60  # cgroup v1 reports a number just below 2**63 if there is no limit
LITTLE_ROOM, FEW_FILES = 10**9, 1000


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do about it: "" if nothing. If `bad`, something does not work.

    Otherwise, what has advice works, but not as well as it could or not for everything.
    """

    found: str
    advice: str = ""
    bad: bool = False

    @property
    def level(self) -> str:
        """Return "ok", "warn" or "bad"."""
        return "bad" if self.bad else "warn" if self.advice else "ok"


def torch() -> Finding:
    """Check whether torch can be imported, and whether it finds the GPUs of this machine."""
    version = installed_version("torch")
    if version is None:
        return Finding("not installed; the Loader needs it", f"install it: {TORCH_PAGE}")
    try:
        ended = subprocess.run(
            [sys.executable, "-c", ASK_TORCH],
            cwd="/",  # a torch.py in the current folder must not be imported
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TORCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        late = f"{version}, its import did not end within {TORCH_SECONDS} s"
        return Finding(late, "check memory, process limits and the file system of torch", bad=True)
    output, errors = (data.decode("utf-8", "backslashreplace") for data in (ended.stdout, ended.stderr))
    answers = [line for line in output.splitlines() if line.startswith(ANSWER)]  # torch may print, too
    if ended.returncode or not answers:
        problem = (errors.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
        advice = f'check "memory", then reinstall torch: {TORCH_PAGE}'
        return Finding(f"{version}, import fails: {problem}", advice, bad=True)
    imported, devices = json.loads(answers[-1].removeprefix(ANSWER))
    return torch_check(imported, devices, errors, gpus_of_machine())


def torch_check(version: str, devices: list[str], stderr: str, gpus: str) -> Finding:
    """Return the finding for a torch that found `devices` and printed `stderr`, on a machine with `gpus` ("": none)."""
    warning = next((line.rpartition("Warning: ")[2] for line in stderr.splitlines() if "CUDA" in line), "")
    if devices:
        return Finding(f"{version}: {', '.join(f'{n} x {name}' for name, n in Counter(devices).items())}", warning)
    if not gpus:
        return Finding(f"{version}: CPU only, no GPU found")
    advice = f"check CUDA_VISIBLE_DEVICES, then the driver, then whether this torch is built for it: {TORCH_PAGE}"
    return Finding(f"{version}: cannot use the {gpus} of this machine{': ' if warning else ''}{warning}", advice)


def gpus_of_machine(dev: Path = Path("/dev")) -> str:
    """Return whose GPUs have device files: NVIDIA, AMD, or "" for none."""
    nvidia = any(dev.glob("nvidia[0-9]*"))  # a container may have only the second one
    return "NVIDIA GPUs" if nvidia else "AMD GPUs" if (dev / "kfd").exists() else ""


def pillow() -> Finding:
    """Check which PIL is imported, that it is the only one, and whether it uses a modern CPU and reads all formats."""
    from decodeonce.prep.pixels.versions import find_pillow

    found = find_pillow()
    if len(found.installed) > 1:
        both = " and ".join(f"{name} {installed_version(name)}" for name in found.installed)
        advice = f"uninstall both, install one: {PIL_ADVICE}"
        return Finding(f"{both} are both installed and overwrite each other", advice, bad=True)
    if not found.name:
        missing = f"the files of {found.installed[0]} are missing" if found.installed else "not installed"
        return Finding(f"{missing}; `prep build` needs it", PIL_ADVICE, bad=bool(found.installed))
    from PIL import features

    if lacking := [name for module, name in FORMATS.items() if not features.check(module)]:
        without = f"built without {' and '.join(lacking)}: such images are rejected"
        return Finding(f"{found.description}, {without}", PIL_ADVICE)
    return Finding(found.description, f"if this CPU has AVX2, {PIL_ADVICE}" if found.simd == "SSE4" else "")


def package(name: str, *, needed: bool = True) -> Finding:
    """Check whether a package can be imported, and report its version."""
    version = installed_version(name)
    if version is None:
        return Finding("not installed", f"pip install {name}", bad=needed)
    try:
        import_module(name)
    except IMPORT_ERRORS as error:
        problem = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        return Finding(f"{version}, import fails: {problem}", f"pip install --force-reinstall {name}", bad=True)
    return Finding(version)


def cores() -> Finding:
    """Compare the usable cores with those of the machine; a login shell can often use only one."""
    usable, whole, quota = usable_cores(), os.cpu_count() or 1, cgroup_cores()
    limits = f"affinity {len(os.sched_getaffinity(0))}, cgroup quota {'none' if quota is None else f'{quota:g}'}"
    advice = "request more cores from the batch system (--cpus-per-task), or check the affinity: taskset -pc $$"
    return Finding(f"{usable} of {whole} usable ({limits})", advice if usable < min(whole, FEW_CORES) else "")


def memory() -> Finding:
    """Check the memory that is available without swapping, the cgroup's limit, and ulimit -v: shards are mapped."""
    available, (mapped, _) = available_memory(), resource.getrlimit(resource.RLIMIT_AS)
    has = "unknown" if available is None else size_text(available)
    found = f"{has} available, cgroup limit {_limit(cgroup_memory())}, ulimit -v {_limit(mapped)}"
    if mapped != resource.RLIM_INFINITY:
        return Finding(found, "run: ulimit -v unlimited; mapped shards count, so limit memory another way")
    little = available is not None and available < LITTLE_MEMORY + usable_cores() * WORKER_MEMORY
    advice = "request more memory from the batch system (--mem), or build with fewer --workers"
    return Finding(found, advice if little else "")


def _limit(nbytes: int | None) -> str:
    return "none" if nbytes is None or not 0 <= nbytes < NO_LIMIT else size_text(nbytes)


def rank() -> Finding:
    """Find the rank that a Loader would use."""
    try:
        return Finding(str(launch.find_rank()))
    except ValueError as error:
        return Finding(f"unknown: {error}", "unset these variables, or start the process with the launcher", bad=True)


def task() -> Finding:
    """Find the task that `prep work` would run without --task."""
    try:
        return Finding(str(launch.find_task() or "none: prep work decodes all remaining blocks"))
    except ValueError as error:
        return Finding("unknown", f"pass --task I --tasks N to prep work: {error}", bad=rank().bad)


def file_system(path: Path) -> Finding:
    """Report the kind of file system, and the free bytes and files of the disk and of every quota."""
    from decodeonce.prep.building.free_space import Quota, Storage, describe_storage, find_storage

    try:
        storage = find_storage(path)
    except OSError as error:
        return Finding(f"{path}: {error.strerror or error}", "choose another path, or fix this", bad=True)
    limits: list[Storage | Quota] = [storage, *storage.quotas]
    room = min((limit.free_bytes for limit in limits if limit.free_bytes is not None), default=LITTLE_ROOM)
    files = min((limit.free_files for limit in limits if limit.free_files is not None), default=FEW_FILES)
    found = "; ".join(describe_storage(storage))
    if not os.access(storage.place, os.W_OK):
        return Finding(f"{found}; not writable", "stores in it can only be read")
    little = room < LITTLE_ROOM or files < FEW_FILES
    return Finding(found, "free some space, or choose another folder" if little else "")


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": lambda: Finding(f"{platform.python_version()} ({sys.executable})"),
    "decodeonce": lambda: Finding(f"{__version__} ({Path(__file__).parents[1]})"),
    "torch": torch,
    "pillow": pillow,
    "simplejpeg": partial(package, "simplejpeg", needed=False),  # needed to build only
    **{name: partial(package, name) for name in ("numpy", "h5py", "typer", "xxhash", "tqdm", "jinja2")},
    "cores": cores,
    "memory": memory,
    "rank": rank,
    "task": task,
}


def doctor(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders that will hold stores. (default: the current folder)", metavar="PATH"),
    ] = None,
) -> None:
    """Check what building and training need on this machine: software, cores, memory, ranks, file systems.

    Each line is ok, warn or bad, and says what to do. The exit code is 1 if something is bad.
    """
    findings = [(name, _run_check(check)) for name, check in CHECKS.items()]
    findings += [("file system", _run_check(partial(file_system, path))) for path in paths or [Path(".")]]
    levels = Counter(finding.level for _, finding in findings)
    checks = [{"name": name, "level": one.level, "found": one.found, "advice": one.advice} for name, one in findings]
    problems = [f"{name}: {one.found}: {one.advice}" for name, one in findings if one.advice]
    print_result({"ok": not levels["bad"], "checks": checks, "problems": problems})
    if not cli.results:
        width = max(len(name) for name, _ in findings)
        for name, finding in findings:
            say(f"{finding.level:<4}  {name:<{width}}  {finding.found}")
            if finding.advice:
                say(f"      {'':{width}}  {finding.advice}")
        say(f"{levels['ok']} ok, {counted(levels['warn'], 'warning')}, {levels['bad']} bad")
    if levels["bad"]:
        raise typer.Exit(1)


def _run_check(check: Callable[[], Finding]) -> Finding:
    """Run a check; the finding is bad if a package that it needs cannot be used."""
    try:
        return check()
    except IMPORT_ERRORS as error:
        return Finding(f"cannot be checked: {error}", "reinstall the package that the message names", bad=True)
