"""Environments under build/peers/environments: one with torch, and one for each peer that needs more or other packages.

A build with another decoder than the peer's own gets it from a folder of links to packages of another environment.

A peer that does not install is left out in a line; a later run tries it again.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import Literal

from bench.peers.harness.peer import Peer
from tools.setup_env import ROOT, SetupError, run

PLACE = ROOT / "build" / "peers" / "environments"
PYTHON = Path("bin", "python")
STAMP = "installed.txt"
TORCHVISION = "torchvision==0.28.0"  # that of the torch in constraints.txt
Packages = Literal["ours", "stock"]


def find_python(name: str, peer: Peer, place: Path = PLACE) -> Path:
    """The Python to run a peer with, its environment made where it is not there; SetupError where that fails."""
    if peer.over == "here":
        return Path(sys.executable)
    if peer.over == "nothing":
        return _made(place / name, peer.requirements, None)
    base = _torch(place / "torch")
    return _made(place / name, peer.requirements, base) if peer.requirements else base


def find_packages(which: Packages, place: Path = PLACE) -> Path:
    """A folder of links to this project's decoder ("ours"), or to stock Pillow ("stock"), for PYTHONPATH."""
    if which == "ours":
        python, names = Path(sys.executable), {"simplejpeg", "pillow-simd", "pillow"}
    else:
        python, names = _torch(place / "torch"), {"pillow"}
    [site] = python.parent.parent.glob("lib/python3*/site-packages")
    folder = place / f"packages-{which}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for found in distributions(path=[str(site)]):
        if found.name.lower().replace("_", "-") in names:
            for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
                (folder / top).symlink_to(site / top)
    return folder


def _torch(venv: Path) -> Path:
    """torch, torchvision, stock Pillow and this project without [prep], as constraints.txt has them."""
    needed = {_name(line) for line in requires("decodeonce") or () if "extra ==" not in line}
    inputs = _pins({"pillow", *needed}) + TORCHVISION
    if not _is_made(venv, inputs):
        _say(f"making the environment {venv.name}: a minute, most of it for torch")
        _begin(venv)
        _install(venv, "-e", ".", "pillow", constraints="constraints.txt")
        _install(venv, "--no-deps", TORCHVISION, constraints="")
        _end(venv, inputs)
    return venv / PYTHON


def _pins(names: set[str]) -> str:
    """The lines of constraints.txt for these; others that change make no environment anew."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join(line for line in lines if _name(line) in names)


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def _made(venv: Path, requirements: str, base: Path | None) -> Path:
    """A peer's own packages; those of `base` are there, too, behind its own."""
    inputs = requirements + (_stamp(base.parent.parent).read_text() if base else "")
    if not _is_made(venv, inputs):
        _say(f"making the environment {venv.name}")
        _begin(venv)
        # Exact as they are, and some of another release than the project's own tools have.
        _install(venv, "--no-deps", *requirements.split(), constraints="")
        if base:
            [behind] = base.parent.parent.glob("lib/python3*/site-packages")
            [own] = venv.glob("lib/python3*/site-packages")
            (own / "base.pth").write_text(f"{behind}\n")
        _end(venv, inputs)
    return venv / PYTHON


def apt_install(packages: list[str]) -> None:
    """Install Debian packages; SetupError where that fails."""
    log = PLACE / "apt"
    log.mkdir(parents=True, exist_ok=True)
    _say(f"apt-get install {' '.join(packages)}")
    run("apt-get", "update", "-q", venv=log)
    run("apt-get", "install", "-qy", "--no-install-recommends", *packages, venv=log, DEBIAN_FRONTEND="noninteractive")


def _stamp(venv: Path) -> Path:
    return venv / STAMP


def _digest(venv: Path, inputs: str) -> str:
    """Of what went in, and of the place, which is written into scripts."""
    return hashlib.sha256(f"{venv}\n{sys.version}\n{inputs}".encode()).hexdigest()


def _is_made(venv: Path, inputs: str) -> bool:
    return _stamp(venv).exists() and _stamp(venv).read_text() == _digest(venv, inputs)


def _begin(venv: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    venv.mkdir(parents=True)
    run(sys.executable, "-m", "venv", "--without-pip", venv, venv=venv)  # this Python's pip installs: seconds less


def _install(venv: Path, *what: str, constraints: str) -> None:
    options = ("--python", venv / PYTHON, "--disable-pip-version-check", "--no-input")
    pins = {"PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": "constraints.txt"}
    run(sys.executable, "-m", "pip", *options, "install", *what, venv=venv, **pins)


def _end(venv: Path, inputs: str) -> None:
    _stamp(venv).write_text(_digest(venv, inputs))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


__all__ = ["Packages", "SetupError", "apt_install", "find_packages", "find_python"]
