"""Create `.venv` and install this project in it. It takes less than a second if `.venv` is up to date.

The level selects what is installed: demo (to run the project), test (to run its tests as well) or dev (everything).
A later run with a higher level adds packages to the same `.venv`.

pillow-simd is compiled for this machine's CPU. If that is not possible, stock Pillow is installed, and a later run
tries again. If headers of WebP or TIFF have been installed since, a later run compiles pillow-simd again.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":  # before the imports, so that Ctrl-C during them prints no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import base64
import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Collection, Iterable
from importlib import metadata, util
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"
LOG = VENV / "setup.log"
TEMPORARY = VENV / "tmp"
LEVELS = ("demo", "test", "dev")  # extras of pyproject.toml
STARTED = time.monotonic()
# If standard output is not a terminal, a running command's new action is printed at most once in this time.
REPORT_SECONDS = 15
CLEAR_LINE = "\r\x1b[K"
# GB of disk that an installation takes, downloads included, with a CPU build of torch and with CUDA.
CPU_GB, CUDA_GB = 1.2, 8.0
SIZES = f"{CPU_GB:g} GB with a CPU build of torch, {CUDA_GB:g} GB with PyPI's build for CUDA"
FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
# Lines in which pip says what it starts to do.
ACTION = re.compile(r"Collecting|Downloading|Processing|Preparing|Building|Installing|WARNING: Retrying")
INPUTS = ("pyproject.toml", "constraints.txt", "tools/setup_env.py")
PILS = ("pillow", "pillow-simd")
# pyproject.toml says why these are installed without their requirements.
WITHOUT_REQUIREMENTS = [f"{name}; python_version < '3.14'" for name in ("timm", "torchvision")]
BEST_PIL = "pillow-simd" if (sys.platform, platform.machine()) == ("linux", "x86_64") else "pillow"
# Each of these makes pip install outside .venv, or makes Python import modules from outside it.
MISLEADING = ("PYTHONHOME", "PYTHONPATH", "PIP_PREFIX", "PIP_ROOT", "PIP_TARGET", "PIP_USER")


class SetupError(Exception):
    """A failed setup; the message says what went wrong and what to do."""


class BuildDependency(NamedTuple):
    """A compiler or library that pillow-simd is compiled with.

    `code` is C that compiles only with it, `libraries` are linker flags, `debian` and `fedora` name its packages.
    """

    name: str
    code: str
    libraries: str
    debian: str
    fedora: str


REQUIRED = (
    BuildDependency("a C compiler", "", "-lc", "gcc libc6-dev", "gcc"),
    BuildDependency("Python.h", "#include <Python.h>", "-lc", "python3-dev", "python3-devel"),
    BuildDependency("jpeglib.h", "#include <jpeglib.h>", "-ljpeg", "libjpeg-dev", "libjpeg-turbo-devel"),
    BuildDependency("zlib.h", "#include <zlib.h>", "-lz", "zlib1g-dev", "zlib-devel"),
)
# Optional formats, by their names in PIL.features. The setup.py of pillow-simd enables those whose headers it finds.
OPTIONAL = {
    "webp": BuildDependency(
        "WebP",
        "#include <webp/encode.h>\n#include <webp/mux.h>\n#include <webp/demux.h>",
        "-lwebp -lwebpmux -lwebpdemux",
        "libwebp-dev",
        "libwebp-devel",
    ),
    "libtiff": BuildDependency("compressed TIFF", "#include <tiffio.h>", "-ltiff", "libtiff-dev", "libtiff-devel"),
}


class EarlierRuns(NamedTuple):
    """Results of earlier runs with the same pins.

    `failed`: pillow-simd did not compile. `tried`: the optional formats that it was compiled again for.
    """

    failed: bool = False
    tried: tuple[str, ...] = ()


def say(text: str, *, err: bool = False) -> None:
    """Print a message, over the progress line if there is one; wrap it on a terminal, except commands (4 spaces)."""
    stream = sys.stderr if err else sys.stdout
    lines = f"setup: {text}".splitlines()
    if stream.isatty():
        fill = textwrap.TextWrapper(
            shutil.get_terminal_size().columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        ).fill
        lines = [line if line.startswith("    ") else fill(line) for line in lines]
        lines[0] = CLEAR_LINE + lines[0]
    print("\n".join(lines), file=stream, flush=True)


def run(*command: str | Path, venv: Path = VENV, **variables: str) -> None:
    """Run a command and append its output to the environment's log.

    Raises:
        SetupError: If the command fails. The message has the lines of the output that say why.
    """
    environment = {name: value for name, value in os.environ.items() if name not in MISLEADING} | variables
    path = venv / LOG.name
    with path.open("a+") as log:
        print("$", *command, file=log, flush=True)
        begin = path.stat().st_size
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        ) as process:
            try:
                show_progress(process, path, begin)
            finally:  # if the user pressed Ctrl-C, or the disk is too small
                process.terminate()
                process.wait()
    if process.returncode:
        why = "\n  ".join(failure_lines(output_since(path, begin)))
        if any(text in why for text in FULL) or shutil.disk_usage(venv).free < 50e6:
            why += f"\n  The disk is full, or a quota is reached. {venv.name} needs {SIZES}."
        raise SetupError(f"{' '.join(map(str, command))} failed (exit {process.returncode}; log: {path}):\n  {why}")


def check_disk(gbytes: float, venv: Path = VENV) -> None:
    """Raise SetupError if less than this is free for the environment, which may have some packages already."""
    available = shutil.disk_usage(venv if venv.exists() else ROOT).free / 1e9 + megabytes(venv) / 1e3
    if available < gbytes:
        raise SetupError(
            f"{venv} needs {gbytes:g} GB of disk, downloads included, and {available:.1f} GB are available"
        )


def output_since(log: Path, begin: int) -> list[str]:
    """Return the lines of a log after its first `begin` bytes."""
    lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def failure_lines(lines: list[str]) -> list[str]:
    """Return the lines of a failed command's output that say why: pip's errors and conflicts, or the last line."""
    if "[end of output]" in lines:  # pip prints the whole output of a failed compilation
        return lines[: lines.index("[end of output]")][-5:]
    first = next((number for number, line in enumerate(lines) if line.startswith(("ERROR:", "E:"))), -1)
    lines = lines[first:]
    end = next((number for number, line in enumerate(lines) if line.startswith("To fix this")), len(lines))
    # One of pip's lines can be very long: it lists every release that needs another Python.
    return [line if len(line) < 400 else f"{line[:100]} … {line[-250:]}" for line in lines[:end][:20]]


def show_progress(process: subprocess.Popen[bytes], log: Path, begin: int) -> None:
    """Wait for a process and show the elapsed time, the size of the environment and pip's last action."""
    terminal, printed, shown, cuda = sys.stdout.isatty(), time.monotonic(), "", False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
            break
        lines = output_since(log, begin)
        if not cuda and any(re.match(r"(Collecting|Downloading) (nvidia|cuda)", line) for line in lines):
            cuda = True
            check_disk(CUDA_GB, log.parent)
            say(
                f"pip found torch only with CUDA: it downloads 2.8 GB and needs {CUDA_GB:g} GB of disk. "
                "To use a CPU build, press Ctrl-C and see docs/start/install.md"
            )
        action = next(filter(ACTION.match, reversed(lines)), "")
        if terminal or (action != shown and time.monotonic() - printed >= REPORT_SECONDS):
            printed, shown = time.monotonic(), action
            minutes, seconds = divmod(round(printed - STARTED), 60)
            text = f"setup:   {minutes}:{seconds:02}, {megabytes(log.parent):,} MB in {log.parent.name}: {action}"
            text = text[: shutil.get_terminal_size().columns - 1 if terminal else 160]
            print(CLEAR_LINE + text if terminal else text, end="" if terminal else "\n", flush=True)
    if terminal:
        print(CLEAR_LINE, end="", flush=True)


