"""Create `.venv` and install this project in it. It takes less than a second if `.venv` is up to date.

The level selects what is installed: demo (to run the project), test (to run its tests as well) or dev (everything).
A later run with a higher level adds packages to the same `.venv`.

pillow-simd is compiled for this machine's CPU. If that is not possible, stock Pillow is installed.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":  # before the imports, so that Ctrl-C during them prints no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from importlib import metadata, util
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "setup.json"
LEVELS = ("demo", "test", "dev")  # extras of pyproject.toml
STARTED = time.monotonic()
# GB of disk that an installation takes, downloads included, with a CPU build of torch and with CUDA.
CPU_GB, CUDA_GB = 1.2, 8.0
SIZES = f"{CPU_GB:g} GB with a CPU build of torch, {CUDA_GB:g} GB with PyPI's build for CUDA"
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


def say(text: str, *, err: bool = False) -> None:
    """Print a message."""
    print(f"setup: {text}", file=sys.stderr if err else sys.stdout, flush=True)


def run(*command: str | Path, **variables: str) -> None:
    """Run a command, which prints its output; raise SetupError if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in MISLEADING} | variables
    done = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SetupError(f"{' '.join(map(str, command))} failed (exit {done.returncode}); its output is above")


def pip(*arguments: str, venv: Path = VENV, **variables: str) -> None:
    """Run pip in `venv` with constraints.txt, in its isolated build environments as well.

    Newer releases of pip read PIP_BUILD_CONSTRAINT for those.
    """
    pins = {"PIP_CONSTRAINT": "constraints.txt", "PIP_BUILD_CONSTRAINT": "constraints.txt"}
    options = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    with tempfile.TemporaryDirectory(dir=venv) as scratch:  # /tmp can be too small
        run(venv / "bin" / "python", "-m", "pip", *arguments, **{"TMPDIR": scratch, **pins, **options, **variables})


def read_stamp() -> dict[str, str]:
    """Return what the last complete run recorded; nothing if a full disk cut that short."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return dict(json.loads(STAMP.read_text()))
    return {}


def make_venv() -> None:
    """Create .venv."""
    if not util.find_spec("ensurepip"):
        raise SetupError(
            "this Python cannot create environments. Run this, then make again:\n    apt-get install python3-venv"
        )
    if (free := shutil.disk_usage(ROOT).free / 1e9) < CPU_GB:
        raise SetupError(f"{VENV} needs {CPU_GB:g} GB of disk, downloads included, and {free:.1f} GB are available")
    say(f"1/3 .venv with Python {platform.python_version()}")
    shutil.rmtree(VENV, ignore_errors=True)
    base = getattr(sys, "_base_executable", sys.executable)  # if it was that of .venv, sys.executable is removed now
    done = subprocess.run(
        [base, "-m", "venv", VENV], capture_output=True, text=True, check=False
    )  # prints no traceback
    if done.returncode:
        raise SetupError(f"{VENV}: could not be created: {(done.stderr or done.stdout).strip()}")


def installed_pils() -> list[str]:
    """Return the names of the distributions of PIL in .venv, of which one should be installed."""
    sites = [str(site) for site in VENV.glob("lib/python3*/site-packages")]
    return [name for name in PILS for _ in metadata.distributions(name=name, path=sites)]


def compiler() -> list[str]:
    """Return the C compiler with its flags; -mavx2 is one of them if this CPU has AVX2."""
    info = Path("/proc/cpuinfo")
    wide = info.exists() and "avx2" in info.read_text().split()
    return [*shlex.split(os.environ.get("CC") or "cc"), *(["-mavx2"] if wide else [])]


def missing_dependencies(dependencies: Collection[BuildDependency] = REQUIRED) -> list[BuildDependency]:
    """Return the dependencies of pillow-simd that are missing here; all of them if there is no compiler."""
    include = sysconfig.get_path("include")

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


def install_pil(*, apt: bool) -> None:
    """Leave exactly one PIL in .venv, the fastest that can be installed here."""
    wanted, missing = BEST_PIL, list[BuildDependency]()
    if wanted == "pillow-simd":
        missing = missing_dependencies((*REQUIRED, *OPTIONAL.values()))
        if missing and apt:
            apt_install(missing)
            missing = missing_dependencies((*REQUIRED, *OPTIONAL.values()))
        if missing:
            say(f"pillow-simd needs {', '.join(one.name for one in missing)}: {install_command(missing)}")
        if {*missing} & {*REQUIRED}:
            wanted = "pillow"
    say(f"3/3 {wanted}" + (", compiled for this CPU: 1 to 10 minutes" if wanted == "pillow-simd" else ""))
    if installed_pils() != [wanted]:
        pip("uninstall", "-qy", *PILS)
    # A wheel in pip's cache may be built for another CPU: without AVX2, or with instructions that this one lacks.
    options = ["--no-cache-dir", "--no-binary", "pillow-simd"] if wanted == "pillow-simd" else []
    try:
        pip("install", "--no-compile", *options, wanted, CC=shlex.join(compiler()))
    except SetupError:
        if wanted == "pillow":
            raise
        wanted = "pillow"
        pip("install", "--no-compile", wanted)
    if wanted != BEST_PIL:
        again = f"to try pillow-simd again, run this, then make again:\n    rm {STAMP}"
        say(f"installed stock Pillow, which decodes and resizes 1.6 times slower; {again}")


def exit_code(install: Callable[[], None]) -> int:
    """Call `install` and return the exit code. A failure or Ctrl-C prints one message."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        install()
    except SetupError as error:
        say(f"error: {error}", err=True)
        return 1
    except OSError as error:
        say(f"error: {error}", err=True)
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
    stamp = read_stamp()
    # The scripts of a .venv that was copied from another folder contain the path of that folder.
    if stamp.get("root") != str(ROOT) or not (VENV / "bin" / "python").exists():
        stamp = {}
        make_venv()
    level = max(level, stamp.get("level", LEVELS[0]), key=LEVELS.index)
    made = {"root": str(ROOT), "inputs": inputs, "level": level}
    if stamp == made and len(installed_pils()) == 1:
        return
    say(f"2/3 packages for `{level}`: {SIZES}; docs/start/install.md says how to choose")
    if platform.machine() != "x86_64":
        say(f"note: decodeonce was tested on x86-64 and emulated aarch64, and this CPU is {platform.machine()}")
    # Python compiles the modules that are imported later. That takes half the time of compiling all of them.
    pip("install", "--no-compile", "-e", f".[{level}]")
    if level == "dev":
        pip("install", "--no-compile", "--no-deps", *WITHOUT_REQUIREMENTS)
    install_pil(apt=apt)
    STAMP.write_text(json.dumps(made))
    say(f".venv is ready after {time.monotonic() - STARTED:.0f} s, with {installed_pils()[0]}")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("level", nargs="?", choices=LEVELS, default=LEVELS[-1], help="what to install (default: dev)")
    parser.add_argument("--apt", action="store_true", help="install missing Debian packages with apt-get; needs root")
    options = parser.parse_args()
    return exit_code(lambda: install(options.level, apt=options.apt))


if __name__ == "__main__":
    sys.exit(main())
