"""`prep doctor`: check this machine. To add a check, write a function that returns a Finding and add it to a table."""

from __future__ import annotations

import fcntl
import json
import mmap
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
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from decodeonce import __version__, launch
from decodeonce.cli.options import JsonFlag
from decodeonce.cli.output import print_json, say
from decodeonce.formatting import counted, size_text
from decodeonce.host import available_memory, cgroup_cores, cgroup_memory, installed_version, usable_cores
from decodeonce.loader.choose_reader import KEPT_MEMORY, choose_reader
from decodeonce.store import disk

if TYPE_CHECKING:
    from decodeonce.prep.building.free_space import Quota, Storage

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
# Mount options of NFS and Lustre with which a lock excludes only processes of the same node, or is refused.
LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=flock", "localflock", "noflock"}
# FUSE file systems that leave locks to the kernel of each node.
WITHOUT_LOCKS = {"fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse"}
LOCKS_ADVICE = "do not run two commands on one store from several nodes at once, except `prep build` and `prep work`"


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


def file_system(storage: Storage) -> Finding:
    """Report the kind of file system, and the free bytes and files of the disk and of every quota."""
    from decodeonce.prep.building.free_space import describe_storage

    limits: list[Storage | Quota] = [storage, *storage.quotas]
    room = min((limit.free_bytes for limit in limits if limit.free_bytes is not None), default=LITTLE_ROOM)
    files = min((limit.free_files for limit in limits if limit.free_files is not None), default=FEW_FILES)
    little = room < LITTLE_ROOM or files < FEW_FILES
    return Finding("; ".join(describe_storage(storage)), "free some space, or choose another folder" if little else "")


def abilities(storage: Storage) -> Finding:
    """Check on a file without a name whether files can be written, mapped and reserved."""
    there = storage.place
    try:
        with TemporaryFile(dir=there) as file:
            disk.pwrite(file.fileno(), bytes(mmap.PAGESIZE), 0)
            maps = _works(lambda: mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ).close())
            reserves = _works(lambda: disk.fallocate(file.fileno(), 0, 2 * mmap.PAGESIZE))
            direct = _works(lambda: fcntl.fcntl(file.fileno(), fcntl.F_SETFL, os.O_DIRECT))
    except OSError as error:
        return Finding(f"{there}: cannot be written: {error.strerror}", "stores in it can only be read")
    able = {"mmap": maps, "fallocate": reserves, "direct reads": direct}
    words = {name: "yes" if works else "no" for name, works in able.items()}
    found = f"{there}: {', '.join(f'{name} {works}' for name, works in words.items())}"
    if not maps:
        return Finding(found, 'read stores in it with Loader(..., reader="pread")')
    full = "space cannot be reserved: make sure that the file system does not fill up during a build"
    return Finding(found, "" if reserves else full)


def reader(storage: Storage) -> Finding:
    """Say how a Loader would read stores that are small and large compared with the available memory."""
    small, large = (choose_reader(storage.place, nbytes) for nbytes in (0, 1 << 60))
    if small.name == large.name:
        return Finding(f"{small.name}: {small.why}")
    memory = available_memory() or 0
    found = f"{small.name}, or {large.name} for stores of more than {size_text(memory // 2)}"
    kept = f", which keeps {size_text(int(KEPT_MEMORY * memory))} of their rows in memory"
    return Finding(found + (kept if large.name == "direct" else ""))


def _works(ability: Callable[[], object]) -> bool:
    try:
        ability()
    except OSError:
        return False
    return True


def locks(storage: Storage, mountinfo: Path = Path("/proc/self/mountinfo")) -> Finding:
    """Check whether locks exclude the processes of other nodes, as far as the mount options tell."""
    place = storage.place
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    except OSError as error:
        return Finding(f"{place}: no locks: {error.strerror}", LOCKS_ADVICE)
    finally:
        os.close(fd)
    device = os.stat(place).st_dev
    for line in reversed(mountinfo.read_text(errors="surrogateescape").splitlines()):
        before, _, after = line.partition(" - ")
        if before.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            kind, *_, options = after.split()
            why = sorted(LOCAL_LOCKS & {*options.split(","), *before.split()[5].split(",")})
            if why or kind in WITHOUT_LOCKS:
                how = f" mounted with {why[0]}" if why else ""
                return Finding(f"{place}: {kind}{how}: locks do not exclude other nodes", LOCKS_ADVICE)
            return Finding(f"{place}: {kind}: no mount option restricts locks to this node")
    return Finding(f"{place}: locks work on this node; its mount is not known")


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
# Checks of each PATH, which may not exist yet.
PATH_CHECKS: dict[str, Callable[[Storage], Finding]] = {
    "file system": file_system,
    "abilities": abilities,
    "reader": reader,
    "locks": locks,
}


def doctor(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders that will hold stores. (default: the current folder)", metavar="PATH"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check what building and training need on this machine: software, cores, memory, limits, ranks, file systems.

    Each line is ok, warn or bad, and says what to do. The exit code is 1 if something is bad.
    """
    findings = [(name, _run_check(check)) for name, check in CHECKS.items()]
    for path in paths or [Path(".")]:
        findings += [(name, _run_check(partial(_check_path, check, path))) for name, check in PATH_CHECKS.items()]
    levels = Counter(finding.level for _, finding in findings)
    if as_json:
        checks = [
            {"name": name, "level": one.level, "found": one.found, "advice": one.advice} for name, one in findings
        ]
        problems = [f"{name}: {one.found}: {one.advice}" for name, one in findings if one.advice]
        print_json({"ok": not levels["bad"], "checks": checks, "problems": problems})
    else:
        width = max(len(name) for name, _ in findings)
        for name, finding in findings:
            say(f"{finding.level:<4}  {name:<{width}}  {finding.found}")
            if finding.advice:
                say(f"      {'':{width}}  {finding.advice}")
        say(f"{levels['ok']} ok, {counted(levels['warn'], 'warning')}, {levels['bad']} bad")
    if levels["bad"]:
        raise typer.Exit(1)


def _check_path(check: Callable[[Storage], Finding], path: Path) -> Finding:
    from decodeonce.prep.building.free_space import find_storage

    try:
        return check(find_storage(path))
    except OSError as error:
        return Finding(f"{path}: {error.strerror or error}", "choose another path, or fix this", bad=True)


def _run_check(check: Callable[[], Finding]) -> Finding:
    """Run a check; the finding is bad if a package that it needs cannot be used."""
    try:
        return check()
    except IMPORT_ERRORS as error:
        return Finding(f"cannot be checked: {error}", "reinstall the package that the message names", bad=True)