def megabytes(folder: Path) -> int:
    """Return the size of a folder's files. Links are not followed, and files that disappear meanwhile count as 0."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total // 1_000_000


def pip(*arguments: str, venv: Path = VENV, **variables: str) -> None:
    """Run pip in `venv` with constraints.txt, in its isolated build environments as well.

    Newer releases of pip read PIP_BUILD_CONSTRAINT for those.
    """
    pins = {"PIP_CONSTRAINT": "constraints.txt", "PIP_BUILD_CONSTRAINT": "constraints.txt"}
    options = {"PIP_PROGRESS_BAR": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    # Inside the environment, so that downloads count in its size, which is shown; and /tmp can be too small.
    scratch = venv / TEMPORARY.name
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    python = venv / "bin" / "python"
    try:
        run(python, "-m", "pip", *arguments, venv=venv, **{"TMPDIR": str(scratch), **pins, **options, **variables})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_in_venv(code: str) -> str:
    """Run Python code in .venv and return what it prints; "" if .venv does not work or the code fails."""
    try:
        return subprocess.run([PYTHON, "-Ic", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def read_stamp() -> dict[str, str]:
    """Return what the last complete run recorded; nothing if a full disk cut that short."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return dict(json.loads(STAMP.read_text()))
    return {}


def make_venv() -> None:
    """Create .venv unless a working one exists.

    A .venv that was copied from another folder does not count, because its scripts contain the path of that folder.
    """
    # pip's list of files is installed last. It is missing if creating .venv was interrupted.
    if run_in_venv("from importlib import metadata; print(len(metadata.files('pip')))") and read_stamp().get(
        "root", str(ROOT)
    ) == str(ROOT):
        return
    if not util.find_spec("ensurepip"):
        raise SetupError(
            "this Python cannot create environments. Run this, then make again:\n    apt-get install python3-venv"
        )
    say(f"1/3 .venv with Python {platform.python_version()}")
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(exist_ok=True)
    base = getattr(sys, "_base_executable", sys.executable)  # if it was that of .venv, sys.executable is removed now
    run(base, "-m", "venv", VENV)


