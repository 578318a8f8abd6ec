"""Make `.venv` and install this project in it; under a second when nothing is to be done.

The level says what for: demo (run it), test (run its tests, too) or dev (everything). A later run for a higher level
adds to the same `.venv`.

pillow-simd is compiled for this machine's CPU. Where that cannot be, stock Pillow goes in, and a later run tries again;
so it does where headers of WebP or TIFF have come since.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
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
# Seconds between two lines about a command that runs, where they do not go to a terminal.
REPORT_SECONDS = 15
# What pip prints when it begins something.
ACTION = re.compile(r"Collecting|Downloading|Processing|Preparing|Building|Installing|WARNING: Retrying")
INPUTS = ("pyproject.toml", "constraints.txt", "tools/setup_env.py")
PILS = ("pillow", "pillow-simd")
BEST_PIL = "pillow-simd" if (sys.platform, platform.machine()) == ("linux", "x86_64") else "pillow"
# Each of these would have pip install elsewhere than in .venv, or Python read modules from elsewhere.
MISLEADING = ("PYTHONHOME", "PYTHONPATH", "PIP_PREFIX", "PIP_ROOT", "PIP_TARGET", "PIP_USER")


class SetupError(Exception):
    """What went wrong and the next step, in one line."""


class Piece(NamedTuple):
    """One thing that compiling pillow-simd takes: C that needs it, its libraries, and the packages it comes in."""

    name: str
    code: str
    libraries: str
    debian: str
    fedora: str


PIECES = (
    Piece("a C compiler", "", "-lc", "gcc libc6-dev", "gcc"),
    Piece("Python.h", "#include <Python.h>", "-lc", "python3-dev", "python3-devel"),
    Piece("jpeglib.h", "#include <jpeglib.h>", "-ljpeg", "libjpeg-dev", "libjpeg-turbo-devel"),
    Piece("zlib.h", "#include <zlib.h>", "-lz", "zlib1g-dev", "zlib-devel"),
)
# Formats that it can do without, by what PIL.features calls them: pillow-simd's own setup.py takes those it finds.
OPTIONAL = {
    "webp": Piece(
        "WebP",
        "#include <webp/encode.h>\n#include <webp/mux.h>\n#include <webp/demux.h>",
        "-lwebp -lwebpmux -lwebpdemux",
        "libwebp-dev",
        "libwebp-devel",
    ),
    "libtiff": Piece("compressed TIFF", "#include <tiffio.h>", "-ltiff", "libtiff-dev", "libtiff-devel"),
}


class Past(NamedTuple):
    """What runs with these pins found: whether pillow-simd failed to compile, and with which formats it was tried."""

    failed: bool = False
    tried: tuple[str, ...] = ()


def say(text: str) -> None:
    """One line for the person who waits."""
    print(f"setup: {text}", flush=True)


def run(*command: str | Path, venv: Path = VENV, **variables: str) -> None:
    """Run a command, its output in the environment's log; raise SetupError with the lines that say why it failed."""
    environment = {name: value for name, value in os.environ.items() if name not in MISLEADING} | variables
    path = venv / LOG.name
    with path.open("a+") as log:
        print("$", *command, file=log, flush=True)
        begin = path.stat().st_size
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        ) as process:
            show_progress(process, path, begin)
    if process.returncode:
        why = "\n  ".join(telling_lines(output_since(path, begin)))
        raise SetupError(f"{' '.join(map(str, command))} failed (exit {process.returncode}; log: {path}):\n  {why}")


def output_since(log: Path, begin: int) -> list[str]:
    """The lines that a log got since it had so many bytes."""
    lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def telling_lines(lines: list[str]) -> list[str]:
    """Those lines of a failed command's output that say why: pip's errors with the conflict they name, or the last."""
    if "[end of output]" in lines:  # pip shows a failed compilation's output whole
        return lines[: lines.index("[end of output]")][-5:]
    first = next((number for number, line in enumerate(lines) if line.startswith(("ERROR:", "E:"))), -1)
    lines = lines[first:]
    end = next((number for number, line in enumerate(lines) if line.startswith("To fix this")), len(lines))
    # One of pip's lines lists every release that needs another Python.
    return [line if len(line) < 400 else f"{line[:100]} … {line[-250:]}" for line in lines[:end][:20]]


