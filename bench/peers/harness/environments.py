"""Environments in build/peers/environments: one with torch, and one for each peer that needs more or other packages.

For a build with another decoder than the peer's own, a folder of links to packages of another environment is used.

If a peer cannot be installed, it is left out, and a later run tries again.
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
Packages = Literal["ours", "stock"]


def find_python(name: str, peer: Peer, place: Path = PLACE) -> Path:
    """Return the Python of a peer's environment, which is created if necessary.

    Raises:
        SetupError: If it cannot be created.
    """
    if peer.over == "here":
        return Path(sys.executable)
    if peer.over == "nothing":
        return _peer_python(place / name, peer.requirements, None)
    base = _torch_python(place / "torch")
    return _peer_python(place / name, peer.requirements, base) if peer.requirements else base


def find_packages(which: Packages, place: Path = PLACE) -> Path:
    """Return a folder for PYTHONPATH with links to this project's decoder ("ours") or to stock Pillow ("stock")."""
    if which == "ours":
        python, names = Path(sys.executable), {"simplejpeg", "pillow-simd", "pillow"}
    else:
        python, names = _torch_python(place / "torch"), {"pillow"}
    [site] = python.parent.parent.glob("lib/python3*/site-packages")
    folder = place / f"packages-{which}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for found in distributions(path=[str(site)]):
        if found.name.lower().replace("_", "-") in names:
            for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
                (folder / top).symlink_to(site / top)
    return folder


def _torch_python(venv: Path) -> Path:
    """Return the Python of an environment with torch, torchvision, stock Pillow and this project without [prep]."""
    needed = {_name(line) for line in requires("decodeonce") or () if "extra ==" not in line}
    inputs = _pins({"pillow", "torchvision", *needed})
    if not _is_complete(venv, inputs):
        _say(f"creating the environment {venv.name}; it takes a minute, mostly for torch")
        _begin(venv)
        _install(venv, "-e", ".", "pillow", "torchvision", constraints="constraints.txt")
        _end(venv, inputs)
    return venv / PYTHON


def _pins(names: set[str]) -> str:
    """Return the lines of constraints.txt for these packages, so that other changes there do not recreate it."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join(line for line in lines if _name(line) in names)


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def _peer_python(venv: Path, requirements: str, base: Path | None) -> Path:
    """Return the Python of an environment with a peer's packages, which take precedence over those of `base`."""
    inputs = requirements + (_stamp(base.parent.parent).read_text() if base else "")
    if not _is_complete(venv, inputs):
        _say(f"creating the environment {venv.name}")
        _begin(venv)
        # Requirements are exact. Some differ from the releases in constraints.txt, so these are not used.
        _install(venv, "--no-deps", *requirements.split(), constraints="")
        if base:
            [shared] = base.parent.parent.glob("lib/python3*/site-packages")
            [own] = venv.glob("lib/python3*/site-packages")
            (own / "base.pth").write_text(f"{shared}\n")
        _end(venv, inputs)
    return venv / PYTHON


def apt_install(packages: list[str]) -> None:
    """Install Debian packages.

    Raises:
        SetupError: If that fails.
    """
    _say(f"apt-get install {' '.join(packages)}")
    run("apt-get", "update", "-q")
    run("apt-get", "install", "-qy", "--no-install-recommends", *packages, DEBIAN_FRONTEND="noninteractive")


def _stamp(venv: Path) -> Path:
    return venv / STAMP


def _digest(venv: Path, inputs: str) -> str:
    """Return a digest of the inputs and of the path, which is written into scripts."""
    return hashlib.sha256(f"{venv}\n{sys.version}\n{inputs}".encode()).hexdigest()


def _is_complete(venv: Path, inputs: str) -> bool:
    return _stamp(venv).exists() and _stamp(venv).read_text() == _digest(venv, inputs)


def _begin(venv: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    venv.mkdir(parents=True)
    # Without pip: this Python's pip installs the packages, which saves seconds.
    run(sys.executable, "-m", "venv", "--without-pip", venv)


def _install(venv: Path, *what: str, constraints: str) -> None:
    options = ("--python", venv / PYTHON, "--disable-pip-version-check", "--no-input")
    pins = {"PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": "constraints.txt"}
    run(sys.executable, "-m", "pip", *options, "install", *what, **pins)


def _end(venv: Path, inputs: str) -> None:
    _stamp(venv).write_text(_digest(venv, inputs))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


__all__ = ["Packages", "SetupError", "apt_install", "find_packages", "find_python"]