def installed_pil() -> str:
    """Return the name of the PIL in .venv; "" if there is none, if there are two, or if a compiled module was changed.

    Installing a second PIL overwrites files of the first. Its compiled modules then no longer match their hashes.
    """
    sites = [str(site) for site in VENV.glob("lib/python3*/site-packages")]
    found = {name: dist for name in PILS for dist in metadata.distributions(name=name, path=sites)}
    if len(found) != 1:
        return ""
    [(name, dist)] = found.items()
    modules = [file for file in dist.files or () if file.match("PIL/*.so")]
    for module in modules:
        path = Path(str(module.locate()))
        digest = hashlib.sha256(path.read_bytes() if path.exists() else b"").digest()
        if module.hash is None or module.hash.value != base64.urlsafe_b64encode(digest).rstrip(b"=").decode():
            return ""
    return name if modules else ""


def compiler() -> list[str]:
    """Return the C compiler with its flags; -mavx2 is one of them if this CPU has AVX2."""
    info = Path("/proc/cpuinfo")
    wide = info.exists() and "avx2" in info.read_text().split()
    return [*shlex.split(os.environ.get("CC") or "cc"), *(["-mavx2"] if wide else [])]


def missing_dependencies(dependencies: Collection[BuildDependency] = REQUIRED) -> list[BuildDependency]:
    """Return the dependencies of pillow-simd that are missing here; all of them if there is no compiler."""
    include = run_in_venv("import sysconfig; print(sysconfig.get_path('include'))")

    def compiles(*dependencies: BuildDependency) -> bool:
        source = "\n".join(["#include <stdio.h>", *(dependency.code for dependency in dependencies)])
        with tempfile.TemporaryDirectory() as scratch:
            command = [*compiler(), "-shared", "-fPIC", f"-I{include}", "-o", f"{scratch}/probe.so", "-x", "c", "-"]
            command += [library for dependency in dependencies for library in dependency.libraries.split()]
            try:
                return not subprocess.run(command, input=source.encode(), capture_output=True).returncode
            except OSError:
                return False

    return [] if compiles(*dependencies) else [one for one in dependencies if not compiles(one)]


def apt_install(dependencies: Collection[BuildDependency]) -> None:
    """Install the Debian packages that contain these dependencies."""
    packages = " ".join(dependency.debian for dependency in dependencies).split()
    say(f"apt-get install {' '.join(packages)}")
    run("apt-get", "update", "-q")
    run("apt-get", "install", "-qy", "--no-install-recommends", *packages, DEBIAN_FRONTEND="noninteractive")


def install_command(dependencies: Collection[BuildDependency]) -> str:
    """Return the commands that install these dependencies, as the end of a message."""
    debian, fedora = (" ".join(getattr(one, system) for one in dependencies) for system in ("debian", "fedora"))
    return f"run one of these commands, then make again:\n    apt-get install {debian}\n    dnf install {fedora}"


def choose_pil(installed: str, *, apt: bool, failed: bool) -> str:
    """Return the fastest PIL that can be installed here. If that is stock Pillow and it is new, print the reason."""
    missing = missing_dependencies() if BEST_PIL == "pillow-simd" else []
    if missing and apt:
        apt_install(missing)
        missing = missing_dependencies()
    if not missing and not failed:
        return BEST_PIL
    why, remedy = f"pillow-simd did not compile (see {LOG})", f"run this, then make again:\n    rm {STAMP}"
    if missing:
        why, remedy = f"pillow-simd needs {', '.join(one.name for one in missing)}", install_command(missing)
    if installed != "pillow":
        say(f"installing stock Pillow, which decodes and resizes 1.6 times slower: {why}. To compile it, {remedy}")
    return "pillow"


def formats_to_add(*, apt: bool) -> tuple[str, ...]:
    """Return the optional formats that the PIL of .venv lacks and that pillow-simd could be compiled with here."""
    supported = run_in_venv(f"from PIL import features; print(*filter(features.check, {list(OPTIONAL)}))").split()
    wanted = {name: dependency for name, dependency in OPTIONAL.items() if name not in supported}
    missing = missing_dependencies(wanted.values()) if wanted else []
    if missing and apt:
        apt_install(missing)
        missing = missing_dependencies(wanted.values())
    return tuple(name for name, dependency in wanted.items() if dependency not in missing)