def show_progress(process: subprocess.Popen[bytes], log: Path, begin: int) -> None:
    """Wait for a process; show the elapsed time, the size of the environment and the last line of the log meanwhile."""
    terminal, shown, cuda = sys.stdout.isatty(), time.monotonic(), False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
            break
        lines = output_since(log, begin)
        if not cuda and any(re.match(r"(Collecting|Downloading) (nvidia|cuda)", line) for line in lines):
            cuda = True
            say("pip found torch with CUDA only: about 2.5 GB to download, 5.5 GB in .venv")
        if terminal or time.monotonic() - shown >= REPORT_SECONDS:
            shown = time.monotonic()
            minutes, seconds = divmod(round(shown - STARTED), 60)
            text = f"setup:   {minutes}:{seconds:02}, {megabytes(log.parent):,} MB in {log.parent.name}: "
            text += next(filter(ACTION.match, reversed(lines)), "")
            text = text[: shutil.get_terminal_size().columns - 1 if terminal else 160]
            print(f"\r\x1b[K{text}" if terminal else text, end="" if terminal else "\n", flush=True)
    if terminal:
        print("\r\x1b[K", end="", flush=True)


def megabytes(folder: Path) -> int:
    """The size of a folder's files, without following links; files that vanish meanwhile count as none."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total // 1_000_000


def pip(*arguments: str, venv: Path = VENV, **variables: str) -> None:
    """Run pip in .venv, its build environments under the constraints too (newer releases have a variable for those)."""
    pins = {"PIP_CONSTRAINT": "constraints.txt", "PIP_BUILD_CONSTRAINT": "constraints.txt", "PIP_PROGRESS_BAR": "off"}
    python = venv / "bin" / "python"
    options = ("--disable-pip-version-check", "--no-input")
    scratch = venv / TEMPORARY.name  # where downloads show in the size of the environment, and /tmp may be small
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        run(
            python,
            "-m",
            "pip",
            *arguments[:1],
            *options,
            *arguments[1:],
            venv=venv,
            TMPDIR=str(scratch),
            **{**pins, **variables},
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def answer(code: str) -> str:
    """What this code prints in .venv; "" where that does not run or the code fails."""
    try:
        return subprocess.run([PYTHON, "-Ic", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def read_stamp() -> dict[str, str]:
    """What the last run that came to its end left."""
    return dict(json.loads(STAMP.read_text())) if STAMP.exists() else {}


def make_venv() -> None:
    """Make .venv unless there is one that works; one copied here from elsewhere has the other place in its scripts."""
    if answer("import pip; print(1)") and read_stamp().get("root", str(ROOT)) == str(ROOT):
        return
    if not util.find_spec("ensurepip"):
        raise SetupError("this Python cannot make environments; apt-get install python3-venv, then run make again")
    say(f"1/3 .venv with Python {platform.python_version()}")
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(exist_ok=True)
    base = getattr(sys, "_base_executable", sys.executable)  # the running one may just have been removed
    run(base, "-m", "venv", VENV)


def live_pil() -> str:
    """The one PIL installed in .venv, its compiled modules as they came; "" for none, for two, or for a mixture."""
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
    """The C compiler with its flags: for AVX2 where this CPU has it."""
    info = Path("/proc/cpuinfo")
    wide = info.exists() and "avx2" in info.read_text().split()
    return [*shlex.split(os.environ.get("CC") or "cc"), *(["-mavx2"] if wide else [])]


def missing_pieces(pieces: Collection[Piece] = PIECES) -> list[Piece]:
    """What is not there of what pillow-simd is compiled with; all of it where the compiler is not."""
    include = answer("import sysconfig; print(sysconfig.get_path('include'))")

    def compiles(*pieces: Piece) -> bool:
        source = "\n".join(["#include <stdio.h>", *(piece.code for piece in pieces)])
        with tempfile.TemporaryDirectory() as scratch:
            command = [*compiler(), "-shared", "-fPIC", f"-I{include}", "-o", f"{scratch}/probe.so", "-x", "c", "-"]
            command += [library for piece in pieces for library in piece.libraries.split()]
            try:
                return not subprocess.run(command, input=source.encode(), capture_output=True).returncode
            except OSError:
                return False

    return [] if compiles(*pieces) else [piece for piece in pieces if not compiles(piece)]


def apt_install(pieces: Collection[Piece]) -> None:
    """Install the Debian packages of these."""
    packages = " ".join(piece.debian for piece in pieces).split()
    say(f"apt-get install {' '.join(packages)}")
    run("apt-get", "update", "-q")
    run("apt-get", "install", "-qy", "--no-install-recommends", *packages, DEBIAN_FRONTEND="noninteractive")


def cure(pieces: Collection[Piece]) -> str:
    """What a person types to have these."""
    debian, fedora = " ".join(piece.debian for piece in pieces), " ".join(piece.fedora for piece in pieces)
    return f"apt-get install {debian} (Fedora, RHEL: dnf install {fedora}), then run make again"


def choose_pil(live: str, *, apt: bool, failed: bool) -> str:
    """The best PIL that can be installed here; if that is not the best there is, say why when it is installed."""
    missing = missing_pieces() if BEST_PIL == "pillow-simd" else []
    if missing and apt:
        apt_install(missing)
        missing = missing_pieces()
    if not missing and not failed:
        return BEST_PIL
    why, remedy = f"pillow-simd did not compile (see {LOG})", f"remove {STAMP} and run make again"
    if missing:
        why, remedy = f"pillow-simd needs {', '.join(piece.name for piece in missing)}", cure(missing)
    if live != "pillow":
        say(f"stock Pillow decodes and resizes 1.6 times slower than pillow-simd, but {why}. For pillow-simd: {remedy}")
    return "pillow"


def formats_to_gain(*, apt: bool) -> tuple[str, ...]:
    """The optional formats that the PIL of .venv does not read and that pillow-simd could be compiled with here."""
    read = answer(f"from PIL import features; print(*filter(features.check, {list(OPTIONAL)}))").split()
    wanted = {name: piece for name, piece in OPTIONAL.items() if name not in read}
    missing = missing_pieces(wanted.values()) if wanted else []
    if missing and apt:
        apt_install(missing)
        missing = missing_pieces(wanted.values())
    return tuple(name for name, piece in wanted.items() if piece not in missing)


def settle_pil(*, apt: bool, changed: bool, past: Past) -> Past:
    """Leave exactly one PIL in .venv, the best to be had; `changed`: the pins may have."""
    live = live_pil()
    wanted = BEST_PIL if live == BEST_PIL else choose_pil(live, apt=apt, failed=past.failed)
    gain = formats_to_gain(apt=apt) if wanted == "pillow-simd" else ()
    again = live == wanted and not set(gain) <= set(past.tried)
    if live == wanted and not changed and not again:
        return past
    if live != wanted or again:
        say(f"3/3 {wanted}" + (", compiled for this CPU" if wanted == "pillow-simd" else ""))
    if live != wanted:
        pip("uninstall", "-y", *PILS)
    # A wheel in pip's cache may come from another CPU, without AVX2 or with more than this one has.
    options = ["--no-cache-dir", "--no-binary", "pillow-simd"] if wanted == "pillow-simd" else []
    options += ["--force-reinstall", "--no-deps"] if again else []  # the old one stays where this fails
    try:
        pip("install", "--no-compile", *options, wanted, CC=shlex.join(compiler()))
    except SetupError:
        if wanted == "pillow":
            raise
        return settle_pil(apt=apt, changed=True, past=Past(True, gain))
    if live_pil() != wanted:
        raise SetupError(f"{wanted} was installed, but another PIL lies over it; remove {VENV} and run make again")
    if wanted == "pillow-simd" and (lacking := missing_pieces(OPTIONAL.values())):
        say(f"pillow-simd without {', '.join(piece.name for piece in lacking)}, for which: {cure(lacking)}")
    return past._replace(tried=gain or past.tried)


def remake(make: Callable[[], None], *, stamp: Path, inputs: Iterable[Path]) -> int:
    """Make another environment anew where any of these files changed since the stamp: exit code 0, or 1 as told."""
    digest = hashlib.sha256(b"".join([str(ROOT).encode(), *(path.read_bytes() for path in inputs)])).hexdigest()
    try:
        if not stamp.exists() or stamp.read_text() != digest:
            make()
    except SetupError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return 1
    stamp.write_text(digest)
    return 0


def main() -> int:
    """Bring .venv up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("level", nargs="?", choices=LEVELS, default=LEVELS[-1], help="what to install (default: dev)")
    parser.add_argument("--apt", action="store_true", help="install missing Debian packages with apt-get; needs root")
    options = parser.parse_args()
    inputs = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in INPUTS)).hexdigest()
    try:
        make_venv()
        stamp = read_stamp()
        level = max(options.level, stamp.get("level", LEVELS[0]), key=LEVELS.index)
        if changed := (stamp.get("inputs"), stamp.get("level")) != (inputs, level):
            torch = (
                ""
                if list(VENV.glob("lib/python3*/site-packages/torch"))
                else "; with torch: 0.2 GB to download for CPUs only, 2.5 GB with CUDA"
            )
            say(f"2/3 packages for `{level}`{torch}")
            pip("install", "--no-compile", "-e", f".[{level}]")  # Python compiles what is imported, in half the time
        known = Past(stamp.get("failed") == inputs, () if changed else tuple(stamp.get("tried", "").split()))
        past = settle_pil(apt=options.apt, changed=changed, past=known)
    except SetupError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return 1
    found = {"failed": inputs if past.failed else "", "tried": " ".join(past.tried)}
    STAMP.write_text(json.dumps({"root": str(ROOT), "inputs": inputs, "level": level, **found}))
    if changed:
        say(f".venv is ready after {time.monotonic() - STARTED:.0f} s: {megabytes(VENV):,} MB, with {live_pil()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
