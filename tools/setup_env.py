"""Make `.venv` and install this project in it for development; under a second when nothing is to be done.

pillow-simd is compiled for this machine's CPU. Where that cannot be, stock Pillow goes in, and a later run tries again;
so it does where headers of WebP or TIFF have come since.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
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
    """Run a command with its output into the environment's log; SetupError with the line that tells why it failed."""
    environment = {name: value for name, value in os.environ.items() if name not in MISLEADING} | variables
    path = venv / LOG.name
    with path.open("a+") as log:
        print("$", *command, file=log, flush=True)
        status = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        ).returncode
    if status:
        lines = [line.strip() for line in path.read_text(errors="replace").rpartition("\n$ ")[2].splitlines()]
        # Where pip shows a build's output whole, the last line of that says more than pip's own.
        lines = lines[: lines.index("[end of output]")] if "[end of output]" in lines else lines
        telling = [line for line in lines if line.startswith(("ERROR:", "E:"))] or [line for line in lines if line]
        raise SetupError(f"{' '.join(map(str, command))}: {telling[-1]} (exit {status}; all of it in {path})")


def pip(*arguments: str, venv: Path = VENV, **variables: str) -> None:
    """Run pip in .venv, its build environments under the constraints too (newer releases have a variable for those)."""
    pins = {"PIP_CONSTRAINT": "constraints.txt", "PIP_BUILD_CONSTRAINT": "constraints.txt"}
    python = venv / "bin" / "python"
    options = ("--disable-pip-version-check", "--no-input")
    run(python, "-m", "pip", *options, *arguments, venv=venv, **{**pins, **variables})


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
    say(f"making .venv with Python {platform.python_version()}")
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


def choose_pil(*, apt: bool, failed: bool) -> str:
    """The best PIL that can be installed here; says why where that is not the best there is."""
    missing = missing_pieces() if BEST_PIL == "pillow-simd" else []
    if missing and apt:
        apt_install(missing)
        missing = missing_pieces()
    if not missing and not failed:
        return BEST_PIL
    why, remedy = f"pillow-simd did not compile (see {LOG})", f"remove {STAMP} and run make again"
    if missing:
        why, remedy = f"pillow-simd needs {', '.join(piece.name for piece in missing)}", cure(missing)
    say(f"stock Pillow, 1.6 times slower at decoding and resizing: {why}; {remedy}")
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
    wanted = BEST_PIL if live == BEST_PIL else choose_pil(apt=apt, failed=past.failed)
    gain = formats_to_gain(apt=apt) if wanted == "pillow-simd" else ()
    again = live == wanted and not set(gain) <= set(past.tried)
    if live == wanted and not changed and not again:
        return past
    if live != wanted or again:
        say(f"installing {wanted}" + (", compiled for this CPU: half a minute" if wanted == "pillow-simd" else ""))
    if live != wanted:
        pip("uninstall", "-y", *PILS)
    # A wheel in pip's cache may come from another CPU, without AVX2 or with more than this one has.
    options = ["--no-cache-dir", "--no-binary", "pillow-simd"] if wanted == "pillow-simd" else []
    options += ["--force-reinstall", "--no-deps"] if again else []  # the old one stays where this fails
    try:
        pip("install", *options, wanted, CC=shlex.join(compiler()))
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
    parser.add_argument("--apt", action="store_true", help="install missing Debian packages with apt-get; needs root")
    apt = parser.parse_args().apt
    started = time.monotonic()
    inputs = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in INPUTS)).hexdigest()
    try:
        make_venv()
        stamp = read_stamp()
        if changed := stamp.get("inputs") != inputs:
            say("installing decodeonce and its tools; the first time takes minutes, most of them for torch")
            pip("install", "-e", ".[dev]", "simplejpeg")
        known = Past(stamp.get("failed") == inputs, () if changed else tuple(stamp.get("tried", "").split()))
        past = settle_pil(apt=apt, changed=changed, past=known)
    except SetupError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return 1
    found = {"failed": inputs if past.failed else "", "tried": " ".join(past.tried)}
    STAMP.write_text(json.dumps({"root": str(ROOT), "inputs": inputs, **found}))
    if changed:
        say(f".venv is ready after {time.monotonic() - started:.0f} s, with {live_pil()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