def update_pil(*, apt: bool, changed: bool, earlier: EarlierRuns) -> EarlierRuns:
    """Leave exactly one PIL in .venv, the fastest that can be installed; `changed`: the pins may have changed."""
    installed = installed_pil()
    wanted = BEST_PIL if installed == BEST_PIL else choose_pil(installed, apt=apt, failed=earlier.failed)
    formats = formats_to_add(apt=apt) if wanted == "pillow-simd" else ()
    recompile = installed == wanted and not set(formats) <= set(earlier.tried)
    if installed == wanted and not changed and not recompile:
        return earlier
    if installed != wanted or recompile:
        say(f"3/3 {wanted}" + (", compiled for this CPU: 1 to 10 minutes" if wanted == "pillow-simd" else ""))
    if installed != wanted:
        pip("uninstall", "-y", *PILS)
    # A wheel in pip's cache may be built for another CPU: without AVX2, or with instructions that this one lacks.
    options = ["--no-cache-dir", "--no-binary", "pillow-simd"] if wanted == "pillow-simd" else []
    options += ["--force-reinstall", "--no-deps"] if recompile else []  # keeps the old one if the compilation fails
    try:
        pip("install", "--no-compile", *options, wanted, CC=shlex.join(compiler()))
    except SetupError:
        if wanted == "pillow":
            raise
        return update_pil(apt=apt, changed=True, earlier=EarlierRuns(True, formats))
    if installed_pil() != wanted:
        raise SetupError(f"{wanted} was installed, but another PIL overwrote it; remove {VENV} and run make again")
    if wanted == "pillow-simd" and (lacking := missing_dependencies(OPTIONAL.values())):
        say(f"pillow-simd lacks {', '.join(one.name for one in lacking)}. To add it, {install_command(lacking)}")
    return earlier._replace(tried=formats or earlier.tried)


def exit_code(install: Callable[[], None]) -> int:
    """Call `install` and return the exit code. A failure or Ctrl-C prints one message."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        install()
    except SetupError as error:
        say(f"error: {error}", err=True)
        return 1
    except OSError as error:
        full = f" {VENV} needs {SIZES}." if error.strerror in FULL else ""
        say(f"error: {error}.{full}", err=True)
        return 1
    except KeyboardInterrupt:
        say("stopped; run the same command again to resume", err=True)
        return 130
    return 0


def remake(make: Callable[[], None], *, stamp: Path, inputs: Iterable[Path]) -> int:
    """Call `make` if any of the input files changed since `stamp` was written; return the exit code."""
    digest = hashlib.sha256(b"".join([str(ROOT).encode(), *(path.read_bytes() for path in inputs)])).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return 0
    code = exit_code(make)
    if not code:
        stamp.write_text(digest)
    return code


def install(level: str, *, apt: bool) -> None:
    """Bring .venv up to date with this level, or with its own if that is higher."""
    inputs = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in INPUTS)).hexdigest()
    if no_torch := not list(VENV.glob("lib/python3*/site-packages/torch")):
        check_disk(CPU_GB)
    make_venv()
    stamp = read_stamp()
    level = max(level, stamp.get("level", LEVELS[0]), key=LEVELS.index)
    if changed := (stamp.get("inputs"), stamp.get("level")) != (inputs, level):
        torch = f": pip downloads 0.2 GB, or 2.8 GB with CUDA, and needs {SIZES}" if no_torch else ""
        say(f"2/3 packages for `{level}`{torch}")
        if platform.machine() != "x86_64":
            say(f"note: decodeonce was tested on x86-64 and emulated aarch64, and this CPU is {platform.machine()}")
        # Python compiles the modules that are imported later. That takes half the time of compiling all of them.
        pip("install", "--no-compile", "-e", f".[{level}]")
        if level == "dev":
            pip("install", "--no-compile", "--no-deps", *WITHOUT_REQUIREMENTS)
    earlier = EarlierRuns(stamp.get("failed") == inputs, () if changed else tuple(stamp.get("tried", "").split()))
    earlier = update_pil(apt=apt, changed=changed, earlier=earlier)
    found = {"failed": inputs if earlier.failed else "", "tried": " ".join(earlier.tried)}
    STAMP.write_text(json.dumps({"root": str(ROOT), "inputs": inputs, "level": level, **found}))
    if changed:
        say(f".venv is ready after {time.monotonic() - STARTED:.0f} s: {megabytes(VENV):,} MB, with {installed_pil()}")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("level", nargs="?", choices=LEVELS, default=LEVELS[-1], help="what to install (default: dev)")
    parser.add_argument("--apt", action="store_true", help="install missing Debian packages with apt-get; needs root")
    options = parser.parse_args()
    return exit_code(lambda: install(options.level, apt=options.apt))


if __name__ == "__main__":
    sys.exit(main())
